"""When a server's process gives freed memory back."""

from __future__ import annotations

import asyncio
import sys

import pytest

from rocketcore.cli.servers.heap import Heap, watched_heap

MIB = 1 << 20


class Process:
    """Memory and processor time of a process, turned by hand: ``live`` cannot be given back."""

    def __init__(self) -> None:
        self.live = self.resident = 30 * MIB
        self.used = 1.0
        self.trims = 0
        self.heap = Heap(lambda: self.resident, lambda: self.used, self._trim)

    def _trim(self) -> None:
        self.trims += 1
        self.resident = self.live

    def works(self, seconds: float, grown: int = 0, live: int = 0) -> int:
        """Let a second pass; returns how often memory was given back in it."""
        before = self.trims
        self.used += seconds
        self.live += live
        self.resident += grown
        self.heap.check()
        return self.trims - before


def test_what_was_freed_goes_back_after_the_work() -> None:
    process = Process()
    assert [process.works(0.9, 16 * MIB), process.works(0.5), process.works(0.0)] == [0, 0, 1]
    assert process.resident == 30 * MIB


def test_what_stays_is_tried_for_once() -> None:
    process = Process()
    assert [process.works(0.01, 8 * MIB, live=8 * MIB), process.works(0.0), process.works(0.0)] == [1, 0, 0]
    assert [process.works(0.0, MIB), process.works(0.0, 1)] == [0, 1]


def test_memory_that_went_by_itself_counts_when_it_comes_again() -> None:
    process = Process()
    process.works(0.0, 8 * MIB, live=8 * MIB)
    process.live -= 8 * MIB
    assert [process.works(0.0, -8 * MIB), process.works(0.0, 2 * MIB)] == [0, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems nothing is kept")
def test_checks_begin_with_the_server_and_end_with_it() -> None:
    async def run() -> None:
        others = asyncio.all_tasks()
        async with watched_heap():
            (task,) = asyncio.all_tasks() - others
            assert task.get_name() == "heap"
        assert task.cancelled()

    asyncio.run(run())
