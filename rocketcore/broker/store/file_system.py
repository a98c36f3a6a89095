"""The system calls on the store's files, and which of their errors mean that something is lost.

``FileSystem`` holds every system call that changes a file of the store. It is the seam where tests count, fail or lose
writes; the store itself never opens a file for writing anywhere else.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from rocketcore._fast import mapped
from rocketcore.disk import used_ratio

__all__ = [
    "REPLACE",
    "FileSystem",
    "LostWrite",
    "entries",
    "is_full",
    "lost_write",
    "sync_checked",
    "sync_names",
    "write_checked",
]

T = TypeVar("T")

REPLACE = os.O_RDWR | os.O_CREAT | os.O_TRUNC
"""Flags that make a file, or empty one that is there."""

LOAD_BYTES = 2 << 20
"""Read by one call: each has a thread ask for the interpreter once more."""

SCRATCH_BYTES = 64 << 10
"""Into which what is loaded is read again and again: it stays in the processor's own memory."""

_spare_lock = threading.Lock()


class LostWrite(OSError):
    """A write or a sync failed: what was written before may be lost, whatever the next sync says.

    Every other ``OSError`` of this module (no descriptor, no memory, no room, no permission) is a refusal: nothing that
    was written is affected, and the call may succeed the next time.
    """


def lost_write(error: OSError, path: Path | str) -> LostWrite:
    return LostWrite(error.errno, error.strerror, str(path))


def is_full(error: OSError) -> bool:
    """Whether there is no room on the disk."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class FileSystem:
    """The system calls that open, read and change files; they raise the system's own ``OSError``."""

    _spare = -1
    _keeps_spare = False

    @property
    def direct(self) -> bool:
        """Whether ``write`` and ``sync`` are the system's own calls and no more: then kernels make these themselves."""
        kind = type(self)
        return kind.write is FileSystem.write and kind.sync is FileSystem.sync

    def keep_spare(self) -> None:
        """Keep a descriptor for the next file when connections have taken all the others."""
        self._keeps_spare = True
        self._take_spare()

    def drop_spare(self) -> None:
        self._keeps_spare = False
        self._give_spare()

    def _take_spare(self) -> None:
        if not self._keeps_spare or self._spare >= 0:
            return
        with _spare_lock, contextlib.suppress(OSError):
            if self._spare < 0:
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_spare(self) -> bool:
        with _spare_lock:
            spare, self._spare = self._spare, -1
            if spare >= 0:
                os.close(spare)
            return spare >= 0

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        return self._with_spare(lambda: os.open(path, flags | os.O_CLOEXEC, 0o644))

    def _with_spare(self, call: Callable[[], T]) -> T:
        """Call, and where no descriptor is left once more with the spare one given up."""
        try:
            return call()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._give_spare():
                raise
        return call()

    def close(self, fd: int) -> None:
        os.close(fd)
        self._take_spare()

    @contextlib.contextmanager
    def opened(self, path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
        """Open a file for as long as the block runs."""
        fd = self.open(path, flags)
        try:
            yield fd
        finally:
            self.close(fd)

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

    def read_now(self, fd: int, size: int, position: int) -> bytes | None:
        """Return bytes as ``read`` does, None where the disk would have to be waited for.

        A file system that cannot say is read as ``read`` does.
        """
        data = bytearray(size)
        try:
            count = os.preadv(fd, [data], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            return self.read(fd, size, position)
        if count < size and position + count < os.fstat(fd).st_size:
            return None
        return bytes(data[:count])

    def read_file(self, path: Path) -> bytes:
        """Return the whole content of a file."""
        with self.opened(path, os.O_RDONLY) as fd:
            return self.read(fd, os.fstat(fd).st_size, 0)

    def map(self, fd: int, size: int) -> mmap.mmap | mapped.PaddedMap:
        """Map the first ``size`` bytes for reading. Its pages are read through ``_fast.mapped`` only."""
        mapped.install()
        try:
            return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise OSError(errno.EIO, f"the file is shorter than its {size} bytes") from error

    def load(self, fd: int, begin: int, end: int) -> int:
        """Have bytes of a file in memory, and wait for the disk; returns the first that cannot be read, or ``end``.

        Not through a map: a thread that waits for a page there can hold up whoever changes the process's maps, a large
        allocation among them. And only these bytes: what the system reads ahead nobody has touched, and in a virtual
        machine the first who does, then the event loop, waits for microseconds at each page.
        """
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        scratch = memoryview(bytearray(min(SCRATCH_BYTES, end - begin)))
        at = begin
        while at < end:
            whole, rest = divmod(min(end - at, LOAD_BYTES), SCRATCH_BYTES)
            try:
                count = os.preadv(fd, [scratch] * whole + [scratch[:rest]] * bool(rest), at)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return at
            if not count:
                return at  # cut off underneath
            at += count
        return end

    def first_absent(self, view: memoryview, begin: int, end: int) -> int:
        """Return the first byte of a map's range that is not in memory, ``end`` where all are."""
        return mapped.first_absent(view, begin, end)

    def sync(self, fd: int) -> None:
        """Make the file's bytes, and its size, durable."""
        os.fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with what is in it; one that is not there is as good as removed."""
        import shutil

        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder; none where there is no such folder."""
        try:
            return self._with_spare(lambda: os.listdir(folder))
        except FileNotFoundError:
            return []
        finally:
            self._take_spare()

    def modified(self, path: Path) -> float:
        """Return when a file was last written, in seconds since the epoch."""
        return path.stat().st_mtime

    def changed(self, path: Path) -> float:
        """Return when a file was last written or renamed, in seconds since the epoch."""
        return path.stat().st_ctime

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def used_percent(self, path: Path) -> float:
        """Return how much of the disk that holds a folder is used, of what there is for others than root."""
        return 100 * used_ratio(path)

    def type(self, path: Path) -> int:
        """Return the magic number of the file system that a folder is on, 0 where that is not known (statfs(2))."""
        return mapped.file_system_type(os.fsencode(path))

    def make_folder(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, "Not a folder", str(path)) from None

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        with self.opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            try:
                os.fsync(fd)
            except OSError as error:
                raise lost_write(error, path) from error


def entries(folder: Path) -> Iterable[os.DirEntry[str]]:
    """Return what is in a folder, nothing where there is none."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []


def sync_checked(fd: int, path: Path, files: FileSystem) -> None:
    """Make a file durable; raises LostWrite."""
    try:
        files.sync(fd)
    except OSError as error:
        raise lost_write(error, path) from error


def sync_names(folder: Path, files: FileSystem) -> None:
    """Make the names in a folder durable; raises LostWrite, or an OSError where there is no descriptor to do it."""
    try:
        files.sync_folder(folder)
    except (FileNotFoundError, LostWrite):
        raise
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        raise lost_write(error, folder) from error


def write_checked(fd: int, data: bytes | bytearray | memoryview, position: int, path: Path, files: FileSystem) -> None:
    """Write to a file whose room was not reserved; raises LostWrite, or an OSError that ``is_full``."""
    try:
        files.write(fd, data, position)
    except OSError as error:
        if is_full(error):
            error.filename = str(path)
            raise
        raise lost_write(error, path) from error
