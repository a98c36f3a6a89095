"""Steps of Python, counted."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["Opcodes", "counted_opcodes"]


class Opcodes:
    """How many were run."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self.trace


@contextlib.contextmanager
def counted_opcodes() -> Iterator[Opcodes]:
    """Count what this thread runs until the end of the context, in functions that are called in it."""
    counted, before = Opcodes(), sys.gettrace()
    sys.settrace(counted.trace)
    try:
        yield counted
    finally:
        sys.settrace(before)
