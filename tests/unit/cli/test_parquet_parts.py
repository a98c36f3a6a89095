"""Parquet files in parts: what pyarrow reads of them, and footers that are no footers."""

from __future__ import annotations

import contextlib
import io
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore.cli.messages.export_files import Growing
from rocketcore.cli.messages.parquet_parts import PartsWriter, moved_footer, read_part

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("text", pa.string()),
        ("flags", pa.list_(pa.bool_())),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("at", pa.timestamp("us", tz="UTC")),
    ],
    metadata={"rocketmq.topic": "T"},
)


def batch(first: int, rows: int) -> pa.RecordBatch:
    numbers = range(first, first + rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([n if n % 3 else None for n in numbers], pa.int64()),
            pa.array([f"text {n % 5}" if n % 4 else None for n in numbers]),
            pa.array([[n % 2 == 0] * (n % 3) for n in numbers], SCHEMA.field("flags").type),
            pa.array([[("n", str(n))] if n % 7 else None for n in numbers], SCHEMA.field("properties").type),
            pa.array(list(numbers), SCHEMA.field("at").type),
        ],
        schema=SCHEMA,
    )


def footer_of(data: bytes) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    return data[-8 - size : -8]


def one_part(rows: int = 20) -> bytes:
    out = io.BytesIO()
    PartsWriter(Growing(out.write), SCHEMA).write([batch(0, rows)])
    return out.getvalue()


@pytest.mark.parametrize("sizes", [[], [0], [1], [5, 7], [300, 1, 300, 0, 12]])
def test_parts_are_one_file(sizes: list[int]) -> None:
    out = io.BytesIO()
    writer = PartsWriter(Growing(out.write), SCHEMA)
    batches = [batch(sum(sizes[:index]), rows) for index, rows in enumerate(sizes)]
    for each in batches:
        writer.write([each])
    writer.finish()
    file = pq.ParquetFile(out)
    assert file.metadata.num_row_groups == len([rows for rows in sizes if rows])
    assert file.schema_arrow.metadata[b"rocketmq.topic"] == b"T"
    assert file.read().equals(pa.Table.from_batches(batches, SCHEMA))
    read = [file.read_row_group(index) for index in range(file.num_row_groups)]
    assert [table.num_rows for table in read] == [rows for rows in sizes if rows]
    if read:
        assert pa.concat_tables(read).equals(file.read())


def test_a_writer_goes_on_behind_the_parts_of_another(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    edges = [0]
    for run in range(4):
        with path.open("ab") as out, path.open("rb", buffering=0) as there:
            known = [read_part(there, begin, end) for begin, end in pairwise(edges)]
            writer = PartsWriter(Growing(out.write, edges[-1]), SCHEMA, known)
            writer.write([batch(run * 100, 60), batch(run * 100 + 60, 40)])
            out.flush()
            edges.append(path.stat().st_size)
            if run == 3:
                writer.finish()
    assert pq.read_table(path).equals(pa.Table.from_batches([batch(0, 400)], SCHEMA))


def test_what_is_no_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    data = one_part()
    path.write_bytes(data)
    with path.open("rb", buffering=0) as file:
        assert read_part(file, 0, len(data)).num_rows == 20
        for begin, end in [(0, len(data) - 1), (len(data) - 20, len(data)), (0, 4), (0, 0)]:
            with pytest.raises(ValueError, match="no part"):
                read_part(file, begin, end)


def test_only_positions_change() -> None:
    footer = footer_of(one_part())
    assert moved_footer(footer, 0) == footer
    moved = moved_footer(footer, 1 << 40)
    assert moved != footer
    assert moved_footer(moved, -(1 << 40)) == footer


@given(st.data())
def test_a_damaged_footer_is_a_value_error_or_a_footer(data: st.DataObject) -> None:
    footer = bytearray(FOOTER)
    for _ in range(data.draw(st.integers(1, 4))):
        footer[data.draw(st.integers(0, len(footer) - 1))] = data.draw(st.integers(0, 255))
    footer = footer[: data.draw(st.integers(0, len(footer)))]
    with contextlib.suppress(ValueError):
        moved_footer(bytes(footer), 1000)


FOOTER = footer_of(one_part(3))
