"""A page of a map that the disk does not give: whoever reads it gets SIGBUS, as from a medium error."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

MAP_FIXED = 0x10

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def lose_page(mapped: mmap.mmap, page: int) -> None:
    """Put a page of an empty file, which nothing can be read of, in the place of a page of the map, until it ends."""
    address = np.frombuffer(mapped, np.uint8).ctypes.data + page * mmap.PAGESIZE
    empty = os.memfd_create("empty")
    try:
        placed = _libc.mmap(address, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, empty, 0)
    finally:
        os.close(empty)
    if placed != address:
        raise OSError(ctypes.get_errno(), "no page could be mapped")
