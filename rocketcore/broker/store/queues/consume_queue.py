"""Consume queues: 20-byte units that say where the messages of a (topic, queue id) lie (Java: ``ConsumeQueue``).

layout    ``consumequeue/<topic>/<queue id>/<off20>``, files of 300,000 units (broker.md §4), sparse
state     a queue is ``min_offset`` to ``max_offset`` in units. The newest units are in a tail buffer; those before
          ``saved`` are in the files, where old ones are read from

Queues are derived from the log. They change on the loop thread only, in the order of the log, and only by messages that
are durable by the flush mode. A disk thread writes the tails now and then; a unit leaves the tail after it was written.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from array import array
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rocketcore._fast.consume_queue import put_blank, unit
from rocketcore.broker.store.config import UNIT_SIZE
from rocketcore.broker.store.file_system import FileSystem, sync_checked, sync_names, write_checked
from rocketcore.broker.store.log.pages import Pages
from rocketcore.broker.store.log.segment_file import is_log_name, segment_name, written_ranges
from rocketcore.codes import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

if TYPE_CHECKING:
    from rocketcore._fast.decided import Decided
    from rocketcore._fast.window import Window

__all__ = ["ConsumeQueue", "DamagedUnit", "QueueFiles", "QueueName", "Units", "is_blank", "topic_fault"]

KEEP_UNITS = 256
"""Saved units that stay in memory, for consumers that are almost up to date."""
ORDERED_UNITS = 64
"""Units before the begin of a queue that are compared with each other."""

AHEAD_UNITS = 768
"""Units that are read at once for one who is far behind: 15 KiB, kept of ``OPEN_FILES`` queues."""

OPEN_FILES = 128
BLANK_SIZE = 0x7FFFFFFF
MAX_QUEUE_ID = 65_535
TOPIC_MAX_BYTES = 127
LONG_TOPIC_MAX_BYTES = 255

_NOTHING_AHEAD = (0, b"")
_LONG_TOPICS = (RETRY_TOPIC_PREFIX.encode(), DLQ_TOPIC_PREFIX.encode())

logger = logging.getLogger(__name__)


class DamagedUnit(OSError):
    """A unit of a queue leads to where it cannot; ``queue_offset`` says which."""

    def __init__(self, folder: Path, queue_offset: int) -> None:
        super().__init__(errno.EIO, f"the unit of offset {queue_offset} is damaged", str(folder))
        self.queue_offset = queue_offset


class QueueName(Protocol):
    """Which queue is meant, by whoever has its name."""

    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...


class Units(NamedTuple):
    """Units to write: from ``first`` on, for one queue. ``trim`` says that older bytes behind them must go."""

    queue: ConsumeQueue
    first: int
    data: bytes
    trim: bool

    @property
    def end(self) -> int:
        return self.first + len(self.data) // UNIT_SIZE


def topic_fault(topic: bytes) -> str:
    """Return why a topic cannot have queues, or an empty text: a topic names a folder, and its length has one byte."""
    if not topic or len(topic) > (LONG_TOPIC_MAX_BYTES if topic.startswith(_LONG_TOPICS) else TOPIC_MAX_BYTES):
        return f"topic name of {len(topic)} bytes"
    if b"/" in topic or b"\0" in topic or topic in (b".", b".."):
        return "topic name with illegal characters"
    return ""


def is_blank(physical_offset: int, size: int) -> bool:
    """Whether a unit stands for no message."""
    return physical_offset == 0 and size == BLANK_SIZE


class ConsumeQueue:
    """One logical queue.

    known_codes   tag codes that messages of it have, as reads found, sorted; None where they are too many
    begins_later  than ``min_offset``, perhaps: its files could not be read when the log was cut at its begin
    """

    __slots__ = (
        "_files", "_tail", "_tail_start", "_trim", "begins_later", "known_codes", "max_offset", "min_offset",
        "queue_id", "saved", "topic",
    )  # fmt: skip

    def __init__(
        self, topic: str, queue_id: int, files: QueueFiles, start: int = 0, end: int = 0, *, trim: bool = True
    ) -> None:
        """A queue whose units ``start`` to ``end`` are in its files; ``trim`` if stale ones may follow them."""
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = start
        self.max_offset = end
        self.saved = end
        self.known_codes: array[int] | None = array("q")
        self.begins_later = False
        self._files = files
        self._tail = bytearray()
        self._tail_start = end
        self._trim = trim

    def extend(self, units: bytes | bytearray) -> None:
        """Add units of the messages that follow one another at the end of the queue."""
        self._tail += units
        self.max_offset += len(units) // UNIT_SIZE

    def _fill_to(self, queue_offset: int, first: int) -> None:
        if self.max_offset == 0:
            # The first file begins at a multiple of its size; blanks stand before the first unit (Java: fillPreBlank).
            self.min_offset = first
            begin = first - first % self._files.units_per_file
            self.saved = self._tail_start = begin
        else:
            begin = self.max_offset
            logger.error(
                "consume queue gap topic=%s queue_id=%d from=%d to=%d", self.topic, self.queue_id, begin, queue_offset
            )
        blanks = bytearray((queue_offset - begin) * UNIT_SIZE)
        put_blank(blanks, 0, queue_offset - begin)
        self._tail += blanks

    def blank_to(self, queue_offset: int, first: int) -> None:
        """Put blanks at the end, for lost messages, up to ``queue_offset``; in an empty queue from ``first`` on."""
        self._fill_to(queue_offset, first)
        self.max_offset = queue_offset

    def begin_at(self, queue_offset: int, physical_offset: int) -> None:
        """Have the queue begin at the first message at ``physical_offset`` of the log or behind it.

        queue_offset  that of the first such unit in the files, or their end: then the first of those in memory
        """
        first = max(self.min_offset, queue_offset)
        while self.saved <= first < self.max_offset:
            place, size, _ = unit(self._tail, first - self._tail_start)
            if place >= physical_offset and not is_blank(place, size):
                break
            first += 1
        self.min_offset = min(first, self.max_offset)
        self.begins_later = False

    def is_gone(self, physical_offset: int, size: int, log_begin: int) -> bool:
        """Whether a unit leads to where the log is no more, and may: before the begin of a queue none is read."""
        return self.begins_later and physical_offset < log_begin and size > 0

    def units(self, queue_offset: int, count: int, pages: Pages | None = None) -> bytes | bytearray:
        """Return up to ``count`` units from ``queue_offset`` on, a copy; fewer at the end of a file or of the queue.

        pages   of a read that may not wait
        raises  OSError when a file cannot be read; Cold
        """
        start = queue_offset - self._tail_start
        if start >= 0:
            return self._tail[start * UNIT_SIZE : (start + count) * UNIT_SIZE]
        return self._files.read(self, queue_offset, count, self._tail_start, pages)

    def units_at_hand(self, queue_offset: int, count: int) -> bytes | bytearray:
        """Return up to ``count`` units from ``queue_offset`` on, as far as no file has to be read for them."""
        start = queue_offset - self._tail_start
        if start >= 0:
            return self._tail[start * UNIT_SIZE : (start + count) * UNIT_SIZE]
        return self._files.ahead(self, queue_offset, count)

    def unsaved(self) -> Units | None:
        """Return the units that are not in the files yet, or None."""
        if self.saved == self.max_offset and not self._trim:
            return None
        data = bytes(memoryview(self._tail)[(self.saved - self._tail_start) * UNIT_SIZE :])
        units = Units(self, self.saved, data, self._trim)
        self._trim = False
        return units

    def first_unsaved(self) -> int:
        """Return where the first unit leads that is not in the files and no blank, -1 where there is none."""
        for index in range(self.saved - self._tail_start, self.max_offset - self._tail_start):
            physical_offset, size, _ = unit(self._tail, index)
            if not is_blank(physical_offset, size):
                return physical_offset
        return -1

    def mark_saved(self, end: int, keep: int = KEEP_UNITS) -> None:
        """Note that the units before ``end`` are in the files; old ones leave the tail, ``keep`` at least stay."""
        self.saved = end
        if end - self._tail_start > 2 * keep:
            keep_from = end - keep
            del self._tail[: (keep_from - self._tail_start) * UNIT_SIZE]
            self._tail_start = keep_from

    def not_saved(self, units: Units) -> None:
        """Note that a save failed; the next one starts where it did."""
        self._trim |= units.trim


class QueueFiles:
    """The files of all queues: written by the disk thread, read by the loop through a few descriptors kept open."""

    def __init__(self, root: Path, file_bytes: int, files: FileSystem) -> None:
        self.root = root / "consumequeue"
        self.units_per_file = file_bytes // UNIT_SIZE
        self.file_bytes = file_bytes
        self._files = files
        self._open: dict[tuple[str, int, int], int] = {}
        self._ahead: dict[ConsumeQueue, tuple[int, bytes]] = {}  # what was read last, by its queue offset
        self.windows: dict[bytes, tuple[Decided, Window]] = {}
        """Those of the log (``CommitLog``): they have copies of units."""
        self._unsynced: set[Path] = set()
        self._unsynced_folders: set[Path] = set()

    def folder(self, topic: str, queue_id: int) -> Path:
        return self.root / topic / str(queue_id)

    def place(self, queue: QueueName, queue_offset: int) -> tuple[Path, int]:
        """Return the file of a unit and the unit's position there."""
        position = queue_offset * UNIT_SIZE
        within = position % self.file_bytes
        return self._path(queue, position - within), within

    # ------------------------------------------------------------------ loop thread

    def read(self, queue: ConsumeQueue, queue_offset: int, count: int, end: int, pages: Pages | None = None) -> bytes:
        """Return up to ``count`` units from the one file that holds ``queue_offset``; see ``ConsumeQueue.units``.

        They are read with some of those that follow, from which the next calls are answered.

        end  of the units that are not written any more, but by a repair, which ends in ``forget``
        """
        first, units = self._ahead.get(queue, _NOTHING_AHEAD)
        begin = (queue_offset - first) * UNIT_SIZE
        length = min(count, end - queue_offset) * UNIT_SIZE
        if begin >= 0 and begin + length <= len(units):
            return units[begin : begin + length]
        position = queue_offset * UNIT_SIZE
        within = position % self.file_bytes
        length = min(length, self.file_bytes - within)
        most = min(max(length, AHEAD_UNITS * UNIT_SIZE), (end - queue_offset) * UNIT_SIZE, self.file_bytes - within)
        try:
            fd = self._descriptor(queue, position - within)
            if pages is None:
                data = self._files.read(fd, length, within)
            else:
                found = None
                with contextlib.suppress(OSError):  # of what nobody has asked for yet
                    found = self._files.read_now(fd, most, within) if most > length else None
                if found is None:
                    found = self._files.read_now(fd, length, within)
                if found is None:
                    pages.want_units(self._files, self._path(queue, position - within), within, within + length)
                data = found
        except OSError as error:
            error.filename = error.filename or str(self._path(queue, position - within))
            raise
        data = data[: len(data) - len(data) % UNIT_SIZE]
        if len(data) > length:
            if len(self._ahead) >= OPEN_FILES and queue not in self._ahead:
                del self._ahead[next(iter(self._ahead))]
            self._ahead[queue] = queue_offset, data
        return data[:length]

    def ahead(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes:
        """Return up to ``count`` units of those that were read with others."""
        first, units = self._ahead.get(queue, _NOTHING_AHEAD)
        begin = (queue_offset - first) * UNIT_SIZE
        return units[begin : begin + count * UNIT_SIZE] if begin >= 0 else b""

    def _descriptor(self, queue: ConsumeQueue, start: int) -> int:
        # Names and not a path: to make one costs more than to read the units.
        key = queue.topic, queue.queue_id, start
        fd = self._open.pop(key, None)
        if fd is None:
            fd = self._files.open(self._path(queue, start), os.O_RDONLY)
            if len(self._open) >= OPEN_FILES:
                self._files.close(self._open.pop(next(iter(self._open))))
        self._open[key] = fd
        return fd

    def read_anew(self, queue: ConsumeQueue) -> None:
        """Have the next read look at the file: what is kept of it is damaged."""
        self._ahead.pop(queue, None)
        self.windows.clear()

    def forget(self, topic: str) -> None:
        """Close the descriptors of a topic's files, and read anew what is in them."""
        self.windows.clear()
        for queue in [queue for queue in self._ahead if queue.topic == topic]:
            del self._ahead[queue]
        for key in [key for key in self._open if key[0] == topic]:
            self._files.close(self._open.pop(key))

    def forget_before(self, begins: Mapping[tuple[str, int], int]) -> None:
        """Close the descriptors of files that lie before the begin of their queue: topic, queue id → offset."""
        for topic, queue_id, start in list(self._open):
            if start + self.file_bytes <= begins.get((topic, queue_id), 0) * UNIT_SIZE:
                self._files.close(self._open.pop((topic, queue_id, start)))

    def close(self) -> None:
        for fd in self._open.values():
            self._files.close(fd)
        self._open.clear()
        self._ahead.clear()

    # ------------------------------------------------------------------ disk thread

    def peek(self, queue: QueueName, queue_offset: int, count: int) -> bytes:
        """Return units of one file, fewer where it ends before them; raises OSError."""
        position = queue_offset * UNIT_SIZE
        within = position % self.file_bytes
        with self._files.opened(self._path(queue, position - within), os.O_RDONLY) as fd:
            data = self._files.read(fd, min(count * UNIT_SIZE, self.file_bytes - within), within)
        return data[: len(data) - len(data) % UNIT_SIZE]

    def first_at(self, queue: QueueName, low: int, high: int, physical_offset: int) -> int:
        """Return the first of the units ``low`` to ``high`` - 1 that leads to ``physical_offset`` or behind it.

        returns  ``high`` where none does; blanks, which lead nowhere, lie before the unit behind them
        raises   OSError; DamagedUnit where one cannot be had from the disk, or where those before it are not in their
                 order: one of them that leads too far back would have taken all before it for older
        """
        begin = low
        while low < high:
            middle = (low + high) // 2
            at, place = self._place_at(queue, low, middle)
            if place >= physical_offset:
                high = at
            else:
                low = middle + 1
        self._check_order(queue, begin, high)
        return high

    def _check_order(self, queue: QueueName, begin: int, end: int) -> None:
        """Compare the last units before ``end`` with each other, those of one file; raises OSError, DamagedUnit."""
        of_file = max(end - 1, 0) // self.units_per_file * self.units_per_file
        begin = max(begin, of_file, end - ORDERED_UNITS)
        if begin >= end:
            return
        data = self.peek(queue, begin, end - begin)
        last = -1
        for index in range(len(data) // UNIT_SIZE):
            physical_offset, size, _ = unit(data, index)
            if is_blank(physical_offset, size):
                continue
            if size <= 0 or physical_offset <= last:
                raise DamagedUnit(self.folder(queue.topic, queue.queue_id), begin + index)
            last = physical_offset

    def _place_at(self, queue: QueueName, low: int, queue_offset: int) -> tuple[int, int]:
        """Return the last unit up to ``queue_offset`` that is no blank, and where it leads; -1 where there is none."""
        end = queue_offset + 1
        while low < end:
            # Within one file, so that it is all there; the first look is at one unit, as blanks are rare.
            of_file = (end - 1) // self.units_per_file * self.units_per_file
            begin = max(low, of_file, end - (1 if end > queue_offset else KEEP_UNITS))
            try:
                data = self.peek(queue, begin, end - begin)
            except OSError as error:
                if error.errno not in (errno.EIO, errno.ENOENT):
                    raise
                raise DamagedUnit(self.folder(queue.topic, queue.queue_id), begin) from error
            if len(data) < (end - begin) * UNIT_SIZE:
                raise DamagedUnit(self.folder(queue.topic, queue.queue_id), begin + len(data) // UNIT_SIZE)
            for index in reversed(range(end - begin)):
                physical_offset, size, _ = unit(data, index)
                if not is_blank(physical_offset, size):
                    return begin + index, physical_offset
            end = begin
        return low, -1

    def remove_before(self, queue: QueueName, queue_offset: int) -> int:
        """Remove the files whose units all lie before ``queue_offset``, never the last; returns how many."""
        folder = self.folder(queue.topic, queue.queue_id)
        begin = queue_offset * UNIT_SIZE // self.file_bytes * self.file_bytes
        names = sorted(filter(is_log_name, self._files.names(folder)))
        old = [name for name in names[:-1] if int(name) < begin]
        for name in old:
            self._files.remove(folder / name)
            self._unsynced.discard(folder / name)
        return len(old)

    def rewrite(self, units: Units) -> None:
        """Write units into files that may be damaged, and make those as long as they should be."""
        self.write(units)
        first = units.first * UNIT_SIZE // self.file_bytes
        last = (units.end * UNIT_SIZE - 1) // self.file_bytes
        for start in range(first * self.file_bytes, (last + 1) * self.file_bytes, self.file_bytes):
            with self._files.opened(self._path(units.queue, start)) as fd:
                self._files.resize(fd, self.file_bytes)

    def write(self, units: Units) -> None:
        """Write units into their files, which are made where missing."""
        position = units.first * UNIT_SIZE
        with memoryview(units.data) as data:
            begin = 0
            while begin < len(data) or units.trim:
                within = position % self.file_bytes
                path = self._path(units.queue, position - within)
                chunk = min(len(data) - begin, self.file_bytes - within)
                last = begin + chunk == len(data)
                if chunk or path.exists():
                    self._write_file(path, within, data[begin : begin + chunk], trim=units.trim and last)
                begin += chunk
                position += chunk
                if last:
                    break
        if units.trim:
            self._remove_from(units.queue, position)

    def _write_file(self, path: Path, within: int, data: memoryview, *, trim: bool) -> None:
        try:
            fd = self._files.open(path)
        except FileNotFoundError:
            self._files.make_folder(path.parent)
            fd = self._files.open(path, os.O_RDWR | os.O_CREAT)
            self._files.resize(fd, self.file_bytes)
            self._unsynced_folders.update((path.parent, path.parent.parent, self.root, self.root.parent))
        try:
            is_whole = trim and os.fstat(fd).st_size == self.file_bytes
            if is_whole and not data and not written_ranges(fd, within, self.file_bytes):
                return  # nothing to cut off, and so nothing to sync
            if trim:
                self._files.resize(fd, within + len(data))
                self._files.resize(fd, self.file_bytes)
            if data:
                write_checked(fd, data, within, path, self._files)
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            self._files.close(fd)
        self._unsynced.add(path)

    def _remove_from(self, queue: ConsumeQueue, position: int) -> None:
        """Remove the files of a queue that begin at ``position`` or after it, except its very first one."""
        folder = self.folder(queue.topic, queue.queue_id)
        for name in filter(is_log_name, self._files.names(folder)):
            if int(name) > position or (int(name) == position and position):
                self._files.remove(folder / name)
                self._unsynced.discard(folder / name)

    def sync(self) -> None:
        """Make durable what was written since the last call."""
        while self._unsynced:
            path = next(iter(self._unsynced))
            with contextlib.suppress(FileNotFoundError), self._files.opened(path) as fd:
                sync_checked(fd, path, self._files)
            self._unsynced.discard(path)
        while self._unsynced_folders:
            folder = next(iter(self._unsynced_folders))
            with contextlib.suppress(FileNotFoundError):
                sync_names(folder, self._files)
            self._unsynced_folders.discard(folder)

    def topics(self) -> list[str]:
        """Return the names of the topics that have a folder; raises OSError."""
        return self._files.names(self.root)

    def remove_topic(self, topic: str, kept: Collection[str] = ()) -> None:
        """Remove the files of all queues of a topic, but for those ``kept``, by the names of their folders."""
        folder = self.root / topic
        gone = [folder / name for name in self._files.names(folder) if name not in kept] if kept else [folder]
        self._unsynced = {path for path in self._unsynced if not any(path.is_relative_to(each) for each in gone)}
        for each in gone:
            self._files.remove_tree(each)

    def remove_all(self) -> None:
        """Remove every queue, to build them from the log again."""
        self.close()
        self._unsynced.clear()
        self._unsynced_folders.clear()
        self._files.remove_tree(self.root)
        self._files.make_folder(self.root)

    def _path(self, queue: QueueName, start: int) -> Path:
        return Path(f"{self.root}/{queue.topic}/{queue.queue_id}/{segment_name(start)}")
