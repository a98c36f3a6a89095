"""Streams from Apache's brokers of both lines, without Spark: every message once, and queues that come and go."""

from __future__ import annotations

import time

import pytest

import rocketcore as rmq
from tests.fixtures.topics import new_group, new_topic
from tests.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits came with pyspark 4.2")

from tests.spark.stream_query import Query, committed, fill  # noqa: E402 - needs pyspark


def until_read(query: Query, count: int) -> list[int]:
    """Run batches until there are so many numbers; Apache's broker shows what it has acknowledged a little later."""
    numbers: list[int] = []
    deadline = time.monotonic() + 60
    while len(numbers) < count:
        numbers += query.batch()
        assert time.monotonic() < deadline
    return sorted(numbers)


def test_a_stream(apache_line: ApacheCluster) -> None:
    cluster, group = apache_line, new_group()
    topic = new_topic(cluster.namesrv)
    fill(cluster, topic, range(5000))
    query = Query(cluster, topic, groupId=group, maxOffsetsPerTrigger="700")
    assert until_read(query, 5000) == list(range(5000))
    assert query.batch() == []
    assert committed(cluster, topic, group) == 5000
    fill(cluster, topic, range(5000, 6000))
    following = Query(cluster, topic, checkpoint=query.end)
    assert until_read(following, 1000) == list(range(5000, 6000))
    with rmq.Admin(cluster.namesrv) as admin:
        admin.update_topic(topic, read_queues=6, write_queues=4)
    # 4.9 says nothing of the two queues that are only read: they are asked for one by one.
    wider = Query(cluster, topic, checkpoint=following.end)
    assert wider.batch() == []
    assert len(wider.end[topic]) == 6
    with rmq.Admin(cluster.namesrv) as admin:
        admin.update_topic(topic, queues=2)
    fill(cluster, topic, range(6000, 6100))
    narrower = Query(cluster, topic, checkpoint=wider.end)
    assert until_read(narrower, 100) == list(range(6000, 6100))
    assert len(narrower.end[topic]) == 6
