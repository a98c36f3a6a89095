"""Files of the commit log: fallocated at full size, written by pwrite, read through a read-only map.

A writable map is the rejected alternative (Java: ``MappedFile``): on a full or failing disk a store through a map kills
the process with SIGBUS, and no error ever reaches the writer. pwrite returns the error. Reads of the map are guarded
(``_fast.mapped``): a page that the disk does not give, or that was cut off underneath, is an ``OSError`` of that read.

Allocated is not written: an fdatasync after a write into an allocated extent also commits the journal, to mark it as
written. So a writer that syncs every group writes zeros a megabyte ahead of the data now and then (see ``Committer``).
Measured on ext4, groups of 19 KiB with an fdatasync each, machine busy: 160 µs at the median, 431 µs on average and
57 µs of CPU without; 63, 90 and 36 µs with it. Zeroing whole files gains no more and writes gigabytes.

A file appears under its final name only when it is complete: it is allocated and synced as ``<name>.tmp`` and renamed,
so a crash never leaves a file of the wrong size, which RocketMQ would refuse to load.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
from pathlib import Path

from rocketcore._fast import mapped
from rocketcore._fast.flusher import Work
from rocketcore.broker.store.file_system import REPLACE, FileSystem, entries, lost_write, sync_checked, sync_names

__all__ = ["Segment", "find_files", "is_log_name", "list_files", "segment_name", "written_ranges"]

logger = logging.getLogger(__name__)

NAME_DIGITS = 20

ZERO_BYTES = 1 << 20
_ZEROS = bytes(ZERO_BYTES)


class Segment:
    """One file of the commit log (Java: ``DefaultMappedFile``): bytes ``start`` to ``start + size`` of the log."""

    __slots__ = (
        "_data_to", "_fd", "_files", "_map", "_name", "_view", "_zeroed_to", "end", "path", "sealed", "size",
        "start",
    )  # fmt: skip

    def __init__(self, path: Path, start: int, size: int, files: FileSystem, fd: int = -1) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.end = start + size
        self.sealed: bool | None = None  # whether its records have checksums; None: not known yet
        self._files = files
        self._fd = fd
        self._name = str(path)
        self._zeroed_to = 0
        self._data_to = 0
        self._map: mmap.mmap | mapped.PaddedMap | None = None
        self._view: memoryview | None = None

    @classmethod
    def create(cls, folder: Path, start: int, size: int, files: FileSystem) -> Segment:
        """Allocate a new file, durable with its name before it is returned, and open: nothing later needs a descriptor.

        raises  OSError; ENOSPC leaves nothing behind
        """
        path = folder / segment_name(start)
        temporary = path.with_name(path.name + ".tmp")
        try:
            with files.opened(temporary, REPLACE) as fd:
                files.allocate(fd, size)
                sync_checked(fd, path, files)
            files.rename(temporary, path)
            sync_names(folder, files)
            fd = files.open(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                files.remove(temporary)
            error.filename = error.filename or str(path)
            raise
        return cls(path, start, size, files, fd)

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        try:
            self._files.write(self._writable(), data, position)
        except OSError as error:
            raise lost_write(error, self.path) from error

    def sync(self) -> None:
        sync_checked(self._writable(), self.path, self._files)

    def add_write(self, work: Work, data: bytearray, begin: int, end: int, position: int) -> None:
        """Have a work write ``data[begin:end]``; works are done in the order in which this is called."""
        work.write(self._writable(), self._name, data, begin, end, position)
        self._data_to = position + end - begin

    def add_sync(self, work: Work) -> None:
        """Have a work sync what was written."""
        work.sync(self._writable(), self._name)

    @property
    def wants_zeros(self) -> bool:
        """Whether the data that works write have used up the zeros ahead of them."""
        return self._zeroed_to <= self._data_to < self.size

    def add_zeros(self, work: Work) -> None:
        """Have a work write zeros behind the data."""
        length = min(ZERO_BYTES, self.size - self._data_to)
        work.write(self._writable(), self._name, _ZEROS, 0, length, self._data_to)
        self._zeroed_to = self._data_to + length

    def rewrite(self, start: int, end: int) -> None:
        """Write bytes again as they are, and sync them; what cannot be read is left as it is."""
        for position in range(start, end, ZERO_BYTES):
            try:
                data = self.read(position, min(ZERO_BYTES, end - position))
            except OSError as error:
                logger.error("commit log not readable path=%s position=%d reason=%s", self.path, position, error)
                continue
            self.write(data, position)
        self.sync()

    def is_gone(self) -> bool:
        """Whether the file that is open for writing has no name any more, or not its own on its disk."""
        try:
            here, named = os.fstat(self._fd), self.path.stat()
            # Not by inodes: some file systems of other machines give a file another number at each look.
            return here.st_nlink == 0 or here.st_dev != named.st_dev
        except OSError as error:
            return isinstance(error, FileNotFoundError | NotADirectoryError)  # others may pass, or nothing is open

    def _writable(self) -> int:
        if self._fd < 0:
            self._fd = self._files.open(self.path)
        return self._fd

    def read(self, position: int, size: int) -> bytes:
        """Return a copy of bytes of the file.

        raises  OSError, which names the file and the position, when a page cannot be read
        """
        view = self.view()
        try:
            return mapped.read(view, position, position + size)
        except OSError as error:
            error.filename = str(self.path)
            raise

    def view(self) -> memoryview:
        """Return the whole file, for kernels that guard their reads. Slices must not outlive the segment.

        raises  OSError
        """
        if self._view is None:
            with self._files.opened(self.path, os.O_RDONLY) as fd:
                try:
                    self._map = self._files.map(fd, self.size)
                except OSError as error:
                    error.filename = error.filename or str(self.path)
                    raise
            self._view = memoryview(self._map)
        return self._view

    def load(self, begin: int, end: int) -> int:
        """Have bytes of the file in memory, on any thread; returns the first that cannot be read, or ``end``.

        Its descriptor is its own, so the segment may be closed, and its file deleted, meanwhile.
        """
        with self._files.opened(self.path, os.O_RDONLY) as fd:
            return self._files.load(fd, begin, end)

    def first_absent(self, begin: int, end: int) -> int:
        """Return the first byte of a range that is not in memory, ``end`` where all are; raises OSError."""
        return self._files.first_absent(self.view(), begin, end)

    def written_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return the ranges from ``position`` on that were ever written: what was only allocated reads as zeros.

        All at once: the system takes allocated pages for data while they are cached, and to read one range has it read
        ahead behind its end, so that one look after the other would go through the whole file. What is cached because
        it was read before is forgotten first.
        """
        fd = self._writable()
        os.posix_fadvise(fd, position, 0, os.POSIX_FADV_DONTNEED)
        return written_ranges(fd, position, self.size)

    def forget_pages(self, begin: int = 0, end: int | None = None) -> None:
        """Let the system drop pages of the map from this process's resident memory; they stay in the page cache."""
        if self._map is not None:
            begin -= begin % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, begin, (self.size if end is None else end) - begin)

    def data_end(self, position: int) -> tuple[int, int]:
        """Return where the last byte ends that is not zero, from ``position`` on, and the last that was ever written.

        returns  twice ``position`` if there is none
        """
        last = end = position
        fd = self._writable()
        for begin, end in self.written_ranges(position):
            for chunk in range(begin, end, ZERO_BYTES):
                data = _read_around(self._files, fd, min(ZERO_BYTES, end - chunk), chunk)
                if data != _ZEROS[: len(data)]:  # to strip zeros takes thirty times as long
                    last = chunk + len(data.rstrip(b"\0"))
        return last, end

    def clear_from(self, position: int) -> int:
        """Overwrite with zeros what was ever written at or after ``position``; return the bytes that were not zero.

        A later scan must not find a stale record there that happens to fit behind a new one.
        """
        fd = self._writable()
        cleared = 0
        for begin, end in self.written_ranges(position):
            for chunk in range(begin, end, ZERO_BYTES):
                length = min(ZERO_BYTES, end - chunk)
                data = _read_around(self._files, fd, length, chunk)
                if data != _ZEROS[:length]:
                    self._files.write(fd, bytes(length), chunk)
                    cleared += length - data.count(0)
        if cleared:
            self._files.sync(fd)
        return cleared

    def remove(self) -> None:
        self.close()
        self._files.remove(self.path)

    def close(self) -> None:
        if self._view is not None:
            self._view.release()
            self._view = None
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1


def segment_name(start: int) -> str:
    """Return the file name of the file that starts at byte ``start`` of its log."""
    return f"{start:0{NAME_DIGITS}d}"


def list_files(folder: Path, files: FileSystem) -> dict[int, Path]:
    """Return start offset and path of a log's files, ascending, after removing unfinished ones."""
    found, unfinished = find_files(folder)
    for path in unfinished:
        files.remove(path)
    return found


def find_files(folder: Path) -> tuple[dict[int, Path], list[Path]]:
    """Return start offset and path of a log's files, ascending, and the paths of unfinished ones.

    Unfinished are ``.tmp`` files, and an empty last one, which RocketMQ 5 can leave.
    """
    found, unfinished = {}, []
    for entry in entries(folder):
        if is_log_name(entry.name):
            found[int(entry.name)] = Path(entry.path)
        elif entry.name.endswith(".tmp"):
            unfinished.append(Path(entry.path))
    while found and found[max(found)].stat().st_size == 0:
        unfinished.append(found.pop(max(found)))
    return dict(sorted(found.items())), unfinished


def written_ranges(fd: int, position: int, size: int) -> list[tuple[int, int]]:
    """Return the ranges of a file from ``position`` on, before ``size``, that were ever written; raises OSError."""
    ranges = []
    while position < size:
        try:
            begin = max(os.lseek(fd, position, os.SEEK_DATA), position)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        position = min(os.lseek(fd, begin, os.SEEK_HOLE), size)
        ranges.append((begin, position))
    return ranges


def is_log_name(name: str) -> bool:
    """Whether a file has the name of one of a log."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def _read_around(files: FileSystem, fd: int, length: int, position: int) -> bytes:
    """Read bytes of a file, with ones for pages that the disk does not give: they are not to be taken for zeros."""
    try:
        return files.read(fd, length, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        if length <= mmap.PAGESIZE:
            return b"\1" * length
    end = position + length
    return b"".join(
        _read_around(files, fd, min(mmap.PAGESIZE, end - at), at) for at in range(position, end, mmap.PAGESIZE)
    )
