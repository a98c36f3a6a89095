"""Bytes of a file as text: compression, encoding, and where in the file a fault is.

Text is UTF-8, with or without a byte order mark. A file of any other encoding is refused at its first wrong byte: a
guess would send other characters than the file has. ``.gz`` and ``.zst`` are decompressed as they are read.
"""

from __future__ import annotations

import codecs
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, cast

from rocketcore.errors import ConfigError
from rocketcore.files.faults import DamagedText, TextFault

__all__ = [
    "COMPRESSIONS",
    "HEAD_BYTES",
    "decoded",
    "decoded_line",
    "decompressed",
    "kind_of",
    "suffixes_of",
    "unpacked",
]

COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}

_KINDS: Final = (
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (b"\xff\xff\xff\xff", "arrow stream"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"FEA1", "feather version 1"),
    (b"PK\x03\x04", "zip or a spreadsheet"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"Obj\x01", "avro"),
    (b"ORC", "orc"),
    (b"SQLite format 3\x00", "sqlite"),
)
"""How files of other formats begin. Those of text have no such mark."""

_SKIPPABLE: Final = b"\x2a\x4d\x18"
"""A frame of Zstandard without content: 50 to 5F, and this. Such a frame may be the first."""

HEAD_BYTES: Final = 16
"""What tells a format."""

_WIDE_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)

_ZSTD_PIECE_BYTES: Final = 1024
"""What the decompressor is given at once: it knows no limit for its output, 128 KiB for each 4 bytes."""


def kind_of(head: bytes) -> str | None:
    """Return what a file is by its first ``HEAD_BYTES``; None: text, or a format without a mark."""
    if head[1:4] == _SKIPPABLE and head[0] >> 4 == 5:
        return "zstd"
    return next((kind for mark, kind in _KINDS if head.startswith(mark)), None)


def decompressed(file: BinaryIO, compression: str | None) -> BinaryIO:
    """Return a file that gives what a compressed one holds; None: the file itself.

    raises  ConfigError where the extra for it is not installed; its reads raise ``unpacking_errors``
    """
    if compression is None:
        return file
    if compression == "gzip":
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError("a .zst file needs the extra: pip install 'rocketcore[zstd]'") from error
    decompressor = zstandard.ZstdDecompressor()
    return cast("BinaryIO", io.BufferedReader(_Frames(file, decompressor.decompressobj, zstandard.ZstdError)))


def unpacked(file: BinaryIO) -> tuple[BinaryIO, str | None]:
    """Return what reads a file that may be compressed, and with what it is: the content tells, not the name.

    file  buffered: its beginning is looked at before it is read
    """
    found = kind_of(file.peek(HEAD_BYTES)[:HEAD_BYTES])  # type: ignore[attr-defined]
    compression = found if found in COMPRESSIONS.values() else None
    return decompressed(file, compression), compression


class _Frames(io.RawIOBase):
    """The content of the Zstandard frames of a file. A frame without its end is an error, as in gzip."""

    def __init__(self, file: BinaryIO, new_frame: Callable[[], object], fault: type[Exception]) -> None:
        super().__init__()
        self._file = file
        self._new_frame = new_frame
        self._fault = fault
        self._frame = None
        self._packed = b""
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while not self._content:
            if not self._packed:
                self._packed = self._file.read(_ZSTD_PIECE_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise DamagedText("the compressed data ends in the middle")
                return 0
            self._content = memoryview(self._unpack())
        size = min(len(view), len(self._content))
        view[:size] = self._content[:size]
        self._content = self._content[size:]
        return size

    def _unpack(self) -> bytes:
        frame = self._frame or self._new_frame()
        try:
            content: bytes = frame.decompress(self._packed)  # type: ignore[attr-defined]
        except self._fault as error:
            raise DamagedText(str(error)) from error
        ended = frame.eof  # type: ignore[attr-defined]
        self._packed = frame.unused_data if ended else b""  # type: ignore[attr-defined]
        self._frame = None if ended else frame  # type: ignore[assignment]
        return content


def decoded(data: bytes) -> str:
    """Return the text of a file without its byte order mark; raises TextFault at the first byte that is no UTF-8."""
    _check_width(data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        skipped = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
        at = error.start + skipped if len(error.object) < len(data) else error.start
        begin = data.rfind(b"\n", 0, at) + 1
        before = data[max(begin, skipped) : at].decode("utf-8", "replace")
        raise _not_utf8(data[at], data.count(b"\n", 0, at) + 1, len(before) + 1) from None


def decoded_line(data: bytes, line: int) -> str:
    """Return the text of a line, of the first one without the byte order mark; raises TextFault."""
    if line == 1:
        return decoded(data)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(data[error.start], line, len(data[: error.start].decode()) + 1) from None


def _not_utf8(byte: int, line: int, column: int) -> TextFault:
    return TextFault(f"the byte 0x{byte:02x} is no UTF-8: save the file as UTF-8", line, column)


def _check_width(data: bytes) -> None:
    """Refuse UTF-16 and UTF-32, by their mark or by the zeros in their first characters."""
    for mark, name in _WIDE_MARKS:
        if data.startswith(mark):
            raise TextFault(f"the file is {name}: save it as UTF-8", 1, 1)
    if 0 in data[:2] and len(data) > 1:
        raise TextFault("the file looks like UTF-16, without a mark: save it as UTF-8", 1, 1)


def suffixes_of(path: Path) -> tuple[str, str | None]:
    """Return the suffix of a file in lower case, without that of its compression, and the compression."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    name = Path(path.stem) if compression else path
    return name.suffix.lower(), compression
