"""One file of the index: slots, and the entries behind them (Java: ``IndexFile``).

The file has its full size from the begin, sparse. Entries are written as they come, by pwrite, so that a full disk is
an error and no signal; they are read, as whole files are, through a read-only map. The slots of the newest file are
kept in memory: they follow from the entries, so that a crash need not find them on disk (``restore_slots``). Header and
slots are written when the file is full and when the store stops, which are the moments when RocketMQ makes its own
durable. Between them the file is, to RocketMQ, what it was then, with bytes behind its entries that nobody looks at.

Writing the slots takes many writes. So that no crash leaves a header with slots of another moment which RocketMQ would
believe, the header goes first: its end time is later than what the checkpoint vouches for, and RocketMQ removes such a
file after a crash.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

from rocketcore._fast.index import (
    BEGIN_TIMESTAMP,
    END_OFFSET,
    END_TIMESTAMP,
    ENTRIES,
    ENTRY_SIZE,
    HEADER_COLUMNS,
    HEADER_SIZE,
    SLOT_SIZE,
    USED_SLOTS,
    checksum,
    find_offsets,
    put_entries,
    restore_slots,
    take_back,
)
from rocketcore._fast.mapped import PaddedMap
from rocketcore.broker.store.file_system import FileSystem, sync_checked, sync_names, write_checked
from rocketcore.errors import DecodeError
from rocketcore.table import Table

__all__ = ["IndexFile"]

PAGE_BYTES = 4096
_HEADER = Struct(">qqqqii")


class IndexFile:
    """Index thread only.

    header          see ``put_entries``
    first_position  of the log: everything that is indexed from there on is in this file or a later one
    checksums       CRC-32 of the entries and, of a whole file, of the slots; None: not known, as of RocketMQ's files
    checked         the file was compared with them since the start, or written
    size            of the file, in bytes
    whole           header and slots are on disk as they are in memory
    written_end     end time of the header on disk, whose slots are there too; 0 where that is not known
    """

    def __init__(
        self, path: Path, slot_count: int, max_entries: int, header: Sequence[int], first_position: int, *, whole: bool,
        files: FileSystem, checksums: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.path = path
        self.header = array("q", header)
        self.first_position = first_position
        self.whole = whole
        self.written_end = header[END_TIMESTAMP] if whole else 0
        self.checksums = checksums
        self.checked = False
        self._slots_bytes = SLOT_SIZE * slot_count
        self._max_entries = max_entries
        self.size = HEADER_SIZE + self._slots_bytes + ENTRY_SIZE * max_entries
        self._files = files
        self._fd = -1
        self._slots: bytearray | None = None
        self._stale_slots = not whole
        self._map: mmap.mmap | PaddedMap | None = None
        self._views: tuple[memoryview, memoryview] | None = None

    @classmethod
    def create(
        cls, path: Path, slot_count: int, max_entries: int, previous: IndexFile | None, first_position: int,
        files: FileSystem,
    ) -> IndexFile:  # fmt: skip
        """Make a file that goes on where another ended, durable with its name before it is returned.

        raises  OSError; nothing is left behind then, as far as the disk allows
        """
        header = [0] * HEADER_COLUMNS
        if previous is not None:
            end_timestamp, end_offset = previous.header[END_TIMESTAMP], previous.header[END_OFFSET]
            header = [end_timestamp, end_timestamp, end_offset, end_offset, 0, 0]
        header[ENTRIES] = 1
        made = cls(path, slot_count, max_entries, header, first_position, whole=False, files=files, checksums=(0, 0))
        made._fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            files.resize(made._fd, made.size)
            sync_checked(made._fd, path, files)
            sync_names(path.parent, files)
        except OSError:
            made.remove()
            raise
        made._slots = bytearray(made._slots_bytes)
        made._stale_slots = False
        made.checked = True
        return made

    @staticmethod
    def read_header(path: Path, files: FileSystem) -> list[int]:
        """Return the header of a file; raises OSError, and ValueError where it is too short to have one."""
        with files.opened(path, os.O_RDONLY) as fd:
            data = files.read(fd, HEADER_SIZE, 0)
        if len(data) < HEADER_SIZE:
            raise ValueError(f"{len(data)} bytes are not a header")
        return list(_HEADER.unpack(data))

    @property
    def room(self) -> int:
        """Entries that still fit."""
        return self._max_entries - self.header[ENTRIES]

    @property
    def used_bytes(self) -> int:
        """Bytes of header, slots and the entries that there are."""
        return HEADER_SIZE + self._slots_bytes + ENTRY_SIZE * self.header[ENTRIES]

    @property
    def is_readable(self) -> bool:
        """Whether its slots are known: those of a file that is not whole are made again by ``open``."""
        return self.whole or self._slots is not None

    def forget_slots(self) -> None:
        """Have the slots made again from the entries: after a crash those on disk need not be of one moment."""
        self.whole, self.written_end, self._stale_slots, self.checked = False, 0, True, False

    # ------------------------------------------------------------------ writing

    def open(self) -> bool:
        """Get ready to be written, and to be read; False where the file is not what it was.

        raises  OSError
        """
        if self._fd < 0:
            self._fd = self._files.open(self.path)
        if self._slots is not None:
            return True
        if not self.check():
            return False
        self._slots = self._slots_on_disk() if self.whole else self._restored()
        return self._slots is not None

    def check(self) -> bool:
        """Whether the file can be read and is what was written; without known checksums, whether slots fit entries.

        raises  OSError
        """
        try:
            self.checked = self.checked or self._is_sound()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        return self.checked

    def _is_sound(self) -> bool:
        view, _ = self._view()
        begin = HEADER_SIZE + self._slots_bytes + ENTRY_SIZE
        entries = checksum(view, begin, begin + ENTRY_SIZE * (self.header[ENTRIES] - 1))
        slots = checksum(view, HEADER_SIZE, HEADER_SIZE + self._slots_bytes) if self.whole else 0
        if self.checksums is None:
            restored = self._restored()
            sound = restored is not None and (not self.whole or checksum(restored, 0, len(restored)) == slots)
        else:
            sound = entries == self.checksums[0] and (not self.whole or slots == self.checksums[1])
            sound = sound and (not self.whole or self.read_header(self.path, self._files) == list(self.header))
        self.checksums = entries, slots
        return sound

    def _slots_on_disk(self) -> bytearray:
        return bytearray(self._files.read(self._fd, self._slots_bytes, HEADER_SIZE))

    def _restored(self) -> bytearray | None:
        """Return the slots as they follow from the entries, None where these do not follow from each other."""
        slots = bytearray(self._slots_bytes)
        sound, used = restore_slots(self._view()[0], self.header[ENTRIES], slots)
        if sound < self.header[ENTRIES]:
            return None
        self.header[USED_SLOTS] = used
        return slots

    def add(self, rows: Table, count: int) -> None:
        """Add the first rows of a scan, for which there is room.

        raises  OSError: none was added. LostWrite: what was added before may not be there either
        """
        assert self._slots is not None, "opened"
        entries = bytearray(ENTRY_SIZE * count)
        before = array("q", self.header)
        position = HEADER_SIZE + self._slots_bytes + ENTRY_SIZE * before[ENTRIES]
        put_entries(rows.view, count, self.header, self._slots, entries)
        try:
            write_checked(self._fd, entries, position, self.path, self._files)
        except OSError:
            take_back(entries, count, self._slots)
            self.header = before
            raise
        assert self.checksums is not None, "checked"
        self.checksums = zlib.crc32(entries, self.checksums[0]), 0
        self.whole = False

    def sync(self) -> None:
        """Make the entries durable; raises LostWrite."""
        if self._fd >= 0:
            sync_checked(self._fd, self.path, self._files)

    def finish(self) -> None:
        """Make the file what RocketMQ would have left, durably.

        raises  OSError, LostWrite; it is not ``whole`` then
        """
        if self.whole:
            return
        assert self._slots is not None, "opened"
        self.written_end = 0
        write_checked(self._fd, _HEADER.pack(*self.header), 0, self.path, self._files)
        self.sync()
        with memoryview(self._slots) as slots:
            for begin, end in self._used_ranges():
                with slots[begin:end] as part:
                    write_checked(self._fd, part, HEADER_SIZE + begin, self.path, self._files)
        self.sync()
        assert self.checksums is not None, "checked"
        self.checksums = self.checksums[0], zlib.crc32(self._slots)
        self.whole = True
        self.written_end = self.header[END_TIMESTAMP]
        self._stale_slots = False

    def _used_ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of slots to write: what was never used is zero in a file that was made by this process."""
        assert self._slots is not None, "opened"
        if self._stale_slots:
            return [(0, self._slots_bytes)]
        ranges: list[tuple[int, int]] = []
        zeros = bytes(PAGE_BYTES)
        for begin in range(0, self._slots_bytes, PAGE_BYTES):
            page = self._slots[begin : begin + PAGE_BYTES]
            if page == zeros[: len(page)]:
                continue
            end = begin + len(page)
            if ranges and ranges[-1][1] == begin:
                ranges[-1] = ranges[-1][0], end
            else:
                ranges.append((begin, end))
        return ranges

    # ------------------------------------------------------------------ reading

    def fault(self) -> tuple[int, str]:
        """Look at every entry, and at the slots of a file that is whole; return the first fault, and where it is.

        raises  OSError
        """
        view, slots = self._view()
        count = self.header[ENTRIES]
        wanted = bytearray(self._slots_bytes)
        sound, used = restore_slots(view, count, wanted)
        if sound < count:
            position = HEADER_SIZE + self._slots_bytes + ENTRY_SIZE * sound
            return position, f"entry {sound} does not follow from those before it"
        if self.whole and slots != wanted:
            return HEADER_SIZE, "its slots do not lead to its entries"
        if self.whole and used != self.header[USED_SLOTS]:
            return HEADER_SIZE - 8, f"its header counts {self.header[USED_SLOTS]} slots and not {used}"
        return 0, ""

    def find(self, key_hash: int, begin: int, end: int, out: array[int], cursor: int, steps: int) -> tuple[int, int]:
        """See ``find_offsets``; raises DecodeError where the file is damaged, or cannot be read, and OSError."""
        if not self.check():
            raise DecodeError("not what was written")
        view, slots = self._view()
        header = self.header
        try:
            return find_offsets(
                view, slots if self._slots is None else self._slots, header[ENTRIES], header[BEGIN_TIMESTAMP],
                key_hash, begin, end, out, cursor, steps,
            )  # fmt: skip
        except OSError as error:
            raise DecodeError(str(error)) from error

    def _view(self) -> tuple[memoryview, memoryview]:
        """Return the whole file and its slots."""
        if self._views is None:
            with self._files.opened(self.path, os.O_RDONLY) as fd:
                mapping = self._map = self._files.map(fd, self.size)
            view = memoryview(mapping)
            self._views = view, view[HEADER_SIZE : HEADER_SIZE + self._slots_bytes]
        return self._views

    # ------------------------------------------------------------------ end

    def stop_writing(self) -> None:
        """Give back what only the newest file needs."""
        self._slots = None
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        self.stop_writing()
        self.unmap()

    def unmap(self) -> None:
        """Give the map back; who asks again maps the file again."""
        if self._views is not None:
            for view in self._views:
                view.release()
            self._views = None
        if self._map is not None:
            self._map.close()
            self._map = None

    def remove(self) -> None:
        """Remove the file; raises OSError, but not where it is gone already."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self.path)
