"""Settings of the message store (Java: ``MessageStoreConfig``, 5.5.0), under RocketMQ's property names.

Three defaults differ on purpose: ``flushDiskType`` is SYNC_FLUSH, so that an acknowledged message is on disk; what was
put in the queues is made durable every 10 s and not every 60 s, which bounds the part of the log that is read after a
crash; and ``enabledAppendPropCRC`` is on, without which damage to a topic, a property or a time goes unnoticed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rocketcore._fast.index import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE
from rocketcore.config_file import BadSetting, check_ranges, home_folder, setting

__all__ = ["FlushDiskType", "StoreConfig", "parse_delay_levels", "parse_hours"]

UNIT_SIZE = 20
"""Bytes of a consume queue entry."""

FILE_MAX_BYTES = (1 << 31) - 1
"""Largest commit log file, as in Java, where it is an ``int``."""

RECORD_OVERHEAD = 64 * 1024
"""What a record may hold beside its body: properties (32,767 bytes), topic, fixed fields."""

_DELAY_LEVEL = re.compile(r"([0-9]+)([smhd])")
_UNIT_MILLIS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class FlushDiskType(Enum):
    """When a message counts as stored: on disk, or with the operating system."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where and how messages are kept (Java: ``MessageStoreConfig``)."""

    store_path_root_dir: Path = setting(default_factory=lambda: home_folder() / "store", help="folder of the store")
    store_path_commit_log: Path | None = setting(
        None, help="folder of the commit log; empty: commitlog below the store folder"
    )
    flush_disk_type: FlushDiskType = setting(
        FlushDiskType.SYNC_FLUSH,
        help="SYNC_FLUSH acknowledges messages on disk, ASYNC_FLUSH messages that the system has taken",
    )
    mapped_file_size_commit_log: int = setting(1 << 30, help="size of a commit log file", unit="bytes")
    mapped_file_size_consume_queue: int = setting(
        300_000 * UNIT_SIZE, help="size of a consume queue file", unit="bytes", least=UNIT_SIZE
    )
    max_message_size: int = setting(4 << 20, help="longest message body", unit="bytes", least=1)
    sync_flush_timeout: int = setting(
        5000, help="longest wait for the disk before the broker answers FLUSH_DISK_TIMEOUT", unit="ms", least=1
    )
    flush_interval_commit_log: int = setting(
        500, help="pause between background flushes of the log", unit="ms", least=1
    )
    flush_interval_consume_queue: int = setting(
        1000, help="pause between writes of the consume queues", unit="ms", least=1
    )
    flush_consume_queue_thorough_interval: int = setting(
        10_000, help="pause between flushes of consume queues and checkpoint to disk", unit="ms", least=1
    )
    max_pending_bytes: int = setting(
        64 << 20,
        help="bytes appended but not yet written; from here on, the broker refuses sends as busy",
        unit="bytes",
        least=1,
    )
    check_crc_on_recover: bool = setting(True, help="check body CRCs while recovering", property="checkCRCOnRecover")
    enabled_append_prop_crc: bool = setting(
        True,
        help="end every record with a checksum of the whole record, in the property __CRC32#",
        property="enabledAppendPropCRC",
    )
    max_transfer_bytes_on_message_in_memory: int = setting(
        262_144, help="most bytes of a pull from memory", unit="bytes", least=1
    )
    max_transfer_count_on_message_in_memory: int = setting(
        32, help="most messages of a pull from memory", unit="count", least=1
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        65_536, help="most bytes of a pull from disk", unit="bytes", least=1
    )
    max_transfer_count_on_message_in_disk: int = setting(
        8, help="most messages of a pull from disk", unit="count", least=1
    )
    max_pull_bytes: int = setting(
        1 << 20, help="most bytes of a pull by rocketcore's table readers, from memory or disk", unit="bytes", least=1
    )
    max_pull_count: int = setting(
        8192, help="most messages of a pull by rocketcore's table readers, from memory or disk", unit="count", least=1
    )
    max_filter_message_size: int = setting(
        16_000, help="least consume queue bytes that one pull searches", unit="bytes", least=UNIT_SIZE
    )
    access_message_in_memory_max_ratio: int = setting(
        40,
        help="share of memory that the newest messages may fill and still count as cached",
        unit="%",
        least=0,
        most=100,
    )
    file_reserved_time: int = setting(
        72, "hours that the broker keeps a commit log file after its last message", unit="h", least=1
    )
    delete_when: str = setting("04", "hours of the day in which the broker deletes old files: 00 to 23, joined by ';'")
    clean_resource_interval: int = setting(10_000, "pause between searches for files to delete", unit="ms", least=1)
    delete_commit_log_files_interval: int = setting(
        100, "pause between the deletion of two commit log files", unit="ms", least=0
    )
    delete_file_batch_max: int = setting(10, "most commit log files that one search deletes", unit="count", least=1)
    redelete_hanged_file_interval: int = setting(
        120_000, "pause before the broker tries again to delete a file", unit="ms", least=1
    )
    disk_max_used_space_ratio: int = setting(
        75, "disk use from which the broker deletes old files at any hour", unit="%", least=10, most=95
    )
    clean_file_forcibly_enable: bool = setting(
        True, "from diskSpaceCleanForciblyRatio on, delete the oldest files even before fileReservedTime"
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85, "disk use from which the broker deletes the oldest files at any age", unit="%", least=30, most=100
    )
    disk_space_warning_level_ratio: int = setting(
        90, "disk use from which the broker refuses sends until it has deleted files", unit="%", least=35, most=100
    )
    message_index_enable: bool = setting(True, "keep an index to find messages by key, id and tag")
    max_hash_slot_num: int = setting(5_000_000, "slots of an index file", unit="count", least=1, most=500_000_000)
    max_index_num: int = setting(20_000_000, "entries of an index file", unit="count", least=2, most=100_000_000)
    max_msgs_num_batch: int = setting(64, "most messages in the answer to a query by key", unit="count", least=1)
    default_query_max_num: int = setting(
        32, "most messages in the answer to a query by unique id", unit="count", least=1
    )
    message_delay_level: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", help="the delay of each level, level 1 first"
    )

    timer_wheel_enable: bool = setting(True, "accept messages with a delivery time")
    timer_max_delay_sec: int = setting(
        3 * 24 * 3600,
        "longest time ahead that such a message may ask for",
        unit="s",
        least=1,
        most=50 * 365 * 24 * 3600,
    )
    timer_max_pending_messages: int = setting(
        16_000_000,
        "most such messages that wait, each in 16 bytes of memory; the broker refuses more",
        unit="count",
        least=1,
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        needed, size = self.max_message_size + RECORD_OVERHEAD, self.mapped_file_size_commit_log
        if size < needed:
            raise BadSetting(
                "mappedFileSizeCommitLog", str(size),
                f"too small: a record of maxMessageSize={self.max_message_size} needs {needed} bytes in one file",
            )  # fmt: skip
        if size > FILE_MAX_BYTES:
            raise BadSetting(
                "mappedFileSizeCommitLog", str(size),
                "too large: the record that ends a file says in 32 bits how much is left, so "
                f"{FILE_MAX_BYTES} bytes are the most",
            )  # fmt: skip
        if self.index_file_bytes > FILE_MAX_BYTES:
            raise BadSetting(
                "maxIndexNum", str(self.max_index_num),
                f"too large: with maxHashSlotNum={self.max_hash_slot_num} a file has {self.index_file_bytes} bytes, "
                f"{FILE_MAX_BYTES} are the most",
            )  # fmt: skip
        parse_delay_levels(self.message_delay_level)
        parse_hours(self.delete_when)

    @property
    def root(self) -> Path:
        return Path(self.store_path_root_dir)

    @property
    def commit_log_folder(self) -> Path:
        return Path(self.store_path_commit_log) if self.store_path_commit_log else self.root / "commitlog"

    @property
    def queue_file_bytes(self) -> int:
        """Size of a consume queue file: whole units only, as RocketMQ rounds it."""
        return self.mapped_file_size_consume_queue // UNIT_SIZE * UNIT_SIZE

    @property
    def index_file_bytes(self) -> int:
        return HEADER_SIZE + SLOT_SIZE * self.max_hash_slot_num + ENTRY_SIZE * self.max_index_num

    @property
    def delay_levels(self) -> tuple[int, ...]:
        """Milliseconds of each delay level; level 1 is item 0."""
        return parse_delay_levels(self.message_delay_level)


def parse_hours(text: str) -> frozenset[int]:
    """Return the hours of ``deleteWhen`` (``04;16``).

    raises  BadSetting on anything but numbers from 0 to 23, joined by semicolons
    """
    words = text.split(";")
    if not all(word.isascii() and word.isdigit() and int(word) < 24 for word in words):
        raise BadSetting("deleteWhen", text, "hours from 00 to 23, joined by ';', are needed")
    return frozenset(map(int, words))


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the milliseconds of each level of ``messageDelayLevel`` (``1s 5s … 2h``).

    raises  BadSetting on anything but numbers with one of s, m, h, d, one blank apart
    """
    levels = []
    for item in text.split(" "):
        match = _DELAY_LEVEL.fullmatch(item)
        if match is None:
            raise BadSetting("messageDelayLevel", text, f"{item!r} is not a number followed by s, m, h or d")
        levels.append(int(match.group(1)) * _UNIT_MILLIS[match.group(2)])
    return tuple(levels)
