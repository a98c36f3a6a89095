"""The heap of a server's process: kept while there is work, given back when there is none.

The C library gives freed memory back to the system once a threshold of it lies at the end of the heap. With a low
threshold a server that receives frames of a megabyte faults each of them in anew, which costs more than reading them;
with a high one (``keep_heap``) it holds for good what the registrations of ten brokers took once. So the threshold is
high, and what it keeps goes back in a quiet moment, when nobody waits for the two milliseconds that this takes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from rocketcore._fast.heap import trim_heap
from rocketcore.service import PeriodicTask

__all__ = ["Heap", "watched_heap"]

_INTERVAL_SECONDS: Final = 1.0
_REST_SECONDS: Final = 0.1
"""Processor time in one interval up to which the process is at rest."""
_GROWN_BYTES: Final = 1 << 20
"""What is worth giving back."""


class Heap:
    """Gives freed memory back when the process has grown and is at rest.

    resident  bytes of memory that the process has
    used      seconds of processor time that it took
    trim      gives back what is free
    """

    def __init__(self, resident: Callable[[], int], used: Callable[[], float], trim: Callable[[], None]) -> None:
        self._resident = resident
        self._used = used
        self._trim = trim
        self._least = resident()
        self._last_used = used()

    def check(self) -> None:
        """Called at an interval. What stays resident is in use: it is not tried for again."""
        used = self._used()
        at_rest = used - self._last_used <= _REST_SECONDS
        self._last_used = used
        resident = self._resident()
        if resident > self._least + _GROWN_BYTES:
            if at_rest:
                self._trim()
                self._least = self._resident()
        else:
            self._least = min(self._least, resident)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def watched_heap() -> AsyncIterator[None]:
    """Give back what ``keep_heap`` keeps while a server runs; on other systems than Linux nothing is kept."""
    if sys.platform != "linux":
        yield
        return
    task = PeriodicTask("heap", Heap(_resident_bytes, time.process_time, trim_heap).check, _INTERVAL_SECONDS)
    task.start()
    try:
        yield
    finally:
        await task.stop()
