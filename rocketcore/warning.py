"""Warnings that are seen without any logging configured: the package's NullHandler would hide them from those who need
them most.

The rule for what fails again and again (``Recurring``): whoever has configured logging gets a record of each failure.
Whoever has not sees the first failure of each kind with its traceback, then at most one line a second of that kind,
with the number of those that were not shown. What is below WARNING is never printed.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from traceback import format_exception as traceback_lines
from types import TracebackType
from typing import Final, NamedTuple

from rocketcore.service import SYSTEM_CLOCK, Clock, Seldom

__all__ = ["MACHINERY", "Recurring", "cut_traceback", "processing", "shown", "tell_all", "warn"]

PRINT_INTERVAL: Final = 1.0
MOST_KINDS: Final = 256
"""Kinds that one ``Recurring`` tells apart; those that come later share one rate."""

_STANDARD: Final = os.path.dirname(os.__file__)
MACHINERY: Final = (
    os.path.dirname(__file__) + os.sep,
    os.path.join(_STANDARD, "asyncio", ""),
    os.path.join(_STANDARD, "concurrent", "futures", ""),
    os.path.join(_STANDARD, "threading.py"),
)
"""Where frames lie that are this package's, or of what runs tasks and threads."""


def warn(logger: logging.Logger, text: str, *arguments: object, traceback: bool = False) -> None:
    """Log a warning; where nobody has configured logging, have it printed all the same.

    traceback  with that of the exception that is being handled
    """
    error = sys.exc_info()[1] if traceback else None
    arguments = _showable(text, arguments)
    _log(logger, logging.WARNING, text, arguments, error)
    if _unheard(logger, logging.WARNING):
        _print(logger, logging.WARNING, text, arguments, error)


class Recurring:
    """Failures that may come with every message, told by kind as the module says; any thread.

    clock  says when a second is over
    """

    def __init__(self, logger: logging.Logger, clock: Clock = SYSTEM_CLOCK) -> None:
        self._logger = logger
        self._clock = clock
        self._kinds: dict[object, _Kind] = {}

    def warn(
        self,
        kind: object,
        text: str,
        *arguments: object,
        error: BaseException | None = None,
        level: int = logging.WARNING,
    ) -> None:
        """Log one failure, and print it where nobody has configured logging and it is its kind's turn.

        kind   hashable; what makes it the like of others: where it happened and the type of the error, say
        error  whose traceback is told, from the first frame that is not the package's own
        """
        arguments = _showable(text, arguments)
        _log(self._logger, level, text, arguments, error)
        if not _unheard(self._logger, level):
            return
        with _lock:
            if kind not in self._kinds and len(self._kinds) >= MOST_KINDS:
                kind = None
            first = kind not in self._kinds
            if first:
                self._kinds[kind] = _Kind(Seldom(PRINT_INTERVAL, self._clock), _line(text, arguments))
            unsaid = self._kinds[kind].seldom.due()
            if unsaid is None:
                _tell_at_the_end(self)
        if unsaid:
            _print(self._logger, level, f"{text} more=%d", (*arguments, unsaid), None)
        elif unsaid is not None:
            _print(self._logger, level, text, arguments, error if first else None)

    def tell_rest(self) -> None:
        """Print of each kind how many failures were not shown: at the end of what fails, or of the interpreter."""
        for unsaid, line in self.forget_rest():
            if _unheard(self._logger, logging.WARNING):
                _print(self._logger, logging.WARNING, "%d more like: %s", (unsaid, line), None)

    def forget_rest(self) -> list[tuple[int, str]]:
        """Return of each kind how many failures were not shown, and what its first said; count from 0."""
        with _lock:
            return [(unsaid, kind.line) for kind in self._kinds.values() if (unsaid := kind.seldom.rest())]


class _Kind(NamedTuple):
    """When failures of one kind are printed, and what the first of them said."""

    seldom: Seldom
    line: str


def cut_traceback(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from its first frame that is not this package's, or of what runs tasks and threads.

    Where every frame is, that is the whole traceback.
    """
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(MACHINERY):
        part = part.tb_next
    return part or trace


processing = Recurring(logging.getLogger("rocketcore.message"))
"""Told of exceptions in ``ReceivedMessage.process()``, whichever consumer has the message."""

_lock = threading.RLock()  # guards the kinds of every Recurring; a signal's handler may come in


_with_rest: weakref.WeakSet[Recurring] | None = None
"""Those that have failures which were not shown; None as long as there never were any."""


def _tell_at_the_end(recurring: Recurring) -> None:
    global _with_rest
    if _with_rest is None:
        _with_rest = weakref.WeakSet()
        atexit.register(tell_all)
    _with_rest.add(recurring)


def tell_all() -> None:
    """Print of every kind how many failures were not shown; for the end of the interpreter."""
    for recurring in list(_with_rest or ()):
        recurring.tell_rest()


def _forked() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it
    for recurring in list(_with_rest or ()):
        recurring.forget_rest()  # the parent tells of its own


os.register_at_fork(after_in_child=_forked)


def _log(
    logger: logging.Logger, level: int, text: str, arguments: tuple[object, ...], error: BaseException | None
) -> None:
    """Log a record. Where a handler or a filter of the application raises, print both on stderr and go on."""
    try:
        logger.log(level, text, *arguments, exc_info=_exc_info(error))
    except Exception as failure:
        if logging.raiseExceptions and sys.stderr is not None:
            with contextlib.suppress(Exception):
                why = "".join(traceback_lines(failure))
                sys.stderr.write(f"not logged: {_line(text, arguments)}\n{why}")


def _showable(text: str, arguments: tuple[object, ...]) -> tuple[object, ...]:
    """Return the arguments of a text, in place of those that cannot be shown their types."""
    try:
        text % arguments
    except Exception:
        return tuple(each if isinstance(each, (int, float)) else shown(each, str) for each in arguments)
    return arguments


def shown(value: object, show: Callable[[object], str] = repr) -> str:
    """Return the ``repr()`` of what an application has made, or say of which type it is where that raises."""
    try:
        return show(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"


def _exc_info(
    error: BaseException | None,
) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    return None if error is None else (type(error), error, cut_traceback(error.__traceback__))


def _line(text: str, arguments: tuple[object, ...]) -> str:
    try:
        return text % arguments
    except Exception:  # an argument that cannot be shown; whoever prints the record says so
        return text


def _unheard(logger: logging.Logger, level: int) -> bool:
    """Say whether a record of this level is worth a look, and nobody has configured where it goes."""
    if logging.lastResort is None or level < logging.WARNING or not logger.isEnabledFor(level):
        return False
    node: logging.Logger | None = logger
    while node is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in node.handlers):
            return False
        node = node.parent if node.propagate else None
    return True


def _print(
    logger: logging.Logger, level: int, text: str, arguments: tuple[object, ...], error: BaseException | None
) -> None:
    if logging.lastResort is not None:
        record = logger.makeRecord(logger.name, level, __file__, 0, text, arguments, _exc_info(error))
        logging.lastResort.handle(record)
