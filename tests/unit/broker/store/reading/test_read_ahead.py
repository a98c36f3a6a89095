"""What is read ahead of a reader that reads on: it finds it in memory, and waits where it is faster than the disk."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.store import Cold
from rocketcore.broker.store.log.pages import AHEAD_BYTES, CHUNK_BYTES, LogRange
from rocketcore.broker.store.reading import cold_reads
from tests.fixtures.cold_disk import PAGE
from tests.unit.broker.store.reading.test_cold_reads import Scene, play, until

LONG: dict[str, Any] = {"count": 300, "body": bytes(24_000), "mapped_file_size_commit_log": 16 << 20}
"""A log of 7 MiB in one file."""


def begins(one: Scene) -> list[int]:
    return [begin for begin, _ in one.disk.loads]


async def read_to(one: Scene, position: int, number: int = 0) -> int:
    """Read on to a position of the log; returns the number of the next message."""
    while one.store.place("T", 0, number) < position:  # type: ignore[operator]  # there are more messages
        assert await one.read("a", number) == [number]
        number += 1
    return number


def test_one_who_reads_on_has_the_log_read_ahead(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        number = await read_to(one, CHUNK_BYTES + 1)
        first = CHUNK_BYTES + AHEAD_BYTES
        await one.loaded(3)
        assert one.disk.loads == [(0, CHUNK_BYTES), (CHUNK_BYTES, first), (first, first + AHEAD_BYTES)]
        one.disk.gate.clear()
        waited = len(one.disk.loads)
        for begin in (first, first + AHEAD_BYTES):
            # What was read ahead is there, and what follows it is asked for once it is reached.
            while (place := one.store.place("T", 0, number)) is not None and place + len(LONG["body"]) < begin - PAGE:
                assert one.reads.now("a", one.get, number).count == 1
                number += 1
            assert len(one.disk.loads) == waited
        one.disk.gate.set()
        while number < LONG["count"]:
            number += len(await one.read("a", number, 32))
        end = one.store.max_physical_offset
        await until(lambda: sum(end - begin for begin, end in one.disk.loads) >= end)
        assert sum(end - begin for begin, end in one.disk.loads) == end, "no page twice, none behind the end"

    play(tmp_path, test, **LONG)


def test_one_who_reads_faster_than_the_disk_waits_for_what_is_coming(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        number = await read_to(one, CHUNK_BYTES + 1)
        await one.loaded(3)
        one.disk.gate.clear()
        third = CHUNK_BYTES + 2 * AHEAD_BYTES

        def read_what_is_there() -> None:
            nonlocal number
            while one.reads.now("a", one.get, number).count == 1:
                number += 1

        with pytest.raises(Cold) as raised:
            read_what_is_there()
        assert [(each.begin, each.end) for each in raised.value.ranges] == [(third, third + AHEAD_BYTES)]
        reading = [one.task(owner, number) for owner in "ab"]
        await one.waiting(2)
        one.disk.gate.set()
        assert await asyncio.gather(*reading) == [[number]] * 2
        assert begins(one).count(third) == 1

    play(tmp_path, test, **LONG)


def test_what_somebody_waits_for_comes_before_what_is_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "THREADS", 1)

    async def test(one: Scene) -> None:
        number = await read_to(one, CHUNK_BYTES - 2 * len(LONG["body"]))
        one.disk.gate.clear()
        one.disk.reached.clear()
        reading = [one.task("a", number + 3)]
        await one.reached()
        reading += [one.task("b", LONG["count"] - 1), one.task("c", LONG["count"] // 2)]
        await one.waiting(3)
        one.disk.gate.set()
        await asyncio.gather(*reading)
        await one.loaded(5)
        assert begins(one)[-1] == CHUNK_BYTES + AHEAD_BYTES

    play(tmp_path, test, **LONG)


def test_what_is_read_ahead_is_waited_for_in_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "THREADS", 1)

    async def test(one: Scene) -> None:
        number = await read_to(one, CHUNK_BYTES - 2 * len(LONG["body"]))
        load, ahead = one.disk.load, CHUNK_BYTES + AHEAD_BYTES

        def one_by_one(fd: int, begin: int, end: int) -> int:
            loaded = load(fd, begin, end)
            if begin == CHUNK_BYTES:
                one.disk.gate.clear()
            return loaded

        monkeypatch.setattr(one.disk, "load", one_by_one)
        one.disk.gate.clear()
        first = one.task("a", number + 3)
        others = [one.task("b", LONG["count"] - 1)]
        await one.waiting(2)
        one.disk.gate.set()
        await first
        others.append(one.task("c", ahead // (len(LONG["body"]) + 200) + 2))
        await one.waiting(2)
        others.append(one.task("d", LONG["count"] // 2))
        await one.waiting(3)
        one.disk.gate.set()
        await asyncio.gather(*others)
        asked_later = one.store.place("T", 0, LONG["count"] // 2) or 0
        assert begins(one).index(ahead) < begins(one).index(asked_later - asked_later % CHUNK_BYTES)

    play(tmp_path, test, **LONG)


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENOENT, "gone")])
def test_what_cannot_be_read_ahead_is_read_when_somebody_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    tried: list[int] = []

    async def test(one: Scene) -> None:
        load = one.disk.load

        def refuse(fd: int, begin: int, end: int) -> int:
            if begin == CHUNK_BYTES + AHEAD_BYTES and not tried:
                tried.append(begin)
                raise error
            return load(fd, begin, end)

        monkeypatch.setattr(one.disk, "load", refuse)
        number = await read_to(one, CHUNK_BYTES + 1)
        await until(lambda: bool(tried) and not one.reads._busy)
        await read_to(one, 3 * AHEAD_BYTES, number)
        assert tried == [CHUNK_BYTES + AHEAD_BYTES]
        assert tried[0] in begins(one)

    play(tmp_path, test, **LONG)


def test_a_page_that_the_disk_does_not_give_ahead_fails_its_own_reads(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        bad = CHUNK_BYTES + AHEAD_BYTES + 25 * PAGE
        one.disk.bad.add(bad)
        number = await read_to(one, CHUNK_BYTES + 1)
        await one.loaded(3)
        await read_to(one, bad - len(LONG["body"]) - PAGE, number)
        places = [one.store.place("T", 0, number) or 0 for number in range(LONG["count"])]
        failing = [number for number, place in enumerate(places) if bad - len(LONG["body"]) < place < bad + PAGE]
        assert failing
        for number in failing:
            with pytest.raises(OSError, match=f"the page at byte {bad}"):
                await one.read("a", number)
        after = next(number for number, place in enumerate(places) if place >= bad + PAGE)
        assert await one.read("a", after) == [after]

    play(tmp_path, test, **LONG)


def test_what_nobody_reads_on_from_is_forgotten(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        number = await read_to(one, CHUNK_BYTES + 1)
        await one.loaded(3)
        for _ in range(3):
            one.reads.look()
        assert one.store._pages._followed == {}
        asked = one.disk.asked
        await read_to(one, CHUNK_BYTES + AHEAD_BYTES + 1, number)
        assert asked < one.disk.asked <= asked + 4, "it is asked about again"
        assert len(one.disk.loads) == 3

    play(tmp_path, test, **LONG)


def test_no_more_is_read_ahead_than_there_are_threads_for(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        pages, (segment, *_) = one.store._pages, one.store._log.segments
        most = cold_reads.THREADS
        one.disk.gate.clear()
        ranges = [LogRange(segment, at * CHUNK_BYTES, (at + 1) * CHUNK_BYTES) for at in range(3 * most)]
        taken = [pages.read_ahead(each) for each in ranges]
        assert taken == [True] * 2 * most + [False] * most, "as many are being read, and as many wait for that"
        one.disk.gate.set()
        await one.loaded(2 * most)
        await until(lambda: not one.reads._busy)
        assert pages.read_ahead(ranges[-1])
        await one.loaded(2 * most + 1)

    play(tmp_path, test, **LONG)


def test_nothing_is_read_ahead_while_a_page_fails(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        number = await read_to(one, CHUNK_BYTES + 1)
        await one.loaded(3)
        one.disk.bad.add((one.store.place("T", 0, LONG["count"] - 1) or 0) // PAGE * PAGE + PAGE)
        with pytest.raises(OSError, match="cannot be read"):
            await one.read("b", LONG["count"] - 1)
        ahead = CHUNK_BYTES + 2 * AHEAD_BYTES
        number = await read_to(one, ahead - CHUNK_BYTES, number)
        await until(lambda: not one.reads._busy)
        assert ahead not in begins(one)
        for _ in range(2):
            one.reads.look()
        await read_to(one, ahead + 1, number)
        assert ahead in begins(one), "read as what somebody waits for"

    play(tmp_path, test, **LONG)
