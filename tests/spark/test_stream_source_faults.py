"""Streams while brokers and name servers die: every message once, and what is lost is named. Without Spark."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocketcore import LocalCluster
from rocketcore.admin.client import Admin
from rocketcore.client import api
from rocketcore.client import instance as client_instance
from rocketcore.client.route_table import with_brokers
from rocketcore.errors import OffsetOutOfRange, RequestTimeout, RouteNotFound, TransportError
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.route import TopicRouteData
from rocketcore.service import ManualClock
from rocketcore.spark.topic_watch import ROUTE_SECONDS, Look, TopicWatch
from tests.spark.halting import at_log, halting_broker
from tests.spark.stream_query import Query, committed, fill

pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits came with pyspark 4.2")

MakeTopic = Callable[..., str]

WATCH = "rocketcore.spark.topic_watch"


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two brokers that are processes; they have the topic T with a queue each."""
    with LocalCluster(tmp_path, brokers=2, in_process=False, flush="async") as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=1)
        yield cluster


def until_read(query: Query, numbers: list[int], count: int) -> list[int]:
    """Run batches until there are so many numbers; return them in order."""
    deadline = time.monotonic() + 60
    while len(numbers) < count:
        numbers += query.batch()
        assert time.monotonic() < deadline
    return sorted(numbers)


def test_a_silent_broker_holds_up_its_own_queues_only(
    cluster: LocalCluster, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=2)
    own = cluster.broker_addresses[0]
    with halting_broker(own) as (address, moves), caplog.at_level("INFO", WATCH):
        query = Query(cluster, topic, brokerAddressMap=json.dumps({own: address}), requestTimeoutMs="500")
        fill(cluster, topic, range(1000))
        moves.clear()
        found = query.batch()
        assert {place for place, at in query.end[topic].items() if at} == {"broker-b:0", "broker-b:1"}
        assert 0 < len(found) < 1000
        begin = time.monotonic()
        assert [query.batch() for _ in range(20)] == [[]] * 20
        assert time.monotonic() - begin < 10, "it is waited for once"
        fill(cluster, topic, range(1000, 2000))
        found += query.batch()
        assert {place for place, at in query.end[topic].items() if at} == {"broker-b:0", "broker-b:1"}
        assert caplog.text.count("broker broker-a does not answer: its queues of topic") == 1
        with at_log(WATCH, "broker broker-a answers again", lambda: None):
            moves.set()
            assert until_read(query, found, 2000) == list(range(2000))
    assert caplog.text.count("broker broker-a answers again: its queues of topic") == 1


def test_a_broker_that_stays_silent_ends_the_query(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    own = cluster.broker_addresses[0]
    with halting_broker(own) as (address, moves):
        options: dict[str, Any] = {
            "brokerAddressMap": json.dumps({own: address}),
            "requestTimeoutMs": "300",
            "fetchTimeoutMs": "2000",
        }
        query = Query(cluster, topic, **options)
        moves.clear()
        begin = time.monotonic()
        text = rf"broker broker-a with queues of topic '{topic}': .*no answer within .* attempts within 2 s\)"
        with pytest.raises(RequestTimeout, match=text):
            until_read(query, [], 1)
        assert time.monotonic() - begin > 1.5
        query.source.stop()


def test_available_now_waits_for_all_brokers(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    fill(cluster, topic, range(1000))
    own = cluster.broker_addresses[0]
    with halting_broker(own) as (address, moves):
        query = Query(cluster, topic, brokerAddressMap=json.dumps({own: address}), requestTimeoutMs="300")
        moves.clear()
        with at_log("rocketcore.client.attempts", "asked again", moves.set):
            query.source.prepareForTriggerAvailableNow()
        assert query.batches() == list(range(1000))


def test_a_broker_that_is_killed_and_comes_back(killable: LocalCluster) -> None:
    """The name server drops it from the route at once; that is not the end of its queues."""
    fill(killable, "T", range(1000))
    query = Query(killable, "T", maxOffsetsPerTrigger="300")
    found = query.batch()
    killable.stop_broker(0, kill=True)
    # What was planned is read once the broker is back: a task has until fetchTimeoutMs.
    back = threading.Timer(5, killable.start_broker, (0,))
    back.start()
    fill(killable, "T", range(1000, 1500))
    assert until_read(query, found, 1500) == list(range(1500))
    back.join()


def test_a_batch_is_planned_while_its_broker_is_away(killable: LocalCluster) -> None:
    """It has left the route when the queues are looked at, and is back in it when they are found."""
    fill(killable, "T", range(1000))
    clock = ManualClock()
    query = Query(killable, "T", clock=clock)
    end = query.latest()
    killable.stop_broker(0, kill=True)
    with Admin(killable.namesrv) as admin:
        deadline = time.monotonic() + 30
        while len(admin.queues("T")) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(admin.queues("T")) == 1
    clock.advance(ROUTE_SECONDS)
    assert query.latest()["T"].keys() == end["T"].keys(), "what was planned of it waits"
    with at_log("rocketcore.client.attempts", "asked again", lambda: killable.start_broker(0)):
        assert query.read(query.end, end) == list(range(1000))


def test_a_name_server_that_does_not_know_a_broker_yet(
    cluster: LocalCluster, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has just started, and the broker registers with it again within half a minute; meanwhile that answers."""
    topic = make_topic(queues=2)
    clock = ManualClock()
    query = Query(cluster, topic, clock=clock)
    fill(cluster, topic, range(1000))
    assert query.batches() == list(range(1000))
    ask = api.topic_route

    async def partly(*arguments: Any) -> TopicRouteData:
        data = await ask(*arguments)
        return with_brokers(replace(data, queue_datas=[], broker_datas=[]), {"broker-b"}, data)

    fill(cluster, topic, range(1000, 2000))
    with monkeypatch.context() as patched:
        patched.setattr(api, "topic_route", partly)
        patched.setattr(client_instance, "HOLD_SECONDS", 0.0)
        clock.advance(ROUTE_SECONDS)
        assert query.batches() == list(range(1000, 2000))
    fill(cluster, topic, range(2000, 3000))
    clock.advance(ROUTE_SECONDS)
    assert query.batches() == list(range(2000, 3000))


def test_a_broker_that_is_gone_for_good(killable: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    fill(killable, "T", range(1000))
    done = Query(killable, "T", fetchTimeoutMs="2000")
    begin = done.end
    assert done.batches() == list(range(1000))
    behind = Query(killable, "T", checkpoint=begin, fetchTimeoutMs="2000")
    lossy = Query(killable, "T", checkpoint=begin, fetchTimeoutMs="2000", failOnDataLoss="false")
    ends = [query.latest() for query in (behind, lossy)]
    assert ends == [done.end] * 2
    killable.stop_broker(0, kill=True)
    fill(killable, "T", range(1000, 1500))

    def until_gone(query: Query) -> list[int]:
        numbers: list[int] = []
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and "is gone" not in caplog.text:
            numbers += query.batch()
        return numbers

    with pytest.raises(OffsetOutOfRange, match=r"broker='broker-a', queue_id=0\) is gone, and what it held from 0 on"):
        until_gone(behind)
    numbers = until_gone(lossy)
    there = numbers + lossy.batches()
    assert "broker-a', queue_id=0) is gone, and what it held" in caplog.text
    assert set(range(1000, 1500)) <= set(there)
    assert len(there) == len(set(there))
    # All that it had was read: the others go on, also when the time of the one that is gone is over.
    begin_wait = time.monotonic()
    numbers = []
    while time.monotonic() - begin_wait < 3:
        numbers += done.batch()
    assert sorted(numbers) == list(range(1000, 1500))


def test_available_now_waits_once_for_a_broker_that_is_gone(
    killable: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(killable, "T", range(100))
    query = Query(killable, "T")
    begin = query.end
    assert query.batches() == list(range(100))
    killable.stop_broker(0, kill=True)
    fill(killable, "T", range(100, 200))
    with Admin(killable.namesrv) as admin:
        deadline = time.monotonic() + 30
        while len(admin.queues("T")) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
    options: dict[str, Any] = {"fetchTimeoutMs": "1000", "failOnDataLoss": "false", "maxOffsetsPerTrigger": "20"}
    left = Query(killable, "T", checkpoint=begin, **options)
    left.source.prepareForTriggerAvailableNow()
    look, waited_for = TopicWatch.look, []

    async def noted(watch: TopicWatch, known: Any, needed: Any = None) -> Look:
        waited_for.append({queue.broker for queue in needed})
        return await look(watch, known, needed)

    monkeypatch.setattr(TopicWatch, "look", noted)
    assert set(range(100, 200)) <= set(left.batches())
    assert [brokers for brokers in waited_for if "broker-a" in brokers] == [{"broker-a"}]
    assert len(waited_for) > 5


def test_a_topic_of_the_checkpoint_is_gone(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topics = [make_topic(), make_topic()]
    query = Query(cluster, ",".join(topics))
    fill(cluster, topics[0], range(100))
    assert query.batches() == list(range(100))
    with Admin(cluster.namesrv) as admin:
        admin.delete_topic(topics[1])
    text = f"no name server knows topic '{topics[1]}', and the checkpoint has offsets of it; failOnDataLoss=false"
    with pytest.raises(RouteNotFound, match=text):
        # As in another process: this one's connection knows the route.
        Query(cluster, ",".join(topics), checkpoint=query.end, requestTimeoutMs="8999").latest()
    fill(cluster, topics[0], range(100, 200))
    options: dict[str, Any] = {"failOnDataLoss": "false", "fetchTimeoutMs": "1000", "requestTimeoutMs": "8998"}
    left = Query(cluster, ",".join(topics), checkpoint=query.end, **options)
    assert left.batches() == list(range(100, 200))


def test_without_a_name_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    with LocalCluster(tmp_path, flush="async") as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=2)
        with halting_broker(cluster.namesrv) as (address, moves):
            options: dict[str, Any] = {"nameServer": address, "requestTimeoutMs": "300"}
            query = Query(cluster, "T", clock=clock, **options)
            fill(cluster, "T", range(100))
            assert query.batches() == list(range(100))
            moves.clear()
            for round_ in range(1, 4):
                clock.advance(ROUTE_SECONDS)
                fill(cluster, "T", range(100 * round_, 100 * round_ + 100))
                assert query.batches() == list(range(100 * round_, 100 * round_ + 100))
            assert caplog.text.count("no name server answers, the routes stay as they are") == 1
            moves.set()
            with Admin(cluster.namesrv) as admin:
                admin.update_topic("T", queues=3)
            deadline = time.monotonic() + 30
            while len(query.end["T"]) < 3 and time.monotonic() < deadline:
                clock.advance(ROUTE_SECONDS)
                assert query.batch() == []
            assert len(query.end["T"]) == 3
            query.source.stop()


def test_a_wrong_name_server_is_told(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    begin = Query(cluster, topic := make_topic()).end
    with pytest.raises(TransportError, match="route of topic"):
        Query(cluster, topic, checkpoint=begin, nameServer="127.0.0.1:1").latest()


def test_messages_that_expired_under_a_stopped_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = {"maxMessageSize": "65536", "mappedFileSizeCommitLog": "262144"}
    with LocalCluster(tmp_path, flush="async", properties=files) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=1)
        fill(cluster, "T", range(1000))
        query = Query(cluster, "T", maxOffsetsPerTrigger="100")
        found = query.batch()
        fill(cluster, "T", range(1000, 5000))
        cluster.stop_broker()
        log = sorted((tmp_path / "broker-a" / "commitlog").iterdir())
        assert len(log) > 2
        log[0].unlink()
        cluster.start_broker()
        with Admin(cluster.namesrv) as admin:
            first = admin.min_offset(MessageQueue("T", "broker-a", 0))
        assert 100 < first < 5000
        lost = f"starts at 100, the queue at {first}"
        with pytest.raises(OffsetOutOfRange, match=f"{lost}; failOnDataLoss=false reads what is there"):
            Query(cluster, "T", checkpoint=query.end).batch()
        lossy = Query(cluster, "T", checkpoint=query.end, failOnDataLoss="false", maxOffsetsPerTrigger="500")
        assert sorted(found + lossy.batches()) == [*range(100), *range(first, 5000)]
        assert caplog.text.count(lost) == 1


# Offsets of a group


def test_tools_see_how_far_a_stream_is(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(queues=2)
    fill(cluster, topic, range(1000))
    query = Query(cluster, topic, groupId=group, maxOffsetsPerTrigger="300")
    assert len(query.batch()) == 300
    planned = query.latest()
    query.read(query.end, planned)
    query.source.stop()
    assert committed(cluster, topic, group) == 300, "a batch that was planned may not be done"
    again = Query(cluster, topic, checkpoint=query.end, groupId=group)
    assert len(again.batches()) == 700
    assert committed(cluster, topic, group) == 1000
    fill(cluster, topic, range(1000, 1100))
    end = again.latest()
    again.read(again.end, end)
    again.source.commit(end)
    again.source.stop()
    assert committed(cluster, topic, group) == 1100
    with Admin(cluster.namesrv) as admin:
        stats = admin.consume_stats(group)
    assert {offsets.broker_offset - offsets.consumer_offset for offsets in stats.values()} == {0}


def test_without_a_group_nothing_is_told(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic()
    fill(cluster, topic, range(100))
    query = Query(cluster, topic)
    assert len(query.batches()) == 100
    query.source.commit(query.end)
    query.source.stop()
    assert committed(cluster, topic, "SPARK_SOURCE") == 0


def test_offsets_that_are_not_stored_are_a_line_in_the_log(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=1)
    own = cluster.broker_addresses[0]
    with halting_broker(own) as (address, moves):
        options: dict[str, Any] = {
            "brokerAddressMap": json.dumps({own: address}),
            "requestTimeoutMs": "300",
            "groupId": group,
        }
        query = Query(cluster, topic, **options)
        fill(cluster, topic, range(1000))
        end = query.latest()
        query.read(query.end, end)
        moves.clear()
        query.source.commit(end)
        with at_log("rocketcore.spark.group_offsets", f"offsets of group {group} not stored", moves.set):
            query.source.commit(end)
            assert moves.wait(10)
        query.end = end
        query.batches()
        query.source.stop()
    assert committed(cluster, topic, group) == 1000
