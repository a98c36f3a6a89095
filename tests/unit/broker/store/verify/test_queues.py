"""Verification of consume queues: their units, their files, and what a note says of them."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from rocketcore.codes import SCHEDULE_TOPIC
from tests.fixtures.stores import (
    UNITS_PER_FILE,
    crash_copy,
    put,
)
from tests.fixtures.verified_store import (
    COUNT,
    look,
    only,
    overwrite,
    queue_file,
    repaired,
    running_store,
)


@pytest.mark.parametrize(
    ("position", "data", "what"),
    [
        (20 * 7, bytes(7) + b"\1", "leads elsewhere, units: 1"),  # its place in the log
        (20 * 7 + 8, b"\1", "leads elsewhere, units: 1"),  # the size
        (20 * 7 + 19, b"\1", "leads elsewhere, units: 1"),  # the code of its tags
        (20 * 7, bytes(40), "leads elsewhere, units: 2"),
        (20 * 7, bytes(8) + b"\x7f\xff\xff\xff" + bytes(8), "leads elsewhere, units: 1"),  # a blank
    ],
)
def test_a_damaged_unit_is_named_with_its_file_and_place(root: Path, position: int, data: bytes, what: str) -> None:
    overwrite(queue_file(root, number=1), position, data)
    report = look(root)
    damage = only(report)
    assert (damage.kind, damage.path, damage.position, damage.what) == ("queue", queue_file(root, number=1), 140, what)
    assert (report.served, report.lost) == (COUNT, [])
    repaired(root)


def test_damaged_ranges_of_a_queue_are_named_up_to_a_number(root: Path) -> None:
    for index in range(0, UNITS_PER_FILE, 2):
        overwrite(queue_file(root), 20 * index, b"\1")
    damaged = look(root).damaged
    assert [each.length for each in damaged[:-1]] == [20] * 16
    assert "units in the others: 9" in damaged[-1].what
    repaired(root)


def test_a_file_of_a_queue_that_is_missing(root: Path) -> None:
    queue_file(root, number=1).unlink()
    damage = only(look(root))
    assert (damage.path, damage.length) == (queue_file(root, number=1), 20 * UNITS_PER_FILE)
    assert damage.what == f"missing, and the file, units: {UNITS_PER_FILE}"
    repaired(root)


def test_queues_without_any_file(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    report = look(root)
    assert sum(each.length for each in report.damaged) == 20 * COUNT
    assert report.served == COUNT
    repaired(root)


def test_units_behind_the_end_of_a_queue(root: Path) -> None:
    overwrite(queue_file(root, 0), 20 * (COUNT // 8), (1 << 40).to_bytes(8, "big") + b"\0\0\1\0" + bytes(8))
    damage = only(look(root))
    assert (damage.position, damage.what) == (20 * (COUNT // 8), "leads behind the end of the log, units: 1")
    overwrite(queue_file(root, 0), 20 * (COUNT // 8), bytes(8) + b"\0\0\1\0" + bytes(8))
    assert only(look(root)).what == "leads to no message, units: 1"
    repaired(root)


def test_a_queue_that_the_log_knows_nothing_of(root: Path) -> None:
    other = root / "consumequeue" / "Other" / "3"
    other.mkdir(parents=True)
    shutil.copy(queue_file(root), other)
    assert {each.path.parent for each in look(root).damaged} == {other}
    repaired(root)


def test_a_file_of_a_queue_with_another_length_or_begin(root: Path) -> None:
    os.truncate(queue_file(root, 0), 20 * UNITS_PER_FILE + 7)
    (queue_file(root, 0).parent / f"{30:020d}").write_bytes(b"")
    (queue_file(root, 0).parent / "x.tmp").write_bytes(b"")
    report = look(root)
    assert sorted(each.what for each in report.damaged) == [
        "no file of a queue begins there",
        f"the file has {20 * UNITS_PER_FILE + 7} bytes and not {20 * UNITS_PER_FILE}",
    ]
    assert report.remarks == [f"{queue_file(root, 0).parent / 'x.tmp'} is no file of a queue"]
    repaired(root)


def test_what_a_killed_store_had_not_saved_is_no_damage(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path / "a", flush_interval_consume_queue=3_600_000) as store:
            for number in range(9):
                await put(store, b"%06d" % number)
            crash_copy(tmp_path / "a", tmp_path / "b")

    asyncio.run(run())
    report = look(tmp_path / "b")
    assert report.is_whole
    assert (report.served, report.unsaved) == (9, 9)


def test_delayed_messages_may_be_due_by_other_settings(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, topic=SCHEDULE_TOPIC, queue_id=2, properties=b"DELAY\x013\x02")

    asyncio.run(run())
    assert look(tmp_path).remarks == []
    report = look(tmp_path, message_delay_level="1s 5s 11s")
    assert report.is_whole
    assert report.remarks == ["1 delayed messages have another time than messageDelayLevel says"]
