"""Compression of message bodies, by the type bits of the system flag.

zlib (RFC 1950) is always there; LZ4 (frame format) and Zstandard need their extras. Servers and clients up to 4.9.3
know zlib only. What is inflated is capped: a kilobyte of zlib can claim a megabyte.

RocketMQ: ``Compressor``, ``CompressionType``, ``MessageSysFlag``.
"""

from __future__ import annotations

import zlib
from enum import IntEnum

from rocketcore.codes import COMPRESSION_MASK, MAX_MESSAGE_BYTES, MessageSysFlag
from rocketcore.errors import ConfigError, DecodeError

__all__ = ["CompressionType", "compress", "decompress"]


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

    raises  DecodeError for what does not decompress, is cut, or is longer than ``max_bytes``; ConfigError where the
            extra is not installed
    """
    kind = sys_flag & COMPRESSION_MASK
    if kind in (0, CompressionType.ZLIB):
        result = _inflate(body, max_bytes)
    elif kind == CompressionType.LZ4:
        result = _decompress_lz4(bytes(body), max_bytes)
    elif kind == CompressionType.ZSTD:
        result = _decompress_zstd(bytes(body), max_bytes)
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


def _decompress_lz4(body: bytes, max_bytes: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise ConfigError("an LZ4 message needs the extra: pip install rocketcore[lz4]") from None
    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        result: bytes = decompressor.decompress(body, max_bytes + 1)
    except RuntimeError as error:
        raise DecodeError(f"compressed body: {error}") from None
    if not decompressor.eof and len(result) <= max_bytes:
        raise DecodeError("compressed body: the LZ4 frame is cut")
    return result


def _decompress_zstd(body: bytes, max_bytes: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise ConfigError("a Zstandard message needs the extra: pip install rocketcore[zstd]") from None
    try:
        size = zstandard.frame_content_size(body)
        if size > max_bytes:
            raise DecodeError(f"a compressed body inflates beyond {max_bytes} bytes")
        with zstandard.ZstdDecompressor(max_window_size=max(1 << 10, max_bytes)).stream_reader(body) as reader:
            result = reader.read(max_bytes + 1)
    except zstandard.ZstdError as error:
        raise DecodeError(f"compressed body: {error}") from None
    if 0 <= size != len(result):
        raise DecodeError("compressed body: the Zstandard frame is cut")
    return result
