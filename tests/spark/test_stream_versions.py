"""The streaming source as pyspark 4.1 calls it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rocketcore import Admin, LocalCluster
from rocketcore.errors import ConfigError
from rocketcore.spark import stream_reader
from rocketcore.spark.range_task import Projection
from rocketcore.spark.stream_reader import Json, UnlimitedStreamReader
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


def test_a_queue_that_is_away_at_a_restart_is_not_read_again(tmp_path: Path) -> None:
    """Its first batch leaves it out: what it was read up to is not in the checkpoint any more."""

    def rows(source: UnlimitedStreamReader, start: Json, end: Json) -> int:
        parts = source.partitions(start, end)
        return sum(batch.num_rows for part in parts for batch in source.read(part))

    with LocalCluster(tmp_path, brokers=2) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=1)
        fill(cluster, "T", range(100))
        options = options_of(cluster, "T", failOnDataLoss="false", fetchTimeoutMs="1000")
        source = UnlimitedStreamReader(options, Projection(("body",)))
        begin = source.initialOffset()
        end = source.latestOffset()
        assert rows(source, begin, end) == 100
        source.stop()
        cluster.stop_broker(1)
        source = UnlimitedStreamReader(options, Projection(("body",)))
        without = source.latestOffset()
        assert without == {"T": {"broker-a:0": end["T"]["broker-a:0"]}}
        assert rows(source, end, without) == 0
        assert source.latestOffset() == end, "it is known again, whether it is there or not"
        cluster.start_broker(1)
        fill(cluster, "T", range(100, 200))
        last = source.latestOffset()
        seen, begin = rows(source, without, last), last
        while seen < 100:
            last = source.latestOffset()
            seen, begin = seen + rows(source, begin, last), last
        assert seen == 100
        source.stop()
