"""A broker on a disk that is soon full: retention makes room, sends go on, consumers get all, memory stays as it is."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore.client.future import SendFuture
from rocketcore.transport.client import RemotingClient
from tests.fault.ledger import Verdict
from tests.fault.log_scan import log_files
from tests.fault.requests import asker, read_queue
from tests.fixtures.processes import Processes, RocketProcess

SECONDS = float(os.environ.get("ROCKETCORE_SOAK_SECONDS", "10"))
DISK_BYTES = 1 << 30
FILE_BYTES = 64 << 20
BODY_BYTES = 4096
BURST = 20
BURSTS_A_SECOND = 50
TOPIC = "Retention"
QUEUES = 4
SETTLED = 1 / 4
"""Of the run: after it memory does not grow any more."""
GROWTH_ALLOWED = 32 << 20
SETTINGS = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    "mappedFileSizeConsumeQueue": 20 * 20_000,
    "maxIndexNum": 200_000,
    "maxHashSlotNum": 50_000,
    "deleteFileBatchMax": 2,
}

pytestmark = [
    pytest.mark.soak,
    pytest.mark.alone,
    pytest.mark.skipif(SECONDS < 120, reason="old files are looked for a minute after a start: make soak"),
    pytest.mark.timeout(SECONDS + 600),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own; only root can make one."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a disk of {DISK_BYTES >> 20} MiB needs mount: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


class Load:
    """Messages with a number each, sent at a steady rate, and consumed as they come."""

    def __init__(self, namesrv: str) -> None:
        self.acknowledged: dict[int, tuple[int, int, int]] = {}
        """number → queue id, queue offset, position in the log"""
        self.refused: list[str] = []
        self.consumed: set[int] = set()
        self.again = 0
        self._waiting: deque[tuple[int, SendFuture]] = deque()
        self._namesrv = namesrv
        self._number = 0

    def consume(self, message: rmq.ReceivedMessage) -> None:
        number = int.from_bytes(message.body[:8], "big")
        self.again += number in self.consumed
        self.consumed.add(number)

    def run(self, seconds: float, every_second: list[int], broker: RocketProcess) -> None:
        """Send for some time; ``every_second`` gets what the broker has in memory."""
        with (
            rmq.PushConsumer(self._namesrv, group="soak", start_from="first") as consumer,
            rmq.Producer(self._namesrv) as producer,
        ):
            consumer.subscribe(TOPIC, handler=self.consume)
            begin = time.monotonic()
            for burst in range(int(seconds * BURSTS_A_SECOND)):
                for _ in range(BURST):
                    body = self._number.to_bytes(8, "big") + bytes(BODY_BYTES - 8)
                    self._waiting.append((self._number, producer.send_nowait(rmq.Message(TOPIC, body))))
                    self._number += 1
                self._settle(2 * BURST * BURSTS_A_SECOND)
                if burst % BURSTS_A_SECOND == 0:
                    every_second.append(resident_bytes(broker.pid))
                time.sleep(max(0.0, begin + burst / BURSTS_A_SECOND - time.monotonic()))  # the rate
            producer.flush()
            self._settle(0)
            deadline = time.monotonic() + 60
            while not self.consumed.issuperset(self.acknowledged) and time.monotonic() < deadline:
                time.sleep(0.1)  # what is on its way

    def _settle(self, most: int) -> None:
        while len(self._waiting) > most:
            number, future = self._waiting.popleft()
            try:
                result = future.result(60)
            except rmq.RocketError as error:
                self.refused.append(str(error))
                continue
            position = int(result.offset_msg_id[-16:], 16)
            self.acknowledged[number] = (result.queue.queue_id, result.offset, position)


def resident_bytes(pid: int) -> int:
    """Return the memory of a process but for what it has mapped of files."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


async def read_all(address: str) -> set[tuple[int, int, int]]:
    verdict = Verdict()
    async with RemotingClient() as client:
        ask = asker(client, address, 30.0)
        found = [
            (one.queue_id, one.queue_offset, one.physical_offset)
            for queue_id in range(QUEUES)
            for one in await read_queue(ask, TOPIC, queue_id, verdict)
        ]
    assert verdict, verdict.examples
    assert len(set(found)) == len(found)
    return set(found)


def test_a_small_disk_is_never_full(processes: Processes, tmp_path: Path, disk: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
    namesrv = processes.namesrv().address
    broker = processes.broker(namesrv, "-c", str(config), store=disk / "store")
    with rmq.Admin(namesrv) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    load = Load(namesrv)
    memory: list[int] = []
    load.run(SECONDS, memory, broker)
    files = log_files(disk / "store")
    settled = memory[int(len(memory) * SETTLED) :]
    summary = {
        "acknowledged": len(load.acknowledged),
        "refused": len(load.refused),
        "consumed": len(load.consumed),
        "consumed again": load.again,
        "deleted MiB": files[0] >> 20,
        "files left": len(files),
        "memory MiB": [settled[0] >> 20, max(settled) >> 20, settled[-1] >> 20],
    }
    print(json.dumps(summary))
    assert not load.refused, load.refused[:3]
    assert load.consumed == load.acknowledged.keys()
    left = {place for place in load.acknowledged.values() if place[2] >= files[0]}
    assert asyncio.run(read_all(broker.address)) == left
    assert all(other == one + FILE_BYTES for one, other in pairwise(files)), "the oldest go, and no others"
    assert len(files) * FILE_BYTES > DISK_BYTES // 2, "what has room stays"
    assert files[0] > 0, "retention deleted nothing"
    assert max(settled) - settled[0] < GROWTH_ALLOWED, summary
    assert broker.stop(timeout=60) == 0
