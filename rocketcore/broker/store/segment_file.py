"""Files of the commit log: fallocated at full size, written by pwrite, read through a read-only map.

``FileSystem`` holds every system call that changes a file of the store. It is the seam where tests count, fail or lose
writes; the store itself never opens a file for writing anywhere else.

A writable map is the rejected alternative (Java: ``MappedFile``): on a full or failing disk a store through a map kills
the process with SIGBUS, and no error ever reaches the writer. pwrite returns the error. Reads of the map are guarded
(``_fast.mapped``): a page that the disk does not give, or that was cut off underneath, is an ``OSError`` of that read.

Allocated is not written: an fdatasync after a write into an allocated extent also commits the journal, to mark it as
written. So a writer that syncs every group writes zeros a megabyte ahead of the data now and then (``zero_ahead``).
Measured on ext4, groups of 19 KiB with an fdatasync each, machine busy: 160 µs at the median, 431 µs on average and
57 µs of CPU without; 63, 90 and 36 µs with it. Zeroing whole files gains no more and writes gigabytes.

A file appears under its final name only when it is complete: it is allocated and synced as ``<name>.tmp`` and renamed,
so a crash never leaves a file of the wrong size, which RocketMQ would refuse to load.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from rocketcore._fast import mapped
from rocketcore.errors import StoreCorrupted, StoreLocked

__all__ = ["FileSystem", "FolderLock", "Segment", "list_files", "replace_durably", "segment_name"]

logger = logging.getLogger(__name__)

ZERO_BYTES = 1 << 20
_ZEROS = bytes(ZERO_BYTES)

_locked_folders: set[str] = set()


class FileSystem:
    """The system calls that open, read and change files; they raise the system's own ``OSError``."""

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def allocate(self, fd: int, size: int) -> None:
        """Reserve ``size`` bytes on the disk, so that no later write into the file can run out of space."""
        os.posix_fallocate(fd, 0, size)

    def resize(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of ``data`` at ``position``; a short write is continued."""
        written = os.pwrite(fd, data, position)
        total = len(data)
        while written < total:
            if written == 0:
                raise OSError(errno.EIO, "the file takes no more bytes")
            with memoryview(data) as view, view[written:] as rest:
                count = os.pwrite(fd, rest, position + written)
            if count == 0:
                raise OSError(errno.EIO, "the file takes no more bytes")
            written += count

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Return up to ``size`` bytes at ``position``, fewer at the end of the file."""
        return os.pread(fd, size, position)

    def map(self, fd: int, size: int) -> mmap.mmap:
        """Map the first ``size`` bytes for reading. Its pages are read through ``_fast.mapped`` only."""
        mapped.install()
        try:
            return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise OSError(errno.EIO, f"the file is shorter than its {size} bytes") from error

    def sync(self, fd: int) -> None:
        """Make the file's bytes, and its size, durable."""
        os.fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class Segment:
    """One file of the commit log (Java: ``DefaultMappedFile``): bytes ``start`` to ``start + size`` of the log."""

    __slots__ = ("_fd", "_files", "_map", "_view", "_zeroed_to", "path", "size", "start")

    def __init__(self, path: Path, start: int, size: int, files: FileSystem) -> None:
        self.path = path
        self.start = start
        self.size = size
        self._files = files
        self._fd = -1
        self._zeroed_to = 0
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    @classmethod
    def create(cls, folder: Path, start: int, size: int, files: FileSystem) -> Segment:
        """Allocate a new file, durable with its name before it is returned.

        raises  OSError; ENOSPC leaves nothing behind
        """
        path = folder / segment_name(start)
        temporary = path.with_name(path.name + ".tmp")
        fd = files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            try:
                files.allocate(fd, size)
                files.sync(fd)
            finally:
                files.close(fd)
            files.rename(temporary, path)
            files.sync_folder(folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                files.remove(temporary)
            error.filename = error.filename or str(path)
            raise
        return cls(path, start, size, files)

    @property
    def end(self) -> int:
        return self.start + self.size

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        try:
            self._files.write(self._writable(), data, position)
        except OSError as error:
            error.filename = str(self.path)
            raise

    def zero_ahead(self, position: int) -> None:
        """Write zeros behind the data, which end at ``position``, when those of the last time are used up."""
        if position < self._zeroed_to or position >= self.size:
            return
        length = min(ZERO_BYTES, self.size - position)
        self._zeroed_to = position + length
        self.write(_ZEROS if length == ZERO_BYTES else bytes(length), position)

    def sync(self) -> None:
        try:
            self._files.sync(self._writable())
        except OSError as error:
            error.filename = str(self.path)
            raise

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
            fd = self._files.open(self.path, os.O_RDONLY)
            try:
                self._map = self._files.map(fd, self.size)
            except OSError as error:
                error.filename = error.filename or str(self.path)
                raise
            finally:
                self._files.close(fd)
            self._view = memoryview(self._map)
        return self._view

    def find(self, pattern: bytes, start: int) -> int:
        """Return the position of the next ``pattern`` in the file from ``start`` on, or -1."""
        self.view()
        assert self._map is not None, "view() maps the file"
        for begin, end in self._written_ranges(start):
            found = self._map.find(pattern, begin, end)
            if found >= 0:
                return found
        return -1

    def _written_ranges(self, position: int) -> Iterator[tuple[int, int]]:
        """Return the ranges from ``position`` on that were ever written: what was only allocated reads as zeros."""
        fd = self._writable()
        while position < self.size:
            try:
                begin = max(os.lseek(fd, position, os.SEEK_DATA), position)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                raise
            position = min(os.lseek(fd, begin, os.SEEK_HOLE), self.size)
            yield begin, position

    def forget_pages(self) -> None:
        """Let the system drop the map's pages from this process's resident memory; they stay in the page cache."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def clear_from(self, position: int) -> int:
        """Overwrite with zeros what was ever written at or after ``position``; return the bytes that were not zero.

        A later scan must not find a stale record there that happens to fit behind a new one.
        """
        fd = self._writable()
        cleared = 0
        for begin, end in self._written_ranges(position):
            for chunk in range(begin, end, ZERO_BYTES):
                length = min(ZERO_BYTES, end - chunk)
                data = os.pread(fd, length, chunk)
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


class FolderLock:
    """Exclusive use of a store folder, by the lock RocketMQ takes: byte 0 of ``lock``.

    The system's record locks do not conflict within a process, so a set of this process's folders stands beside them.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "lock"
        self._key = os.path.realpath(root)
        self._fd = -1

    def acquire(self) -> None:
        """raises  StoreLocked when another store, here or in another process, has the folder"""
        if self._key in _locked_folders:
            raise StoreLocked(f"store folder {self._path.parent} is in use in this process")
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(fd, b"lock", 0)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                reason = f"store folder {self._path.parent} is in use: Lock failed,MQ already started"
                raise StoreLocked(reason) from error
            raise
        self._fd = fd
        _locked_folders.add(self._key)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _locked_folders.discard(self._key)


def segment_name(start: int) -> str:
    """Return the file name of the file that starts at byte ``start`` of its log."""
    return f"{start:020d}"


def list_files(folder: Path, size: int, *, remove_broken: FileSystem | None = None) -> list[int]:
    """Return the start offsets of a log's files, ascending.

    remove_broken  removes unfinished files (``.tmp``, or empty as RocketMQ 5 can leave its last one) with this
    raises         StoreCorrupted for a file of another size, or with a gap before it
    """
    starts = []
    for entry in _entries(folder):
        if not entry.name.isascii() or not entry.name.isdigit():
            if remove_broken is not None and entry.name.endswith(".tmp"):
                remove_broken.remove(Path(entry.path))
            continue
        found = entry.stat().st_size
        if found == 0 and remove_broken is not None:
            remove_broken.remove(Path(entry.path))
            continue
        if found != size:
            raise StoreCorrupted(f"{entry.path} has {found} bytes and not the configured {size}")
        starts.append(int(entry.name))
    starts.sort()
    for previous, start in pairwise(starts):
        if start != previous + size:
            raise StoreCorrupted(f"{folder}: no file starts at {previous + size}, but one starts at {start}")
    return starts


def _entries(folder: Path) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def replace_durably(path: Path, data: bytes, files: FileSystem) -> None:
    """Write a small file so that at any crash the path holds the old or the new content, whole."""
    temporary = path.with_name(path.name + ".tmp")
    fd = files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        files.write(fd, data, 0)
        files.sync(fd)
    finally:
        files.close(fd)
    files.rename(temporary, path)
    files.sync_folder(path.parent)
