"""Verification: a whole store is whole, each damage is named with file and position, and no file is ever changed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from rocketcore.broker.store.verify import sized, verify
from rocketcore.errors import StoreCorrupted
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    UNITS_PER_FILE,
    put,
)
from tests.fixtures.verified_store import (
    BODY,
    COUNT,
    log_file,
    look,
    only,
    overwrite,
    repaired,
    running_store,
    store_config,
)


def test_a_whole_store_is_whole(root: Path) -> None:
    report = look(root)
    assert report.is_whole
    assert (report.messages, report.served, report.unsaved, report.lost) == (COUNT, COUNT, 0, [])
    assert report.bounds == {("T", 0): (0, COUNT // 8), ("T", 1): (0, COUNT - COUNT // 8)}
    assert (report.log_begin, report.remarks, report.put_aside) == (0, [], [])
    assert 2 * SEGMENT_BYTES < report.log_end < report.read_bytes < 3 * SEGMENT_BYTES


@pytest.mark.parametrize(
    ("position", "what"),
    [(4, "no message: unknown magic code"), (0, "no message"), (28, "checksum differs"), (500, "checksum differs")],
)
def test_a_damaged_message_is_named_with_its_file_and_place(root: Path, position: int, what: str) -> None:
    size = int.from_bytes(log_file(root, 1).read_bytes()[:4], "big")
    overwrite(log_file(root, 1), size + position, b"\x05")
    report = look(root)
    damage = only(report)
    assert (damage.kind, damage.path, damage.position, damage.length) == ("log", log_file(root, 1), size, size)
    assert what in damage.what
    assert report.served == COUNT - 1
    assert report.lost_messages == 1
    after = repaired(root)
    assert [(each.physical_offset, each.length) for each in after.put_aside] == [(SEGMENT_BYTES + size, size)]
    assert after.messages == COUNT - 1, "a tombstone is no message"
    assert after.lost == report.lost


def test_a_message_of_another_place_is_none(root: Path) -> None:
    data = log_file(root, 1).read_bytes()
    size = int.from_bytes(data[:4], "big")
    overwrite(log_file(root, 1), size, data[:size])
    damage = only(look(root))
    assert damage.what == f"a message of another place, {SEGMENT_BYTES} of the log"
    repaired(root)


def test_the_last_message_is_known_to_be_lost_by_the_notes(root: Path) -> None:
    end = look(root).log_end
    overwrite(log_file(root, 2), end - 2 * SEGMENT_BYTES - 100, b"\xff" * 10)
    report = look(root)
    assert {each.kind for each in report.damaged} == {"log"}
    assert report.is_named(end - 1)
    assert [(each.queue_id, each.end - each.start) for each in report.lost] == [(1, 1)]
    repaired(root)


def test_bytes_behind_the_end_are_a_torn_tail(root: Path) -> None:
    end = look(root).log_end
    overwrite(log_file(root, 2), end - 2 * SEGMENT_BYTES, b"\0\0\1\0half a message")
    damage = only(look(root))
    assert (damage.kind, damage.position) == ("log", end - 2 * SEGMENT_BYTES)
    assert "no message lies behind it" in damage.what
    repaired(root)


@pytest.mark.parametrize("length", [0, 5000, SEGMENT_BYTES - 1, SEGMENT_BYTES + 100])
def test_a_file_of_the_log_that_is_too_short_or_too_long(root: Path, length: int) -> None:
    os.truncate(log_file(root, 1), length)
    report = look(root)
    sizes = [each for each in report.damaged if "bytes and not" in each.what]
    assert [(each.path, each.position) for each in sizes] == [(log_file(root, 1), min(length, SEGMENT_BYTES))]
    assert report.served >= COUNT - 64
    repaired(root)


def test_a_file_of_the_log_that_is_missing(root: Path) -> None:
    log_file(root, 1).unlink()
    damage = only(look(root))
    assert (damage.path, damage.position, damage.length) == (log_file(root, 1), 0, SEGMENT_BYTES)
    repaired(root)


def test_the_first_file_of_the_log_that_is_missing(root: Path) -> None:
    log_file(root, 0).unlink()
    report = look(root)
    assert [(each.path, each.length) for each in report.damaged] == [(log_file(root, 0), SEGMENT_BYTES)]
    assert report.log_begin == SEGMENT_BYTES
    assert report.lost_messages + report.served == COUNT
    repaired(root)


def test_files_of_another_size_are_refused_unless_that_is_found_out(root: Path) -> None:
    with pytest.raises(StoreCorrupted, match="not the configured"):
        look(root, mapped_file_size_commit_log=2 * SEGMENT_BYTES)
    found, is_told, _ = sized(
        store_config(root, mapped_file_size_commit_log=2 * SEGMENT_BYTES, mapped_file_size_consume_queue=60)
    )
    assert is_told
    assert found.mapped_file_size_commit_log == SEGMENT_BYTES
    assert found.queue_file_bytes == UNITS_PER_FILE * 20
    assert verify(found).is_whole


GIGABYTE = 1_000_000_000
"""No whole pages, as somebody may have set it."""
USUAL = 1 << 30


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({0: USUAL}, USUAL),
        ({0: 64 << 20}, 64 << 20),
        ({0: 300_000_001}, 0),
        ({USUAL: 300_000_001}, 0),
        ({USUAL: 3 << 20}, 0),  # no file of that length begins there
        ({2 * USUAL: USUAL}, USUAL),
        ({0: USUAL, USUAL: 300_000_001}, USUAL),
        ({0: 4096, USUAL: USUAL}, USUAL),
        ({0: GIGABYTE, GIGABYTE: 5001}, GIGABYTE),
        ({0: 300_000_001, GIGABYTE: 5001}, GIGABYTE),
        ({0: USUAL, 2 * USUAL: USUAL, 3 * USUAL: 7}, USUAL),
        ({GIGABYTE: GIGABYTE, 2 * GIGABYTE: GIGABYTE}, GIGABYTE),
        ({}, 0),
    ],
    ids=str,
)
def test_which_size_the_files_of_a_log_tell(tmp_path: Path, files: dict[int, int], size: int) -> None:
    (tmp_path / "commitlog").mkdir()
    for start, length in files.items():
        with (tmp_path / "commitlog" / f"{start:020d}").open("wb") as file:
            file.truncate(length)
    found, is_told, doubt = sized(store_config(tmp_path, mapped_file_size_commit_log=2 * SEGMENT_BYTES))
    assert found.mapped_file_size_commit_log == (size or 2 * SEGMENT_BYTES)
    assert is_told == (size > 0 or not files)
    assert bool(doubt) == (len(files) == 1)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """A store with a few messages in one file of the log."""

    async def run() -> None:
        async with running_store(tmp_path / "single") as store:
            for number in range(9):
                await put(store, b"%06d" % number)

    asyncio.run(run())
    return tmp_path / "single"


def test_the_only_file_of_a_log_that_was_cut_short(single: Path) -> None:
    """Its length was taken for the size that the broker had set, and the store for whole."""
    config = store_config(single)
    assert verify(sized(config).config).is_whole
    end = look(single).log_end
    for length in (SEGMENT_BYTES - 1, end + 100, end // 2):
        os.truncate(log_file(single), length)
        found, is_told, doubt = sized(config)
        assert (found.mapped_file_size_commit_log, is_told) == (SEGMENT_BYTES, False)
        assert doubt == f"the length of its only file cannot be it; {SEGMENT_BYTES} is taken"
        damage = next(each for each in verify(found).damaged if "bytes and not" in each.what)
        assert (damage.kind, damage.path, damage.position) == ("log", log_file(single), length)
    os.truncate(log_file(single), 0)
    assert sized(config)[1:] == (False, f"it has no file; {SEGMENT_BYTES} is taken"), "the notes say that there was one"


def test_the_length_of_an_only_file_is_taken_with_a_word(single: Path) -> None:
    """Nothing tells it from one that was cut behind its messages."""
    cut = SEGMENT_BYTES * 3 // 4
    os.truncate(log_file(single), cut)
    found, is_told, doubt = sized(store_config(single))
    assert (found.mapped_file_size_commit_log, is_told) == (cut, True)
    assert doubt == f"{cut} is taken, the length of its only file, which may have been cut"
    assert verify(found).is_whole


def test_a_file_of_a_queue_that_was_cut_at_a_unit_is_damaged(single: Path) -> None:
    (path,) = (single / "consumequeue" / "T" / "0").iterdir()
    os.truncate(path, 20 * 9)
    damage = only(verify(sized(store_config(single)).config))
    assert (damage.path, damage.what) == (path, f"the file has 180 bytes and not {20 * UNITS_PER_FILE}")


def test_the_only_file_of_a_log_that_was_cut_at_a_page_is_told_by_the_notes(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            for _ in range(9):
                await put(store, BODY)

    asyncio.run(run())
    os.truncate(log_file(tmp_path), 4096)
    found, is_told, _ = sized(store_config(tmp_path))
    assert (found.mapped_file_size_commit_log, is_told) == (SEGMENT_BYTES, False)
    assert {each.kind for each in verify(found).damaged} >= {"log"}


def test_a_full_file_tells_its_size_though_the_next_is_lost(root: Path) -> None:
    for number in (1, 2):
        log_file(root, number).unlink()
    found, is_told, doubt = sized(store_config(root, mapped_file_size_commit_log=2 * SEGMENT_BYTES))
    assert (found.mapped_file_size_commit_log, is_told, doubt) == (SEGMENT_BYTES, True, "")
    assert not verify(found).is_whole
