"""The files of the index, the newest of which is written, and the note of what is in them (Java: ``IndexService``).

``indexbounds``  our own, in the folder of the store: up to where the log is indexed, and of each file what its header
                 said then, durable before the note. RocketMQ ignores it; in ``index/`` it would take it for an index
                 file. Entries behind what the note counts are written again by the next start

A file is believed as far as the note says, if the log still holds, where the file ends, the message that it ends with.
Without the note none of ours is: nothing else tells what is in its entries. Where RocketMQ has run since, its rule
decides: after a crash of whoever ran last a file goes whose end is later than the checkpoint's time for the index. What
then stays is believed up to the first gap: RocketMQ leaves one where a crash of its took a file. From the first file on
that is not believed all are removed, and what they held is indexed again from the log. So is what was in a file that is
found damaged.
"""

from __future__ import annotations

import json
import logging
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rocketcore._fast.index import BEGIN_OFFSET, BEGIN_TIMESTAMP, END_OFFSET, END_TIMESTAMP, ENTRIES, HEADER_COLUMNS
from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.file_system import FileSystem, LostWrite, sync_names
from rocketcore.broker.store.index.index_file import IndexFile
from rocketcore.broker.store.notes.small_file import replace_durably, with_crc, without_crc
from rocketcore.errors import DecodeError
from rocketcore.service import Clock
from rocketcore.table import Table

__all__ = ["Cursor", "IndexFiles", "IndexNote", "LogView"]

NAME_DIGITS = 17
MAPPED_FILES = 8
"""Files that are mapped after they were asked: a store keeps hundreds of some 400 MB."""
STEPS = 1 << 16
"""Entries that one look follows a chain for at most."""

logger = logging.getLogger(__name__)


class LogView(NamedTuple):
    """What of the log the files are compared with: where it begins and ends, and three questions about it.

    timestamp_at  the store time of the message at a physical offset, None where there is none
    behind        where the message at a physical offset ends, None where there is none
    first_keyed   where the first message with a key lies, from a place where one begins; the end where there is none
    """

    begin: int
    end: int
    timestamp_at: Callable[[int], int | None]
    behind: Callable[[int], int | None]
    first_keyed: Callable[[int], int]


class Cursor(NamedTuple):
    """Where the search for a key goes on: a file by its name, and an entry of it, -1 for the first look at it."""

    name: str
    entry: int


class _NotedFile(NamedTuple):
    name: str
    first_position: int
    whole: bool
    header: list[int]
    checksums: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class IndexNote:
    """The content of ``indexbounds``."""

    confirm_offset: int
    done: int
    slot_count: int
    max_entries: int
    files: list[_NotedFile]

    @classmethod
    def read(cls, path: Path, files: FileSystem) -> IndexNote | None:
        """Read the file; None where it is missing or damaged."""
        try:
            return cls.decode(files.read_file(path))
        except (OSError, ValueError):
            return None

    @classmethod
    def decode(cls, content: bytes) -> IndexNote:
        """raises  ValueError where it is not what was written"""
        line = without_crc(content)
        try:
            values = json.loads(line)
            found = [_NotedFile(*of_file) for of_file in values["files"]]
            if all(_is_name(file.name) and len(file.header) == HEADER_COLUMNS for file in found):
                found = [file._replace(checksums=_pair(file.checksums)) for file in found]
                return cls(values["confirm"], values["done"], values["slots"], values["entries"], found)
        except (LookupError, TypeError, AttributeError, RecursionError):
            pass
        raise ValueError("it is of another version")

    def encode(self) -> bytes:
        values = {
            "confirm": self.confirm_offset,
            "done": self.done,
            "slots": self.slot_count,
            "entries": self.max_entries,
            "files": self.files,
        }
        return with_crc(json.dumps(values, separators=(",", ":"), sort_keys=True).encode())


class IndexFiles:
    """Index thread only, once it runs.

    position     of the log: everything before it is indexed, and ``done`` entries of the message there
    noted_end    store time up to which the files on disk are what RocketMQ would have left, and noted; 0 where none is
    damaged      files found damaged and removed, since the start
    """

    def __init__(self, config: StoreConfig, files: FileSystem, clock: Clock) -> None:
        self.position = 0
        self.done = 0
        self.noted_end = 0
        self.damaged = 0
        self.files: list[IndexFile] = []
        self._folder = config.root / "index"
        self._note_path = config.root / "indexbounds"
        self._slot_count = config.max_hash_slot_num
        self._max_entries = config.max_index_num
        self._file_bytes = config.index_file_bytes
        self._system = files
        self._clock = clock
        self._noted: IndexNote | None = None
        self._mapped: dict[IndexFile, None] = {}  # in the order in which they were asked

    # ------------------------------------------------------------------ start

    def load(self, log: LogView, *, clean: bool, ours: bool, index_timestamp: int) -> None:
        """Take over what can be believed of the files; what cannot is removed. See ``believe``; raises OSError."""
        self.close()
        self.files.clear()
        self._system.make_folder(self._folder)
        for path in self.believe(log, clean=clean, ours=ours, index_timestamp=index_timestamp):
            logger.info("index file removed, it is made again if the log has it path=%s", path)
            self._system.remove(path)
        self.noted_end = self._whole_end()

    def believe(self, log: LogView, *, clean: bool, ours: bool, index_timestamp: int) -> list[Path]:
        """Take over what can be believed of the files; entries are not looked at yet. Returns the others.

        clean, ours      the last run ended in order; we were the last to run
        index_timestamp  of the checkpoint
        raises           OSError
        """
        names = sorted(name for name in self._system.names(self._folder) if _is_name(name))
        note = IndexNote.read(self._note_path, self._system) if ours else None
        if note is not None and (note.slot_count, note.max_entries) == (self._slot_count, self._max_entries):
            self._take_noted(note, log, clean=clean)
        elif not ours:
            self._take_found(names, log, None if clean else index_timestamp)
        else:
            self.position = log.begin
        kept = {file.path.name for file in self.files}
        return [self._folder / name for name in names if name not in kept]

    def _take_noted(self, note: IndexNote, log: LogView, *, clean: bool) -> None:
        """Take files by the note. After a crash the slots of the newest are not known to be those of the note."""
        self.position = log.begin
        for name, first_position, whole, header, checksums in note.files:
            if header[END_OFFSET] < log.begin:
                continue
            whole = whole and (clean or name != note.files[-1].name)
            first_position = max(first_position, log.begin)
            file = self._file(name, header, first_position, whole=whole, checksums=checksums)
            if not self._is_sound(file, log):
                self.position = file.first_position
                return
            self.files.append(file)
        self.position = min(max(note.confirm_offset, log.begin), log.end)
        self.done = note.done if self.position == note.confirm_offset else 0

    def _take_found(self, names: list[str], log: LogView, latest: int | None) -> None:
        """Take files by what their headers say, up to the first gap; after a crash none that ends behind ``latest``."""
        self._take_headers(names, log, latest)
        if latest is not None and self.files:
            self.files[-1].forget_slots()

    def _take_headers(self, names: list[str], log: LogView, latest: int | None) -> None:
        self.position = log.begin
        for name in names:
            try:
                header = IndexFile.read_header(self._folder / name, self._system)
            except (OSError, ValueError) as error:
                logger.warning("index file not taken over path=%s reason=%s", self._folder / name, error)
                return
            if header[END_OFFSET] < log.begin:
                continue
            file = self._file(name, header, self.position, whole=True)
            is_late = latest is not None and header[END_TIMESTAMP] > latest
            if is_late or header[ENTRIES] == 1 or not self._is_sound(file, log):
                return
            if header[BEGIN_OFFSET] > self.position and log.first_keyed(self.position) < header[BEGIN_OFFSET]:
                logger.warning("messages are missing in the index path=%s first=%d", file.path, self.position)
                return
            behind = log.behind(header[END_OFFSET])
            if behind is None:
                return
            self.files.append(file)
            self.position = behind

    def _file(
        self,
        name: str,
        header: list[int],
        first_position: int,
        *,
        whole: bool,
        checksums: tuple[int, int] | None = None,
    ) -> IndexFile:
        return IndexFile(
            self._folder / name, self._slot_count, self._max_entries, header, first_position, whole=whole,
            files=self._system, checksums=checksums,
        )  # fmt: skip

    def _is_sound(self, file: IndexFile, log: LogView) -> bool:
        """Whether a file is there, and may be one of this log."""
        header = file.header
        try:
            has_size = self._system.size(file.path) == self._file_bytes
        except OSError as error:
            logger.warning("index file not taken over path=%s reason=%s", file.path, error)
            return False
        reason = ""
        if not has_size:
            reason = f"it does not have {self._file_bytes} bytes"
        elif header[ENTRIES] == 1:
            pass  # nothing in it, so nothing of another log
        elif not (1 < header[ENTRIES] <= self._max_entries and header[BEGIN_OFFSET] <= header[END_OFFSET] < log.end):
            reason = "its header makes no sense"
        elif log.timestamp_at(header[END_OFFSET]) != header[END_TIMESTAMP]:
            reason = "the log does not hold the message that it ends with"
        if reason:
            logger.warning("index file not taken over path=%s reason=%s", file.path, reason)
        return not reason

    def open(self) -> None:
        """Get the newest file ready to be read; one that is damaged is removed.

        raises  OSError
        """
        while self.files and not self.files[-1].is_readable:
            self._open_last()

    def _open_last(self) -> None:
        if not self.files[-1].open():
            self.is_damaged(self.files[-1], "not what was written")

    @property
    def unchecked(self) -> bool:
        """Whether there are files that were not compared with their checksums yet."""
        return not all(file.checked for file in self.files)

    def check_one(self) -> int:
        """Compare the newest file that was not yet with its checksum, and remove it where it is damaged: ``position``.

        raises  OSError
        """
        for file in reversed(self.files):
            if not file.checked:
                if not file.check():
                    self.is_damaged(file, "not what was written")
                break
        return self.position

    # ------------------------------------------------------------------ writing

    @property
    def room(self) -> int:
        """Entries that fit before another file is begun; one is, where none fits.

        raises  OSError
        """
        if self.files and self.files[-1].room:
            self._open_last()
        if not self.files or not self.files[-1].room:
            self.begin_next()
        return self.files[-1].room

    @property
    def newest_timestamp(self) -> int:
        """Store time of the last entry of the newest file, -1 where it is empty."""
        header = self.files[-1].header
        return header[END_TIMESTAMP] if header[ENTRIES] > 1 else -1

    def begin_next(self) -> None:
        """Begin another file; raises OSError."""
        previous = self.files[-1] if self.files else None
        if previous is not None:
            self._surely(previous.finish)
        self._system.make_folder(self._folder)
        path = self._folder / self._next_name(previous)
        made = IndexFile.create(path, self._slot_count, self._max_entries, previous, self.position, self._system)
        if previous is not None:
            previous.stop_writing()
        self.files.append(made)
        logger.info("index file begun path=%s position=%d", path, self.position)

    def _next_name(self, previous: IndexFile | None) -> str:
        """Return the time as RocketMQ writes it; behind that of the file before, whatever the clock says."""
        millis = self._clock.time_millis()
        local = time.localtime(millis // 1000)
        name = time.strftime("%Y%m%d%H%M%S", local) + f"{millis % 1000:03d}"
        return name if previous is None else max(name, f"{int(previous.path.name) + 1:0{NAME_DIGITS}d}")

    def add(self, rows: Table, count: int, position: int, done: int) -> None:
        """Add the first rows of a scan, which led to ``position``, and ``done`` entries of the message there.

        raises  OSError: none was added
        """
        if count:
            self._surely(lambda: self.files[-1].add(rows, count))
        self.position, self.done = position, done

    def _surely(self, write: Callable[[], None]) -> None:
        """Write to the newest file; where that was lost, so may be what was written before: the file is removed."""
        try:
            write()
        except LostWrite:
            self.discard_from(self.files[-1])
            raise

    def pass_over(self, position: int) -> None:
        """Go on at ``position``: what lies before it cannot be indexed."""
        self.position, self.done = position, 0

    def sync(self) -> Callable[[], None]:
        """Make what was added durable; returns what writes the note of it, when the log up to there is on disk too.

        raises  OSError
        """
        note = IndexNote(
            self.position,
            self.done,
            self._slot_count,
            self._max_entries,
            [
                _NotedFile(file.path.name, file.first_position, file.whole, list(file.header), file.checksums)
                for file in self.files
            ],
        )
        if note == self._noted:
            return lambda: None
        if self.files:
            self._surely(self.files[-1].sync)
        whole_end = self._whole_end()

        def write() -> None:
            replace_durably(self._note_path, note.encode(), self._system)
            self._noted = note
            self.noted_end = whole_end

        return write

    def finish(self) -> None:
        """Make the newest file what RocketMQ would have left at its stop; raises OSError."""
        if self.files:
            self._surely(self.files[-1].finish)

    def _whole_end(self) -> int:
        return max((file.written_end for file in self.files), default=0)

    # ------------------------------------------------------------------ reading

    def find(
        self, key_hash: int, begin: int, end: int, out: array[int], cursor: Cursor | None
    ) -> tuple[int, Cursor | None]:
        """Return how many physical offsets of ``out`` are filled, newest first, and where to go on; None: nowhere.

        raises  DecodeError when a file is damaged: it is removed then; OSError when one cannot be read
        """
        while True:
            found = self._file_at(cursor)
            if found is None:
                return 0, None
            file, entry = found
            header = file.header
            if header[BEGIN_TIMESTAMP] <= end and header[END_TIMESTAMP] >= begin and header[ENTRIES] > 1:
                self._will_map(file)
                try:
                    count, entry = file.find(key_hash, begin, end, out, entry, STEPS)
                except DecodeError as error:
                    self.is_damaged(file, str(error))
                    raise
            else:
                count, entry = 0, 0
            cursor = Cursor(file.path.name, entry)
            if entry:
                return count, cursor
            if file is self.files[0]:
                return count, None
            cursor = Cursor(self.files[self.files.index(file) - 1].path.name, -1)
            if count:
                return count, cursor

    def _will_map(self, file: IndexFile) -> None:
        """Unmap those that were asked before the last few."""
        self._mapped.pop(file, None)
        self._mapped[file] = None
        while len(self._mapped) > MAPPED_FILES:
            oldest = next(iter(self._mapped))
            del self._mapped[oldest]
            oldest.unmap()

    def _file_at(self, cursor: Cursor | None) -> tuple[IndexFile, int] | None:
        if cursor is None:
            return (self.files[-1], -1) if self.files else None
        for file in self.files:
            if file.path.name == cursor.name:
                return file, cursor.entry
        return None

    @property
    def last_update(self) -> tuple[int, int]:
        """Store time and physical offset of the newest message in the index."""
        return (self.files[-1].header[END_TIMESTAMP], self.files[-1].header[END_OFFSET]) if self.files else (0, 0)

    # ------------------------------------------------------------------ giving up and giving back

    def is_damaged(self, damaged: IndexFile, reason: str) -> None:
        """Remove a file, and those behind it; what they held is indexed again."""
        self.damaged += 1
        logger.error("index file damaged path=%s reason=%s: it is made again from the log", damaged.path, reason)
        self.discard_from(damaged)

    def discard_from(self, first: IndexFile) -> None:
        """Remove a file and those behind it."""
        index = self.files.index(first)
        gone, self.files[index:] = self.files[index:], []
        self.pass_over(first.first_position)
        for file in reversed(gone):
            try:
                file.remove()
            except OSError as error:
                logger.error("index file not removed path=%s reason=%s", file.path, error)

    def remove_before(self, begin: int) -> int:
        """Remove the files, but for the newest, that only lead to before ``begin`` of the log; returns how many.

        raises  OSError
        """
        count = 0
        while len(self.files) > 1 and self.files[0].header[END_OFFSET] < begin:
            self.files[0].remove()
            del self.files[0]
            count += 1
        if count:
            sync_names(self._folder, self._system)
        if self.position < begin:
            self.pass_over(begin)
        return count

    def close(self) -> None:
        for file in self.files:
            file.close()


def _pair(values: Sequence[int] | None) -> tuple[int, int] | None:
    """raises  ValueError for other than two"""
    if values is None:
        return None
    first, second = values
    return first, second


def _is_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
