"""What a name server tells monitors over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rocketcore.codes import RequestCode
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock
from rocketcore.transport.client import RemotingClient
from tests.integration.broker_client import running_broker
from tests.integration.test_http_port import ask
from tests.reference.exposition import read_exposition


async def get(server: NameServer, path: str) -> tuple[int, str]:
    port = int(str(server.ready()["metrics"]).rpartition(":")[2])
    status, body = await ask(port, f"GET {path} HTTP/1.1\r\n\r\n".encode())
    return status, body.decode()


def play(folder: Path, scenario: Callable[[NameServer], Awaitable[None]], clock: ManualClock, **settings: Any) -> None:
    async def run() -> None:
        config = NameServerConfig(rocketmq_home=folder, listen_port=0, metrics_port=0, **settings)
        async with asyncio.timeout(60), NameServer(config, clock=clock) as server:
            await scenario(server)

    asyncio.run(run())


def test_who_is_registered(tmp_path: Path) -> None:
    async def scenario(server: NameServer) -> None:
        async with running_broker(tmp_path / "store", namesrv=server.address):
            status, text = await get(server, "/metrics")
            topics = len(server.routes.topics())
        assert status == 200
        kinds, samples = read_exposition(text)
        assert set(kinds.values()) == {"counter", "gauge"}
        node = {"node_type": "nameserver", "node_id": server.address}
        broker = node | {"cluster": "DefaultCluster", "broker": "broker-a"}
        assert samples["rocketcore_broker_members", frozenset(broker.items())] == 1
        assert samples["rocketcore_broker_has_master", frozenset(broker.items())] == 1
        assert samples["rocketmq_topic_number", frozenset(node.items())] == topics > 0
        assert samples["rocketcore_connections", frozenset(node.items())] >= 1

    play(tmp_path, scenario, ManualClock())


def test_ready_is_who_answers_for_routes(tmp_path: Path) -> None:
    clock = ManualClock()

    async def scenario(server: NameServer) -> None:
        assert await get(server, "/livez") == (200, "ok\n")
        assert await get(server, "/readyz") == (503, "it waits for brokers to register (needWaitForService)\n")
        clock.advance(46)
        assert await get(server, "/readyz") == (200, "ok\n")

    play(tmp_path, scenario, clock, need_wait_for_service=True)


def test_there_is_no_port_unless_it_is_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with NameServer(NameServerConfig(rocketmq_home=tmp_path, listen_port=0)) as server:
            assert "metrics" not in server.ready()

    asyncio.run(run())


def test_slow_requests_are_counted_by_a_setting_that_counts_at_once(tmp_path: Path) -> None:
    async def scenario(server: NameServer) -> None:
        async with RemotingClient() as client:
            change = RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"slowRequestMillis=60000")
            assert (await client.invoke(server.address, change, 10)).code == 0
            assert server._slow.seconds == 60
            server._slow.seconds = 0.0
            question = RemotingCommand.request(RequestCode.GET_NAMESRV_CONFIG)
            assert (await client.invoke(server.address, question, 10)).code == 0
        _, samples = read_exposition((await get(server, "/metrics"))[1])
        assert [count for (name, _), count in samples.items() if name == "rocketcore_slow_requests_total"] == [1]

    play(tmp_path, scenario, ManualClock())
