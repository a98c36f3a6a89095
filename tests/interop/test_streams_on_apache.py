"""Streams from Apache's brokers of both lines, without Spark: every message once, and queues that come and go."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import rocketcore as rmq
from tests.fixtures.apache import require_java
from tests.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits came with pyspark 4.2")

from tests.spark.stream_query import Query, committed, fill  # noqa: E402 - needs pyspark


@pytest.fixture(scope="module", params=["4.9.7", "5.5.0"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    require_java()
    with ApacheCluster(request.param, tmp_path_factory.mktemp("apache")) as running:
        yield running


def until_read(query: Query, count: int) -> list[int]:
    """Run batches until there are so many numbers; Apache's broker shows what it has acknowledged a little later."""
    numbers: list[int] = []
    deadline = time.monotonic() + 60
    while len(numbers) < count:
        numbers += query.batch()
        assert time.monotonic() < deadline
    return sorted(numbers)


def test_a_stream(cluster: ApacheCluster) -> None:
    with rmq.Admin(cluster.namesrv) as admin:
        admin.create_topic("S", queues=4)
    fill(cluster, "S", range(5000))
    query = Query(cluster, "S", groupId="GS", maxOffsetsPerTrigger="700")
    assert until_read(query, 5000) == list(range(5000))
    assert query.batch() == []
    assert committed(cluster, "S", "GS") == 5000
    fill(cluster, "S", range(5000, 6000))
    following = Query(cluster, "S", checkpoint=query.end)
    assert until_read(following, 1000) == list(range(5000, 6000))
    with rmq.Admin(cluster.namesrv) as admin:
        admin.create_topic("S", read_queues=6, write_queues=4)
    # 4.9 says nothing of the two queues that are only read: they are asked for one by one.
    wider = Query(cluster, "S", checkpoint=following.end)
    assert wider.batch() == []
    assert len(wider.end["S"]) == 6
    with rmq.Admin(cluster.namesrv) as admin:
        admin.create_topic("S", queues=2)
    fill(cluster, "S", range(6000, 6100))
    narrower = Query(cluster, "S", checkpoint=wider.end)
    assert until_read(narrower, 100) == list(range(6000, 6100))
    assert len(narrower.end["S"]) == 6
