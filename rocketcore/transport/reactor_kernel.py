"""Whether this build reads and writes connections in C: on Linux, unless it is a portable one."""

from __future__ import annotations

import functools
import sys

__all__ = ["has_reactor"]


@functools.cache
def has_reactor() -> bool:
    """Tell whether there is ``_fast.reactor``; without it connections are left to the event loop."""
    if sys.platform != "linux":
        return False
    try:
        import rocketcore._fast.reactor  # noqa: F401 - whether it is there
    except ModuleNotFoundError:
        return False
    return True
