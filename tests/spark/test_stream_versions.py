"""The streaming source as pyspark 4.1 calls it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketcore import LocalCluster
from rocketcore.errors import ConfigError
from rocketcore.spark import stream_reader
from rocketcore.spark.range_task import Projection
from rocketcore.spark.stream_reader import UnlimitedStreamReader
from tests.spark.stream_query import committed, fill, options_of

MakeTopic = Callable[..., str]


def test_before_pyspark_4_2(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark says neither where a batch begins nor how much it may take."""
    topic = make_topic(queues=2)
    monkeypatch.setattr(stream_reader, "HAS_LIMITS", False)
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
        with pytest.raises(ConfigError, match=f"option {name} needs pyspark 4.2 or newer, this is "):
            stream_reader.stream_reader(options_of(cluster, topic, **{name: "5"}), Projection(("body",)))
    source = stream_reader.stream_reader(options_of(cluster, topic, groupId=group), Projection(("body",)))
    assert isinstance(source, UnlimitedStreamReader)
    begin = source.initialOffset()
    assert source.latestOffset() == begin
    fill(cluster, topic, range(100))
    end = source.latestOffset()
    rows = [batch.num_rows for partition in source.partitions(begin, end) for batch in source.read(partition)]
    assert sum(rows) == 100
    assert committed(cluster, topic, group) == 0, "a batch that was planned may not be done"
    assert source.latestOffset() == end
    assert committed(cluster, topic, group) == 100, "Spark asks on only after one is done"
    restarted = UnlimitedStreamReader(options_of(cluster, topic), Projection(("body",)))
    assert restarted.latestOffset() == end
