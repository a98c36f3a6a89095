"""Rows of a file become a frame of Spark's, and nothing else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketcore import demo
from rocketcore._fast.crc32 import crc32
from rocketcore.errors import RocketError
from rocketcore.files.rows import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [
    Row('{"a": 1.10}', "007", "t"),
    Row('"ä\U0001f680 \u2028"', " ä", None),
    Row("[\r\n1\t]", "7", None),
    Row(f'"{"x" * 100_000}"', "8", "||"),
    Row("0", "-", ""),
]


def test_spark_has_the_rows_as_they_stand(spark: SparkSession) -> None:
    frame, expected = demo.frame_of(spark, ROWS)
    assert expected == {row.key: crc32(row.body.encode()) for row in ROWS}
    assert [(row.body, row["keys"], row.tags) for row in frame.collect()] == ROWS


def test_other_rows_are_noticed(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    checksums = demo.checksums
    for changed in (ROWS[:-1], [*ROWS[:-1], ROWS[-1]._replace(body="1")], [*ROWS, ROWS[-1]]):
        other, _ = demo.frame_of(spark, changed[: len(ROWS)])
        if len(changed) > len(ROWS):
            other = other.union(other.limit(1))
        with monkeypatch.context() as patched:
            patched.setattr(demo, "checksums", lambda _, other=other: checksums(other))
            with pytest.raises(RocketError, match="Spark has other rows than the file"):
                demo.frame_of(spark, ROWS)
