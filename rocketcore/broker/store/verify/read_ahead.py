"""Reading a log at the speed of the disk without pushing out of memory what others have there."""

from __future__ import annotations

import errno
import os

from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.log.segment_file import Segment

__all__ = ["ReadAhead"]

PIECE_BYTES = 16 << 20
PIECES_AHEAD = 3


class ReadAhead:
    """Has pieces of a segment read ahead, and those that were not in memory before dropped once they are read."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._segment: Segment | None = None
        self._fd = -1
        self._asked = self._read = 0
        self._cold: dict[int, bool] = {}

    def at(self, segment: Segment, position: int) -> None:
        """Hear up to where a segment was read."""
        if segment is not self._segment:
            self.close()
            self._segment, self._fd = segment, self._files.open(segment.path, os.O_RDONLY)
            self._asked = self._read = position - position % PIECE_BYTES
        while self._asked < min(position + PIECES_AHEAD * PIECE_BYTES, segment.size):
            self._cold[self._asked] = not self._is_cached(self._asked)
            if self._cold[self._asked]:
                os.posix_fadvise(self._fd, self._asked, PIECE_BYTES, os.POSIX_FADV_WILLNEED)
            self._asked += PIECE_BYTES
        if self._read + PIECE_BYTES <= position:
            segment.forget_pages()  # the system keeps what is mapped
            while self._read + PIECE_BYTES <= position:
                self._drop(self._read)
                self._read += PIECE_BYTES

    def close(self) -> None:
        if self._segment is None:
            return
        self._segment.forget_pages()
        for position in list(self._cold):
            self._drop(position)
        self._files.close(self._fd)
        self._segment = None

    def _drop(self, position: int) -> None:
        if self._cold.pop(position, False):
            os.posix_fadvise(self._fd, position, PIECE_BYTES, os.POSIX_FADV_DONTNEED)

    def _is_cached(self, position: int) -> bool:
        """Whether a piece seems to be in memory; where the system does not tell, it is left alone."""
        try:
            return os.preadv(self._fd, [bytearray(1)], position + PIECE_BYTES // 2, os.RWF_NOWAIT) >= 0
        except OSError as error:
            return error.errno != errno.EAGAIN
