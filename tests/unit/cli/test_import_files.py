"""Files to import: which columns and fields count, where a file goes on, ids."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import threading
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocketcore._fast.arrow_in import BatchEncoder
from rocketcore.cli.messages.import_files import (
    PIECE_BYTES,
    Checksum,
    ColumnSource,
    DamagedFile,
    LineSource,
    enumerate_rows,
    form_of_content,
    open_columns,
)
from rocketcore.cli.messages.line_sender import row_id
from rocketcore.client.arrow_columns import message_columns
from rocketcore.errors import ConfigError, MessageIllegal
from rocketcore.message import SHARDING_KEY, UNIQ_KEY


def source(table: pa.Table, given: dict[str, str] | None = None, tag: str | None = None) -> ColumnSource:
    def batches(first: int) -> Any:
        begin = 0
        for batch in table.to_batches(max_chunksize=4):
            yield begin, batch
            begin += batch.num_rows

    return ColumnSource(table.schema, table.num_rows, batches, given or {}, tag)


def test_formats_are_told_by_how_a_file_begins() -> None:
    assert form_of_content(b"PAR1....") == "parquet"
    assert form_of_content(b"ARROW1\0\0") == "arrow"
    assert form_of_content(b"\xff\xff\xff\xff\x10\0\0\0") == "arrow"
    assert form_of_content(b'{"body":') == form_of_content(b"") == "jsonl"


def test_columns_of_a_read_are_left_out() -> None:
    table = pa.table({name: pa.array([], pa.string()) for name in ("Topic", "brokerName", "body", "storeHost", "tags")})
    found = source(table)
    assert found.columns == {"body": "body", "tags": "tags"}
    assert found.left_out == ["Topic", "brokerName", "storeHost"]
    assert source(table, tag="t").columns == {"body": "body"}
    assert source(table, {"body": "tags"}).left_out == ["Topic", "brokerName", "body", "storeHost"]


@pytest.mark.parametrize(
    ("columns", "given", "text"),
    [
        ({"body": pa.string(), "colour": pa.string()}, {}, "column 'colour' cannot be sent with a message"),
        ({"body": pa.string(), "Body": pa.string()}, {}, "column 'Body' is there twice"),
        ({"tags": pa.string()}, {}, "no column body among tags"),
        ({"body": pa.float64()}, {}, "column body is double, binary or string is needed"),
        ({"b": pa.int64()}, {"body": "b"}, r"column body is int64, .* \(b is body\)"),
        ({"body": pa.string(), "keys": pa.list_(pa.float32())}, {}, "column keys is list"),
        ({"body": pa.string(), "properties": pa.map_(pa.string(), pa.int8())}, {}, "column properties is map"),
        ({"body": pa.string()}, {"body": "x"}, "no column 'x'; the columns are body"),
        ({"body": pa.string()}, {"queueOffset": "body"}, "messages have no column 'queueOffset'; there are body, tags"),
    ],
)
def test_the_column_that_does_not_fit_is_named(columns: dict[str, Any], given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        source(pa.table({name: pa.array([], kind) for name, kind in columns.items()}), given)


def test_pieces_begin_anywhere() -> None:
    table = pa.table({"body": [f"{n}" for n in range(10)]})
    for first in range(11):
        for most in (None, 1, 3):
            pieces = list(source(table).pieces(first, most))
            assert [body for piece in pieces for body in piece.payload["body"].to_pylist()] == [
                b"%d" % n for n in range(first, 10)
            ]
            assert all(piece.rows == piece.payload.num_rows <= (most or 10) for piece in pieces)


def test_properties_of_the_system_are_left_out_and_groups_found() -> None:
    kind = pa.map_(pa.string(), pa.string())
    rows = [[("a", "1"), ("UNIQ_KEY", "x"), (SHARDING_KEY, "g")], None, [("WAIT", "true")], [("b", "2")]]
    table = pa.table({"body": ["a", "b", "c", "d"], "properties": pa.array(rows, kind)})
    [piece] = source(table).pieces(0, None)
    assert piece.payload["properties"].to_pylist() == [[("a", "1")], None, [], [("b", "2")]]
    assert piece.payload["shardingKey"].to_pylist() == ["g", None, None, None]
    [piece] = source(table).pieces(1, None)
    assert piece.payload.schema.names == ["body", "properties"]


@pytest.mark.parametrize("stream", [True, False])
def test_arrow_files_and_streams(tmp_path: Path, stream: bool) -> None:
    table = pa.table({"body": [b"%d" % n for n in range(10)]})
    path = tmp_path / "a.arrow"
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    for first in (0, 2, 3, 7, 10):
        with path.open("rb") as file:
            found = open_columns(file, "arrow", {}, None, pipe=False)
            assert found.rows == (None if stream else 10)
            bodies = [body for piece in found.pieces(first, None) for body in piece.payload["body"].to_pylist()]
        assert bodies == [b"%d" % n for n in range(first, 10)]
    found = open_columns(io.BytesIO(path.read_bytes()), "arrow", {}, None, pipe=True) if stream else None  # type: ignore[assignment]
    assert found is None or sum(piece.rows for piece in found.pieces(0, None)) == 10


def test_a_parquet_file_is_read_from_the_row_group_on(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": [b"%d" % n for n in range(10)]}), path, row_group_size=4)
    for first in (0, 3, 4, 9, 10):
        with path.open("rb") as file:
            found = open_columns(file, "parquet", {}, None, pipe=False)
            bodies = [body for piece in found.pieces(first, None) for body in piece.payload["body"].to_pylist()]
        assert bodies == [b"%d" % n for n in range(first, 10)]


def test_a_file_that_is_damaged_further_on(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": [b"%d" % n * 50 for n in range(8)]}), path, row_group_size=4, compression="zstd")
    data = bytearray(path.read_bytes())
    begin = pq.read_metadata(path).row_group(1).column(0).dictionary_page_offset
    data[begin : begin + 40] = bytes(40)
    path.write_bytes(data)
    with path.open("rb") as file:
        pieces = open_columns(file, "parquet", {}, None, pipe=False).pieces(0, None)
        assert next(pieces).rows == 4
        with pytest.raises(DamagedFile, match="the record batch that begins with row 4 cannot be read"):
            next(pieces)


@pytest.mark.parametrize("items", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("names", [pa.string(), pa.large_string()])
def test_properties_of_large_strings(names: pa.DataType, items: pa.DataType) -> None:
    table = pa.table(
        {"body": ["a"], "properties": pa.array([[(SHARDING_KEY, "g"), ("p", "1")]], pa.map_(names, items))}
    )
    [piece] = source(table).pieces(0, None)
    assert message_columns(piece.payload, 0)["properties"].to_pylist() == [f"p\x011\x02{SHARDING_KEY}\x01g\x02"]


def test_types_that_arrow_does_not_compute_with() -> None:
    kind = pa.map_(pa.string_view(), pa.string_view())
    with pytest.raises(ConfigError, match="pyarrow has no way from string, map<string_view, string_view"):
        source(pa.table({"body": ["a"], "properties": pa.array([[]], kind)}))


def test_rows_that_a_footer_does_not_have() -> None:
    batches = [pa.record_batch({"body": [b"x"] * rows}) for rows in (3, 0, 2)]
    assert [begin for begin, _ in enumerate_rows(iter(batches), 7, 12)] == [7, 10, 10]
    for end, came in ((11, 2), (13, 3), (7, 0)):
        found = enumerate_rows(iter(batches), 7, end)
        assert [begin for begin, _ in itertools.islice(found, came)] == [7, 10, 10][:came]
        with pytest.raises(DamagedFile, match=f"its footer has row {end} where row"):
            next(found)


def column_of_megabytes(kind: str) -> pa.Array:
    """Return a column of a thousand rows with a megabyte each that takes one megabyte."""
    if kind == "dictionary":
        once = pa.array([b"x" * 1_000_000, b"y"], pa.binary())
        return pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), once)
    if int(pa.__version__.partition(".")[0]) < 19:
        pytest.skip("this pyarrow makes no views of a buffer")
    view = numpy.array([1_000_000, int.from_bytes(b"xxxx", "little"), 0, 0] * 1000, numpy.int32)
    return pa.Array.from_buffers(pa.binary_view(), 1000, [None, pa.py_buffer(view), pa.py_buffer(b"x" * 1_000_000)])


@pytest.mark.parametrize("kind", ["dictionary", "views", "parquet", "fixed"])
def test_values_that_rows_share_are_written_out_a_piece_at_a_time(tmp_path: Path, kind: str) -> None:
    if kind in ("dictionary", "views"):
        path, form = tmp_path / "a.arrow", "arrow"
        batch = pa.record_batch({"body": column_of_megabytes(kind)})
        with pa.ipc.new_file(path, batch.schema) as writer:
            writer.write_batch(batch)
    else:
        path, form = tmp_path / "a.parquet", "parquet"
        width = 1_000_000 if kind == "fixed" else -1
        pq.write_table(pa.table({"body": pa.array([b"x" * 1_000_000] * 100, pa.binary(width))}), path)
    assert path.stat().st_size < 5_000_000
    before = pa.total_allocated_bytes()
    with path.open("rb") as file:
        rows = 0
        for piece in open_columns(file, form, {}, None, pipe=False).pieces(0, None):
            assert piece.rows <= 2
            rows += piece.rows
            assert pa.total_allocated_bytes() - before < 90_000_000
        assert rows == (1000 if form == "arrow" else 100)


def test_lists_of_values_that_rows_share(tmp_path: Path) -> None:
    rows, name = 300, "n" * 50_000
    properties = pa.array([[(name, "v"), ("m", name)]] * rows, pa.map_(pa.string(), pa.string()))
    keys = pa.array([["k" * 100_000, "l"]] * rows)
    pq.write_table(pa.table({"body": [b"x"] * rows, "properties": properties, "keys": keys}), tmp_path / "a.parquet")
    with (tmp_path / "a.parquet").open("rb") as file:
        before, found = pa.total_allocated_bytes(), 0
        for piece in open_columns(file, "parquet", {}, None, pipe=False).pieces(0, None):
            found += piece.rows
            assert piece.rows <= PIECE_BYTES // 200_000 + 1
            assert pa.total_allocated_bytes() - before < 150_000_000
    assert found == rows


def test_pieces_of_unequal_values() -> None:
    """A long value among short ones is a piece of its own, and does not make the others many."""
    words = pa.array([b"x" * 3_000_000, b"yy"], pa.binary())
    positions = pa.array([1] * 500 + [0] + [None] * 3 + [1] * 500, pa.int32())
    table = pa.table({"body": pa.DictionaryArray.from_arrays(positions, words)})
    batches = lambda first: iter([(0, table.to_batches()[0])])  # noqa: E731
    found = ColumnSource(table.schema, None, batches, {}, None)
    assert [piece.rows for piece in found.pieces(0, None)] == [500, 1, 503]
    assert [piece.rows for piece in found.pieces(400, 90)] == [90, 10, 1, *[90] * 5, 53]


def test_a_line_without_end() -> None:
    text = io.BytesIO(b'{"body": "a"}\n{"body": "' + b"x" * (40 << 20))
    pieces = LineSource(text, "T", None, Checksum()).pieces(0, None)
    assert next(pieces).rows == 1
    with pytest.raises(MessageIllegal, match="line 2: the line has more than 33554432 bytes"):
        next(pieces)
    assert text.tell() < 33 << 20


def test_a_signal_ends_a_pipe_behind_what_was_read_of_it() -> None:
    reading, writing = os.pipe()
    asked = threading.Event()
    with open(reading, "rb") as reader, open(writing, "wb", 0) as writer:
        source = LineSource(reader, "T", None, Checksum(), pipe=True, leaves=asked.is_set)
        pieces = source.pieces(0, None)
        writer.write(b'{"body": "a"}\n{"body": ')
        assert [message.body for message, _, _ in next(pieces).payload] == [b"a"], "without the end of the pipe"
        writer.write(b'"b"}\n{"body": "c"}\n{"bo')
        threading.Timer(0.5, asked.set).start()
        assert [message.body for message, _, _ in next(pieces).payload] == [b"b", b"c"]
        assert next(pieces, None) is None


def test_what_stands_before_damage_of_a_compressed_pipe_is_sent() -> None:
    packed = gzip.compress(b'{"body": "a"}\n' * 2)[:-8]
    source = LineSource(gzip.GzipFile(fileobj=io.BytesIO(packed)), "T", None, Checksum(), pipe=True)  # type: ignore[arg-type]
    pieces = source.pieces(0, None)
    assert next(pieces).rows == 2
    with pytest.raises(DamagedFile, match="it cannot be read behind line 2"):
        next(pieces)


@pytest.mark.parametrize("opening", ['{"body": ', '{"x": ', ""])
def test_a_line_that_is_nested_without_end(opening: str) -> None:
    with pytest.raises(MessageIllegal, match=r"line 1, column \d+: .*nested too deeply"):
        lines(opening + "[" * 100_000)


def lines(text: str, tag: str | None = None) -> list[Any]:
    return list(LineSource(io.BytesIO(text.encode()), "T", tag, Checksum()).pieces(0, 2))


def test_lines_of_produce_and_of_consume() -> None:
    [piece] = lines(
        '{"body": "a", "tag": "t", "keys": ["k"], "message_group": "g"}\n'
        '{"topic": "X", "broker": "b", "queue_id": 1, "offset": 2, "msg_id": "ID", "tag": null, "keys": [],'
        f'"properties": {{"p": "1", "UNIQ_KEY": "ID", "{SHARDING_KEY}": "h"}}, "born_at": "…", "stored_at": "…",'
        '"reconsume_times": 0, "body_base64": "/w=="}'
    )
    (first, first_id, _), (second, second_id, number) = piece.payload
    assert number == 2
    assert (first.topic, first.body, first.tag, first.keys, first.message_group, first_id) == (
        "T", b"a", "t", ("k",), "g", None
    )  # fmt: skip
    assert (second.body, second.tag, second.message_group, second_id) == (b"\xff", None, "h", "ID")
    assert second.properties == {"p": "1", SHARDING_KEY: "h"}
    [piece] = lines('{"body": "a", "tag": "t"}', tag="other")
    assert piece.payload[0][0].tag == "other"


def test_what_stands_before_a_bad_line_is_sent() -> None:
    text = '{"body": "a"}\n\n{"body": "b"}\n{"body": "c"}\nno json\n'
    pieces = LineSource(io.BytesIO(text.encode()), "T", None, Checksum(), 20).pieces(5, 2)
    assert [message.body for message, _, _ in next(pieces).payload] == [b"a", b"b"]
    last = next(pieces)
    assert [message.body for message, _, _ in last.payload] == [b"c"]
    assert last.read == Checksum().after(text[: text.index("no json")].encode())
    with pytest.raises(MessageIllegal, match="line 25, column 1: 'no json': a JSON value is missing"):
        next(pieces)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('{"msg_id": true, "body": ""}', "column 12"),
        ('{"msg_id": "", "body": ""}', "msg_id"),
        ('{"body": "x", "delay": 1}', "column 24"),
        ("[]", "column 1"),
        ("{}", "column 2"),
    ],
)
def test_bad_lines_are_named_by_their_place(line: str, place: str) -> None:
    with pytest.raises(MessageIllegal, match=f"line 1(, |: ){place}"):
        lines(line)


def test_ids_are_those_of_the_kernel() -> None:
    """A file that is imported as lines and as columns has ids of one form."""
    encoder = BatchEncoder(write_id=0xABCDEF, partition=0)
    out = bytearray(1000)
    _, size = encoder.encode(out, 1000, 0, 1, 77, body=pa.array(["x"]))
    assert f"{UNIQ_KEY}\x01{row_id(0xABCDEF, 77)}\x02".encode() in out[:size]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64(), pa.dictionary(pa.int8(), pa.int32())])
def test_whole_numbers_as_keys_are_their_digits(kind: pa.DataType) -> None:
    keys = pa.array([7, None, 42]).cast(kind.value_type if pa.types.is_dictionary(kind) else kind)
    keys = keys.dictionary_encode() if pa.types.is_dictionary(kind) else keys
    [piece] = source(pa.table({"body": ["a", "b", "c"], "id": keys}), {"body": "body", "keys": "id"}).pieces(0, None)
    assert message_columns(piece.payload, 0)["keys"].to_pylist() == ["7", None, "42"]


def test_lists_of_whole_numbers_as_keys() -> None:
    table = pa.table({"body": ["a", "b", "c"], "keys": pa.array([[1, 2], None, []], pa.list_(pa.int64()))})
    [piece] = source(table).pieces(0, None)
    assert message_columns(piece.payload, 0)["keys"].to_pylist() == ["1 2", None, None]
