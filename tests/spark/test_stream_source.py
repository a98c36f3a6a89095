"""The streaming source as Spark calls it, without Spark around it; at the end what only a query of Spark's shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.admin.client import Admin
from rocketcore.client import api
from rocketcore.errors import ConfigError, OffsetOutOfRange, RouteNotFound
from rocketcore.message import MessageQueue
from rocketcore.service import ManualClock
from rocketcore.spark import stream_reader
from rocketcore.spark.range_task import Projection
from rocketcore.spark.topic_stream import LONGEST_REST
from rocketcore.spark.topic_watch import ROUTE_SECONDS
from tests.spark.stream_query import Query, fill, options_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits came with pyspark 4.2")

MakeTopic = Callable[..., str]


# Offsets


def test_a_stream_reads_on(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=2)
    fill(cluster, topic, range(100))
    query = Query(cluster, topic)
    assert query.source.initialOffset() == query.end
    assert list(query.end[topic]) == ["broker-a:0", "broker-a:1", "broker-b:0", "broker-b:1"]
    assert query.batches() == list(range(100))
    fill(cluster, topic, range(100, 150))
    assert query.batches() == list(range(100, 150))
    assert query.source.reportLatestOffset() == query.end
    query.source.stop()


def test_nothing_new_is_no_batch(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """Spark compares offsets as text."""
    query = Query(cluster, make_topic())
    begin = json.dumps(query.end)
    assert [json.dumps(query.latest()) for _ in range(5)] == [begin] * 5
    assert query.source.partitions(query.end, query.end) == []


@pytest.mark.parametrize("unfinished", [False, True])
def test_a_query_goes_on_at_its_checkpoint(cluster: LocalCluster, make_topic: MakeTopic, unfinished: bool) -> None:
    """Whether the last batch was done or not: then Spark asks for its partitions first."""
    topic = make_topic(queues=2)
    fill(cluster, topic, range(1000))
    first = Query(cluster, topic, maxOffsetsPerTrigger="400")
    seen = first.batch()
    start, end = first.end, first.latest()
    if not unfinished:
        seen += first.read(start, end)
    fill(cluster, topic, range(1000, 1200))
    second = Query(cluster, topic, checkpoint=start if unfinished else end)
    if unfinished:
        seen += second.read(start, end)
        second.end = end
    assert sorted(seen + second.batches()) == list(range(1200))


def test_where_a_stream_begins(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    fill(cluster, topic, range(100))
    queries = [
        Query(cluster, topic, startingOffsets="latest"),
        Query(cluster, topic, startingTimestamp=datetime.now(UTC).isoformat()),
        Query(cluster, topic, startingOffsets=json.dumps({topic: {"broker-a": {"0": -1}, "broker-b": {"0": -1}}})),
    ]
    fill(cluster, topic, range(100, 150))
    for query in queries:
        assert json.loads(json.dumps(query.source.initialOffset())) == query.end, "found once"
        assert query.batches() == list(range(100, 150))
    held = rmq.read_arrow(cluster.namesrv, topic=topic, columns=["brokerName", "body"]).to_pylist()
    of_a = sorted(int(row["body"]) for row in held if row["brokerName"] == "broker-a")
    assigned = Query(cluster, topic, assign=json.dumps({topic: {"broker-a": [0]}}))
    assert assigned.batches() == of_a


@pytest.mark.parametrize("starting", ["earliest", "latest", "2099-01-01"])
def test_a_first_batch_that_is_made_again(cluster: LocalCluster, make_topic: MakeTopic, starting: str) -> None:
    """Spark keeps where it ended, not where it began: that is asked for again."""
    topic = make_topic(queues=2)
    fill(cluster, topic, range(100))
    begin: dict[str, Any] = {"startingTimestamp" if starting[0] == "2" else "startingOffsets": starting}
    first = Query(cluster, topic, **begin)
    fill(cluster, topic, range(100, 200))
    end = first.latest()
    fill(cluster, topic, range(200, 300))
    second = Query(cluster, topic, **begin)
    numbers = second.read(second.end, end)
    second.end = end
    assert sorted(numbers + second.batches()) == list(range(0 if starting == "earliest" else 100, 300))


def test_a_time_that_has_been_begins_with_its_messages(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """No empty batch goes before them, also where a queue has none."""
    topic = make_topic(queues=2)
    with rmq.Producer(cluster.namesrv, group="spark") as producer:
        producer.send_batch([rmq.Message(topic, "7")], queue=MessageQueue(topic, "broker-a", 0))
    query = Query(cluster, topic, startingTimestamp=(datetime.now(UTC) - timedelta(hours=1)).isoformat())
    assert query.latest() != query.end
    assert query.batches() == [7]


def test_available_now_from_the_latest_on(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """Spark has the ends fixed before it asks for the begin."""
    topic = make_topic(queues=1)
    source = stream_reader.RocketMQStreamReader(
        options_of(cluster, topic, startingOffsets="latest"), Projection(("body",))
    )
    source.prepareForTriggerAvailableNow()
    fill(cluster, topic, range(100))
    begin = source.initialOffset()
    assert sum(begin[topic].values()) == 100
    assert [source.latestOffset(begin, limits.ReadAllAvailable()) for _ in range(2)] == [begin] * 2


@pytest.mark.parametrize(
    ("offset", "reason"), [("900", "starts at 900, the queue ends at 100"), ("5", None), ("100", None)]
)
def test_a_start_is_there(cluster: LocalCluster, make_topic: MakeTopic, offset: str, reason: str | None) -> None:
    topic = make_topic(queues=1)
    with rmq.Producer(cluster.namesrv, group="spark") as producer:
        queue = MessageQueue(topic, "broker-a", 0)
        producer.send_batch([rmq.Message(topic, f"{number}") for number in range(100)], queue=queue)
    chosen: dict[str, Any] = {"startingOffsets": f'{{"{topic}": {{"broker-a": {{"0": {offset}}}}}}}'}
    if reason is None:
        assert Query(cluster, topic, **chosen).batches() == list(range(int(offset), 100))
    else:
        with pytest.raises(OffsetOutOfRange, match=reason):
            Query(cluster, topic, **chosen)
        assert Query(cluster, topic, failOnDataLoss="false", **chosen).end[topic]["broker-a:0"] == 100


def test_what_is_wrong_is_said_before_the_first_batch(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    with pytest.raises(RouteNotFound, match="no name server knows topic 'No-Such-Topic'"):
        Query(cluster, "No-Such-Topic")
    with pytest.raises(RouteNotFound, match=r"no topic matches subscribePattern 'No-\.\*'"):
        Query(cluster, "", subscribePattern="No-.*")
    topic = make_topic()
    with pytest.raises(ConfigError, match="option sqlExpression: "):
        Query(cluster, topic, sqlExpression="price >")
    begin = Query(cluster, topic).end
    fill(cluster, topic, range(1))
    with pytest.raises(ConfigError, match="option sqlExpression: "):
        Query(cluster, topic, checkpoint=begin, sqlExpression="price >").latest()


def test_the_checkpoint_of_another_topic(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    one, other = make_topic(), make_topic()
    begin = Query(cluster, one).end
    fill(cluster, one, range(10))
    query = Query(cluster, one)
    end = query.latest()
    for call in (
        lambda: Query(cluster, other, checkpoint=begin).latest(),
        lambda: Query(cluster, other, checkpoint=begin).source.partitions(begin, end),
        lambda: (query := Query(cluster, other)).source.partitions(query.end, end),  # its first batch, made again
    ):
        with pytest.raises(ConfigError, match=f"the checkpoint is of a query that read '{one}'"):
            call()


# Limits


def test_a_limit_is_kept_exactly(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=3)
    fill(cluster, topic, range(1000))
    query = Query(cluster, topic, maxOffsetsPerTrigger="300")
    assert query.limit == limits.ReadMaxRows(300)
    sizes, numbers = [], []
    while found := query.batch():
        sizes.append(len(found))
        numbers += found
    assert sizes == [300, 300, 300, 100]
    assert sorted(numbers) == list(range(1000))
    everything = Query(cluster, topic, maxOffsetsPerTrigger="300")
    everything.limit = limits.ReadAllAvailable()
    assert len(everything.batch()) == 1000, "Spark's word counts (Trigger.Once)"


def test_fewer_messages_than_queues(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=4)
    fill(cluster, topic, range(200))
    query = Query(cluster, topic, maxOffsetsPerTrigger="3")
    found: list[int] = []
    for _ in range(3):
        found += query.batch()
    assert len(found) == 9
    assert sum(offset > 0 for offset in query.end[topic].values()) == 8, "each queue had a turn"
    found += query.batches()
    assert sorted(found) == list(range(200))


@pytest.mark.parametrize("most", [{}, {"maxOffsetsPerTrigger": "100"}])
def test_a_batch_waits_for_enough(cluster: LocalCluster, make_topic: MakeTopic, most: dict[str, Any]) -> None:
    topic, clock = make_topic(), ManualClock()
    fill(cluster, topic, range(5))
    query = Query(cluster, topic, clock=clock, minOffsetsPerTrigger="50", maxTriggerDelay="1h", **most)
    assert query.limit == (limits.ReadMaxRows(100) if most else limits.ReadMinRows(50))
    assert query.batch() == list(range(5)), "the first does not wait"
    fill(cluster, topic, range(5, 54))
    for _ in range(5):
        clock.advance(60)
        assert query.batch() == []
    fill(cluster, topic, range(54, 55))
    clock.advance(60)
    assert query.batch() == list(range(5, 55))
    fill(cluster, topic, range(55, 56))
    clock.advance(3599)
    assert query.batch() == []
    clock.advance(1)
    assert query.batch() == [55]


def test_a_batch_is_cut_into_tasks(
    cluster: LocalCluster, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=2)
    fill(cluster, topic, range(200))
    tasks = {}
    for name, number in (("minPartitions", 9), ("maxPartitions", 2), ("maxRecordsPerPartition", 10)):
        query = Query(cluster, topic, **{name: str(number)})  # type: ignore[arg-type]
        end = query.latest()
        tasks[name] = len(query.source.partitions(query.end, end))
        assert query.read(query.end, end) == list(range(200))
    assert tasks["minPartitions"] == 9
    assert tasks["maxPartitions"] == 2
    assert tasks["maxRecordsPerPartition"] >= 20
    assert "tasks of some" not in caplog.text, "each batch would say so"


# AvailableNow


def test_available_now_reads_what_was_there(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=2)
    fill(cluster, topic, range(1000))
    clock = ManualClock()
    query = Query(cluster, topic, clock=clock, maxOffsetsPerTrigger="300", minOffsetsPerTrigger="200")
    query.source.prepareForTriggerAvailableNow()
    fill(cluster, topic, range(1000, 1500))
    with Admin(cluster.namesrv) as admin:
        admin.update_topic(topic, queues=3)
    clock.advance(ROUTE_SECONDS)
    assert query.batches() == list(range(1000)), "the last batch has less than minOffsetsPerTrigger"
    assert len(query.end[topic]) == 4
    following = Query(cluster, topic, checkpoint=query.end)
    following.source.prepareForTriggerAvailableNow()
    assert following.batches() == list(range(1000, 1500))
    assert len(following.end[topic]) == 6


# Queues that come and go


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_queue_that_comes_is_read_from_its_begin(
    cluster: LocalCluster, make_topic: MakeTopic, stopped: bool, starting: str
) -> None:
    topic, clock = make_topic(queues=1), ManualClock()
    query = Query(cluster, topic, clock=clock, startingOffsets=starting)
    assert query.batches() == []
    with Admin(cluster.namesrv) as admin:
        admin.update_topic(topic, queues=2)
    fill(cluster, topic, range(100))
    if stopped:
        query.source.stop()
        query = Query(cluster, topic, checkpoint=query.end)
    else:
        assert len(query.latest()[topic]) == 2, "routes are not asked for each time"
        clock.advance(ROUTE_SECONDS)
    assert query.batches() == list(range(100))
    assert len(query.end[topic]) == 4


@pytest.mark.parametrize("stopped", [False, True])
def test_a_topic_that_comes_by_its_pattern(cluster: LocalCluster, make_topic: MakeTopic, stopped: bool) -> None:
    topic, clock = make_topic(), ManualClock()
    fill(cluster, topic, range(10))
    query = Query(cluster, topic, clock=clock, subscribePattern=f"{topic}.*", startingOffsets="latest")
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(f"{topic}-more", queues=1)
    fill(cluster, f"{topic}-more", range(100))
    if stopped:
        query = Query(cluster, topic, checkpoint=query.end, subscribePattern=f"{topic}.*", startingOffsets="latest")
    clock.advance(ROUTE_SECONDS)
    assert query.batches() == list(range(100))
    assert sorted(query.end) == [topic, f"{topic}-more"]


def test_a_topic_may_be_added(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    one, other = make_topic(), make_topic()
    query = Query(cluster, one)
    fill(cluster, other, range(100))
    assert Query(cluster, f"{one},{other}", checkpoint=query.end).batches() == list(range(100))


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("emptied", [False, True])
def test_queues_that_go(cluster: LocalCluster, make_topic: MakeTopic, stopped: bool, emptied: bool) -> None:
    topic, clock = make_topic(queues=2), ManualClock()
    begin = Query(cluster, topic).end
    fill(cluster, topic, range(100))
    query = Query(cluster, topic, checkpoint=begin, clock=clock)
    ends = query.latest()[topic]["broker-a:1"]
    if emptied:
        assert query.batches() == list(range(100))
    with Admin(cluster.namesrv) as admin:
        admin.update_topic(topic, queues=1)
    if stopped:
        query = Query(cluster, topic, checkpoint=query.end)
    clock.advance(ROUTE_SECONDS)
    if emptied:
        fill(cluster, topic, range(100, 110))
        assert query.batches() == list(range(100, 110))
        assert len(query.end[topic]) == 4, "a queue that comes back is not read again"
        return
    with pytest.raises(OffsetOutOfRange, match=rf"{topic}.*queue_id=1\) is gone.*it had messages up to {ends}"):
        query.batch()


def test_a_topic_that_was_deleted(
    cluster: LocalCluster, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = make_topic(queues=1), make_topic(queues=1)
    fill(cluster, one, range(500))
    query = Query(cluster, f"{one},{other}")
    lossy = Query(cluster, f"{one},{other}", failOnDataLoss="false")
    query.latest(), lossy.latest()
    with Admin(cluster.namesrv) as admin:
        admin.delete_topic(one)
    fill(cluster, other, range(500, 520))
    with pytest.raises(OffsetOutOfRange, match=rf"'{one}'.* is gone.*failOnDataLoss=false reads what is there"):
        query.batch()
    assert lossy.batches() == list(range(500, 520))
    assert lossy.batches() == []
    assert caplog.text.count("is gone") == 2, "once for each queue"


def test_a_topic_that_was_made_anew(
    cluster: LocalCluster, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=1)
    fill(cluster, topic, range(1000))
    query = Query(cluster, topic)
    assert len(query.batches()) == 1000
    lossy = Query(cluster, topic, checkpoint=query.end, failOnDataLoss="false")
    with Admin(cluster.namesrv) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=1)
    fill(cluster, topic, range(10))
    with pytest.raises(OffsetOutOfRange, match=r"starts at \d+ and ends at \d+: the topic was made anew"):
        query.batch()
    assert lossy.batches() == []
    assert "the topic was made anew" in caplog.text
    fill(cluster, topic, range(10, 20))
    assert lossy.batches() == list(range(10, 20))


def test_a_range_beyond_the_end(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """As after the loss of a broker's last messages under a batch that was planned."""
    topic = make_topic(queues=1)
    fill(cluster, topic, range(100))
    query = Query(cluster, topic)
    end = query.latest()
    end[topic]["broker-a:0"] += 10
    with pytest.raises(OffsetOutOfRange, match=r"ends at \d+, the queue at \d+; failOnDataLoss=false reads what"):
        query.read(query.end, end)
    lossy = Query(cluster, topic, failOnDataLoss="false")
    assert lossy.read(query.end, end) == list(range(100))


# What it costs


def test_at_rest_brokers_are_asked_seldom(
    cluster: LocalCluster, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(queues=4)
    questions: list[str] = []
    rests: list[float] = []

    def count(name: str) -> None:
        ask = getattr(api, name)

        async def counted(*arguments: object) -> object:
            questions.append(name)
            return await ask(*arguments)

        monkeypatch.setattr(api, name, counted)

    query = Query(cluster, topic)
    fill(cluster, topic, range(100))
    assert query.batches() == list(range(100))
    count("queue_bounds")
    count("topic_route")
    monkeypatch.setattr(stream_reader, "time", SimpleNamespace(sleep=rests.append))
    assert [query.batch() for _ in range(10)] == [[]] * 10
    assert questions == ["queue_bounds"] * 20, "one question a broker, and none for the route"
    assert all(LONGEST_REST / 2 <= rest <= LONGEST_REST for rest in rests[4:]), "Spark would ask 100 times a second"
    rests.clear()
    fill(cluster, topic, range(100, 200))
    assert query.batch() == list(range(100, 200))
    assert query.batch() == []
    assert len(rests) == 1, "after a batch the next is looked for at once"


# In Spark


def test_a_query_of_spark(spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Its checkpoint, its limits, what it reports, and the group's offsets after its last batch."""
    topic, group = make_topic(queues=2), f"G-{tmp_path.name}"
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")

    def run(**options: str) -> list[int]:
        """Read what is there into the table; return how many rows each batch had."""
        given = {"nameServer": cluster.namesrv, "topic": topic, "groupId": group, **options}
        rows: DataFrame = spark.readStream.format("rocketmq").options(**given).load().selectExpr("int(string(body)) n")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(table)
        assert query.awaitTermination(120), query.lastProgress
        last = query.lastProgress["sources"][0]  # type: ignore[index]
        assert last["latestOffset"] == last["endOffset"]
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    fill(cluster, topic, range(1000))
    assert run(maxOffsetsPerTrigger="300") == [300, 300, 300, 100]
    fill(cluster, topic, range(1000, 1500))
    assert run(minOffsetsPerTrigger="1") == [500]
    assert sorted(row.n for row in spark.read.parquet(table).collect()) == list(range(1500))
    with Admin(cluster.namesrv) as admin:
        stats = admin.consume_stats(group)
    assert sum(offsets.consumer_offset for offsets in stats.values()) == 1500


def test_a_wrong_option_of_a_stream(spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic) -> None:
    options = {"nameServer": cluster.namesrv, "topic": make_topic(), "endingOffsets": "latest"}
    query = spark.readStream.format("rocketmq").options(**options).load().writeStream.format("noop").start()
    with pytest.raises(PySparkException, match="option endingOffsets belongs to batch reads"):
        query.awaitTermination(60)
