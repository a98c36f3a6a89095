"""Notes of a long command beside its file, from which the same command goes on after an interruption or a kill.

The notes are a JSON object: what they belong to, a checksum, the state. They are replaced as a whole, so that any crash
leaves the old or the new ones, and whoever holds the lock on them is the one who works on the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from rocketcore.cli.shell.failures import CommandFailed
from rocketcore.cli.shell.options import end_signals_tell

__all__ = ["ProgressFile", "check_same", "odd_kind", "open_own", "sync_folder", "uninterrupted"]

StateT = TypeVar("StateT", bound=msgspec.Struct)

_ANEW: Final = "start again with --restart"


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Have Ctrl-C and its like wait until the end of the context."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    try:
        with end_signals_tell(lambda number, frame: heard.append(number)):
            yield
    finally:
        if heard:
            signal.raise_signal(heard[0])


def open_own(path: Path) -> int:
    """Open a file that a command keeps beside another, for reading and writing; it is created where it is missing.

    raises  CommandFailed for what is no regular file: a link leads to the file of somebody else, a pipe to nobody
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        what = odd_kind(path)
    else:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        what = "it is a pipe, a socket or a device"
    raise CommandFailed("NO_FILE", f"{path} is not a regular file: {what}", "remove it, if nothing uses it")


def odd_kind(path: Path) -> str:
    """Say what is there that is no regular file, ``it is a symbolic link``; empty for a file, and for nothing."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return ""
    if stat.S_ISLNK(mode):
        return "it is a symbolic link"
    if stat.S_ISDIR(mode):
        return "it is a folder"
    return "" if stat.S_ISREG(mode) else "it is a pipe, a socket or a device"


class _Notes(msgspec.Struct, forbid_unknown_fields=True):
    """``kind`` names the command and the version of its state."""

    kind: str
    crc32: int
    state: msgspec.Raw


class ProgressFile(AbstractContextManager["ProgressFile[StateT]"], Generic[StateT]):
    """The notes of one run; locked from the beginning of the context to its end.

    kind        of what is noted, with a version
    state_type  what is noted
    raises      CommandFailed where another process has the lock
    """

    def __init__(self, path: Path, kind: str, state_type: type[StateT]) -> None:
        self.path = path
        self._kind = kind
        self._type = state_type
        self._fd = -1

    def __enter__(self) -> ProgressFile[StateT]:
        while True:
            fd = open_own(self.path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(fd)
                raise CommandFailed("BUSY", f"{self.path} is in use: another process uses it") from error
            # Between the two calls another process may have replaced or removed it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.lstat(self.path)):
                    self._fd = fd
                    return self
            os.close(fd)

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            if os.fstat(self._fd).st_size == 0:  # nothing was ever noted
                self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def load(self) -> StateT | None:
        """Return what is noted, None for nothing; raises CommandFailed for notes that cannot be used."""
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            data = file.read()
        if not data:
            return None
        try:
            notes = msgspec.json.decode(data, type=_Notes)
            if notes.kind != self._kind:
                raise ValueError(f"they are of {notes.kind!r}, not of {self._kind!r}")
            if zlib.crc32(notes.state) != notes.crc32:
                raise ValueError("the checksum is wrong")
            return msgspec.json.decode(notes.state, type=self._type)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # also for what a state refuses
            raise CommandFailed("DAMAGED", f"the progress in {self.path} cannot be used: {error}", _ANEW) from error

    def save(self, state: StateT) -> None:
        """Replace the notes, durably; after a failure the old ones are there.

        raises  OSError whose ``filename`` is that of the notes
        """
        with uninterrupted():
            try:
                self._save(state)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from error

    def _save(self, state: StateT) -> None:
        raw = msgspec.json.encode(state)
        temporary = self.path.with_name(self.path.name + ".tmp")
        temporary.unlink(missing_ok=True)  # of a run that was killed; not written through, whatever it leads to
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before anyone else can see it
            with open(fd, "wb", closefd=False) as file:
                file.write(msgspec.json.encode(_Notes(self._kind, zlib.crc32(raw), msgspec.Raw(raw))))
            os.fsync(fd)
            os.replace(temporary, self.path)
        except BaseException:
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise
        os.close(self._fd)
        self._fd = fd
        sync_folder(self.path)

    def remove(self) -> None:
        """Remove the notes: the work is done, or begins anew."""
        self.path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1


def sync_folder(path: Path) -> None:
    """Make a file's name durable, as far as its file system lets one."""
    with contextlib.suppress(OSError):
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class _Begun(Protocol):
    """What notes say of how the work was begun.

    asked    what the command line said
    namesrv  name servers of the cluster
    """

    asked: dict[str, Any]
    namesrv: list[str]


def check_same(path: Path, noted: _Begun, asked: dict[str, Any], namesrv: Sequence[str]) -> None:
    """Refuse to go on with what was begun otherwise; raises CommandFailed naming the first difference.

    namesrv  one name server in common means one cluster
    """
    differences = [(name, noted.asked.get(name), asked[name]) for name in asked if noted.asked.get(name) != asked[name]]
    if not set(noted.namesrv) & set(namesrv):
        differences.append(("name servers", noted.namesrv, namesrv))
    for name, then, now in differences:
        raise CommandFailed(
            "OTHERWISE", f"{path} was begun with {name} {_shown(then)}, not {_shown(now)}",
            f"to continue, give the same options as before; {_ANEW}",
        )  # fmt: skip


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)
