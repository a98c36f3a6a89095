"""The files of a store as a verification sees them: opened for reading only, and none is missing or too short.

A start brings the files of a log to their size before it reads them: what they lack reads as zeros then. Here a map
has these zeros, and the files stay as they are.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from rocketcore._fast.mapped import PaddedMap
from rocketcore.broker.store.config import RECORD_OVERHEAD, UNIT_SIZE, StoreConfig
from rocketcore.broker.store.file_system import FileSystem, entries
from rocketcore.broker.store.index.index_folder import IndexNote
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.log.damage import PAGE_BYTES, FileFaults, is_full
from rocketcore.broker.store.log.segment_file import Segment, find_files, is_log_name, segment_name
from rocketcore.broker.store.notes.checkpoint import Notes
from rocketcore.broker.store.verify.report import Report
from rocketcore.errors import StoreCorrupted
from rocketcore.service import SYSTEM_CLOCK

__all__ = ["AuditedLog", "ReadOnlyFiles", "Sized", "sized", "subfolders"]

LOOKED_AT = 1000
"""Files of queues whose lengths tell how long all of them should be."""


class ReadOnlyFiles(FileSystem):
    """Refuses every change.

    missing  paths that can be opened though there are no such files: they are empty
    """

    def __init__(self) -> None:
        self.missing: set[Path] = set()

    def open(self, path: Path, flags: int = os.O_RDONLY) -> int:
        if path in self.missing:
            return os.memfd_create(path.name)
        return super().open(path, os.O_RDONLY | flags & os.O_DIRECTORY)

    def map(self, fd: int, size: int) -> mmap.mmap | PaddedMap:
        length = os.fstat(fd).st_size
        return super().map(fd, size) if length >= size else PaddedMap(fd, length, size)

    def allocate(self, fd: int, size: int) -> None:
        _refuse()

    def resize(self, fd: int, size: int) -> None:
        _refuse()

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        _refuse()

    def rename(self, source: Path, target: Path) -> None:
        _refuse()

    def remove(self, path: Path) -> None:
        _refuse()

    def remove_tree(self, path: Path) -> None:
        _refuse()

    def make_folder(self, path: Path) -> None:
        _refuse()


def _refuse() -> None:
    raise OSError(errno.EROFS, "a verification changes nothing")


class AuditedLog(CommitLog):
    """A log that is read as a start would read it once its files are mended."""

    def __init__(self, config: StoreConfig, files: ReadOnlyFiles) -> None:
        super().__init__(config, files, SYSTEM_CLOCK)
        self.files = files

    def look(self, begin: int, report: Report) -> None:
        """List the segments; names files that are not as they should be.

        begin   the log was noted to begin here
        raises  StoreCorrupted for files of another size, or that do not belong together; OSError
        """
        found, unfinished = find_files(self._folder)
        for path in unfinished:
            report.remarks.append(f"{path} was never finished; the next start removes it")
        for start in self.outlived(found, begin):
            report.remarks.append(f"{found.pop(start)} was about to be deleted; the next start does it")
        if not found:
            return
        faults = FileFaults.find(found, self._size, self.files)
        self.lost_end = faults.lost_end(self._size) or 0
        self.files.missing.update(self._folder / segment_name(start) for start in faults.missing)
        for start, length in faults.wrong.items():
            what = f"the file has {length} bytes and not {self._size}"
            report.name("log", found[start], min(length, self._size), abs(self._size - length), what)
        self.segments = [
            Segment(self._folder / segment_name(start), start, self._size, self.files)
            for start in range(min(found), max(found) + 1, self._size)
        ]
        report.file_count += len(found)


class Sized(NamedTuple):
    """A configuration with the sizes that the files of a store have: they are of no use with others.

    is_told  whether the files of the log tell theirs; where they do not, it is the one of the configuration given
    doubt    in words, what speaks against the size that is taken; empty for nothing
    """

    config: StoreConfig
    is_told: bool
    doubt: str


def sized(config: StoreConfig) -> Sized:
    """Find out which sizes the files of a store have.

    raises  StoreCorrupted where they cannot be those of any configuration; OSError
    """
    files = ReadOnlyFiles()
    notes = Notes.read(config.root, files)
    found = find_files(config.commit_log_folder)[0]
    usual_size = config.mapped_file_size_commit_log
    told, is_sure = _log_file_bytes(found, usual_size, notes.known_end, files)
    size = told or usual_size
    of_queues = Counter(islice(_queue_file_lengths(config.root / "consumequeue"), LOOKED_AT))
    usual = [length for length, _ in of_queues.most_common() if length and length % UNIT_SIZE == 0]
    most = min(config.max_message_size, size - RECORD_OVERHEAD)
    if most < 1:
        raise StoreCorrupted(f"{config.commit_log_folder}: a commit log cannot have files of {size} bytes")
    note = IndexNote.read(config.root / "indexbounds", files)
    if note is not None:
        config = replace(config, max_hash_slot_num=note.slot_count, max_index_num=note.max_entries)
    of_queue = notes.bounds.file_bytes or (usual[0] if usual else config.mapped_file_size_consume_queue)
    config = replace(
        config,
        mapped_file_size_commit_log=size,
        mapped_file_size_consume_queue=of_queue,
        max_message_size=most,
    )
    doubt = ""
    if not told and (found or notes.known_end > 0):
        doubt = f"{'the length of its only file cannot be it' if found else 'it has no file'}; {size} is taken"
    elif told and not is_sure:
        doubt = f"{size} is taken, the length of its only file, which may have been cut"
    return Sized(config, bool(told) or not doubt, doubt)


def _log_file_bytes(found: dict[int, Path], usual: int, known_end: int, files: FileSystem) -> tuple[int, bool]:
    """Return the size with which the files of a log were made, 0 where they do not tell, and whether that is sure.

    It divides every name. Of several files it is the length that most have, or that they are apart. One alone may have
    been cut: its length counts if it is one of whole pages and the log is not known to go on behind it, which is sure
    where it is the usual one, and otherwise if a filler ends it there.
    """
    lengths = {start: path.stat().st_size for start, path in found.items()}
    votes = Counter(lengths.values()) + Counter(second - first for first, second in pairwise(found))
    fitting = [size for size in votes if size and not any(start % size for start in found)]
    if not fitting:
        return 0, False
    size = min(fitting, key=lambda size: (-votes[size], size))
    if len(found) > 1:
        return size, True
    [(start, path)] = found.items()
    may_be_it = size % PAGE_BYTES == 0 and known_end <= start + size
    if (may_be_it and size == usual) or is_full(path, start, size, files):
        return size, True
    return size if may_be_it else 0, False


def _queue_file_lengths(root: Path) -> Iterator[int]:
    for topic in subfolders(root):
        for queue in subfolders(topic):
            for entry in entries(queue):
                if is_log_name(entry.name):
                    yield entry.stat().st_size


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, by name; none where there is no such."""
    return sorted(Path(entry.path) for entry in entries(folder) if entry.is_dir())
