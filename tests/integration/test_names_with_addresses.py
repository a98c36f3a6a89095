"""A name server's name that has several addresses: a broker is registered at all of them, and keeps up with changes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rocketcore import addresses, aio
from rocketcore.client.sync import Producer
from rocketcore.errors import RequestTimeout
from rocketcore.local import LocalCluster
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.transport import lookup
from tests.fixtures.waiting import until
from tests.integration.broker_client import running_broker


class Resolver:
    """Says what ``ns.test`` stands for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ips: str) -> None:
        self.ips = ips
        self._real = socket.getaddrinfo
        monkeypatch.setattr(lookup.socket, "getaddrinfo", self._find)  # type: ignore[attr-defined]

    def _find(self, host: Any, port: Any, *arguments: Any, **options: Any) -> list[Any]:
        if host not in ("ns.test", b"ns.test"):
            return self._real(host, port, *arguments, **options)
        if options.get("flags", 0) & socket.AI_NUMERICHOST or not self.ips:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        return [found for ip in self.ips for found in self._real(ip, port, *arguments, **options)]


def knows(server: NameServer) -> bool:
    return "broker-a" in server.routes.cluster_info().broker_addr_table


def play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: tuple[str, ...], then: tuple[str, ...], known: set[str]
) -> dict[str, object]:
    """Start name servers at 127.0.0.2 to 4, and a broker of ``ns.test``; return what it says when it is ready."""
    resolver = Resolver(monkeypatch, *first)

    async def main() -> dict[str, object]:
        async with AsyncExitStack() as stack:
            servers: dict[str, NameServer] = {}
            port = 0
            for ip in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
                config = NameServerConfig(listen_port=port, bind_address=ip, rocketmq_home=tmp_path / ip)
                servers[ip] = await stack.enter_async_context(NameServer(config))
                port = addresses.split(servers[ip].address)[1]
            client = await stack.enter_async_context(running_broker(tmp_path / "b", namesrv=f"ns.test:{port}"))
            outer = client.broker._outer
            assert outer is not None
            ready = client.broker.ready()
            resolver.ips = then
            await outer._find(f"ns.test:{port}")
            await asyncio.to_thread(until, lambda: known == {ip for ip, server in servers.items() if knows(server)})
            return ready

    return asyncio.run(asyncio.wait_for(main(), 60))


TWO = ("127.0.0.2", "127.0.0.3")


@pytest.mark.parametrize(
    ("first", "then", "known"),
    [
        (TWO, TWO, {*TWO}),
        (TWO, (), {*TWO}),  # the resolver is away: what is known stays
        (("127.0.0.2",), ("127.0.0.2", "127.0.0.3", "127.0.0.4"), {"127.0.0.2", "127.0.0.3", "127.0.0.4"}),
        (("127.0.0.2", "127.0.0.9"), ("127.0.0.2", "127.0.0.9"), {"127.0.0.2"}),
        (("::1", "127.0.0.2"), ("::1", "127.0.0.2"), {"127.0.0.2"}),
    ],
)
def test_a_broker_is_registered_at_each_address(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    first: tuple[str, ...],
    then: tuple[str, ...],
    known: set[str],
) -> None:
    with caplog.at_level(logging.WARNING):
        ready = play(tmp_path, monkeypatch, first, then, known)
    assert ready["name_servers"] == {"asked": 1, "registered_at": 1}
    assert not [record for record in caplog.records if "outer_api" in record.name], (
        "an address that refuses is no alarm"
    )


@pytest.mark.parametrize("blocking", [False, True])
def test_a_client_leaves_an_address_that_hangs(
    cluster: LocalCluster, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    """What takes connections and answers nothing is behind the first address: one call fails, and the next does not."""
    topic, (_, port) = make_topic(), addresses.split(cluster.namesrv)
    Resolver(monkeypatch, "127.0.0.7", "127.0.0.1")

    async def ask() -> None:
        async with aio.Producer(f"ns.test:{port}", group="p", timeout=1.0) as producer:
            with pytest.raises(RequestTimeout):
                await producer.send(topic, b"1", timeout=1.0)
            assert await producer.send(topic, b"1", timeout=20.0)

    with socket.create_server(("127.0.0.7", port)):
        if not blocking:
            asyncio.run(ask())
            return
        with Producer(f"ns.test:{port}", group="p", timeout=1.0) as producer:
            with pytest.raises(RequestTimeout):
                producer.send(topic, b"1", timeout=1.0)
            assert producer.send(topic, b"1", timeout=20.0)
