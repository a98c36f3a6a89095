"""Compressed bodies: nothing but DecodeError, never more than the limit, and what the library itself reads.

input  u8: kind in bits 0 and 1, zlib twice, LZ4, Zstandard; bit 2 a small limit · compressed body
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

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
    assert decompress(compress(body, kind), kind.sys_flag, limit) == body
    if kind is CompressionType.ZLIB:
        assert zlib.decompressobj().decompress(data[1:]) == body


def seeds() -> Iterable[bytes]:
    for body in (b"", b"a", b"text " * 12, bytes(300), bytes(range(256)) * 3):
        for index, kind in enumerate(KINDS):
            packed = compress(body, kind)
            yield bytes([index]) + packed
            yield bytes([index | 4]) + packed + b"tail"
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
