"""The settings that suit the data source, for sessions of ours and of others."""

from __future__ import annotations

import pytest

from rocketcore.errors import ConfigError
from rocketcore.spark import recommended_settings
from rocketcore.spark.topic_stream import LONGEST_REST


@pytest.mark.parametrize(("row_bytes", "rows"), [(1, 65536), (100, 5242), (1024, 512), (1 << 19, 1), (5 << 20, 1)])
def test_record_batches_are_of_one_size(row_bytes: int, rows: int) -> None:
    assert recommended_settings(row_bytes)["spark.sql.execution.arrow.maxRecordsPerBatch"] == str(rows)


def test_rows_of_an_unknown_size_are_limited_by_bytes() -> None:
    settings = recommended_settings()
    assert settings["spark.sql.execution.arrow.maxBytesPerBatch"] == str(1 << 19)
    assert "spark.sql.execution.arrow.maxRecordsPerBatch" not in settings
    assert settings["spark.speculation"] == "false"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    # Spark lets as much time pass between two looks as the source would: none is left to be spent in a trigger.
    assert settings["spark.sql.streaming.pollingDelay"] == f"{LONGEST_REST * 1000:.0f}ms"


def test_rows_have_bytes() -> None:
    with pytest.raises(ConfigError, match="row_bytes is a whole number of at least 1, got 0"):
        recommended_settings(0)
