"""Exclusive use of a store's folders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from rocketcore.broker.store.file_system import FileSystem
from rocketcore.errors import StoreLocked

__all__ = ["FolderLock"]

_locked_folders: set[str] = set()
_log_fds: set[int] = set()


def _forked() -> None:
    """A child has no store, and must not keep a folder of its parent's locked."""
    for fd in _log_fds:
        os.close(fd)
    _log_fds.clear()


os.register_at_fork(after_in_child=_forked)


class FolderLock:
    """Exclusive use of a store's folder, by the lock RocketMQ takes: byte 0 of ``lock``, which needs no content.

    The system's record locks do not conflict within a process, so a set of this process's folders stands beside them.
    The folder of the log is locked by itself, without a file in it, which RocketMQ would take for a damaged one: it may
    be elsewhere, behind a link too, and be named by the settings of two brokers. And ``lock`` may be removed.
    """

    def __init__(self, root: Path, log_folder: Path, files: FileSystem) -> None:
        self._files = files
        self._path = root / "lock"
        self._log_folder = log_folder
        self._key = os.path.realpath(root)
        self._fd = self._log_fd = -1

    def acquire(self) -> None:
        """Make the folders, where they are missing, and take them.

        raises  StoreLocked when another store, here or in another process, has one of them; OSError
        """
        self._files.make_folder(self._path.parent)
        self._check_here()
        self._take_folder(os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
        try:
            self._files.make_folder(self._log_folder)
            self._take_log(fcntl.LOCK_EX)
        except BaseException:
            self.release()
            raise

    def share(self) -> bool:
        """Keep stores away without writing anything; False where there is no lock file: no store runs there.

        raises  StoreLocked as ``acquire``
        """
        self._check_here()
        try:
            self._take_folder(os.O_RDONLY, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False
        try:
            with contextlib.suppress(FileNotFoundError):
                self._take_log(fcntl.LOCK_SH)
        except BaseException:
            self.release()
            raise
        return True

    def _check_here(self) -> None:
        if self._key in _locked_folders:
            raise StoreLocked(f"store folder {self._path.parent} is in use in this process")

    def _take_folder(self, flags: int, kind: int) -> None:
        fd = self._files.open(self._path, flags)
        try:
            fcntl.lockf(fd, kind | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            self._files.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                reason = f"store folder {self._path.parent} is in use: Lock failed,MQ already started"
                raise StoreLocked(reason) from error
            raise
        self._fd = fd
        _locked_folders.add(self._key)

    def _take_log(self, kind: int) -> None:
        fd = self._files.open(self._log_folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._files.close(fd)
            raise StoreLocked(f"folder {self._log_folder} of the commit log is in use by another store") from error
        except OSError:
            pass  # a file system of another machine may not lock folders; it is warned of
        self._log_fd = fd
        _log_fds.add(fd)

    def release(self) -> None:
        if self._log_fd >= 0:
            _log_fds.discard(self._log_fd)
            self._files.close(self._log_fd)
            self._log_fd = -1
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
            _locked_folders.discard(self._key)
