"""Spark data sources that do nothing: the most that a source or a sink in Python can reach in one JVM.

``Nowhere`` takes every record batch and counts its rows. ``Prebuilt`` yields one record batch again and again, to a
batch query or to a stream whose rows are all there when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rocketcore.client.config import RECORD_BATCH_BYTES

__all__ = ["Nowhere", "Prebuilt"]


@dataclass
class _Counted(WriterCommitMessage):
    rows: int


class _NowhereWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Counted:
        return _Counted(sum(batch.num_rows for batch in iterator))


class Nowhere(DataSource):
    """``format("nowhere")``: takes rows of any schema."""

    @classmethod
    def name(cls) -> str:
        return "nowhere"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _NowhereWriter()


@dataclass(frozen=True, slots=True)
class _Rows:
    """So many bodies of one size, in so many tasks."""

    rows: int
    size: int
    tasks: int

    def partitions(self) -> list[InputPartition]:
        """Return the number of rows of each task."""
        ends = [self.rows * index // self.tasks for index in range(self.tasks + 1)]
        return [InputPartition(end - start) for start, end in pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left: int = partition.value
        count = max(1, RECORD_BATCH_BYTES // self.size)
        batch = pa.RecordBatch.from_arrays([pa.array([b"x" * self.size] * count)], names=["body"])
        while left > 0:
            yield batch if left >= count else batch.slice(0, left)
            left -= count


class _PrebuiltReader(DataSourceReader):
    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return self._rows.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


class _PrebuiltStreamReader(DataSourceStreamReader):
    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:
        return {"rows": self._rows.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self._rows.partitions() if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


class Prebuilt(DataSource):
    """``format("prebuilt")``: as many bodies as the options ``rows``, ``size`` and ``tasks`` say."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return "body binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _PrebuiltReader(self._wanted())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _PrebuiltStreamReader(self._wanted())

    def _wanted(self) -> _Rows:
        return _Rows(*(int(self.options[name]) for name in ("rows", "size", "tasks")))
