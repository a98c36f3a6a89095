"""Every system call that Python code makes on the files below a folder, seen before it is made and after.

The store's own seam, ``FileSystem``, does not see all of them: the state files, the lock, reading and mapping go other
ways. So the calls are caught where all ways meet, in ``os``, ``io``, ``mmap`` and ``fcntl``, and belong to a folder by
their path or by where their descriptor leads.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import io
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from rocketcore.broker.store.file_system import FileSystem

__all__ = ["Call", "SystemCalls"]


@dataclass(frozen=True, slots=True)
class Call:
    """A system call to be made.

    name    open, read, map, seek, list, stat, lock, write, allocate, resize, sync, sync_folder, rename, link, unlink,
            mkdir
    path    what it is about, absolute; ``target`` the second path of rename and link
    fd      where it goes by a descriptor, else -1; ``data`` and ``position`` of a write
    """

    name: str
    path: str
    target: str = ""
    fd: int = -1
    data: bytes = b""
    position: int = 0
    creates: bool = False


class SystemCalls:
    """Stands in for the functions of ``os``, ``io``, ``mmap`` and ``fcntl`` as long as it is entered.

    before  gets each call on a file below ``root``, in the thread that makes it; what it raises, the caller gets
    around  gets the call and the function that makes it, one call at a time, and returns what that returns
    """

    def __init__(
        self, root: Path, before: Callable[[Call], None], around: Callable[[Call, Callable[[], Any]], Any]
    ) -> None:
        self._root = str(root.resolve())
        self._before = before
        self._around = around
        self._lock = threading.RLock()
        self._inside = threading.local()
        self._saved: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> SystemCalls:
        self._replace(os, "open", self._open)
        self._replace(os, "pread", self._by_fd("read"))
        self._replace(os, "preadv", self._by_fd("read"))
        self._replace(os, "pwrite", self._write)
        self._replace(os, "write", self._write)
        self._replace(os, "posix_fallocate", self._by_fd("allocate"))
        self._replace(os, "ftruncate", self._by_fd("resize"))
        self._replace(os, "fsync", self._by_fd("sync"))
        self._replace(os, "fdatasync", self._by_fd("sync"))
        self._replace(os, "replace", self._by_two_paths("rename"))
        self._replace(os, "rename", self._by_two_paths("rename"))
        self._replace(os, "link", self._by_two_paths("link"))
        self._replace(os, "unlink", self._by_path("unlink"))
        self._replace(os, "remove", self._by_path("unlink"))
        self._replace(os, "rmdir", self._by_path("unlink"))
        self._replace(os, "mkdir", self._by_path("mkdir"))
        self._replace(os, "lseek", self._by_fd("seek"))
        self._replace(os, "listdir", self._by_path_or_fd("list"))
        self._replace(os, "scandir", self._by_path_or_fd("list"))
        self._replace(os, "stat", self._by_path_or_fd("stat"))
        self._replace(fcntl, "lockf", self._by_fd("lock"))
        self._replace(mmap, "mmap", self._by_fd("map"))
        # No kernel makes calls of its own meanwhile.
        self._saved.append((FileSystem, "direct", FileSystem.__dict__["direct"]))
        FileSystem.direct = False  # type: ignore[assignment, method-assign]
        opened = io.open
        self._replace(io, "open", self._open_file(opened))
        self._replace(builtins, "open", self._open_file(opened))
        return self

    def __exit__(self, *_: object) -> None:
        for module, name, function in reversed(self._saved):
            setattr(module, name, function)

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Nobody else makes a call meanwhile, and those of this thread are not seen."""
        with self._lock:
            self._inside.yes = True
            try:
                yield
            finally:
                self._inside.yes = False

    def _replace(self, module: Any, name: str, make: Callable[..., Any]) -> None:
        function = getattr(module, name)
        self._saved.append((module, name, function))
        setattr(module, name, make(function) if module is not io and module is not builtins else make)

    def _make(self, call: Call, function: Callable[[], Any]) -> Any:
        """Make a call that is below the root, or any call at all of the observer's own, unseen."""
        if getattr(self._inside, "yes", False) or not self._is_below(call):
            return function()
        self._before(call)
        with self.unseen():
            return self._around(call, function)

    def _is_below(self, call: Call) -> bool:
        return call.path == self._root or call.path.startswith(self._root + "/")

    # ------------------------------------------------------------------ what stands in

    def _open(self, function: Callable[..., int]) -> Callable[..., int]:
        def stand_in(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            name = _absolute(path, dir_fd)
            creates = bool(flags & os.O_CREAT) and not os.path.lexists(name)
            return int(
                self._make(Call("open", name, creates=creates), lambda: function(path, flags, mode, dir_fd=dir_fd))
            )

        return stand_in

    def _by_fd(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(function: Callable[..., Any]) -> Callable[..., Any]:
            def stand_in(fd: int, *arguments: Any, **named: Any) -> Any:
                if fd < 0:
                    return function(fd, *arguments, **named)
                kind = "sync_folder" if name == "sync" and S_ISDIR(os.fstat(fd).st_mode) else name
                return self._make(Call(kind, _path_of(fd), fd=fd), lambda: function(fd, *arguments, **named))

            return stand_in

        return make

    def _write(self, function: Callable[..., int]) -> Callable[..., int]:
        def stand_in(fd: int, data: Any, *position: int) -> int:
            path = _path_of(fd)
            if not path.startswith(self._root):
                return function(fd, data, *position)
            call = Call("write", path, fd=fd, data=bytes(data), position=position[0] if position else -1)
            return int(self._make(call, lambda: function(fd, data, *position)))

        return stand_in

    def _by_path(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(function: Callable[..., Any]) -> Callable[..., Any]:
            def stand_in(path: Any, *arguments: Any, dir_fd: int | None = None, **named: Any) -> Any:
                call = Call(name, _absolute(path, dir_fd))
                return self._make(call, lambda: function(path, *arguments, dir_fd=dir_fd, **named))

            return stand_in

        return make

    def _by_path_or_fd(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(function: Callable[..., Any]) -> Callable[..., Any]:
            def stand_in(path: Any = ".", *, dir_fd: int | None = None, **named: Any) -> Any:
                named |= {} if dir_fd is None else {"dir_fd": dir_fd}
                where = _path_of(path) if isinstance(path, int) else _absolute(path, dir_fd)
                return self._make(Call(name, where), lambda: function(path, **named))

            return stand_in

        return make

    def _by_two_paths(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(function: Callable[..., Any]) -> Callable[..., Any]:
            def stand_in(source: Any, target: Any, **named: Any) -> Any:
                call = Call(name, _absolute(source, None), target=_absolute(target, None))
                return self._make(call, lambda: function(source, target, **named))

            return stand_in

        return make

    def _open_file(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if isinstance(file, int) or getattr(self._inside, "yes", False):
                return function(file, mode, *arguments, **named)
            path = _absolute(file, None)
            if not self._is_below(Call("open", path)):
                return function(file, mode, *arguments, **named)
            if "b" not in mode:
                raise NotImplementedError(f"text mode below the store's folder: {path}")
            # Opened by the stand-in of os.open, so that creating is seen; read and written through stand-ins as well.
            raw = _SeenFile(path, mode.replace("b", ""), opener=os.open)
            return io.BufferedWriter(raw) if raw.writable() else io.BufferedReader(raw)

        return stand_in


class _SeenFile(io.FileIO):
    """A raw file whose reads and writes go through ``os``."""

    def write(self, data: Any) -> int:
        return os.write(self.fileno(), data)

    def readall(self) -> bytes:
        parts: list[bytes] = []
        while part := os.pread(self.fileno(), 1 << 20, sum(map(len, parts))):
            parts.append(part)
        return b"".join(parts)


def _absolute(path: Any, dir_fd: int | None) -> str:
    folder = os.getcwd() if dir_fd is None else _path_of(dir_fd)
    return os.path.normpath(os.path.join(folder, os.fsdecode(path)))


def _path_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")
    except OSError:
        return ""
