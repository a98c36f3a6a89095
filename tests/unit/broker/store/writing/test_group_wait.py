"""When a group waits for those who were answered last, and what it gains them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore.broker.store import PutStatus
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.writing.group_wait import FROM_SECONDS, GroupWait
from rocketcore.service import ManualClock
from tests.fixtures.store_parts import StoreParts, opened

SYNC = 4 * FROM_SECONDS
QUARTER = SYNC / 4
CLIENTS = 16


def taught(sync_seconds: float = SYNC, *, share: float = 1.0, rounds: int = 20) -> tuple[GroupWait, float]:
    """Return one that saw so many of those who were answered come back at once, and the time of the last answers."""
    wait, now = GroupWait(), 0.0
    for _ in range(rounds):
        wait.synced(sync_seconds)
        wait.answered(CLIENTS, now)
        for _ in range(round(CLIENTS * share)):
            wait.came(now)
        now += sync_seconds
    wait.answered(CLIENTS, now)
    return wait, now


def test_a_group_waits_until_all_are_back_who_were_answered() -> None:
    wait, now = taught()
    for _ in range(CLIENTS):
        assert wait.left(now) == pytest.approx(QUARTER)
        wait.came(now)
    assert wait.left(now) == 0


def test_it_waits_a_quarter_of_a_sync_from_the_answers_and_no_longer() -> None:
    wait, now = taught()
    assert wait.left(now + QUARTER / 2) == pytest.approx(QUARTER / 2)
    assert wait.left(now + QUARTER) == 0
    assert wait.left(now + SYNC) == 0


def test_it_waits_for_as_many_as_came_before() -> None:
    wait, now = taught(share=0.75)
    for _ in range(12):
        assert wait.left(now) > 0
        wait.came(now)
    assert wait.left(now) == 0


def test_it_waits_for_nobody_where_few_come_back() -> None:
    wait, now = taught(share=0.25)
    assert not wait.pays
    assert wait.left(now) == 0


def test_who_comes_later_than_a_quarter_of_a_sync_has_not_come_back() -> None:
    wait, now = GroupWait(), 0.0
    for _ in range(20):
        wait.synced(SYNC)
        wait.answered(CLIENTS, now)
        for _ in range(CLIENTS):
            wait.came(now + QUARTER * 1.01)
        now += SYNC
    assert not wait.pays


def test_it_waits_for_nobody_where_syncs_are_short() -> None:
    assert not taught(FROM_SECONDS * 0.9)[0].pays


def test_one_long_sync_changes_little_and_one_short_sync_all() -> None:
    wait, now = taught(FROM_SECONDS / 2)
    wait.synced(FROM_SECONDS * 3)
    wait.answered(CLIENTS, now)
    assert not wait.pays
    wait, now = taught()
    wait.synced(FROM_SECONDS / 2)
    wait.answered(CLIENTS, now)
    assert not wait.pays


@given(
    st.lists(
        st.tuples(
            st.floats(1e-5, 0.1),
            st.integers(1, 300),
            st.lists(st.floats(0, 0.1), max_size=40),
        ),
        max_size=30,
    )
)
def test_whatever_came_before_it_never_waits_longer_than_a_quarter_of_the_longest_sync(
    groups: list[tuple[float, int, list[float]]],
) -> None:
    wait, now, longest = GroupWait(), 0.0, 0.0
    for seconds, count, coming in groups:
        now += seconds
        longest = max(longest, seconds)
        wait.synced(seconds)
        wait.answered(count, now)
        for after in sorted(coming):
            wait.came(now + after)
            assert 0 <= wait.left(now + after) <= longest / 4 + 1e-12
            assert wait.left(now + longest / 4 + 1e-9) == 0


class SlowFiles(FileSystem):
    """Syncs take their time on a clock that stands still otherwise, and so many turns of the loop: whoever was answered
    before a sync began has put the next message when it ends."""

    TURNS = 5

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self.loop: asyncio.AbstractEventLoop | None = None

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._clock.advance(self._seconds)
        if self.loop is not None:
            turned = threading.Event()
            self.loop.call_soon_threadsafe(self._turn, self.TURNS, turned)
            turned.wait()

    def _turn(self, left: int, turned: threading.Event) -> None:
        if left == 0 or self.loop is None:
            turned.set()
        else:
            self.loop.call_soon(self._turn, left - 1, turned)


@contextlib.contextmanager
def opened_with_syncs_of(seconds: float, root: Path) -> Iterator[tuple[StoreParts, SlowFiles]]:
    clock = ManualClock()
    files = SlowFiles(clock, seconds)
    with opened(root, files, clock) as parts:
        yield parts, files


async def groups_of_clients(parts: StoreParts, files: SlowFiles) -> list[int]:
    """Have clients put one message after the other, each when the one before is answered; returns how many a group."""
    sizes: list[int] = []
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def durable() -> None:
        sizes.append(0)
        if len(sizes) == GROUPS:
            done.set()

    def put() -> None:
        if not done.is_set():
            parts.committer.wait(parts.put(b"x").end_offset, answered)

    def answered(status: PutStatus) -> None:
        assert status is PutStatus.PUT_OK
        sizes[-1] += 1
        loop.call_soon(put)  # as its next request would come: not in the same turn

    files.loop = loop
    parts.committer.start(loop)
    parts.committer.on_durable = durable
    put()  # one is ahead of the others, as always
    loop.call_soon(lambda: [put() for _ in range(CLIENTS - 1)])
    await done.wait()
    await parts.committer.drain()
    files.loop = None
    return sizes[: GROUPS - 1]


GROUPS = 50
LONG = 60.0
"""Of a sync, where no timer is to come within a test."""


def test_on_a_slow_disk_a_group_takes_all_clients(tmp_path: Path) -> None:
    async def run() -> list[int]:
        with opened_with_syncs_of(LONG, tmp_path) as (parts, files):
            sizes = await groups_of_clients(parts, files)
            await parts.committer.stop()
            return sizes

    assert asyncio.run(run())[-20:] == [CLIENTS] * 20


def test_on_a_fast_disk_no_group_waits(tmp_path: Path) -> None:
    async def run() -> list[int]:
        with opened_with_syncs_of(FROM_SECONDS / 10, tmp_path) as (parts, files):
            sizes = await groups_of_clients(parts, files)
            await parts.committer.stop()
            return sizes

    sizes = asyncio.run(run())
    assert max(sizes) < CLIENTS, "the first is ahead of the others, and no group waits for it"


def test_who_comes_alone_is_answered_when_the_wait_is_over(tmp_path: Path) -> None:
    async def run() -> None:
        with opened_with_syncs_of(1.0, tmp_path) as (parts, files):  # a quarter of it is longer than two turns take
            await groups_of_clients(parts, files)
            answered: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
            put_and_wait(parts, answered.set_result)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert parts.log.position, "the group waits"
            assert await answered is PutStatus.PUT_OK
            await parts.committer.stop()

    asyncio.run(run())


def test_what_is_drained_does_not_wait(tmp_path: Path) -> None:
    async def run() -> None:
        with opened_with_syncs_of(LONG, tmp_path) as (parts, files):
            await groups_of_clients(parts, files)
            told: list[PutStatus] = []
            put_and_wait(parts, told.append)
            await parts.committer.drain()
            assert told == [PutStatus.PUT_OK]
            await parts.committer.stop()

    asyncio.run(run())


def test_a_group_that_waits_when_the_disk_fails_is_answered(tmp_path: Path) -> None:
    async def run() -> None:
        with opened_with_syncs_of(LONG, tmp_path) as (parts, files):
            await groups_of_clients(parts, files)
            told: list[PutStatus] = []
            put_and_wait(parts, told.append)
            await asyncio.sleep(0)
            parts.committer.fail("test", OSError())
            assert told == [PutStatus.SERVICE_NOT_AVAILABLE]
            await parts.committer.stop()

    asyncio.run(run())


def test_what_fails_behind_a_group_does_not_keep_the_next_one(tmp_path: Path) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        with opened_with_syncs_of(LONG, tmp_path) as (parts, files):
            await groups_of_clients(parts, files)

            def fail() -> None:
                parts.committer.on_durable = None
                raise RuntimeError("who follows the log failed")

            files.loop = loop
            loop.set_exception_handler(lambda *_: None)
            parts.committer.on_durable = fail
            told: list[PutStatus] = []
            last: asyncio.Future[PutStatus] = loop.create_future()
            for _ in range(CLIENTS):
                put_and_wait(parts, told.append)
            loop.call_soon(loop.call_soon, put_and_wait, parts, last.set_result)  # while the first are synced
            assert await last is PutStatus.PUT_OK
            assert told == [PutStatus.PUT_OK] * CLIENTS
            files.loop = None
            await parts.committer.stop()

    asyncio.run(run())


def put_and_wait(parts: StoreParts, told: Callable[[PutStatus], None]) -> None:
    parts.committer.wait(parts.put(b"alone").end_offset, told)
