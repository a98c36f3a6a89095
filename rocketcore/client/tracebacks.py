"""Short tracebacks of errors that a caller has to mend: his own lines, and the one of ours that he called.

A RocketError or a TypeError says in words what is wrong; a dozen frames of this package between it and the caller's
line say nothing more. They are left out where the public interface lets the error go, unless the environment has
``ROCKETCORE_DEBUG``. The logger of this module has the whole traceback at DEBUG, and so has ``rocket --debug``. Frames
of the application in between, of a hook or a selector, stay; any other exception keeps all.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from rocketcore.errors import RocketError

__all__ = ["SHORTENED", "edge", "shortened"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
E = TypeVar("E", bound=BaseException)

SHORTENED: Final = (RocketError, TypeError)
_FOLDERS: Final = (Path(__file__).parents[1], Path(os.__file__).parent / "asyncio")
_INSIDE: Final = tuple(f"{folder}{os.sep}" for folder in _FOLDERS)
"""Ours, and what runs our coroutines."""


def shortened(error: E) -> E:
    """Return an error, and what it came from, without the frames of this package: to be raised again at its edge."""
    if os.environ.get("ROCKETCORE_DEBUG"):
        return error
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("whole traceback of an error that is raised with a short one", exc_info=error)
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = _without_ours(each.__traceback__)
        each = each.__cause__ or each.__context__
    return error


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_INSIDE):
            kept.append(trace)
        trace = trace.tb_next
    result: TracebackType | None = None
    for each in reversed(kept):
        result = TracebackType(result, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return result


def edge(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function of the public interface that lets errors go with short tracebacks."""

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return function(*arguments, **options)
        except SHORTENED as error:
            raise shortened(error)  # noqa: B904 (it is the same error)

    return call
