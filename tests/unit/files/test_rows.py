"""Every kind of file × names, encodings, types and empties: all rows exactly, or one error that says where."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import struct
import sys
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from rocketcore.errors import ConfigError
from rocketcore.files.rows import read_rows

TABLE = {"id": ["1", "2"], "type": ["a", "b"]}
BODIES = ['{"id":"1","type":"a"}', '{"id":"2","type":"b"}']


def arrow(table: pa.Table, *, stream: bool = False, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


TEXTS = {
    "ndjson": "\n".join(BODIES).encode(),
    "jsonl": "\n".join(BODIES).encode() + b"\n",
    "json": f"[{', '.join(BODIES)}]".encode(),
    "csv": b"id,type\n1,a\n2,b\n",
}
TABLES = {
    "parquet": parquet(pa.table(TABLE)),
    "arrow": arrow(pa.table(TABLE)),
    "arrows": arrow(pa.table(TABLE), stream=True),
    "feather": arrow(pa.table(TABLE), compression="zstd"),
}
FILES = (
    TEXTS
    | TABLES
    | {f"{suffix}.gz": gzip.compress(data[:9]) + gzip.compress(data[9:]) for suffix, data in TEXTS.items()}
    | {f"{suffix}.zst": zstandard.compress(data[:9]) + zstandard.compress(data[9:]) for suffix, data in TEXTS.items()}
)
NAMES = [
    b"data[1]", b"{a,b}", b"q?", b"*", b"back\\slash", b"two  words", b"run [3]/x", b"2024-05-01T12:00:00", b"file:x",
    b"s3:__bucket", b"_hidden", b".hidden", b"100%25 %s", b"#hash", "äöü \U0001f680".encode(), b"latin-\xe9", b"-",
    b"~", b"$HOME", b"'\"", b"new\nline", b"A.CSV",
]  # fmt: skip


def read(path: Path) -> list[str]:
    rows = read_rows(path)
    return [row.body for row in rows]


def refusal(path: Path) -> str:
    """Return the error that a file is refused with: one line that begins with its name."""
    with pytest.raises(ConfigError) as refused:
        read_rows(path)
    text = str(refused.value)
    assert path.name in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_the_named_file_is_read_and_no_other(tmp_path: Path, name: bytes, suffix: str) -> None:
    path = tmp_path / os.fsdecode(name + b"." + suffix.encode())
    path.parent.mkdir(exist_ok=True)
    for neighbour in ("data1", "a", "b", "qx", "x"):  # what such a name would be as a pattern
        (tmp_path / f"{neighbour}.{suffix}").write_bytes(b"wrong")
    path.write_bytes(FILES[suffix])
    rows = read_rows(path)
    assert [(row.body, row.key, row.tag) for row in rows] == [(BODIES[0], "1", "a"), (BODIES[1], "2", "b")]


@pytest.mark.parametrize("suffix", FILES)
def test_suffixes_in_capitals(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"x.{suffix.upper()}").write_bytes(FILES[suffix])
    assert read(tmp_path / f"x.{suffix.upper()}") == BODIES


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
@pytest.mark.parametrize("suffix", TEXTS)
@pytest.mark.parametrize(
    ("encoding", "place"),
    [
        ("utf-8-sig", None),
        ("utf-16", "line 1, column 1: the file is UTF-16"),
        ("utf-16-le", "line 1, column 1: the file looks like UTF-16"),
        ("utf-16-be", "line 1, column 1: the file looks like UTF-16"),
        ("utf-32", "line 1, column 1: the file is UTF-32"),
        ("latin-1", r"line 2, column \d+: the byte 0xe9 is no UTF-8"),
        ("cp1252", r"line 2, column \d+: the byte 0xe9 is no UTF-8"),
    ],
)
def test_encodings(tmp_path: Path, suffix: str, encoding: str, place: str | None, packed: str) -> None:
    text = {
        "ndjson": '{"a": 1}\n{"id": "café"}\n',
        "jsonl": '{"a": 1}\r\n{"id": "café"}',
        "json": '[{"a": 1},\n{"id": "café"}]',
        "csv": "id,x\ncafé,2\n",
    }[suffix]
    data = text.encode(encoding)
    path = tmp_path / f"rows.{suffix}{packed}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[packed](data))  # type: ignore[operator]
    if place is None:
        assert "café" in read(path)[-1]
        assert "\ufeff" not in "".join(read(path))
        return
    assert re.search(rf"^rows\.{suffix}{packed}: {place}", refusal(path)), refusal(path)


@pytest.mark.parametrize("suffix", FILES)
def test_nothing_in_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    empty = pa.table(TABLE).slice(2)
    nothing: dict[str, list[bytes]] = {
        "ndjson": [b"", b"\n\n \r\n\t\n", b"\xef\xbb\xbf"],
        "jsonl": [b"", b"\n"],
        "json": [b"", b" \n", b"[]", b"[\n]\n", b"\xef\xbb\xbf[]"],
        "csv": [b"", b"\n\n", b"id,type\n", b"id,type", b"\xef\xbb\xbfid\r\n\r\n"],
        "parquet": [parquet(empty)],
        "arrow": [arrow(empty), arrow(empty, stream=True)],
        "arrows": [arrow(empty, stream=True)],
        "feather": [arrow(empty)],
    }
    text, _, packed = suffix.partition(".")
    pack: Callable[[bytes], bytes] = {"": bytes, "gz": gzip.compress, "zst": zstandard.compress}[packed]  # type: ignore[assignment]
    for data in nothing[text]:
        path.write_bytes(pack(data))
        assert refusal(path) == f"{path.name} has no rows"
    if text in TABLES or packed:
        path.write_bytes(b"")
        assert "looks like" in refusal(path)


def test_a_wrong_suffix_is_told_by_what_the_file_looks_like(tmp_path: Path) -> None:
    contents = FILES | {"docx": b"PK\x03\x04 and more", "gz in gz": gzip.compress(gzip.compress(b"x"))}

    def kind(content: str) -> str:
        """Return what a file is to its reader: a table of a form, or text in a compression."""
        if content in TABLES:
            return "parquet" if content == "parquet" else "arrow"
        return content.partition(".")[2] if content in FILES else content

    for suffix, (content, data) in itertools.product(FILES, contents.items()):
        path = tmp_path / f"rows.{suffix}"
        path.write_bytes(data)
        if kind(content) != kind(suffix):
            assert "it looks like " in refusal(path), (content, suffix)
            assert "name says" in refusal(path)
        elif kind(suffix) in ("parquet", "arrow"):
            assert read(path) == BODIES


@pytest.mark.parametrize(
    ("suffix", "content", "text"),
    [
        ("csv", "ndjson", "line 1, column 1: ',' expected after"),
        ("ndjson", "csv", "line 1, column 1: a JSON value is missing"),
        ("json", "csv", "line 1, column 1: a JSON value is missing"),
    ],
)
def test_a_text_of_another_kind(tmp_path: Path, suffix: str, content: str, text: str) -> None:
    data = b'{"id":"a","n":1}\n{"id": "b","n":2}\n' if content == "ndjson" else TEXTS[content]
    (tmp_path / f"rows.{suffix}").write_bytes(data)
    assert refusal(tmp_path / f"rows.{suffix}").startswith(f"rows.{suffix}: {text}")


@pytest.mark.parametrize("suffix", ["tsv", "xlsx", "txt", "gz", "parquet.gz", "arrow.zst", "csv.bz2", "csv.gz.gz", ""])
def test_suffixes_that_say_nothing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / (f"rows.{suffix}" if suffix else "rows")
    path.write_bytes(b"id\n1\n")
    assert f"{path.name}: the demo reads .arrow" in refusal(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    assert "file not found" in refusal(tmp_path / "folder.csv")
    assert "file not found" in refusal(tmp_path / "absent[1].csv")


LINES: list[tuple[bytes, list[str] | str]] = [
    (b'{"id": 1.10}\r\n\t\t\n{"a" :\r1E400}\r\r\n\n [1] \n"x"', ['{"id": 1.10}', '{"a" :\r1E400}', "[1]", '"x"']),
    (b'{"a":1,"a":2}\n{"h":"\\ud800"}', ['{"a":1,"a":2}', '{"h":"\\ud800"}']),
    ('{"a":"\u2028\x85"}\n'.encode(), ['{"a":"\u2028\x85"}']),
    (b'{"a":1}\n{"a":}\n', "line 2, column 6: a JSON value is missing"),
    (b'{"a":1}\n\n{"a":NaN}\n', "line 3, column 6: NaN is not JSON"),
    (b'{"a":1} {"a":2}\n', "line 1, column 9: more follows"),
    (b'{"a":1}\r{"a":2}\r', "line 1, column 9: more follows"),
    (
        b'[\n {"a": 1}\n]\n',
        "line 1, column 2: a JSON value is missing; a file of one array is read where it is called .json",
    ),
    (b"[" * 200_000, "line 1, column 1: nested too deeply"),
    (b'{"a":"x\ty"}', "line 1, column 8: Invalid control character"),
    (b'{"a":1}\n{"a":"' + b"x" * 100, "line 2, column 6: Unterminated string"),
]
DOCUMENTS: list[tuple[bytes, list[str] | str]] = [
    (b'[\n  {\n    "id": 1.10\n  },\n  2\n]\n', ['{\n    "id": 1.10\n  }', "2"]),
    (b'{\n "id": 1\n}\n', ['{\n "id": 1\n}']),
    (b'{"a":1}\n{"a":2}\n', ['{"a":1}', '{"a":2}']),
    (b'{\n"a":1}\n{\n"a":2}', ['{\n"a":1}', '{\n"a":2}']),
    (b"[1]\n[2]\n", ["[1]", "[2]"]),
    (b"[[1, 2], []]", ["[1, 2]", "[]"]),
    (b'[{"a": 1},\n {"a": 01}]', "line 2, column 9: "),
    (b'[{"a": 1},\n {"a": Infinity}]', "line 2, column 8: Infinity is not JSON"),
    (b'[{"a": 1},\n', "line 2, column 1: "),
    (b'{"a": 1}\n]', "line 2, column 1: "),
]
CELLS: list[tuple[bytes, list[Any] | str]] = [
    (b"id,zip,price\n007,01234,1.10\n", [{"id": "007", "zip": "01234", "price": "1.10"}]),
    (b"a,b\n,NULL\n nan , true\n", [{"a": "", "b": "NULL"}, {"a": " nan ", "b": " true"}]),
    (b'a,b\r\n"x\r\ny","q""q"\r\n\r\n1,2', [{"a": "x\r\ny", "b": 'q"q'}, {"a": "1", "b": "2"}]),
    (b"a\r1\r2\r", [{"a": "1"}, {"a": "2"}]),
    (b"a,b\n\x001,2\x00\n", [{"a": "\x001", "b": "2\x00"}]),
    (b',a\n0,"' + b"x" * 300_000 + b'"\n', [{"": "0", "a": "x" * 300_000}]),
    (b"a;b\n1;2\n", [{"a;b": "1;2"}]),
    (b"a\tb\n1\t2\n", [{"a\tb": "1\t2"}]),
    (b"a,b\n\\,\\n\n", [{"a": "\\", "b": "\\n"}]),
    (b"a,b\n1,2\n\n1,2,3\n", "line 4, column 5: the row has 3 cells, the first line names 2 columns"),
    (b'a,b\n"x\ny",2\n1\n', "line 4, column 2: the row has 1 cells"),
    (b'a,b\n1,2\n"\n\n,",x,y\n', "line 3: the row has 3 cells"),
    (b"a,b,a\n1,2,3\n", "line 1: column 3 is called 'a'"),
    (b'a,b\n1,"x"y\n', "line 2, column 1: ',' expected after '\"'"),
    (b'a,b\n1,2\n1,"x\n\n', "line 3, column 1: unexpected end of data"),
]


@pytest.mark.parametrize(
    ("suffix", "data", "found"),
    [
        *(("ndjson", *case) for case in LINES),
        *(("json", *case) for case in DOCUMENTS),
        *(("csv", *case) for case in CELLS),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 9 else "",
)
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_texts_as_they_stand(tmp_path: Path, suffix: str, data: bytes, found: list[Any] | str, packed: str) -> None:
    path = tmp_path / f"rows.{suffix}{packed}"
    path.write_bytes(gzip.compress(data) if packed else data)
    if isinstance(found, str):
        assert refusal(path).startswith(f"{path.name}: {found}"), refusal(path)
    else:
        bodies = read(path)
        assert (list(map(json.loads, bodies)) if suffix == "csv" else bodies) == found


@pytest.mark.parametrize("suffix", [suffix for suffix in FILES if "." in suffix])
def test_compressed_files_that_are_cut_or_damaged(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    pack = gzip.compress if suffix.endswith("gz") else zstandard.compress
    whole = pack(b"id,type\n" + b"".join(b"%d,%d\n" % (n, n * 7919 % 10007) for n in range(2000)))
    for data in (
        whole[:-1],
        whole[: len(whole) // 2],
        whole[:20],
        whole + b"trailing garbage",
        whole[:4] + b"\xff" * 40,
    ):
        path.write_bytes(data)
        assert "it cannot be read: " in refusal(path)


def test_without_the_extra_for_zst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.csv.zst").write_bytes(FILES["csv.zst"])
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert "pip install 'rocketcore[zstd]'" in refusal(tmp_path / "rows.csv.zst")


def column(values: list[Any], kind: pa.DataType | None = None) -> pa.Array:
    return pa.array([*values, None], kind)


MOMENT = datetime(2024, 5, 1, 12, 30, 15, 250000)
RUN_ENDS = pa.RunEndEncodedArray
TYPES: dict[str, tuple[pa.Array, Any]] = {
    "bool": (column([True]), True),
    **{f"int{bits}": (column([-5], pa.type_for_alias(f"int{bits}")), -5) for bits in (8, 16, 32, 64)},
    **{
        f"uint{bits}": (column([2**bits - 1], pa.type_for_alias(f"uint{bits}")), 2**bits - 1)
        for bits in (8, 16, 32, 64)
    },
    "float16": (pa.array([numpy.float16(0.1), None], pa.float16()), 0.1),
    "float32": (column([0.1], pa.float32()), 0.1),
    "float64": (column([0.1 + 0.2]), 0.1 + 0.2),
    "nan": (column([float("nan")]), "NaN"),
    "infinite": (column([float("-inf")], pa.float32()), "-Infinity"),
    "decimal128": (column([Decimal("1.10")], pa.decimal128(38, 2)), "raw:1.10"),
    "decimal256": (column([Decimal("1" * 60 + ".50")], pa.decimal256(70, 2)), "raw:" + "1" * 60 + ".50"),
    "string": (column(["ä\0\n"]), "ä\0\n"),
    "large_string": (column(["x"], pa.large_string()), "x"),
    "string_view": (column(["a view of more than twelve"], pa.string_view()), "a view of more than twelve"),
    "binary": (column([b"\xff"]), "/w=="),
    "large_binary": (column([b"\xff"], pa.large_binary()), "/w=="),
    "binary_view": (column([b"\xff"], pa.binary_view()), "/w=="),
    "fixed_size_binary": (column([b"\xff"], pa.binary(1)), "/w=="),
    "dictionary": (column(["a"]).dictionary_encode(), "a"),
    "categorical of pandas": (pa.DictionaryArray.from_arrays(pa.array([1, None], pa.int8()), ["x", "y"]), "y"),
    "enum of polars": (column(["a"]).cast(pa.dictionary(pa.uint32(), pa.large_string())), "a"),
    "date32": (column([date(2024, 5, 1)]), "2024-05-01"),
    "date64": (column([date(2024, 5, 1)], pa.date64()), "2024-05-01"),
    "time32[s]": (column([1], pa.time32("s")), "00:00:01"),
    "time32[ms]": (column([1], pa.time32("ms")), "00:00:00.001"),
    "time64[us]": (column([time(12)], pa.time64("us")), "12:00:00.000000"),
    "time64[ns]": (column([1], pa.time64("ns")), "00:00:00.000000001"),
    "timestamp[s]": (column([MOMENT], pa.timestamp("s")), "2024-05-01T12:30:15"),
    "timestamp[ms]": (column([MOMENT], pa.timestamp("ms")), "2024-05-01T12:30:15.250"),
    "timestamp[us]": (column([MOMENT], pa.timestamp("us")), "2024-05-01T12:30:15.250000"),
    "timestamp[ns]": (column([1], pa.timestamp("ns")), "1970-01-01T00:00:00.000000001"),
    "timestamp[us, zone]": (column([0], pa.timestamp("us", "Europe/Berlin")), "1970-01-01T00:00:00.000000Z"),
    "timestamp[ns, UTC]": (column([-1], pa.timestamp("ns", "UTC")), "1969-12-31T23:59:59.999999999Z"),
    "duration[ns]": (column([1_500_000_000], pa.duration("ns")), "PT1.5S"),
    "duration[s]": (column([-90], pa.duration("s")), "-PT90S"),
    "null": (pa.nulls(2), None),
    "list": (column([[1, None]]), [1, None]),
    "large_list": (column([["x"]], pa.large_list(pa.large_string())), ["x"]),
    "fixed_size_list": (column([[0.5, 1.5]], pa.list_(pa.float32(), 2)), [0.5, 1.5]),
    "list_view": (column([[1], []], pa.list_view(pa.int8())), [1]),
    "large_list_view": (column([[1]], pa.large_list_view(pa.int8())), [1]),
    "struct": (column([{"a": 1, "b": [MOMENT]}]), {"a": 1, "b": ["2024-05-01T12:30:15.250000"]}),
    "map": (column([[("k", 1), ("l", None)]], pa.map_(pa.string(), pa.int8())), {"k": 1, "l": None}),
    "run ends": (RUN_ENDS.from_arrays([1, 2], ["r", None], pa.run_end_encoded(pa.int32(), pa.string())), "r"),
}  # fmt: skip
"""Name → a column with one value and a null, and what the value is in JSON; ``raw:`` the digits of a number."""

if hasattr(pa, "uuid"):  # from pyarrow 18 on
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"\0" * 15 + b"\5", None], pa.binary(16)))
    TYPES["uuid"] = ids, "00000000-0000-0000-0000-000000000005"
if hasattr(pa, "json_"):  # from pyarrow 19 on
    TYPES["json"] = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1.10}', None])), '{"a":1.10}'


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize("name", TYPES)
def test_types_of_columns(tmp_path: Path, name: str, suffix: str) -> None:
    """What pyarrow cannot write as parquet, or read again itself, is no case; of seconds parquet makes milliseconds."""
    values, wanted = TYPES[name]
    if suffix == "parquet" and name in ("time32[s]", "timestamp[s]"):
        wanted += ".000"
    table = pa.table({"n": pa.array(range(len(values))), "value": values})
    try:
        data = parquet(table) if suffix == "parquet" else arrow(table, stream=suffix == "arrows")
        if suffix == "parquet":
            pq.read_table(pa.BufferReader(data))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        assert suffix == "parquet"
        return
    (tmp_path / f"rows.{suffix}").write_bytes(data)
    first, *_, last = read(tmp_path / f"rows.{suffix}")
    if isinstance(wanted, str) and wanted.startswith("raw:"):
        assert first == f'{{"n":0,"value":{wanted[4:]}}}'
    else:
        assert json.loads(first) == {"n": 0, "value": wanted}
    assert json.loads(last) == {"n": len(values) - 1, "value": None}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (column([pa.MonthDayNano([1, 2, 3])]), "column 'value' is month_day_nano_interval, which is not read: have it"),
        (pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]), "column 'value' is sparse_union"),
        (column([[(1, 2), (1, 3)]], pa.map_(pa.int8(), pa.int8())), "column 'value' is map<int8, int8>: row 0 of its"),
        (column([2**60], pa.timestamp("s")), "column 'value' is timestamp[s]: row 0 of its batch is value out of"),
        (column([[{"a": [pa.MonthDayNano([1, 2, 3])]}]]), "column 'value.a' is month_day_nano_interval"),
    ],
    ids=range(5),
)  # fmt: skip
def test_a_column_that_is_not_read_is_named(tmp_path: Path, values: pa.Array, text: str) -> None:
    (tmp_path / "rows.arrow").write_bytes(arrow(pa.table({"value": values})))
    assert refusal(tmp_path / "rows.arrow").startswith(f"rows.arrow: {text}")


def test_columns_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "rows.arrow").write_bytes(arrow(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])))
    assert "two columns are called 'a'" in refusal(tmp_path / "rows.arrow")


def test_texts_of_a_column_that_are_no_utf8(tmp_path: Path) -> None:
    wrong = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<2i", 0, 4)), pa.py_buffer(b"caf\xe9")]
    )
    (tmp_path / "rows.arrow").write_bytes(arrow(pa.table({"a": wrong})))
    assert "damaged after row 0: In column 0: Invalid: Invalid UTF8" in refusal(tmp_path / "rows.arrow")


@pytest.mark.parametrize("suffix", TABLES)
def test_tables_that_are_cut(tmp_path: Path, suffix: str) -> None:
    for length in (16, len(TABLES[suffix]) // 2, len(TABLES[suffix]) - 12):
        (tmp_path / f"rows.{suffix}").write_bytes(TABLES[suffix][:length])
        assert refusal(tmp_path / f"rows.{suffix}").startswith(f"rows.{suffix}: not a valid ")


@pytest.mark.parametrize(
    ("ids", "keys"),
    [
        ('["a", "b"]', ["a", "b"]),
        ("[1, 1.0]", ["1", "1.0"]),
        ('["a", "a"]', ["0", "1"]),
        ('["a", null]', ["0", "1"]),
        ('["a", true]', ["0", "1"]),
        ('["a", ["b"]]', ["0", "1"]),
        ('["a", ""]', ["0", "1"]),
        ('["a", "two words"]', ["0", "1"]),
        ('["a", "x\\u0001"]', ["0", "1"]),
        ('["a", "\\ud800"]', ["0", "1"]),
        (f'["a", "{"x" * 40_000}"]', ["0", "1"]),
    ],
    ids=range(11),
)
def test_keys_are_ids_where_all_can_be(tmp_path: Path, ids: str, keys: list[str]) -> None:
    from rocketcore.files.json_text import json_documents

    values = [ids[value.begin : value.end] for value in json_documents(ids)]
    (tmp_path / "a.ndjson").write_text("".join(f'{{"id": {value}}}\n' for value in values))
    assert [row.key for row in read_rows(tmp_path / "a.ndjson")] == keys


def test_a_type_that_can_be_no_tag_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('Type\nok\na||b\n" x"\n""\n' + "x" * 40_000 + "\n")
    assert [row.tag for row in read_rows(tmp_path / "a.csv")] == ["ok", None, None, None, None]


def test_a_column_of_the_exact_name_counts_before_others(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ID,id\nx,1\ny,2\n")
    assert [row.key for row in read_rows(tmp_path / "a.csv")] == ["1", "2"]
