"""The pull consumers against our servers."""

from __future__ import annotations

import contextlib
import copy
import pickle
import re
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore.admin.client import Admin
from rocketcore.client.offset_store import load_offsets
from rocketcore.errors import ClientError, TopicNotExist
from rocketcore.local import LocalCluster
from tests.unit.client.interruptions import Stop, at_each_line, stop

pytestmark = pytest.mark.timeout(60)

MakeTopic = Callable[..., str]


def fill(cluster: LocalCluster, topic: str, count: int, queue: rmq.MessageQueue | None = None) -> None:
    with rmq.Producer(cluster.namesrv, group="filler") as producer:
        for i in range(count):
            producer.send(topic, f"{i}", queue=queue)


def poll_all(consumer: rmq.PullConsumer, expect: int) -> list[str]:
    texts: list[str] = []
    while len(texts) < expect and (batch := consumer.poll(timeout=5.0)):
        texts += [message.text() for message in batch]
    return texts


def test_commit_is_where_the_next_member_begins(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(queues=1)
    fill(cluster, topic, 30)
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        first = [message.text() for message in consumer.poll(timeout=5.0, max_messages=7)]
        consumer.commit()
        consumer.poll(timeout=5.0, max_messages=5)
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        rest = poll_all(consumer, 23)
    assert sorted(first + rest, key=int) == [str(i) for i in range(30)]
    assert not set(first) & set(rest)


def test_an_empty_topic_polls_nothing_within_the_timeout(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    with rmq.PullConsumer(cluster.namesrv, group=group) as consumer:
        consumer.subscribe(make_topic())
        began = time.monotonic()
        assert consumer.poll(timeout=0.2) == []
        assert 0.15 < time.monotonic() - began < 2.0


def test_assigned_queues_seek_and_position(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(queues=2)
    queue = rmq.MessageQueue(topic, "broker-b", 1)
    fill(cluster, topic, 10, queue)
    middle = datetime.now(UTC)
    time.sleep(0.01)
    fill(cluster, topic, 10, queue)
    with rmq.PullConsumer(cluster.namesrv, group=group) as consumer:
        consumer.assign([queue])
        assert consumer.assignment() == [queue]
        consumer.seek(queue, "first")
        assert len(poll_all(consumer, 20)) == 20
        assert consumer.position(queue) == 20
        consumer.seek(queue, 15)
        assert poll_all(consumer, 5) == [str(i) for i in range(5, 10)]
        consumer.seek(queue, middle)
        assert poll_all(consumer, 10) == [str(i) for i in range(10)]
        assert consumer.offset_for_timestamp(queue, middle) == 10
        consumer.seek(queue, "last")
        assert consumer.position(queue) == 20
        assert consumer.poll(timeout=0.1) == []
        consumer.commit({queue: 12})
        assert consumer.committed(queue) == 12
        with pytest.raises(rmq.ConfigError, match="not among"):
            consumer.seek(rmq.MessageQueue(topic, "broker-a", 0), 0)
        with pytest.raises(rmq.ConfigError, match="exclude"):
            consumer.subscribe(topic)


def test_what_an_interrupted_poll_took_comes_again(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(queues=1)
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    fill(cluster, topic, 10, queue)
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first", auto_commit=True) as consumer:
        consumer.assign([queue])
        first = consumer.poll(timeout=5.0, max_messages=3)
        assert consumer._thread is not None
        run = consumer._thread.run

        def interrupted(coroutine: Coroutine[Any, Any, object], timeout: float | None = None) -> None:
            run(coroutine, timeout)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(consumer._thread, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(max_messages=4)
        assert consumer.position(queue) == 3
        texts = [message.text() for message in first] + poll_all(consumer, 7)
        assert texts == [f"{i}" for i in range(10)]
        consumer.commit()
        assert consumer.committed(queue) == 10


def test_a_commit_for_a_topic_that_is_gone_stores_the_others_and_names_a_few_queues(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    gone, kept = make_topic(queues=8), make_topic(queues=1)
    queue = rmq.MessageQueue(kept, "broker-a", 0)
    fill(cluster, kept, 3, queue)
    with rmq.Producer(cluster.namesrv, group=group) as producer:
        for each in producer.queues(gone):
            producer.send(gone, b"x", queue=each)
        sent = len(producer.queues(gone))
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(gone)
        consumer.subscribe(kept)
        assert len(poll_all(consumer, sent + 3)) == sent + 3
        with rmq.Admin(cluster.namesrv) as admin:
            admin.delete_topic(gone)
        with pytest.raises(TopicNotExist, match=rf"queue_id=\d+\) and {sent - 3} more queues at"):
            consumer.commit()
        assert consumer.committed(queue) == 3
        consumer.unsubscribe(gone)
        consumer.commit()


def test_a_commit_of_a_broadcast_member_whose_file_is_not_written_raises(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    topic = make_topic(queues=1)
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    fill(cluster, topic, 3, queue)
    with rmq.PullConsumer(
        cluster.namesrv, group=group, start_from="first", broadcast=True, offset_store_path=str(tmp_path)
    ) as consumer:
        consumer.subscribe(topic)
        assert len(poll_all(consumer, 3)) == 3
        file = tmp_path / consumer.client_id / group / "offsets.json"
        file.mkdir()  # an OSError, whoever runs this
        with pytest.raises(ClientError, match=f"commit of group '{group}' for .*{re.escape(str(file))}"):
            consumer.commit()
        file.rmdir()
        consumer.commit()
        assert (load_offsets(file) or {})[queue] == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a coroutine that was never run
def test_a_poll_that_is_interrupted_at_any_line_loses_nothing(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(queues=1)
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    fill(cluster, topic, 6, queue)
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.assign([queue])
        for interruption in at_each_line(stop):
            consumer.seek(queue, 0)
            messages: list[rmq.ReceivedMessage] = []
            with contextlib.suppress(Stop):
                messages += interruption.during(lambda: consumer.poll(timeout=5.0, max_messages=4))
            assert consumer.position(queue) == len(messages)
            while len(messages) < 6 and (more := consumer.poll(timeout=5.0)):
                messages += more
            assert [message.text() for message in messages] == [f"{i}" for i in range(6)]


def test_a_handler_may_poll_at_any_line_of_a_poll(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(queues=1)
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    fill(cluster, topic, 4, queue)
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.assign([queue])
        inner: list[rmq.ReceivedMessage] = []
        for interruption in at_each_line(lambda: inner.extend(consumer.poll(timeout=5.0, max_messages=2))):
            consumer.seek(queue, 0)
            inner.clear()
            outer = interruption.during(lambda: consumer.poll(timeout=5.0, max_messages=2))
            polled = sorted([*inner, *outer], key=lambda message: message.offset)
            assert [message.text() for message in polled] == [f"{i}" for i in range(len(polled))]


def test_what_seek_and_commit_do_not_take(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(queues=1)
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    fill(cluster, topic, 10, queue)
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.assign([queue])
        for offset in (-5, 11):
            with pytest.raises(rmq.ConfigError, match=rf"offsets 0 to 10, asked for {offset}"):
                consumer.seek(queue, offset)
        assert consumer.position(queue) == 0
        messages = consumer.poll(timeout=5.0)
        consumer.commit(messages[3])
        assert consumer.committed(queue) == messages[3].offset + 1
        wrong: list[tuple[Any, str]] = [
            ([queue], "got list"),
            (messages, "got list"),
            (queue, "got MessageQueue"),
            ({queue: -1}, "at least 0"),
            ({"q": 1}, "each MessageQueue"),
            ({queue: "1"}, "next offset"),
        ]
        for argument, said in wrong:
            with pytest.raises(rmq.ConfigError, match=said):
                consumer.commit(argument)
        assert consumer.committed(queue) == messages[3].offset + 1


def test_polled_messages_go_to_other_processes(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(queues=1)
    with rmq.Producer(cluster.namesrv, group="filler") as producer:
        sent = producer.send(topic, "x", tag="t", keys="k", properties={"a": "b"})
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        [message] = consumer.poll(timeout=5.0)
    for again in (pickle.loads(pickle.dumps(message)), copy.deepcopy(message)):
        assert (again.text(), again.msg_id, again.tag, again.keys) == ("x", sent.msg_id, "t", ("k",))
        assert (again.properties, again.queue, again.offset) == (message.properties, message.queue, message.offset)
        assert (again.store_host, again.stored_at) == (message.store_host, message.stored_at)
        with pytest.raises(rmq.ConfigError, match="not handed out by a consumer"):
            again.ack()


def test_tags_are_filtered(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(queues=1)
    with rmq.Producer(cluster.namesrv, group="filler") as producer:
        # "Aa" and "BB" have the same hash: the broker lets both pass, the client does not
        for tag in ("Aa", "BB", "cc"):
            producer.send(topic, tag, tag=tag)
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic, tag="Aa")
        assert [message.text() for message in consumer.poll(timeout=5.0)] == ["Aa"]
        assert consumer.poll(timeout=0.1) == []


def test_paused_queues_are_left_out(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(queues=1)
    queues = [rmq.MessageQueue(topic, "broker-a", 0), rmq.MessageQueue(topic, "broker-b", 0)]
    for queue in queues:
        fill(cluster, topic, 3, queue)
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.assign(queues)
        consumer.pause([queues[0]])
        received = consumer.poll(timeout=5.0) + consumer.poll(timeout=0.3)
        assert {message.queue for message in received} == {queues[1]}
        consumer.resume()
        assert {message.queue for message in consumer.poll(timeout=5.0)} == {queues[0]}


def test_auto_commit_stores_what_earlier_polls_returned(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(queues=1)
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    fill(cluster, topic, 10, queue)
    with rmq.PullConsumer(
        cluster.namesrv, group=group, start_from="first", auto_commit=True, persist_interval=0.05
    ) as consumer:
        consumer.assign([queue])
        assert len(consumer.poll(timeout=5.0, max_messages=4)) == 4
        assert len(consumer.poll(timeout=5.0, max_messages=3)) == 3
        deadline = time.monotonic() + 10
        with rmq.PullConsumer(cluster.namesrv, group=group) as other:
            while other.committed(queue) != 4 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert other.committed(queue) == 4
    with rmq.PullConsumer(cluster.namesrv, group=group) as other:
        other.assign([queue])
        assert other.position(queue) == 7


def test_an_offset_beyond_the_queue_is_corrected(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    """The messages that are there may all be of a queue that began anew: they are read."""
    topic = make_topic(queues=1)
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    fill(cluster, topic, 3, queue)
    with Admin(cluster.namesrv) as admin, rmq.PullConsumer(cluster.namesrv, group=group) as consumer:
        admin.create_group(group)
        admin.update_consumer_offset(group, queue, 1000)
        assert [row.lag for row in admin.group_lag(group, topic) if row.queue == queue] == [3]
        consumer.assign([queue])
        fill(cluster, topic, 2, queue)
        assert len(poll_all(consumer, 5)) == 5
        assert consumer.position(queue) == 5


def test_nothing_is_stored_of_a_queue_that_is_not_this_members(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=1)
    queue, other = rmq.MessageQueue(topic, "broker-a", 0), rmq.MessageQueue(topic, "broker-b", 0)
    fill(cluster, topic, 10, queue)
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.assign([queue])
        messages = consumer.poll(timeout=5.0)
        consumer.commit(messages[4])
        assert consumer.committed(queue) == 5
        consumer.assign([other])
        consumer.commit(messages[0])
        with pytest.raises(rmq.ConfigError, match="not among the queues"):
            consumer.commit({queue: 1})
        consumer.assign([queue])
        consumer.commit(messages[0])
        assert consumer.committed(queue) == 5
        consumer.seek(queue, 2)
        consumer.commit(messages[9])
        assert consumer.committed(queue) == 5
        assert [message.offset for message in consumer.poll(timeout=5.0)] == list(range(2, 10))
        consumer.commit({queue: 3})
        assert consumer.committed(queue) == 3
    assert caplog.text.count("message not committed") == 3


def test_a_member_that_was_away_takes_nothing_back(
    cluster: LocalCluster,
    make_topic: MakeTopic,
    group: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It still believes that the queue is its own, and stores in the background, on commit and on close."""
    monkeypatch.setattr("rocketcore.client.offset_store.SURE_SECONDS", 0.0)  # it was away for longer than that
    topic = make_topic(queues=1)
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    fill(cluster, topic, 10, queue)
    with Admin(cluster.namesrv) as admin:
        with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first", auto_commit=True) as consumer:
            consumer.assign([queue])
            messages = consumer.poll(timeout=5.0, max_messages=4)
            admin.update_consumer_offset(group, queue, 9)
            consumer.commit(messages[2])
            assert admin.consumer_offset(group, queue) == 9
            consumer.poll(timeout=5.0, max_messages=2)
            consumer.commit()
        assert admin.consumer_offset(group, queue) == 9
    assert "another member is ahead" in caplog.text
