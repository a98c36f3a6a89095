"""Lines to import in every encoding and compression: all messages exactly, or one error that says where."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from rocketcore.admin.client import Admin
from rocketcore.local import LocalCluster
from tests.fixtures.commands import Rocket

PACKS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}
LINES = (
    b'\xef\xbb\xbf{"body": "a"}\r\n\r\n \t\r\n{"body":\r1.10, "keys": [1, 2.50]}\r\r\n'
    b'{"body": {"n" : 12527.60048171909141234, "n": 1E400}, "properties": {"p": 1.0}}\n{"body": "last"}'
)
BODIES = ["a", "1.10", '{"n" : 12527.60048171909141234, "n": 1E400}', "last"]


@pytest.fixture
def target(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = f"texts-{zlib.crc32(request.node.name.encode()):x}"
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(name, 1)
    return name


def bodies(rocket: Rocket, topic: str) -> list[str]:
    assert rocket("export", topic, "-o", "there.jsonl", "--restart")[0] == 0
    return [json.loads(line)["body"] for line in Path("there.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("packed", PACKS)
@pytest.mark.parametrize("pipe", [False, True])
def test_lines_as_they_stand(rocket: Rocket, target: str, packed: str, pipe: bool) -> None:
    data = PACKS[packed](LINES[:40]) + PACKS[packed](LINES[40:])
    Path(f"a.jsonl{packed}").write_bytes(data)
    name = "-" if pipe else f"a.jsonl{packed}"
    code, out, err = rocket("import", name, "--topic", target, "-o", "json", stdin=data if pipe else None)
    assert (code, json.loads(out)["messages"]) == (0, 4), err
    assert bodies(rocket, target) == BODIES


@pytest.mark.parametrize("packed", PACKS)
@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b'{"body": "a"}\n\n{"body": 01}\n', "line 3, column 11: "),
        (b'{"body": "a"}\n{"body": NaN}\n', "line 2, column 10: '{\"body\": NaN}': NaN is not JSON"),
        ('{"body": "a"}\n{"body": "é"}\n'.encode("latin-1"), "line 2, column 11: the byte 0xe9 is no UTF-8"),
        ('{"body": "a"}\n'.encode("utf-16"), "line 1, column 1: the file is UTF-16"),
        ('{"body": "a"}\n'.encode("utf-16-le"), "line 1, column 1: the file looks like UTF-16"),
        (b'[\n {"body": "a"}\n]\n', "line 1, column 2: '[': a JSON value is missing; each line is an object"),
        (b'[{"body": "a"}]\n', 'line 1, column 1: \'[{"body": "a"}]\': no object; each line is an object'),
        (b"body,keys\na,b\n", "line 1, column 1: 'body,keys': a JSON value is missing"),
    ],
    ids=range(8),
)
def test_faults_have_their_place(rocket: Rocket, target: str, text: bytes, place: str, packed: str) -> None:
    Path(f"a{packed}").write_bytes(PACKS[packed](text))
    code, _, err = rocket("import", f"a{packed}", "--topic", target)
    assert (code, f"error: a{packed}: {place}" in err, "Traceback" in err) == (1, True, False), err
    assert bodies(rocket, target) == ["a"] * (not place.startswith("line 1"))


@pytest.mark.parametrize("packed", PACKS)
def test_files_without_messages(rocket: Rocket, target: str, packed: str) -> None:
    for text in (b"", b"\n", b"\xef\xbb\xbf", b" \r\n\t\n"):
        Path(f"a{packed}").write_bytes(PACKS[packed](text))
        code, out, err = rocket("import", f"a{packed}", "--topic", target, "-o", "json")
        assert (code, json.loads(out)["messages"]) == (0, 0), err
    assert bodies(rocket, target) == []


@pytest.mark.parametrize("packed", [".gz", ".zst"])
def test_compressed_files_that_are_cut_or_hold_something_else(rocket: Rocket, target: str, packed: str) -> None:
    Path("a").write_bytes(PACKS[packed](LINES)[:-3])
    code, _, err = rocket("import", "a", "--topic", target)
    assert (code, "error: a: it cannot be read" in err, "Traceback" in err) == (1, True, False), err
    Path("b").write_bytes(PACKS[packed](b"PAR1 and more"))
    code, _, err = rocket("import", "b", "--topic", target)
    assert (code, "b: it is parquet, compressed with" in err, "unpack it first" in err) == (2, True, True), err
    assert {"b.progress", f"b.{target}.progress"}.isdisjoint(os.listdir())


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"PK\x03\x04", "zip or a spreadsheet"),
        (b"BZh9", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"Obj\x01", "avro"),
        (b"ORC", "orc"),
    ],
)
def test_files_of_other_formats(rocket: Rocket, target: str, head: bytes, kind: str) -> None:
    Path("a.jsonl").write_bytes(head + b" and more")
    code, _, err = rocket("import", "a.jsonl", "--topic", target)
    assert (code, f"a.jsonl: it looks like {kind}, and none of parquet, arrow, jsonl" in err) == (2, True), err


def test_a_compressed_file_goes_on_where_it_stopped(rocket: Rocket, target: str) -> None:
    Path("a.gz").write_bytes(gzip.compress(b'{"body": "1"}\n\n{"body": "2"}\nx\n'))
    code, _, err = rocket("import", "a.gz", "--topic", target)
    assert (code, "a.gz: line 4, column 1: " in err) == (1, True), err
    Path("a.gz").write_bytes(gzip.compress(b'{"body": "1"}\n\n{"body": "2"}\n{"body": 3}\n'))
    code, out, err = rocket("import", "a.gz", "--topic", target, "-o", "json")
    assert (code, json.loads(out)["resumed_at"]) == (0, 2), err
    assert sorted(bodies(rocket, target)) == ["1", "2", "3"], "each request went to either broker"
