"""Compression by the bits of the system flag, and what is refused."""

from __future__ import annotations

import builtins
import zlib
from typing import Any

import pytest

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
