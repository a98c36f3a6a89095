"""The note ``queuebounds``: where every consume queue begins and ends, as far as log and queues were on disk.

layout   the magic number of the format, then records: length u32, CRC-32 u32, content; the CRC goes on from the one of
         the record before, the first from that of the magic number. Big-endian
content  begin of the log i64, from where on its records have checksums i64, the offset up to which log and queues are
         meant i64, a store timestamp i64, size of the queues' files u32, numbers of topics and of deleted topics u32;
         then each topic with its rows, and each deleted topic with the end of the log at that time i64. A name has its
         length u16 before it, rows their number u32: queue id, min, max i64
meaning  The first record has all topics, each later one only those that changed, with all their rows; one without
         rows is gone. A later record is the whole truth of what else it says

So a note costs what changed, and the whole is written again when what was added outgrows it: as a new file, renamed.
A record is added in place and synced. A crash may leave a part of one, or a rest of another file's: its CRC, which
chains it to all before it, tells, and then the state before counts. That one was true and stays true, because it only
bounds: the log behind its offset is read at the start, and gives the queues what they lack.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from rocketcore.broker.store.file_system import FileSystem, sync_checked, write_checked
from rocketcore.broker.store.notes.small_file import replace_durably
from rocketcore.disk import is_passing

__all__ = ["BoundsEnd", "QueueBounds", "Rows", "pack_rows", "unpack_rows"]

MAGIC: Final = b"RCQB\0\0\0\1"
ROOM: Final = 64 * 1024
"""Records are added up to the size of the first one and this."""
NOT_SEALED: Final = -1

logger = logging.getLogger(__name__)

_RECORD = Struct(">II")
_HEAD = Struct(">qqqqIII")
_LENGTH = Struct(">H")
_COUNT = Struct(">I")
_ROW = Struct(">qqq")
_END = Struct(">q")

Rows = bytes
"""Queue id, min and max of each queue of a topic."""


def pack_rows(queues: Mapping[int, tuple[int, int]]) -> Rows:
    """Return the rows of a topic: queue id → min, max."""
    return b"".join(_ROW.pack(queue_id, low, high) for queue_id, (low, high) in queues.items())


def unpack_rows(rows: Rows) -> dict[int, tuple[int, int]]:
    """Return queue id → min, max."""
    return {queue_id: (low, high) for queue_id, low, high in _ROW.iter_unpack(rows)}


class BoundsEnd(NamedTuple):
    """Where a file ends, for the next record: the position, the CRC of the last one, the size of the first."""

    position: int
    crc: int
    first_bytes: int

    @property
    def has_room(self) -> bool:
        """Whether another record is to be added, and not the whole written again."""
        return self.position <= 2 * self.first_bytes + ROOM


@dataclass(slots=True, kw_only=True)
class QueueBounds:
    """What a record says, or all of a file together.

    With a negative ``confirm_offset`` it says nothing of the queues, but where the log begins and what was deleted.

    sealed_from  every record of the log behind this physical offset has a checksum; None: that is not known
    file_bytes   size of the queues' files
    rows         by topic
    is_cut       bytes that are no record follow the last one: what was noted last may be missing
    """

    begin_offset: int = -1
    sealed_from: int | None = None
    confirm_offset: int = 0
    store_timestamp: int = 0
    file_bytes: int = 0
    rows: dict[str, Rows] = field(default_factory=dict)
    deleted_before: dict[str, int] = field(default_factory=dict)
    is_cut: bool = False

    @property
    def queues(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Topic → queue id → min, max."""
        return {topic: unpack_rows(rows) for topic, rows in self.rows.items()}

    @classmethod
    def read(cls, path: Path, files: FileSystem) -> QueueBounds | None:
        """Read the file; None where it is missing or damaged.

        raises  OSError where it may be read the next time: all queues would be built again for nothing
        """
        try:
            return cls.decode(files.read_file(path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            reason = str(error)
        except OSError as error:
            if is_passing(error):
                error.filename = str(path)
                raise
            reason = str(error)
        logger.error("bounds of queues damaged path=%s reason=%s", path, reason)
        return None

    @classmethod
    def fault(cls, content: bytes) -> str:
        """Return why a content is not one that was written, an empty text where it is, or a crash cut its end."""
        try:
            cls.decode(content)
        except ValueError as error:
            return str(error)
        return ""

    @classmethod
    def decode(cls, content: bytes) -> QueueBounds:
        """Return what a file says; raises ValueError where not even its first record is whole."""
        if not content.startswith(MAGIC):
            raise ValueError("the note has another version")
        position, crc = len(MAGIC), zlib.crc32(MAGIC)
        found: QueueBounds | None = None
        while (record := _record(content, position, crc)) is not None:
            payload, crc = record
            position += _RECORD.size + len(payload)
            found = cls._decode_record(payload, {} if found is None else found.rows)
        if found is None:
            raise ValueError("its checksum is wrong")
        found.is_cut = position < len(content)
        return found

    @classmethod
    def _decode_record(cls, payload: bytes, rows: dict[str, Rows]) -> QueueBounds:
        """Return what a record says after those before it, which left ``rows``."""
        try:
            begin, sealed, confirm, timestamp, file_bytes, topics, deleted = _HEAD.unpack_from(payload)
            at = _HEAD.size
            for _ in range(topics):
                topic, at = _name(payload, at)
                end = at + _COUNT.size + _COUNT.unpack_from(payload, at)[0] * _ROW.size
                if end > len(payload):
                    raise ValueError("its rows are cut")
                if end > at + _COUNT.size:
                    rows[topic] = payload[at + _COUNT.size : end]
                else:
                    rows.pop(topic, None)
                at = end
            deleted_before = {}
            for _ in range(deleted):
                topic, at = _name(payload, at)
                (deleted_before[topic],) = _END.unpack_from(payload, at)
                at += _END.size
        except StructError as error:
            raise ValueError(f"a record of it is cut: {error}") from error
        return cls(
            begin_offset=begin,
            sealed_from=None if sealed == NOT_SEALED else sealed,
            confirm_offset=confirm,
            store_timestamp=timestamp,
            file_bytes=file_bytes,
            rows=rows,
            deleted_before=deleted_before,
        )

    def write(self, path: Path, files: FileSystem) -> BoundsEnd:
        """Replace the file by this as its first record; raises OSError."""
        record, crc = self._encode(zlib.crc32(MAGIC))
        replace_durably(path, MAGIC + record, files)
        return BoundsEnd(len(MAGIC) + len(record), crc, len(record))

    def add(self, path: Path, end: BoundsEnd, files: FileSystem) -> BoundsEnd:
        """Add this as a record at the end of the file; raises OSError, after which the end is not known."""
        record, crc = self._encode(end.crc)
        with files.opened(path, os.O_RDWR) as fd:
            write_checked(fd, record, end.position, path, files)
            sync_checked(fd, path, files)
        return BoundsEnd(end.position + len(record), crc, end.first_bytes)

    def is_outlived(self, topic: str) -> bool:
        """Whether a topic was deleted after this was noted: messages of a new one lie behind that offset of the log."""
        return 0 <= self.confirm_offset <= self.deleted_before.get(topic, -1)

    def outdate(self, root: Path, files: FileSystem) -> None:
        """Note that the queues are being built again: bounds that outlived them would be believed after a power cut.

        What is known of deleted topics stays, and of the others where they ended: nothing else remembers it.
        """
        rows = {topic: rows for topic, rows in self.rows.items() if not self.is_outlived(topic)}
        replace(self, confirm_offset=-1, rows=rows).write(root / "queuebounds", files)

    def _encode(self, crc: int) -> tuple[bytes, int]:
        """Return a record and its CRC; ``crc`` is that of the one before."""
        payload = b"".join(self._parts())
        crc = zlib.crc32(payload, crc)
        return _RECORD.pack(len(payload), crc) + payload, crc

    def _parts(self) -> Iterator[bytes]:
        yield _HEAD.pack(
            self.begin_offset,
            NOT_SEALED if self.sealed_from is None else self.sealed_from,
            self.confirm_offset,
            self.store_timestamp,
            self.file_bytes,
            len(self.rows),
            len(self.deleted_before),
        )
        for topic, rows in self.rows.items():
            name = topic.encode()
            yield _LENGTH.pack(len(name)) + name + _COUNT.pack(len(rows) // _ROW.size)
            yield rows
        for topic, end in self.deleted_before.items():
            name = topic.encode()
            yield _LENGTH.pack(len(name)) + name + _END.pack(end)


def _record(content: bytes, position: int, crc: int) -> tuple[bytes, int] | None:
    """Return the content of a record and its CRC, None where there is none that follows those before it."""
    begin = position + _RECORD.size
    if begin > len(content):
        return None
    length, told = _RECORD.unpack_from(content, position)
    if length < _HEAD.size or begin + length > len(content):
        return None
    payload = content[begin : begin + length]
    return (payload, told) if zlib.crc32(payload, crc) == told else None


def _name(payload: bytes, at: int) -> tuple[str, int]:
    """Return a name, and the position behind it."""
    begin = at + _LENGTH.size
    end = begin + _LENGTH.unpack_from(payload, at)[0]
    return payload[begin:end].decode(), end
