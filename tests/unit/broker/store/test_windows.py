"""Windows of a store: pulls get from them what ``get`` returns, and they go when they may not hold."""

from __future__ import annotations

import asyncio
import random
import sys
from array import array
from pathlib import Path

import pytest

from rocketcore.broker.store import MAX_RECORDS, FlushDiskType, GetStatus, MessageStore
from rocketcore.errors import StoreError
from tests.fixtures.stores import put, running_store
from tests.fixtures.told import Told
from tests.unit.fast.test_pulls import VERSION, question, request

if sys.platform != "linux":
    pytest.skip("part of the reactor, which is Linux only", allow_module_level=True)

from rocketcore._fast.command import encode_pull_response_header
from rocketcore._fast.decided import Decided
from rocketcore._fast.pulls import PullAnswers
from rocketcore._fast.record import tags_code

TAGS = ["a", "b", "c"]


class Puller:
    """Pulls of one queue that ask for the same, by the kernel and by ``get``."""

    def __init__(self, store: MessageStore, queue_id: int, most: int, tags: str) -> None:
        self.store, self.queue_id, self.most = store, queue_id, most
        self.codes = array("q", sorted(tags_code(b"TAGS\x01%s\x02" % tag.encode()) for tag in tags)) if tags else None
        self.fields = {"topic": "T", "queueId": str(queue_id), "most": str(most), "tags": tags, "commitOffset": "0"}
        known: dict[bytes, Decided] = {question(self.request(0)): Told(lambda answer: None)}
        self.located = self.answered = 0
        self.kernel = PullAnswers((11, 361), known, {}, store.windows, self.locate, MAX_RECORDS, VERSION)  # type: ignore[arg-type]

    def request(self, offset: int) -> bytes:
        return request(fields=self.fields | {"queueOffset": str(offset)})

    def locate(self, decided: object, offset: int) -> object:
        self.located += 1
        try:
            return self.store.locate("T", self.queue_id, offset, self.most, self.codes, None)
        except StoreError:
            return None

    def check(self, offset: int) -> int:
        """Compare what both give from an offset on; returns the next one."""
        found = self.store.get("T", self.queue_id, offset, self.most, self.codes, None)
        answer = self.kernel.answer(self.request(offset))
        if found.status is not GetStatus.FOUND:
            assert answer is None
            return found.next_begin_offset
        head = encode_pull_response_header(
            0, 7, VERSION, "FOUND", 0, found.next_begin_offset, found.min_offset, found.max_offset, len(found.body), 0
        )
        assert answer is None or answer == head + found.body
        self.answered += answer is not None
        return found.next_begin_offset


def test_pulls_from_windows_get_what_get_returns(tmp_path: Path) -> None:
    rng = random.Random(3)

    async def run() -> None:
        async with running_store(tmp_path, flush_disk_type=FlushDiskType.ASYNC_FLUSH) as store:
            pullers = [
                Puller(store, queue_id, most, tags)
                for queue_id in range(2)
                for most in (1, 7, 32)
                for tags in ("", "a", "bc")
            ]
            offsets = [0] * len(pullers)
            for number in range(1200):
                tag = TAGS[min(rng.randrange(6), 2)]
                await put(store, b"x" * (number % 90), queue_id=number % 2, properties=b"TAGS\x01%s\x02" % tag.encode())
                if number % 150 == 0:
                    store._pages.age()
                if number % 7 == 0:
                    index = rng.randrange(len(pullers))
                    begin = rng.randrange(600) if rng.random() < 0.2 else offsets[index]
                    offsets[index] = pullers[index].check(begin)
            located = sum(puller.located for puller in pullers)
            pulls = 0
            for puller in pullers:
                offset = 0
                while offset < 600:
                    offset = puller.check(offset)
                    pulls += 1
            assert sum(puller.answered for puller in pullers) > pulls * 0.9
            assert sum(puller.located for puller in pullers) - located < pulls / 4
            assert len(store.windows) == len(pullers)

    asyncio.run(run())


@pytest.mark.parametrize("event", ["second", "deletion", "repair"])
def test_windows_go_when_they_may_not_hold(tmp_path: Path, event: str) -> None:
    async def run() -> None:
        async with running_store(tmp_path, flush_disk_type=FlushDiskType.ASYNC_FLUSH) as store:
            for _ in range(3):
                await put(store)
            puller = Puller(store, 0, 1, "")
            assert puller.check(0) == puller.check(1) - 1 == 1
            assert puller.located == 1
            queue = store._queues.find("T", 0)
            assert queue is not None
            if event == "second":
                store.reads.look()
            elif event == "deletion":
                await store.delete_topic("T")
            else:
                store._queues.files.read_anew(queue)
            assert not store.windows
            assert (puller.kernel.answer(puller.request(2)) is None) == (event == "deletion")
            assert puller.located == 2

    asyncio.run(run())


def test_no_window_outlives_the_files_of_the_log(tmp_path: Path) -> None:
    async def run() -> MessageStore:
        async with running_store(tmp_path) as store:
            await put(store)
            Puller(store, 0, 1, "").check(0)
            assert store.windows
            store._log.begin_at(0)
            assert not store.windows
            Puller(store, 0, 1, "").check(0)
            assert store.windows
        return store

    assert not asyncio.run(run()).windows
