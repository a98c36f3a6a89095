"""Compressed bodies: nothing but DecodeError, never more than the limit, and what the library itself reads.

What is taken is compressed again and read as the same, and refused when it is cut, or without its end and more behind.

input  u8: kind in bits 0 and 1, zlib twice, LZ4, Zstandard; bit 2 a small limit · compressed body
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import lz4.frame  # type: ignore[import-untyped]
import zstandard

from rocketcore.codes import MessageSysFlag
from rocketcore.protocol.compression import CompressionType, compress, decompress
from tests.fuzz.target import Target, refused

KINDS = (CompressionType.ZLIB, CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD)


def run(data: bytes) -> None:
    if not data:
        return
    kind, limit = KINDS[data[0] & 3], 100 if data[0] & 4 else 1 << 16
    flag = MessageSysFlag.COMPRESSED if data[0] & 3 == 0 else kind.sys_flag
    body = refused(lambda: decompress(data[1:], flag, limit))
    refused(lambda: decompress(memoryview(data)[1:], data[0] << 8 | 1, limit))
    if body is None:
        return
    assert len(body) <= limit
    assert body == LIBRARIES[kind](data[1:])
    check_packed(compress(body, kind), body, kind, limit, len(data))
    if kind is CompressionType.ZSTD:
        check_packed(without_length(body), body, kind, limit, len(data))
    if kind is not CompressionType.ZLIB and 2 * len(body) <= limit:
        assert decompress(data[1:] + data[1:], kind.sys_flag, limit) == body + body


def check_packed(packed: bytes, body: bytes, kind: CompressionType, limit: int, cut: int) -> None:
    assert decompress(packed, kind.sys_flag, limit) == body
    assert refused(lambda: decompress(packed[: cut % len(packed)], kind.sys_flag, limit)) is None


def zlib_body(packed: bytes) -> bytes:
    return zlib.decompressobj().decompress(packed)


def lz4_body(packed: bytes) -> bytes:
    body = b""
    while packed:
        frame = lz4.frame.LZ4FrameDecompressor()
        body += frame.decompress(packed)
        packed = frame.unused_data or b""
    return body


def zstd_body(packed: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
        return reader.read()


LIBRARIES = {CompressionType.ZLIB: zlib_body, CompressionType.LZ4: lz4_body, CompressionType.ZSTD: zstd_body}


def without_length(body: bytes) -> bytes:
    """Compress as Java does, which does not know the length when it writes the header of the frame."""
    writer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return writer.compress(body) + writer.flush()


def seeds() -> Iterable[bytes]:
    for body in (b"", b"a", b"text " * 12, bytes(300), bytes(range(256)) * 3):
        for index, kind in enumerate(KINDS):
            packed = compress(body, kind)
            yield bytes([index]) + packed
            yield bytes([index | 4]) + packed + b"tail"
            yield bytes([index]) + packed + compress(b"more", kind)
        yield b"\x03" + without_length(body)
    yield b"\x00" + zlib.compress(bytes(1 << 20))
    yield b"\x03" + compress(bytes(1 << 20), CompressionType.ZSTD)
    yield b"\x02" + compress(bytes(1 << 20), CompressionType.LZ4)[:2000]


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b"\x78\x9c", b"\x78\x5e", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18", bytes(8),
        b"\xff" * 8,
    ),
)  # fmt: skip
