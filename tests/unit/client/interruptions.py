"""Has something happen before each line of the package that a call runs: what a signal's handler may do there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import rocketcore

_PACKAGE = os.path.dirname(rocketcore.__file__)


class Stop(BaseException):
    """Ends a thread wherever it is, as KeyboardInterrupt does."""


class Interruption:
    """Calls ``happen`` before one line, by its number, of those of the package that ``call`` runs on this thread."""

    def __init__(self, number: int, happen: Callable[[], object]) -> None:
        self.happened = False
        self._left = number
        self._happen = happen

    def during(self, call: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_PACKAGE) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and not self.happened:
            self._left -= 1
            if self._left < 0:
                self.happened = True
                self._happen()
        return self._line


def at_each_line(happen: Callable[[], object]) -> Iterator[Interruption]:
    """Yield an interruption for each line; ends with the first that finds none."""
    number = 0
    while True:
        interruption = Interruption(number, happen)
        yield interruption
        if not interruption.happened:
            assert number > 20, "nothing was interrupted"
            return
        number += 1


def stop() -> None:
    raise Stop
