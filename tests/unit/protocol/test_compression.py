"""Compression by the bits of the system flag, and what is refused."""

from __future__ import annotations

import builtins
import tracemalloc
import zlib
from typing import Any

import pytest
import zstandard

from rocketcore.errors import ConfigError, DecodeError
from rocketcore.protocol.compression import CompressionType, compress, decompress

BODY = b"abcdefgh" * 1000


@pytest.mark.parametrize("kind", CompressionType)
@pytest.mark.parametrize("body", [b"", b"x", BODY], ids=["empty", "one", "long"])
def test_round_trip(kind: CompressionType, body: bytes) -> None:
    assert decompress(compress(body, kind), kind.sys_flag) == body


def test_flags() -> None:
    assert [kind.sys_flag for kind in CompressionType] == [0x101, 0x201, 0x301]
    # Producers up to 4.9.3 set no type bits.
    assert decompress(zlib.compress(BODY), 0x1) == BODY


@pytest.mark.parametrize("kind", CompressionType)
def test_what_is_longer_than_allowed(kind: CompressionType) -> None:
    compressed = compress(bytes(1_000_000), kind)
    assert len(decompress(compressed, kind.sys_flag, 1_000_000)) == 1_000_000
    with pytest.raises(DecodeError, match="beyond 999999 bytes"):
        decompress(compressed, kind.sys_flag, 999_999)


@pytest.mark.parametrize("kind", CompressionType)
def test_damage(kind: CompressionType) -> None:
    compressed = compress(BODY, kind)
    for damaged in (b"", b"not compressed at all", compressed[:-3], compressed[: len(compressed) // 2]):
        with pytest.raises(DecodeError):
            decompress(damaged, kind.sys_flag)


def java_zstd(body: bytes, level: int = 5) -> bytes:
    """Compress as Java's ``ZstdOutputStream``, which does not know the length when it writes the frame's header."""
    writer = zstandard.ZstdCompressor(level=level, write_content_size=False).compressobj()
    return writer.compress(body) + writer.flush()


def test_a_zstandard_frame_that_does_not_state_its_length() -> None:
    compressed = java_zstd(BODY)
    assert decompress(compressed, 0x201) == BODY
    with pytest.raises(DecodeError, match="beyond 7999 bytes"):
        decompress(compressed, 0x201, len(BODY) - 1)
    for end in range(len(compressed)):
        with pytest.raises(DecodeError):
            decompress(compressed[:end], 0x201)


@pytest.mark.parametrize("level", [17, 22])
def test_high_levels_of_zstandard(level: int) -> None:
    """Their windows are longer than a body may be."""
    assert decompress(java_zstd(BODY, level), 0x201) == BODY
    # What Java writes of 12,000 bytes at level 17.
    assert java_zstd(b"abc " * 3000, 17)[:6].hex() == "28b52ffd0068"


def test_a_zstandard_bomb_takes_little_room() -> None:
    bomb = java_zstd(bytes(1 << 30))
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="beyond 4194304 bytes"):
            decompress(bomb, 0x201)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


FRAMED = [CompressionType.LZ4, CompressionType.ZSTD]
SKIPPABLE = bytes.fromhex("502a4d1804000000") + b"skip"


@pytest.mark.parametrize("kind", FRAMED)
def test_several_frames_are_one_body(kind: CompressionType) -> None:
    one, two = compress(b"one " * 50, kind), compress(b"two " * 50, kind)
    expected = b"one " * 50 + b"two " * 50
    for together in (
        one + two,
        SKIPPABLE + one + two,
        one + SKIPPABLE + two + SKIPPABLE,
        one + compress(b"", kind) + two,
    ):
        assert decompress(together, kind.sys_flag) == expected
        assert decompress(memoryview(together), kind.sys_flag, 400) == expected
        with pytest.raises(DecodeError, match="beyond 399 bytes"):
            decompress(together, kind.sys_flag, 399)
    for damaged in (one + two[:-1], one + two[:6], one + b"something else"):
        with pytest.raises(DecodeError):
            decompress(damaged, kind.sys_flag)


def test_what_follows_a_zlib_stream_is_ignored() -> None:
    assert decompress(zlib.compress(BODY) + zlib.compress(b"more"), 0x301) == BODY


@pytest.mark.parametrize("bits", [0x401, 0x501, 0x701])
def test_unknown_types(bits: int) -> None:
    with pytest.raises(DecodeError, match="compression type"):
        decompress(BODY, bits)


@pytest.mark.parametrize(("kind", "extra"), [(CompressionType.LZ4, "lz4"), (CompressionType.ZSTD, "zstd")])
def test_a_missing_extra_is_named(kind: CompressionType, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compressed = compress(BODY, kind)
    real_import = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.split(".")[0] in ("lz4", "zstandard"):
            raise ImportError(name)
        return real_import(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=rf"rocketcore\[{extra}\]"):
        compress(BODY, kind)
    with pytest.raises(ConfigError, match=rf"rocketcore\[{extra}\]"):
        decompress(compressed, kind.sys_flag)
