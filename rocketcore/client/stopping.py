"""SIGINT and SIGTERM while a client works: the first asks it to finish, the next does what it did before.

Only in the main thread, which alone may set handlers, and only in place of the defaults: handlers that the application
has set are its own.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self

__all__ = ["Leaving", "Stopping", "exit_by"]

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """While the context lasts, SIGINT and SIGTERM have a function called, once; outside the main thread nothing does.

    tell    called by the signal's handler, between any two steps of the main thread; it may raise
    signal  what has come
    """

    def __init__(self, tell: Callable[[], None], numbers: Iterable[signal.Signals] = _STOPS) -> None:
        self._tell = tell
        self._numbers = numbers
        self._before: dict[int, Any] = {}
        self.signal: signal.Signals | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if _is_default(signal.getsignal(number)):
                    self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def restore(self) -> None:
        """Have signals do what they did before."""
        if threading.current_thread() is not threading.main_thread():
            return  # a generator that is collected elsewhere: the next signal does it
        while self._before:
            number, before = self._before.popitem()
            if signal.getsignal(number) == self._caught:
                signal.signal(number, before)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.restore()
        if self.signal is None:
            self.signal = signal.Signals(number)
            self._tell()


class Leaving(Stopping):
    """For a ``with`` block: SIGTERM ends it as Ctrl-C does, by an exception, and the program by ``exit_by``."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__(tell, (signal.SIGTERM,))


def exit_by(number: signal.Signals = signal.SIGTERM) -> NoReturn:
    """Raise the SystemExit of a program that a signal has ended."""
    raise SystemExit(128 + number)


def _is_default(handler: Any) -> bool:
    if handler is signal.SIG_DFL or handler is signal.default_int_handler:
        return True
    # asyncio.run() sets a handler of its own, which cancels what it runs; ours of an outer block is there for the rest.
    asyncio = sys.modules.get("asyncio")  # which takes long to import, and a blocking producer does without
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    of_a_loop = asyncio is not None and isinstance(runner, asyncio.Runner)
    return of_a_loop or isinstance(getattr(handler, "__self__", None), Leaving)
