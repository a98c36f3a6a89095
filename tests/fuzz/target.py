"""What a fuzz target is."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from rocketcore.errors import DecodeError

__all__ = ["Target", "exact", "refused", "scratch"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One decoder, or some that belong together.

    run         looks at one input; whatever it raises is a finding
    seeds       inputs to begin with, from the golden vectors and the encoders
    words       byte strings that mean something to the decoder
    max_length  longest input in bytes
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    words: tuple[bytes, ...] = ()
    max_length: int = 4096


def exact(data: bytes) -> memoryview:
    """Return a copy in a block that ends where the data ends: bytes objects have a zero byte more to read."""
    return np.frombuffer(data, np.uint8).copy().data


def scratch() -> Path:
    """Return a new folder for files, in memory where the system has that; it goes when the process ends.

    A fuzzing process does not come to its end: ``tests.fuzz.run`` names a folder in TMPDIR and removes that itself.
    """
    memory = Path("/dev/shm")
    parent = None if "TMPDIR" in os.environ or not memory.is_dir() else memory
    folder = Path(tempfile.mkdtemp(prefix="rocketcore-fuzz-", dir=parent))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def refused(decode: Callable[[], T]) -> T | None:
    """Return what ``decode`` returns, None where it raises DecodeError; every other exception goes through."""
    try:
        return decode()
    except DecodeError:
        return None
