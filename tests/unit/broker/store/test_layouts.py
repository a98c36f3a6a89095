"""Files as Apache RocketMQ writes them: golden vectors, and the names and sizes of what a store leaves on disk."""

from __future__ import annotations

import asyncio
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.store import StoreConfig
from rocketcore.broker.store.config import parse_delay_levels
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.notes.checkpoint import Checkpoint
from rocketcore.broker.store.notes.queue_bounds import QueueBounds, pack_rows
from rocketcore.broker.store.queues import consume_queue
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue, QueueFiles
from rocketcore.broker.store.timed import delivery_time
from rocketcore.config_file import config_properties, load_config
from rocketcore.errors import ConfigError
from tests.fixtures.stores import add_unit, put, running_store
from tests.fixtures.vectors import family, name_of


def queue_on_disk(root: Path, file_bytes: int) -> tuple[ConsumeQueue, QueueFiles]:
    files = QueueFiles(root, file_bytes, FileSystem())
    return ConsumeQueue("T", 1, files), files


def save(queue: ConsumeQueue, files: QueueFiles) -> None:
    units = queue.unsaved()
    assert units is not None
    files.write(units)
    queue.mark_saved(units.end)


def test_consume_queue_entries(tmp_path: Path) -> None:
    (vector,) = family("layouts.jsonl", "consume-queue/entries")
    queue, files = queue_on_disk(tmp_path, vector["fileSize"])
    for offset, entry in enumerate(vector["input"]["entries"]):
        add_unit(queue, offset, entry["physicalOffset"], entry["size"], entry["tagsCode"])
    save(queue, files)
    path = tmp_path / vector["file"]
    assert path.stat().st_size == vector["fileSize"]
    expected = bytes.fromhex(vector["hex"])
    assert path.read_bytes() == expected.ljust(vector["fileSize"], b"\0")


def test_consume_queue_that_does_not_begin_at_zero(tmp_path: Path) -> None:
    (vector,) = family("layouts.jsonl", "consume-queue/pre-blank")
    given = vector["input"]
    queue, files = queue_on_disk(tmp_path, given["entriesPerFile"] * 20)
    add_unit(queue, given["queueOffset"], given["physicalOffset"], given["size"], given["tagsCode"])
    save(queue, files)
    folder = files.folder("T", 1)
    assert sorted(path.name for path in folder.iterdir()) == vector["files"]
    assert b"".join((folder / name).read_bytes() for name in vector["files"]).hex() == vector["hex"]
    assert (queue.min_offset, queue.max_offset) == (vector["minOffsetInQueue"], vector["maxOffsetInQueue"])


class CountedReads(FileSystem):
    """Notes the reads that may not wait, and fails those that reach an offset."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.fails_at = 1 << 60

    def read_now(self, fd: int, size: int, position: int) -> bytes | None:
        self.sizes.append(size)
        if position + size > self.fails_at:
            raise OSError(5, "Input/output error")
        return super().read_now(fd, size, position)


def test_units_in_files_are_read_ahead_until_they_are_forgotten(tmp_path: Path) -> None:
    disk = CountedReads()
    files = QueueFiles(tmp_path, 20 * 1000, disk)
    queue = ConsumeQueue("T", 1, files)
    for offset in range(3000):
        add_unit(queue, offset, offset * 100, 100, offset)
    save(queue, files)
    pages: Any = object()  # of a read for which all is in memory

    def places(start: int, count: int = 32) -> list[int]:
        units = queue.units(start, count, pages)
        return [int.from_bytes(units[at : at + 8], "big") // 100 for at in range(0, len(units), 20)]

    for start in range(0, 960, 32):
        assert places(start) == list(range(start, start + 32))
    assert disk.sizes == [768 * 20, 232 * 20]
    assert places(990) == list(range(990, 1000)), "the units of one file"
    assert places(2700, 99) == list(range(2700, 2744)), "not those that are in memory, and may still be written"
    assert places(5) == list(range(5, 37))

    path = files.folder("T", 1) / f"{0:020d}"
    reads = len(disk.sizes)
    path.write_bytes(b"\0" * 20 * 1000)
    assert places(37) == list(range(37, 69))
    for forget in (lambda: files.read_anew(queue), lambda: files.forget("T")):
        forget()
        assert places(5) == [0] * 32
    assert len(disk.sizes) == reads + 2

    files.forget("T")
    disk.fails_at = 100 * 20
    assert places(60) == [0] * 32, "an error behind what is asked for is none"
    with pytest.raises(OSError, match="Input/output"):
        places(80)
    files.close()


def test_what_is_read_ahead_is_kept_of_few_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_queue, "OPEN_FILES", 4)
    files = QueueFiles(tmp_path, 20 * 1000, FileSystem())
    pages: Any = object()
    for number in range(10):
        queue = ConsumeQueue("T", number, files)
        for offset in range(1000):
            add_unit(queue, offset, offset * 100, 100, offset)
        save(queue, files)
        assert len(queue.units(0, 32, pages)) == 32 * 20
        assert len(files._ahead) == min(number + 1, 4)
    files.close()


def test_units_leave_memory_after_they_are_saved(tmp_path: Path) -> None:
    queue, files = queue_on_disk(tmp_path, 20 * 1000)
    for offset in range(5000):
        add_unit(queue, offset, offset * 100, 100, offset)
        if offset % 700 == 699:
            save(queue, files)
    for start, count in ((0, 10), (990, 20), (4989, 20), (4600, 500)):
        units = queue.units(start, count)
        assert units
        first = int.from_bytes(units[:8], "big")
        assert first == start * 100
    assert len(queue.units(990, 20)) == 10 * 20, "a read stops at the end of a file"
    files.close()


@pytest.mark.parametrize("vector", family("layouts.jsonl", "checkpoint/"), ids=name_of)
def test_checkpoint(vector: dict[str, Any], tmp_path: Path) -> None:
    given = vector["input"]
    checkpoint = Checkpoint(
        physic_msg_timestamp=given["physicMsgTimestamp"],
        logics_msg_timestamp=given["logicsMsgTimestamp"],
        index_msg_timestamp=given["indexMsgTimestamp"],
        master_flushed_offset=given["masterFlushedOffset"],
        confirm_physical_offset=given["confirmPhyOffset"],
    )
    path = tmp_path / "checkpoint"
    checkpoint.write(path, FileSystem())
    assert path.stat().st_size == vector["fileSize"]
    assert path.read_bytes()[:64].hex() == vector["hex"]
    assert Checkpoint.read(path, FileSystem()) == replace(checkpoint, rocketmq_ran=given["physicMsgTimestamp"] > 0)


def test_a_short_or_missing_checkpoint_is_zero(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    assert Checkpoint.read(path, FileSystem()) == Checkpoint()
    path.write_bytes(bytes(39))
    assert Checkpoint.read(path, FileSystem()) == Checkpoint()
    path.unlink()
    path.mkdir()
    assert Checkpoint.read(path, FileSystem()) == Checkpoint()


def test_a_checkpoint_says_where_the_log_begins_if_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(confirm_physical_offset=7, begin_offset=1 << 30).write(path, FileSystem())
    whole = path.read_bytes()
    found = Checkpoint.read(path, FileSystem())
    assert (found.begin_offset, found.rocketmq_ran) == (1 << 30, False)
    for position in range(80):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        found = Checkpoint.read(path, FileSystem())
        assert (found.begin_offset, found.rocketmq_ran) == ((1 << 30, True) if position < 64 else (-1, False))
    path.write_bytes(whole[:79])
    assert Checkpoint.read(path, FileSystem()) == Checkpoint(confirm_physical_offset=7)


def test_bounds_with_any_byte_changed_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "queuebounds"
    bounds = QueueBounds(
        confirm_offset=77, store_timestamp=5, rows={"T": pack_rows({0: (0, 3), 11: (2, 9)})}, deleted_before={"D": 12}
    )
    bounds.write(path, FileSystem())
    assert QueueBounds.read(path, FileSystem()) == bounds
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x01]) + data[position + 1 :])
        assert QueueBounds.read(path, FileSystem()) in (None, bounds)
        path.write_bytes(data[:position])
        assert QueueBounds.read(path, FileSystem()) is None
    assert QueueBounds.read(tmp_path / "none", FileSystem()) is None


def test_bounds_nested_too_deep_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "queuebounds"
    text = b"[" * 9999
    path.write_bytes(b"%08x\n%b" % (zlib.crc32(text), text))
    assert QueueBounds.read(path, FileSystem()) is None


@pytest.mark.parametrize("vector", family("layouts.jsonl", "delay-levels/"), ids=name_of)
def test_delay_levels(vector: dict[str, Any]) -> None:
    text = vector["input"]["messageDelayLevel"]
    if not vector["accepted"]:
        with pytest.raises(ConfigError):
            parse_delay_levels(text)
        return
    levels = parse_delay_levels(text)
    assert levels == tuple(vector["table"][str(level)] for level in range(1, len(levels) + 1))
    deliver = vector["deliver"][: len(levels) + 1]
    assert [delivery_time(1700000000000, level, levels) for level in range(len(levels) + 1)] == deliver
    # The dispatcher, not the function that the vector comes from, cuts a higher level to the highest (broker.md §4.1).
    assert delivery_time(1700000000000, len(levels) + 1, levels) == deliver[-1]


def test_files_of_a_store(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path, message_index_enable=True) as store:
            text = f"{os.getpid()} 0"
            assert (tmp_path / "abort").read_text().rstrip() == f"{text} {zlib.crc32(text.encode()):08x}"
            await put(store, topic="Topic", queue_id=3)

    asyncio.run(run())
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    zero = f"{0:020d}"
    (index,) = [path.name for path in (tmp_path / "index").iterdir()]
    assert files == {
        f"commitlog/{zero}",
        f"consumequeue/Topic/3/{zero}",
        "checkpoint",
        "queuebounds",
        "indexbounds",
        f"index/{index}",
        "abort.off",
        "lock",
    }
    assert len(index) == 17


def test_settings_have_rocketmq_names_and_defaults_that_fit() -> None:
    properties = config_properties(StoreConfig())
    assert properties["flushDiskType"] == "SYNC_FLUSH"
    assert properties["mappedFileSizeCommitLog"] == str(1 << 30)
    assert properties["checkCRCOnRecover"] == "true"
    config = load_config(StoreConfig, {"flushDiskType": "ASYNC_FLUSH", "mappedFileSizeConsumeQueue": "1019"})
    assert config.flush_disk_type.name == "ASYNC_FLUSH"
    assert config.queue_file_bytes == 1000
    with pytest.raises(ConfigError, match="too small"):
        StoreConfig(mapped_file_size_commit_log=1 << 20)
    with pytest.raises(ConfigError, match="mappedFileSizeCommitLog=2147483648: too large"):
        StoreConfig(mapped_file_size_commit_log=1 << 31)
    assert StoreConfig(mapped_file_size_commit_log=(1 << 31) - 1).mapped_file_size_commit_log == 2_147_483_647
    with pytest.raises(ConfigError, match="maxMessageSize"):
        StoreConfig(max_message_size=0)
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        StoreConfig(message_delay_level="1s 2")
