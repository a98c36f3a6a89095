"""Connections of a Spark worker: one for each set of options, over TLS where it is asked for, few at a time."""

from __future__ import annotations

import os

import pytest

from rocketcore import LocalCluster
from rocketcore.client.loop_client import LoopClient
from rocketcore.errors import RequestNotSupported, RocketError, TransportError
from rocketcore.spark.connection import KEPT_CONNECTIONS, connect
from rocketcore.spark.options import SourceOptions, parse_options
from tests.fixtures.tls import FOLDER, server_tls
from tests.integration.remoting_server import TestServer


def connected(name_server: str, **options: str) -> LoopClient:
    return connect(parse_options(SourceOptions, {"topic": "T", "nameServer": name_server, **options}))


def ask_route(connection: LoopClient) -> None:
    connection.run(connection.instance.route("no-such-topic"))


def test_a_connection_serves_the_options_that_it_was_made_for(cluster: LocalCluster) -> None:
    """A table with requestTimeoutMs=500 got another one's connection with a limit of 60 s."""
    first = connected(cluster.namesrv, requestTimeoutMs="60000")
    assert connected(cluster.namesrv, requestTimeoutMs="60000", groupId="other") is first
    second = connected(cluster.namesrv, requestTimeoutMs="500")
    assert second is not first
    assert (first.instance.config.timeout, second.instance.config.timeout) == (60.0, 0.5)
    others = [
        connected(cluster.namesrv, requestTimeoutMs="500", **more)
        for more in (
            {"tls": "true"},
            {"tls": "true", "tlsVerify": "false"},
            {"brokerAddressMap": '{"a:1": "b:2"}'},
            {"accessKey": "a", "secretKey": "b"},
        )
    ]
    assert len({id(connection) for connection in (first, second, *others)}) == 6


def test_few_are_kept(cluster: LocalCluster) -> None:
    first = connected(cluster.namesrv, requestTimeoutMs="7001")
    with pytest.raises(RocketError, match="no-such-topic"):
        ask_route(first)
    for number in range(KEPT_CONNECTIONS):
        last = connected(cluster.namesrv, requestTimeoutMs=f"{8000 + number}")
    assert connected(cluster.namesrv, requestTimeoutMs=f"{8000 + KEPT_CONNECTIONS - 1}") is last
    with pytest.raises(RocketError, match="closed"):
        ask_route(first)
    assert connected(cluster.namesrv, requestTimeoutMs="7001") is not first


def test_tls() -> None:
    with TestServer(tls=server_tls("enforcing")) as server:
        files = {"tlsCaFile": str(FOLDER / "ca.crt")}
        with pytest.raises(RequestNotSupported):  # it is no name server, but it has answered
            ask_route(connected(server.address, tls="true", **files))
        with pytest.raises(TransportError):
            ask_route(connected(server.address, requestTimeoutMs="1000"))
        with pytest.raises(TransportError, match="certificate"):
            ask_route(connected(server.address, tls="true", requestTimeoutMs="1000"))


def test_a_forked_worker_makes_its_own(cluster: LocalCluster) -> None:
    """Spark's daemon forks workers; the parent's loop has no thread in a child."""
    parent = connected(cluster.namesrv)
    child = os.fork()
    if not child:
        status = 1
        try:
            own = connected(cluster.namesrv)
            try:
                ask_route(own)
            except RocketError as error:
                status = 0 if own is not parent and "no-such-topic" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(RocketError, match="no-such-topic"):
        ask_route(parent)
