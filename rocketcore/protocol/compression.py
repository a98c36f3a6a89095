"""Compression of message bodies, by the type bits of the system flag.

zlib (RFC 1950) is always there; LZ4 (frame format) and Zstandard need their extras. Servers and clients up to 4.9.3
know zlib only. What is inflated is capped: a kilobyte of zlib can claim a megabyte.

RocketMQ: ``Compressor``, ``CompressionType``, ``MessageSysFlag``.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

from rocketcore.codes import COMPRESSION_MASK, MAX_MESSAGE_BYTES, MessageSysFlag
from rocketcore.errors import ConfigError, DecodeError

__all__ = ["CompressionType", "compress", "decompress"]

_ZSTD_PIECE_BYTES: Final = 512
"""What is given to the decompressor at once: it knows no limit for its output, 128 KiB for each 4 bytes."""


class CompressionType(IntEnum):
    """A compression, as the bits it has in the system flag."""

    LZ4 = MessageSysFlag.COMPRESSION_LZ4
    ZSTD = MessageSysFlag.COMPRESSION_ZSTD
    ZLIB = MessageSysFlag.COMPRESSION_ZLIB

    @property
    def sys_flag(self) -> int:
        """The bits to set on a message that is compressed so."""
        return self | MessageSysFlag.COMPRESSED


def compress(body: bytes | memoryview, kind: CompressionType = CompressionType.ZLIB, level: int = 5) -> bytes:
    """Return the compressed body; raises ConfigError where the extra is not installed."""
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, level)
    if kind is CompressionType.LZ4:
        try:
            import lz4.frame  # type: ignore[import-untyped]
        except ImportError:
            raise ConfigError("LZ4 compression needs the extra: pip install rocketcore[lz4]") from None
        compressed: bytes = lz4.frame.compress(bytes(body), compression_level=level)
        return compressed
    try:
        import zstandard
    except ImportError:
        raise ConfigError("Zstandard compression needs the extra: pip install rocketcore[zstd]") from None
    return zstandard.ZstdCompressor(level=level).compress(body)


def decompress(body: bytes | memoryview, sys_flag: int, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """Return the body of a message whose system flag has the compressed bit; type bits 0 mean zlib.

    As in Java several frames of LZ4 or Zstandard are one body, and what follows a zlib stream is ignored.

    raises  DecodeError for what does not decompress, is cut, or is longer than ``max_bytes``; ConfigError where the
            extra is not installed
    """
    kind = sys_flag & COMPRESSION_MASK
    if kind in (0, CompressionType.ZLIB):
        result = _inflate(body, max_bytes)
    elif kind == CompressionType.LZ4:
        result = _decompress_lz4(memoryview(body), max_bytes)
    elif kind == CompressionType.ZSTD:
        result = _decompress_zstd(memoryview(body), max_bytes)
    else:
        raise DecodeError(f"compression type {kind >> 8} is not known")
    if len(result) > max_bytes:
        raise DecodeError(f"a compressed body inflates beyond {max_bytes} bytes")
    return result


def _inflate(body: bytes | memoryview, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        result = inflater.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise DecodeError(f"compressed body: {error}") from None
    if not inflater.eof and len(result) <= max_bytes:
        raise DecodeError("compressed body: the zlib stream is cut")
    return result


def _decompress_lz4(body: memoryview, max_bytes: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise ConfigError("an LZ4 message needs the extra: pip install rocketcore[lz4]") from None
    context = lz4.frame.create_decompression_context()
    result = bytearray()
    ended = False
    try:
        while (body or not ended) and len(result) <= max_bytes:
            part, read, ended = lz4.frame.decompress_chunk(context, body, max_length=max_bytes + 1 - len(result))
            if not (ended or part or read):
                break
            result += part
            body = body[read:]
    except RuntimeError as error:
        raise DecodeError(f"compressed body: {error}") from None
    if not ended and len(result) <= max_bytes:
        raise DecodeError("compressed body: the LZ4 frame is cut")
    return bytes(result)


def _decompress_zstd(body: memoryview, max_bytes: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise ConfigError("a Zstandard message needs the extra: pip install rocketcore[zstd]") from None
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    result = bytearray()
    try:
        while (body or not frame.eof) and len(result) <= max_bytes:
            if frame.eof:
                frame = decompressor.decompressobj()
            piece = body[:_ZSTD_PIECE_BYTES]
            if not piece:
                raise DecodeError("compressed body: the Zstandard frame is cut")
            result += frame.decompress(piece)
            body = body[len(piece) - len(frame.unused_data) :]
    except zstandard.ZstdError as error:
        raise DecodeError(f"compressed body: {error}") from None
    return bytes(result)
