"""Exclusive use of a store's folder."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from rocketcore.broker.store.segment_file import FileSystem
from rocketcore.errors import StoreLocked

__all__ = ["FolderLock"]

_locked_folders: set[str] = set()


class FolderLock:
    """Exclusive use of a store folder, by the lock RocketMQ takes: byte 0 of ``lock``, which needs no content.

    The system's record locks do not conflict within a process, so a set of this process's folders stands beside them.
    """

    def __init__(self, root: Path, files: FileSystem) -> None:
        self._files = files
        self._path = root / "lock"
        self._key = os.path.realpath(root)
        self._fd = -1

    def acquire(self) -> None:
        """raises  StoreLocked when another store, here or in another process, has the folder"""
        if self._key in _locked_folders:
            raise StoreLocked(f"store folder {self._path.parent} is in use in this process")
        self._take(os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)

    def _take(self, flags: int, kind: int) -> None:
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

    def share(self) -> bool:
        """Keep stores away without writing anything; False where there is no lock file: no store runs there.

        raises  StoreLocked as ``acquire``
        """
        if self._key in _locked_folders:
            raise StoreLocked(f"store folder {self._path.parent} is in use in this process")
        try:
            self._take(os.O_RDONLY, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False
        return True

    def release(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
            _locked_folders.discard(self._key)
