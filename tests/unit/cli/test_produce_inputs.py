"""What ``rocket produce`` reads from stdin and files."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from rocketcore.cli.messages.produce import _inputs

LINES = b'{"body": "a"}\n{"body": "b"}\n'
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "skippable frame": lambda data: b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstandard.compress(data),
}


@pytest.mark.parametrize("pack", PACKED)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", None])
def test_the_content_tells_how_lines_are_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, pack: str
) -> None:
    data = PACKED[pack](LINES)
    body = "-" if name is None else f"@{tmp_path / name}"
    if name is None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    else:
        (tmp_path / name).write_bytes(data)
    assert list(_inputs((body,), jsonl=True)) == [{"body": "a"}, {"body": "b"}]


def test_a_byte_order_mark_is_no_part_of_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = b"\xef\xbb\xbf"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(mark + b"a\n" + mark + b"b\n")))
    assert [fields["body"] for fields in _inputs((), jsonl=False)] == [b"a", mark + b"b"]


@pytest.mark.parametrize(
    ("text", "bodies"),
    [(b"abc\r", [b"abc\r"]), (b"a\r\nb\r", [b"a", b"b\r"]), (b"a\r\r\n", [b"a\r"]), (b"a\n\nb", [b"a", b"b"])],
)
def test_only_a_line_with_its_end_loses_a_carriage_return(
    monkeypatch: pytest.MonkeyPatch, text: bytes, bodies: list[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert [fields["body"] for fields in _inputs((), jsonl=False)] == bodies
