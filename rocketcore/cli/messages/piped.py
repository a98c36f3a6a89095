"""Lines of a pipe, which come when their writer has some, and signals that wait for what is in hand."""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Final

from rocketcore.cli.shell.options import end_signals_tell
from rocketcore.cli.shell.render import tell
from rocketcore.files.text import HEAD_BYTES

__all__ = ["Leaving", "PipedLines", "as_it_comes", "without_mark"]

_AHEAD_BYTES: Final = 4 << 20
"""Lines that are read while the last ones are sent."""

_SLICE_SECONDS: Final = 0.2
"""A wait asks so often whether a signal came: its handler may take no lock of the wait."""


class _Begun(io.RawIOBase):
    """A pipe. Its first read gives a line or ``HEAD_BYTES``, which tell its format; others give what is there."""

    def __init__(self, raw: Any) -> None:
        super().__init__()
        self._raw = raw
        self._begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int | None:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        size: int | None = self._raw.readinto(view)
        while size and not self._begun and size < min(HEAD_BYTES, len(view)) and b"\n" not in bytes(view[:size]):
            more = self._raw.readinto(view[size:])
            if not more:
                break
            size += more
        self._begun = True
        return size


def as_it_comes(file: BinaryIO | None = None) -> BinaryIO:
    """Return what reads a pipe without waiting until a buffer is full; None: stdin."""
    buffered = sys.stdin.buffer if file is None else file
    return io.BufferedReader(_Begun(getattr(buffered, "raw", buffered)))


def without_mark(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines, the first without the byte order mark that some editors write before UTF-8."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix(codecs.BOM_UTF8)


class PipedLines:
    """Lines of a file that a thread of its own reads, so that who takes them need not wait for the next one.

    The thread ends with the file, or with the process: nothing ends a read that waits.

    most     bytes of a line; a longer one comes in parts
    ahead    lines that are read before they are taken; None: as many as fit into ``_AHEAD_BYTES``
    """

    def __init__(self, file: BinaryIO, most: int, ahead: int | None = None) -> None:
        self._file = file
        self._most = most
        self._ahead = ahead
        self._changed = threading.Condition()  # guards the fields below
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._ended = False
        self._stopped = False
        self._fault: Exception | None = None
        threading.Thread(target=self._read, name="piped-lines", daemon=True).start()

    def line(self, until: float, leaves: Callable[[], bool]) -> bytes | None:
        """Return the next line, b"" at the end; None where there is none at a time, or before it is time to leave.

        until   monotonic seconds
        raises  what the read raised, behind the lines before it
        """
        with self._changed:
            while not self._lines and not self._ended:
                left = until - time.monotonic()
                if leaves():
                    self._stopped = True
                if left <= 0 or self._stopped:
                    return None
                self._changed.wait(min(left, _SLICE_SECONDS))
            if self._lines:
                line = self._lines.popleft()
                self._bytes -= len(line)
                self._changed.notify()
                return line
            if self._fault is not None:
                raise self._fault
            return b""

    def stop(self) -> None:
        """Read no more; what was read can still be taken."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _read(self) -> None:
        line = b"\n"
        fault = None
        while line and fault is None:
            try:
                line = self._file.readline(self._most)
            except Exception as error:
                line, fault = b"", error
            with self._changed:
                while not self._stopped and not self._has_room():
                    self._changed.wait()
                if self._stopped:
                    return
                if line:
                    self._lines.append(line)
                    self._bytes += len(line)
                else:
                    self._ended, self._fault = True, fault
                self._changed.notify()

    def _has_room(self) -> bool:
        return self._bytes < _AHEAD_BYTES and (self._ahead is None or len(self._lines) < self._ahead)


class Leaving(contextlib.AbstractContextManager["Leaving"]):
    """Ctrl-C, SIGTERM and SIGHUP while messages are sent: the first lets what is in hand end, a second ends at once.

    asked    a signal came
    at_once  the first ends at once as well, because something waits that asks nobody
    """

    def __init__(self) -> None:
        self.asked = False
        self.at_once = False

    def __enter__(self) -> Leaving:
        self._told = end_signals_tell(self._interrupt)
        self._told.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._told.__exit__(None, None, None)

    def _interrupt(self, number: int, frame: object) -> None:
        if self.asked or self.at_once:
            raise KeyboardInterrupt
        self.asked = True
        with contextlib.suppress(RuntimeError):  # stderr is being written to
            tell("finishing the messages in progress; a second signal stops at once")

    def sleep(self, seconds: float) -> None:
        """Sleep, at most until a signal comes."""
        end = time.monotonic() + seconds
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_SECONDS))
