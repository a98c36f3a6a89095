"""A broker whose system gives it little: 256 descriptors, 256 MiB of memory, and as many queues as there may be."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.transport.client import RemotingClient
from tests.fault.ledger import Verdict
from tests.fault.requests import asker, places, read_queue, send_header
from tests.fixtures.processes import Processes, RocketProcess

TOPICS = int(os.environ.get("ROCKETCORE_FAULT_TOPICS", "20"))
QUEUES = 80
IN_FLIGHT = 256
SECONDS = 30.0

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120 + TOPICS)]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(
        tmp_path,
        {
            "ROCKETCORE_MAPPED_FILE_SIZE_COMMIT_LOG": str(16 << 20),
            "ROCKETCORE_MAPPED_FILE_SIZE_CONSUME_QUEUE": str(20 * 1000),
            "ROCKETCORE_FLUSH_CONSUME_QUEUE_THOROUGH_INTERVAL": "1000",
        },
    )
    yield started
    started.end()


def start(processes: Processes, namesrv: str, store: Path) -> RocketProcess:
    broker = processes.broker(namesrv, store=store)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (256, 256))
    resource.prlimit(broker.pid, resource.RLIMIT_DATA, (256 << 20, 256 << 20))
    return broker


async def fill(address: str, body: bytes) -> None:
    """Send a message to every queue."""
    slots = asyncio.Semaphore(IN_FLIGHT)
    async with RemotingClient() as client:
        ask = asker(client, address, SECONDS)

        async def send(topic: str, queue_id: int) -> None:
            async with slots:
                header = send_header(topic, queue_id, "WAIT\x01true\x02", int(time.time() * 1000))
                answer = await ask(RequestCode.SEND_MESSAGE_V2, header, body)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                assert [place[0] for place in places(answer)] == [queue_id]

        async with asyncio.TaskGroup() as group:
            for topic in topics():
                for queue_id in range(QUEUES):
                    group.create_task(send(topic, queue_id))


async def bodies(address: str) -> list[list[bytes]]:
    """Return what is in each queue."""
    verdict = Verdict()
    async with RemotingClient() as client:
        ask = asker(client, address, SECONDS)
        found = [
            [one.body for one in await read_queue(ask, topic, queue_id, verdict)]
            for topic in topics()
            for queue_id in range(QUEUES)
        ]
    assert verdict, verdict.examples
    return found


def topics() -> list[str]:
    return [f"T{number}" for number in range(TOPICS)]


def test_many_queues_within_few_descriptors_and_little_memory(processes: Processes, tmp_path: Path) -> None:
    """Queues are saved, closed and opened again as they are needed; a stop and a kill lose none of them."""
    namesrv = processes.namesrv().address
    broker = start(processes, namesrv, tmp_path / "store")
    with rmq.Admin(namesrv) as admin:
        for topic in topics():
            admin.create_topic(topic, queues=QUEUES)
    asyncio.run(fill(broker.address, b"first"))
    assert broker.stop(timeout=300) == 0
    broker = start(processes, namesrv, tmp_path / "store")
    asyncio.run(fill(broker.address, b"second"))
    assert asyncio.run(bodies(broker.address)) == [[b"first", b"second"]] * (TOPICS * QUEUES)
    broker.kill()
    broker = start(processes, namesrv, tmp_path / "store")
    assert asyncio.run(bodies(broker.address)) == [[b"first", b"second"]] * (TOPICS * QUEUES)
    assert broker.stop(timeout=300) == 0
    assert "refused" not in broker.log.read_text()
