"""Spark data sources that do nothing: the most that a source or a sink in Python can reach in one JVM.

``Nowhere`` takes every record batch and counts its rows. ``Prebuilt`` yields one record batch again and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

__all__ = ["Nowhere", "Prebuilt"]

BATCH_BYTES = 1 << 20


@dataclass
class Counted(WriterCommitMessage):
    rows: int


class _NowhereWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        return Counted(sum(batch.num_rows for batch in iterator))


class Nowhere(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nowhere"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _NowhereWriter()


class _PrebuiltReader(DataSourceReader):
    def __init__(self, rows: int, size: int, partitions: int) -> None:
        self._rows = rows
        self._size = size
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(index) for index in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = self._rows // self._partitions
        count = max(1, BATCH_BYTES // self._size)
        batch = pa.RecordBatch.from_arrays([pa.array([b"x" * self._size] * count)], names=["body"])
        while left > 0:
            yield batch if left >= count else batch.slice(0, left)
            left -= count


class Prebuilt(DataSource):
    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return "body binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.options
        return _PrebuiltReader(int(options["rows"]), int(options["size"]), int(options.get("partitions", "4")))
