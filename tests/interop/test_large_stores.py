"""Stores of many messages, from which retention has taken the oldest, opened in turn by our broker and by Apache's.

Each message that is left is read by its offset, by its key and by its unique id. Neither broker builds again what is
whole.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.headers.message import QueryMessageRequestHeader
from rocketcore.transport.client import RemotingClient
from tests.fault.ledger import Verdict
from tests.fault.log_scan import log_files
from tests.fault.requests import asker, by_id_header, read_queue
from tests.fault.simulated_disk import LOG_FILES
from tests.fixtures.apache import require_java
from tests.fixtures.processes import Processes, RocketProcess
from tests.fixtures.stores import records
from tests.peers import ApacheCluster

MESSAGES = int(os.environ.get("ROCKETCORE_STORE_MESSAGES", "2000"))
"""That are left after retention, about."""

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300 + MESSAGES // 100)]

TOPIC = "LargeStore"
QUEUES = 4
BODY = b"x" * 200
RECORD_BYTES = 400
IN_FLIGHT = 64
SECONDS = 60.0


class LargeStore:
    """A store folder, and the messages that were sent to it: number → queue id, queue offset, log position, id."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self.processes = processes
        self.folder = folder
        self.root = folder / "store"
        self.namesrv = processes.namesrv().address
        self.sent: dict[int, tuple[int, int, int, str]] = {}
        self.settings: dict[str, object] = {
            "mappedFileSizeCommitLog": MESSAGES * RECORD_BYTES // (LOG_FILES - 2) + (1 << 18),
            "maxMessageSize": 1 << 18,
            "mappedFileSizeConsumeQueue": 20 * MESSAGES // 10,
            "maxHashSlotNum": MESSAGES,
            "maxIndexNum": MESSAGES,
            "flushDiskType": "SYNC_FLUSH",
            "enabledAppendPropCRC": "false",  # 4.9 does not know the checksum of a record
        }
        self._opened = 0

    @contextmanager
    def ours(self) -> Iterator[RocketProcess]:
        """Have it open with a disk that holds as many files of the log as ``simulated_disk`` allows."""
        config = self.folder / "broker.conf"
        settings = self.settings | {"cleanResourceInterval": 100, "deleteFileBatchMax": 1}
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        options = ("--name", "broker-a", "--cluster", "DefaultCluster", "--store", str(self.root), "-c", str(config))
        self._opened += 1
        broker = RocketProcess(
            "kept", str(self.folder / "journal"), "broker", "start", "--namesrv", self.namesrv, "--listen",
            "127.0.0.1:0", *options,
            log=self.folder / f"ours-{self._opened}.log", command="tests.fault.simulated_disk",
        )  # fmt: skip
        try:
            yield broker
            assert broker.stop(timeout=120) == 0
        finally:
            if broker.process.poll() is None:
                broker.kill()

    @contextmanager
    def apache(self, version: str) -> Iterator[str]:
        paths = {"storePathRootDir": self.root, "storePathCommitLog": self.root / "commitlog"}
        paths |= {"storePathConsumeQueue": self.root / "consumequeue", "storePathIndex": self.root / "index"}
        self._opened += 1
        folder = self.folder / f"apache-{self._opened}"
        with ApacheCluster(version, folder, namesrv=self.namesrv, extra_broker_conf=paths | self.settings) as cluster:
            yield cluster.brokers[0]
            cluster.kill_broker(0, graceful=True)

    def send(self, count: int) -> None:
        numbers = range(len(self.sent), len(self.sent) + count)
        with rmq.Producer(self.namesrv, group="large-store") as producer:
            for begin in range(numbers.start, numbers.stop, 1000):
                some = range(begin, min(begin + 1000, numbers.stop))
                futures = [producer.send_nowait(rmq.Message(TOPIC, BODY, keys=[f"key-{n}"])) for n in some]
                for number, future in zip(some, futures, strict=True):
                    result = future.result(SECONDS)
                    position = int(result.offset_msg_id[-16:], 16)
                    self.sent[number] = (result.queue.queue_id, result.offset, position, result.msg_id)

    def wait_for_room(self) -> None:
        """Wait until retention has deleted what it is to delete."""
        deadline = time.monotonic() + SECONDS
        while len(log_files(self.root)) >= LOG_FILES:
            assert time.monotonic() < deadline
            time.sleep(0.05)  # another process deletes them

    def files(self) -> dict[str, int]:
        """Return the files of queues and index, and what each is on the disk: one that is made again is another."""
        folders = (self.root / "consumequeue" / TOPIC, self.root / "index")
        return {str(path): path.stat().st_ino for folder in folders for path in folder.rglob("*") if path.is_file()}

    def check(self, address: str) -> None:
        """Read all that is left, by offset, by key and by id."""
        begin = log_files(self.root)[0]
        left = {number: place for number, place in self.sent.items() if place[2] >= begin}
        assert len(left) >= MESSAGES // 2
        asyncio.run(self._check(address, left))

    async def _check(self, address: str, left: dict[int, tuple[int, int, int, str]]) -> None:
        async with RemotingClient() as client:
            ask = asker(client, address, SECONDS)
            verdict = Verdict()
            found = {
                (one.queue_id, one.queue_offset, one.physical_offset)
                for queue_id in range(QUEUES)
                for one in await read_queue(ask, TOPIC, queue_id, verdict)
            }
            assert verdict, verdict.examples
            assert found == {place[:3] for place in left.values()}
            slots = asyncio.Semaphore(IN_FLIGHT)

            async def find(position: int, header: QueryMessageRequestHeader) -> None:
                async with slots:
                    answer = await ask(RequestCode.QUERY_MESSAGE, header)
                    assert answer.code == ResponseCode.SUCCESS, f"{header}: {answer.code} {answer.remark}"
                    assert [one["physical_offset"] for one in records(answer.body)] == [position], header

            async with asyncio.TaskGroup() as group:
                for number, (_, _, position, unique_id) in left.items():
                    group.create_task(find(position, by_id_header(TOPIC, f"key-{number}")))
                    group.create_task(find(position, by_id_header(TOPIC, unique_id)))


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_all_messages_of_a_store_are_served_by_either(processes: Processes, tmp_path: Path, version: str) -> None:
    require_java()
    store = LargeStore(processes, tmp_path)
    with store.ours() as broker, rmq.Admin(store.namesrv) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
        store.send(3 * MESSAGES)
        store.wait_for_room()
        store.check(broker.address)
    assert log_files(store.root)[0], "retention deleted nothing"
    before = store.files()
    with store.apache(version) as address:
        store.check(address)
        assert store.files() == before
        store.send(MESSAGES // 10)
        store.check(address)
    before = store.files()
    with store.ours() as broker:
        store.wait_for_room()
        store.check(broker.address)
        said = broker.log.read_text()
        assert "rebuilt=False" in said
        assert "not taken over" not in said
        after = store.files()
        assert all(after[path] == number for path, number in before.items() if path in after)
