"""A parquet file that is written in parts, each of which is there for good once it is written.

A part is a whole parquet file with one row group, as pyarrow writes it. The parts lie one behind the other; behind the
last is a footer that names the row groups of all. What lies between row groups (the marks and footers of the parts) no
reader looks at: it goes from the footer at the end to the positions that this names.

pyarrow counts the positions of a part from the part's beginning. In the footer, a struct of Thrift's compact protocol,
they are moved to where the part begins (``moved_footer``).

Source: parquet.thrift of parquet-format 2.11; thrift-compact-protocol.md of Apache Thrift.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["PartsWriter", "moved_footer", "read_part"]

MAGIC: Final = b"PAR1"
_TAIL: Final = 8
"""Bytes behind a footer: its length and the mark."""

_LONG, _BINARY, _LIST, _SET, _MAP, _STRUCT = 6, 8, 9, 10, 11, 12
_FIXED: Final = {1: 0, 2: 0, 3: 1, 7: 8}
"""Bytes of the values that have a fixed length, as fields: booleans are in the field's head."""

_DEPTH: Final = 40
"""Structs and collections within each other: far more than parquet has, far fewer than the interpreter allows calls."""

_POSITIONS: Final = frozenset(
    {
        (4, 5),  # RowGroup.file_offset
        (4, 1, 2),  # ColumnChunk.file_offset
        (4, 1, 4),  # ColumnChunk.offset_index_offset
        (4, 1, 6),  # ColumnChunk.column_index_offset
        (4, 1, 3, 9),  # ColumnMetaData.data_page_offset
        (4, 1, 3, 10),  # ColumnMetaData.index_page_offset
        (4, 1, 3, 11),  # ColumnMetaData.dictionary_page_offset
        (4, 1, 3, 14),  # ColumnMetaData.bloom_filter_offset
    }
)
"""Paths of field ids, from FileMetaData on, of the values that are positions in the file; 0 is none."""


def moved_footer(footer: bytes, by: int) -> bytes:
    """Return a footer whose positions lie ``by`` bytes further on; raises ValueError for what is no footer."""
    mover = _Mover(footer, by)
    try:
        mover.struct(())
    except IndexError:
        raise ValueError("the footer is cut") from None
    return bytes(mover.out)


class _Mover:
    """Copies a struct from ``data`` to ``out``, positions changed."""

    def __init__(self, data: bytes, by: int) -> None:
        self.out = bytearray()
        self._data = data
        self._by = by
        self._at = 0
        self._depth = 0

    def struct(self, path: tuple[int, ...]) -> None:
        field = 0
        while head := self._byte():
            if head >> 4:
                field += head >> 4
            else:
                field = _from_zigzag(self._varint())
            self._value(head & 15, (*path, field))

    def _value(self, kind: int, path: tuple[int, ...]) -> None:
        if kind in _FIXED:
            self._bytes(_FIXED[kind])
        elif kind == _LONG and path in _POSITIONS:
            position = _from_zigzag(self._read_varint())
            self._write_varint(2 * (position + self._by if position else 0))
        elif kind in (4, 5, _LONG):
            self._varint()
        elif kind == _BINARY:
            self._bytes(self._varint())
        elif kind in (_LIST, _SET, _MAP, _STRUCT):
            self._depth += 1
            if self._depth > _DEPTH:
                raise ValueError("the footer is nested too deeply")
            self._several(kind, path)
            self._depth -= 1
        else:
            raise ValueError(f"the footer has a value of the unknown kind {kind}")

    def _several(self, kind: int, path: tuple[int, ...]) -> None:
        if kind == _STRUCT:
            self.struct(path)
        elif kind == _MAP:
            if count := self._varint():
                kinds = self._byte()
                for _ in range(count):
                    self._element(kinds >> 4, path)
                    self._element(kinds & 15, path)
        else:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            for _ in range(count):
                self._element(head & 15, path)

    def _element(self, kind: int, path: tuple[int, ...]) -> None:
        """Copy an element of a collection, where a boolean takes a byte."""
        if kind in (1, 2):
            self._bytes(1)
        else:
            self._value(kind, path)

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        self.out.append(value)
        return value

    def _bytes(self, count: int) -> None:
        if self._at + count > len(self._data):
            raise ValueError("the footer is cut")
        self.out += self._data[self._at : self._at + count]
        self._at += count

    def _varint(self) -> int:
        begin = self._at
        value = self._read_varint()
        self.out += self._data[begin : self._at]
        return value

    def _read_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("the footer has a number of more than 64 bits")

    def _write_varint(self, value: int) -> None:
        while value > 127:
            self.out.append(value & 127 | 128)
            value >>= 7
        self.out.append(value)


def _from_zigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)


def _metadata(footer: bytes, begin: int) -> pq.FileMetaData:
    """Return what a part's footer says, its positions counted from the beginning of the whole."""
    moved = moved_footer(footer, begin)
    return pq.read_metadata(io.BytesIO(MAGIC + moved + len(moved).to_bytes(4, "little") + MAGIC))


def read_part(file: io.FileIO, begin: int, end: int) -> pq.FileMetaData:
    """Return what the footer of a part at ``[begin, end)`` says; raises ValueError where there is none."""
    file.seek(max(begin, end - _TAIL))
    tail = file.read(_TAIL)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or end - _TAIL - size < begin:
        raise ValueError(f"no part of a parquet file ends at {end}")
    file.seek(end - _TAIL - size)
    return _metadata(file.read(size), begin)


class PartsWriter:
    """Writes record batches to a file: each call of ``write`` makes a part.

    file   takes bytes at its end; ``tell()`` is where that is
    parts  what the footers of the parts that are there already say
    """

    def __init__(self, file: io.RawIOBase, schema: pa.Schema, parts: Sequence[pq.FileMetaData] = ()) -> None:
        self._file = file
        self._schema = schema
        self._whole: pq.FileMetaData | None = None
        self._count = 0
        for part in parts:
            self._note(part)

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write a part, with whatever rows the batches have."""
        table = pa.Table.from_batches(batches, self._schema)
        begin = self._file.tell()
        written: list[pq.FileMetaData] = []
        writer = pq.ParquetWriter(self._file, self._schema, compression="zstd", metadata_collector=written)
        try:
            if table.num_rows:
                writer.write_table(table, row_group_size=table.num_rows)
            writer.close()
        except BaseException:
            writer.is_open = False  # its end would try once more, and complain to nobody
            raise
        self._note(_metadata(_footer(written[0]), begin))

    def finish(self) -> None:
        """Write the footer of the whole; a single part has its own, which is that of the whole."""
        if self._whole is None:
            self.write([])
        elif self._count > 1:
            footer = _footer(self._whole)
            self._file.write(footer + len(footer).to_bytes(4, "little") + MAGIC)

    def _note(self, part: pq.FileMetaData) -> None:
        self._count += 1
        if self._whole is None:
            self._whole = part
        else:
            self._whole.append_row_groups(part)


def _footer(metadata: pq.FileMetaData) -> bytes:
    out = io.BytesIO()
    metadata.write_metadata_file(out)
    return out.getvalue()[len(MAGIC) : -_TAIL]
