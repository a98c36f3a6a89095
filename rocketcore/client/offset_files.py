"""Offset files of broadcasting members: each member that runs on a machine has one for itself.

Members of a group on one machine have one client id, and so one place for their offsets. The first takes
``offsets.json``, which Java's would read; the next takes ``offsets-2.json``, and so on. A file is taken by a lock on
``<name>.lock`` that ends with its process, however that ends. A member that starts takes, of the files that nobody has,
the one that is furthest behind: what a member had not read when it stopped is read by the one that starts next. A file
that nobody took while another member ran for ``GONE_AFTER`` is of one that is gone: that one deletes it at its close.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.warning import warn

__all__ = ["OffsetFile", "take_offset_file"]

logger = logging.getLogger(__name__)

GONE_AFTER: Final = 7 * 24 * 3600.0
"""Seconds for which a member has to run until a file that nobody took meanwhile is of one that does not come back.

A member that is only stopped, while another runs for a moment, has its progress in such a file, and it has no other."""

_taken: weakref.WeakValueDictionary[Path, OffsetFile] = weakref.WeakValueDictionary()
_taken_lock = threading.Lock()
"""Guards ``_taken``: the system's lock is one process's, this tells its consumers apart."""


class OffsetFile:
    """An offset file that is ours until ``close``, or the end of this process."""

    def __init__(self, path: Path, lock: int | None, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._since = clock.monotonic()
        # The lock ends with its descriptor, also where nobody closes the member.
        self._lock = None if lock is None else weakref.finalize(self, os.close, lock)
        self._process = os.getpid()
        self.left: dict[Path, int] = {}
        """Files that nobody had when this one was taken, and when they were taken or written last."""

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was not taken by a parent before a fork, whose locks a child does not have."""
        return self._process == os.getpid()

    def written_at(self) -> int:
        """Return when the file was last written, in nanoseconds; 0 where it is not there."""
        for path in (self.path, self.path.with_name(self.path.name + ".bak")):
            with contextlib.suppress(OSError):
                return path.stat().st_mtime_ns
        return 0

    def close(self) -> None:
        """Leave the file to the next."""
        with _taken_lock:
            if _taken.get(self.path) is not self or not self.is_of_this_process:
                return
            del _taken[self.path]
            is_long = self._clock.monotonic() - self._since >= GONE_AFTER
            for path, used in self.left.items() if is_long else ():
                if _used(path) == used and (file := _try(path, self._clock)) is not None:
                    for each in (path, path.with_name(path.name + ".bak")):
                        each.unlink(missing_ok=True)
                    file.release()
            self.release()

    def release(self) -> None:
        """End the lock."""
        if self._lock is not None:
            self._lock()


def take_offset_file(path: Path, progress: Callable[[Path], int | None], clock: Clock = SYSTEM_CLOCK) -> OffsetFile:
    """Take the offset file of a member, or another one beside it where a member has that.

    progress  how far a file is; None where it is not there
    """
    numbers = {1} | {int(found[1]) for each in _siblings(path) if (found := re.fullmatch(r".*-(\d+)", each.stem))}
    free: list[tuple[int, int, OffsetFile]] = []
    with _taken_lock:
        for number in sorted(numbers):
            file = _try(_numbered(path, number), clock)
            if file is not None:
                done = progress(file.path)
                free.append((_order(done), number, file))
        if not free:
            number = max(numbers) + 1
            while (file := _try(_numbered(path, number), clock)) is None:
                number += 1
            free.append((0, number, file))
        _, number, chosen = min(free, key=lambda each: each[:2])
        for _, _, file in free:
            if file is not chosen:
                chosen.left[file.path] = _used(file.path)
                file.release()
        with contextlib.suppress(OSError):  # whoever left it takes notice, also if nothing is written
            os.utime(_lock_of(chosen.path))
        _taken[chosen.path] = chosen
    if number > 1:
        text = (
            "another broadcast member with this client id runs on this machine, or did: this one keeps its offsets in "
            "%s; an instance_name for each member tells them apart for good"
        )
        warn(logger, text, chosen.path)
    return chosen


def _order(done: int | None) -> int:
    """Files that are not there come last: nobody has left anything unread in them."""
    return 1 << 80 if done is None else done


def _used(path: Path) -> int:
    """Return when a file was taken or written last, in nanoseconds; 0 where it is not there."""
    latest = 0
    for each in (path, _lock_of(path)):
        with contextlib.suppress(OSError):
            latest = max(latest, each.stat().st_mtime_ns)
    return latest


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _siblings(path: Path) -> list[Path]:
    return list(path.parent.glob(f"{path.stem}-*{path.suffix}"))


def _numbered(path: Path, number: int) -> Path:
    return path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")


def _try(path: Path, clock: Clock) -> OffsetFile | None:
    """Take a file unless a member has it; where the folder knows no locks it counts as free."""
    holder = _taken.get(path)
    if holder is not None and holder.is_of_this_process:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        logger.info("offset file not locked path=%s error=%s", path, error)
        return OffsetFile(path, None, clock)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return None
        logger.info("offset file not locked path=%s error=%s", path, error)
        return OffsetFile(path, None, clock)
    return OffsetFile(path, lock, clock)
