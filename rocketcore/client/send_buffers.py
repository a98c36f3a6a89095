"""Buffers that Arrow rows are encoded into and sent from, used again batch after batch and task after task.

Fresh memory costs a page fault every 4 KiB, which takes as long as to fill it; so what one sender has done with waits
for the next one of the process. A buffer is free when nobody reads it: see ``SendBuffer``.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from rocketcore._fast.send_buffer import SendBuffer
from rocketcore.codes import MAX_MESSAGE_BYTES

__all__ = ["SendBuffers"]

KEPT_BUFFERS: Final = 8
"""Free buffers that a process keeps; of each no more is in memory than the longest body that was in it."""

_kept: deque[SendBuffer] = deque(maxlen=KEPT_BUFFERS)


class SendBuffers:
    """The buffers of one sender, each as long as the longest request that a broker takes; belongs to one thread.

    most  how many there are: those under way and the one that is being filled
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ring: list[SendBuffer] = []

    def __len__(self) -> int:
        return len(self._ring)

    def free(self) -> SendBuffer:
        """Return a buffer that nobody reads."""
        for buffer in self._ring:
            if not buffer.readers:
                return buffer
        if len(self._ring) >= self._most:
            # A connection that hangs holds on to bytes that were sent again over another. They go with it.
            del self._ring[0]
        buffer = self._take_kept()
        self._ring.append(buffer)
        return buffer

    @staticmethod
    def _take_kept() -> SendBuffer:
        """Return a buffer that another sender has done with, or a new one."""
        try:
            while (buffer := _kept.pop()).readers:
                pass
        except IndexError:
            return SendBuffer(MAX_MESSAGE_BYTES)
        return buffer

    def release(self) -> None:
        """Leave the buffers to the next sender of the process."""
        _kept.extend(self._ring)
        self._ring.clear()
