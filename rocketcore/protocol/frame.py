"""Frames out of a stream: boundaries and heads of everything that one read brought, found before Python looks at any.

``FrameDecoder`` is for whoever wants commands. A transport works with ``Assembler`` and ``ChunkReader``, which give it
the rows of a chunk: sends that came together are stored from their rows alone.
"""

from __future__ import annotations

from typing import Final

from rocketcore._fast import frame as frame_kernel
from rocketcore._fast.fields import take
from rocketcore._fast.frame import read_frames
from rocketcore.codes import FRAME_MAX_BYTES
from rocketcore.errors import DecodeError
from rocketcore.protocol.command import RemotingCommand, next_opaque
from rocketcore.protocol.json_header import read_json_header
from rocketcore.table import Table

__all__ = ["ROWS", "Assembler", "Chunk", "ChunkReader", "FrameDecoder", "missing_bytes"]

ROWS: Final = 256
"""Frames looked at in one go; a chunk with more is read in several."""


class Chunk:
    """Some frames of one connection: their bytes, and a row per frame.

    data   what was received
    code   the request code of all rows; -1 where they differ, or one is a response or unusual
    rows   int64[count, 6], heads   int64[count, 8]: columns of ``_fast.frame``

    Both tables belong to the reader and are overwritten by the next chunk: a handler takes what it needs from them
    before it returns. ``data`` may be kept.
    """

    __slots__ = ("code", "count", "data", "heads", "rows")

    def __init__(self, capacity: int) -> None:
        self.data = b""
        self.count = 0
        self.code = -1
        self.rows = Table(capacity, frame_kernel.FRAME_COLUMNS).view
        self.heads = Table(capacity, frame_kernel.HEAD_COLUMNS).view

    def command(self, index: int) -> RemotingCommand:
        """Return the command of a row, which refers to ``data``; raises DecodeError where its header is broken."""
        return take(RemotingCommand, self.data, self.rows, self.heads, index, _read_unusual)


def _read_unusual(header: bytes, position: int) -> tuple[int, int, int, int, int, str | None, dict[str, str] | None]:
    code, language, version, opaque, flag, remark, ext_fields = read_json_header(header, position)
    return code, language, version, next_opaque() if opaque is None else opaque, flag, remark, ext_fields


class ChunkReader:
    """Scans received bytes into one reused ``Chunk``; all connections of a loop share one."""

    __slots__ = ("chunk", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = FRAME_MAX_BYTES, capacity: int = ROWS) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.chunk = Chunk(capacity)

    def scan(self, data: bytes, position: int) -> int:
        """Read frames from ``position`` on into ``self.chunk`` and return where the first unread byte is.

        raises  DecodeError if the first frame is bad, also FrameTooLarge
        """
        chunk = self.chunk
        chunk.data = data
        chunk.count, position, chunk.code = read_frames(data, position, chunk.rows, chunk.heads, self.max_frame_bytes)
        return position


def missing_bytes(data: bytes, position: int) -> int:
    """Return how much of the frame that begins at ``position`` is still to come, or of its length word."""
    left = len(data) - position
    length = int.from_bytes(data[position : position + 4], "big") if left >= 4 else 0
    return 4 + length - left


class Assembler:
    """Keeps the incomplete frame at the end of what one connection received, without copying it again and again.

    pending_bytes  bytes of the frame that is not complete yet; where there are none ``feed`` returns what it is given
    """

    __slots__ = ("_missing", "_parts", "pending_bytes")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._missing = 0
        self.pending_bytes = 0

    def feed(self, data: bytes) -> bytes | None:
        """Return the bytes to scan now, or None while the frame at hand is not complete."""
        if not self._parts:
            return data
        self._parts.append(data)
        self.pending_bytes += len(data)
        if len(data) < self._missing:
            self._missing -= len(data)
            return None
        joined = b"".join(self._parts)
        self._parts.clear()
        self.pending_bytes = 0
        return joined

    def keep(self, data: bytes, position: int, missing: int | None = None) -> None:
        """Keep what follows ``position`` until ``missing`` bytes more are there.

        missing  None: what the frame lacks, or its length word; a scan has checked the length where it is known
        """
        left = len(data) - position
        if left <= 0:
            return
        self._parts.append(data[position:] if position else data)
        self.pending_bytes = left
        self._missing = missing_bytes(data, position) if missing is None else missing


class FrameDecoder:
    """Feed bytes, get commands.

    Bad bytes do not cost the commands before them: those are returned first, and the next ``feed``, with more bytes or
    with none, raises. After that the decoder is of no use.
    """

    __slots__ = ("_assembler", "_error", "_reader")

    def __init__(self, max_frame_bytes: int = FRAME_MAX_BYTES) -> None:
        self._assembler = Assembler()
        self._reader = ChunkReader(max_frame_bytes, 16)
        self._error: DecodeError | None = None

    @property
    def failed(self) -> bool:
        """Whether the next ``feed`` raises."""
        return self._error is not None

    def feed(self, data: bytes) -> list[RemotingCommand]:
        """Return the commands that ``data`` completes; raises DecodeError, also FrameTooLarge."""
        if self._error is not None:
            raise self._error
        commands: list[RemotingCommand] = []
        whole = self._assembler.feed(data)
        if whole is None:
            return commands
        position = 0
        chunk = self._reader.chunk
        try:
            while True:
                position = self._reader.scan(whole, position)
                for index in range(chunk.count):
                    commands.append(chunk.command(index))
                if chunk.count == 0 or position == len(whole):
                    break
        except DecodeError as error:
            self._error = error
            if not commands:
                raise
            return commands
        finally:
            chunk.data = b""
        self._assembler.keep(whole, position)
        return commands
