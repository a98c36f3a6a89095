"""A whole cluster over IPv6, and one over TLS: name server, broker, producers, consumers, administration."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store.config import StoreConfig
from rocketcore.errors import ConnectError, TransportError
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.transport.client import split_address
from rocketcore.transport.exchange import socket_address
from tests.fixtures.tls import CLIENT_CERTIFICATE, FOLDER, client_tls, server_tls

SEGMENT_BYTES = 8 << 20


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


@asynccontextmanager
async def cluster(folder: Path, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[tuple[NameServer, Broker]]:
    names = NameServerConfig(bind_address=host, listen_port=0, rocketmq_home=folder)
    async with NameServer(names, **options) as name_server:
        config = BrokerConfig(bind_address=host, listen_port=0, namesrv_addr=name_server.address, broker_name="a")
        store = StoreConfig(store_path_root_dir=folder / "store", mapped_file_size_commit_log=SEGMENT_BYTES)
        async with Broker(config, store, **options) as broker:
            yield name_server, broker


async def send_and_consume(namesrv: str, options: Mapping[str, Any]) -> list[rmq.ReceivedMessage]:
    """Send by both producers and return what a push consumer gets of it."""
    received: list[rmq.ReceivedMessage] = []
    complete = asyncio.Event()

    def send_blocking() -> None:
        with rmq.Producer(namesrv, **options) as producer:
            producer.send("T", b"blocking")

    async with aio.Producer(namesrv, **options) as producer:
        await producer.send("T", b"asyncio")
        await asyncio.to_thread(send_blocking)
    async with aio.PushConsumer(namesrv, group="g", start_from="first", **options) as consumer:

        async def keep(message: rmq.ReceivedMessage) -> None:
            received.append(message)
            if len(received) == 2:
                complete.set()

        consumer.subscribe("T")(keep)
        await complete.wait()
    return received


def topics(namesrv: str, options: Mapping[str, Any]) -> list[str]:
    with rmq.Admin(namesrv, **options) as admin:
        return admin.topics()


@ipv6
def test_a_cluster_over_ipv6(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(60), cluster(tmp_path, "::1") as (name_server, broker):
            assert name_server.address == f"[::1]:{name_server.port}"
            assert broker.address == f"[::1]:{broker.port}"
            received = await send_and_consume(name_server.address, {})
            assert sorted(message.body for message in received) == [b"asyncio", b"blocking"]
            for message in received:
                assert message.born_host.startswith("[::1]:")
                assert message.store_host == broker.address
                # 16 bytes of address and 4 of port before the offset, in hexadecimal.
                assert len(message.offset_msg_id) == 2 * (16 + 4 + 8)
            assert "T" in await asyncio.to_thread(topics, name_server.address, {})

    asyncio.run(scenario())


@ipv6
def test_tls_over_ipv6(tmp_path: Path) -> None:
    async def scenario() -> None:
        tls: dict[str, Any] = {"tls": server_tls("enforcing"), "client_tls": client_tls()}
        async with asyncio.timeout(60), cluster(tmp_path, "::1", **tls) as (name_server, _):
            assert len(await send_and_consume(name_server.address, {"tls": client_tls()})) == 2

    asyncio.run(scenario())


@ipv6
def test_addresses_of_ipv6() -> None:
    assert socket_address(("::1", 80, 0, 0)) == "[::1]:80"
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address("[fe80::1%eth0]:80") == ("fe80::1%eth0", 80)


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_a_cluster_over_tls(tmp_path: Path, mode: str) -> None:
    """The broker registers over TLS, too; plain clients are served by permissive servers only."""

    async def scenario() -> None:
        tls: dict[str, Any] = {"tls": server_tls(mode), "client_tls": client_tls()}
        async with asyncio.timeout(60), cluster(tmp_path, **tls) as (name_server, _):
            received = await send_and_consume(name_server.address, {"tls": client_tls()})
            assert sorted(message.body for message in received) == [b"asyncio", b"blocking"]
            assert "T" in await asyncio.to_thread(topics, name_server.address, {"tls": client_tls()})
            if mode == "permissive":
                assert "T" in await asyncio.to_thread(topics, name_server.address, {})
            else:
                with pytest.raises(TransportError):
                    await asyncio.to_thread(topics, name_server.address, {})
            with pytest.raises(ConnectError, match="certificate verify failed"):
                await asyncio.to_thread(topics, name_server.address, {"tls": True})

    asyncio.run(scenario())


def test_a_cluster_that_wants_certificates_of_its_clients(tmp_path: Path) -> None:
    async def scenario() -> None:
        own = client_tls(**CLIENT_CERTIFICATE)
        servers = server_tls("enforcing", client_auth="require", verify_clients=True, ca_file=FOLDER / "ca.crt")
        async with asyncio.timeout(60), cluster(tmp_path, tls=servers, client_tls=own) as (name_server, _):
            assert len(await send_and_consume(name_server.address, {"tls": own})) == 2
            with pytest.raises(TransportError):
                await asyncio.to_thread(topics, name_server.address, {"tls": client_tls()})

    asyncio.run(scenario())


def test_servers_and_commands_over_tls(tmp_path: Path, processes: Any) -> None:
    """The command line, from properties files and environment variables."""
    conf = tmp_path / "tls.properties"
    conf.write_text(
        "tls.server.mode=enforcing\ntls.enable=true\ntls.test.mode.enable=false\n"
        f"tls.server.certPath={FOLDER / 'server.crt'}\ntls.server.keyPath={FOLDER / 'server.key'}\n"
        f"tls.client.trustCertPath={FOLDER / 'ca.crt'}\n"
    )
    env = {"ROCKETCORE_TLS_CONFIG_FILE": str(conf)}
    name_server = processes.start(
        "namesrv", "start", "--listen", "127.0.0.1:0", "--home", str(tmp_path / "home"), env=env
    )
    processes.start(
        *("broker", "start", "--namesrv", name_server.address, "--listen", "127.0.0.1:0"),
        *("--store", str(tmp_path / "store")),
        env=env,
    )
    assert rocket("--namesrv", name_server.address, "topic", "list")[0] != 0
    trust = ("--tls-ca", str(FOLDER / "ca.crt"))
    code, output = rocket("--namesrv", name_server.address, *trust, "topic", "create", "Orders")
    assert code == 0, output
    code, output = rocket("--namesrv", name_server.address, *trust, "produce", "Orders", "hello")
    assert code == 0, output
    code, output = rocket("topic", "list", "--tls", "--tls-insecure", env={"ROCKET_NAMESRV": name_server.address})
    assert (code, "Orders" in output) == (0, True)
    code, output = rocket(
        "topic", "list", env={"ROCKET_NAMESRV": name_server.address, "ROCKET_TLS_CA": str(FOLDER / "ca.crt")}
    )
    assert (code, "Orders" in output) == (0, True)
    code, output = rocket("--namesrv", name_server.address, "--tls", "topic", "list")
    assert code != 0
    assert "certificate verify failed" in output


def rocket(*arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "rocketcore.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(env or {})},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("tls.server.mode=enforcing\n", "tls.server.mode=enforcing needs tls.server.certPath"),
        ("tls.test.mode.enable=true\ntls.server.certPath=a\n", "tls.test.mode.enable=true makes a certificate"),
        ("tls.server.mode=enforcing\ntls.server.certPath=/nowhere/a.crt\n", "/nowhere/a.crt cannot be read"),
        ("tls.config.file=/nowhere/tls.properties\n", "cannot read the configuration file /nowhere/tls.properties"),
    ],
)
@pytest.mark.parametrize("noun", ["namesrv", "broker"])
def test_servers_say_why_they_do_not_start(tmp_path: Path, noun: str, settings: str, text: str) -> None:
    conf = tmp_path / "server.conf"
    conf.write_text(f"listenPort=0\nrocketmqHome={tmp_path}\nstorePathRootDir={tmp_path}\n{settings}")
    code, output = rocket(noun, "start", "-c", str(conf))
    assert code != 0
    assert text in output
    assert "Traceback" not in output
