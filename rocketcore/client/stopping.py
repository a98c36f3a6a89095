"""SIGINT and SIGTERM while clients work: the first asks all to finish, the next does what it did before.

Only in the main thread, which alone may set handlers, and only in place of the defaults: handlers that the application
has set are its own. A process has one handler, which knows everything that is to be told: clients begin and end in any
order. A forked child has none of it: there a signal does at once what it did before.
"""

from __future__ import annotations

import os
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

    def __init__(self, tell: Callable[[], object], numbers: Iterable[signal.Signals] = _STOPS) -> None:
        self.tell = tell
        self.numbers = frozenset(numbers)
        self.signal: signal.Signals | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            _HANDLER.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def restore(self) -> None:
        """Have signals do what they did before, once nothing else is to be told."""
        _HANDLER.remove(self)


class Leaving(Stopping):
    """For a ``with`` block: SIGTERM ends it as Ctrl-C does, by an exception, and the program by ``exit_by``.

    As long as there is a ``Stopping``, which lets the program end by itself, the signal is for that one alone. Of
    several blocks the last one entered is told: its exception ends the others.
    """

    def __init__(self, tell: Callable[[], object]) -> None:
        super().__init__(tell, (signal.SIGTERM,))


class _Handler:
    """The handler of this process. Only the main thread sets it, and is told; a signal may come between any two steps.

    entries  what is to be told
    before   what the signals that are caught did before
    masks    of each thread that forks, the signals that it had blocked
    """

    def __init__(self) -> None:
        self._entries: list[Stopping] = []
        self._before: dict[int, Any] = {}
        self._pid = os.getpid()
        self._masks: dict[int, set[int]] = {}
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._unblock, after_in_child=self._forked_and_unblock
        )

    def add(self, entry: Stopping) -> None:
        self._entries.append(entry)
        self._settle()

    def remove(self, entry: Stopping) -> None:
        if entry in self._entries:  # a signal takes out what it has told
            self._entries.remove(entry)
        self._settle()

    def _settle(self) -> None:
        """Catch the signals of the entries and no others."""
        if threading.current_thread() is not threading.main_thread():
            return  # a generator that is collected elsewhere: the next signal does it
        for number in _STOPS:
            if not any(number in entry.numbers for entry in self._entries):
                self._let_go(number)
            elif _is_default(before := signal.getsignal(number)):
                self._before[number] = before
                signal.signal(number, self._caught)

    def _let_go(self, number: int) -> None:
        if number in self._before:
            if signal.getsignal(number) == self._caught:
                signal.signal(number, self._before[number])
            self._before.pop(number, None)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            self._forked()
        concerned = [entry for entry in self._entries if number in entry.numbers]
        stoppings = [entry for entry in concerned if not isinstance(entry, Leaving)]
        done, told = (stoppings, stoppings) if stoppings else (concerned, concerned[-1:])
        self._entries = [entry for entry in self._entries if entry not in done]
        self._settle()
        if not told:  # all have gone: it does what it did before
            self._let_go(number)
            os.kill(os.getpid(), number)
        for entry in told:
            entry.signal = signal.Signals(number)
        _tell([entry.tell for entry in told])

    def _before_fork(self) -> None:
        """Have a signal wait that comes to the child at once: Python would forget it there."""
        if self._before:
            self._masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)

    def _unblock(self) -> None:
        mask = self._masks.pop(threading.get_ident(), None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _forked_and_unblock(self) -> None:
        self._forked()
        self._unblock()

    def _forked(self) -> None:
        """Do, in a child, what was done before: the clients are the parent's."""
        self._pid = os.getpid()
        self._entries = []
        for number in _STOPS:
            self._let_go(number)


def _tell(functions: list[Callable[[], object]]) -> None:
    """Call all, the last first, whichever of them raises."""
    try:
        if functions:
            functions.pop()()
    finally:
        if functions:
            _tell(functions)


_HANDLER: Final = _Handler()


def exit_by(number: signal.Signals = signal.SIGTERM) -> NoReturn:
    """Raise the SystemExit of a program that a signal has ended."""
    raise SystemExit(128 + number)


def _is_default(handler: Any) -> bool:
    if handler is signal.SIG_DFL or handler is signal.default_int_handler:
        return True
    # asyncio.run() sets a handler of its own, which cancels what it runs.
    asyncio = sys.modules.get("asyncio")  # which takes long to import, and a blocking producer does without
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    return asyncio is not None and isinstance(runner, asyncio.Runner)
