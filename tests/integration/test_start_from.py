"""Where a group begins that has no offsets: at a time, at the first message, at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore.admin.client import Admin
from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(60)

MakeTopic = Callable[..., str]
READERS: dict[str, dict[str, Any]] = {
    "pull": {},
    "push": {},
    "ordered": {"ordered": True},
    "broadcast": {"broadcast": True},
    "pop": {"pop": True},
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("start", ["between", "2099", "before", "first", "last"])
def test_where_a_new_group_begins(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, tmp_path: Any, reader: str, start: str
) -> None:
    """With "last" a queue whose first message is still there is read from it, but for members of a broadcast group."""
    topic = make_topic(queues=1)
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    with rmq.Producer(cluster.namesrv, group="p") as producer, Admin(cluster.namesrv) as admin:
        for i in range(3):
            producer.send(topic, f"old{i}", queue=queue)
        stored = admin.message_at(queue, 2).store_timestamp
        between = datetime.fromtimestamp(stored / 1000, UTC) + timedelta(milliseconds=1)
        while datetime.now(UTC) <= between + timedelta(milliseconds=1):
            time.sleep(0.001)
        for i in range(3):
            producer.send(topic, f"new{i}", queue=queue)
        if reader == "pop":
            admin.create_group(group)
            admin.set_request_mode(group, topic, "pop")
        starts: dict[str, Any] = {
            "between": between, "2099": datetime(2099, 1, 1, tzinfo=UTC), "before": between - timedelta(days=1),
            "first": "first", "last": "last",
        }  # fmt: skip
        options = {"start_from": starts[start], "group": group, "offset_store_path": str(tmp_path), **READERS[reader]}
        got: list[str] = []
        old, new = [f"old{i}" for i in range(3)], [f"new{i}" for i in range(3)]
        at_end = start == "last" and reader == "broadcast"
        expected = [] if start == "2099" or at_end else new if start == "between" else old + new
        if reader == "pull":
            with rmq.PullConsumer(cluster.namesrv, **options) as consumer:
                consumer.subscribe(topic)
                consumer.wait_ready()
                producer.send(topic, "end", queue=queue)
                while "end" not in got:
                    got += [message.text() for message in consumer.poll(5.0)]
        else:
            with rmq.PushConsumer(cluster.namesrv, **options) as consumer:
                consumer.subscribe(topic, handler=lambda message: got.append(message.text()))
                consumer.start()
                consumer.wait_ready()
                deadline = time.monotonic() + 20
                sent = 0
                while "end" not in got[-1:] and time.monotonic() < deadline:
                    # what comes before its first POP is not for a group that pops from the end
                    if not sent or reader == "pop":
                        producer.send(topic, "end", queue=queue)
                        sent += 1
                    time.sleep(0.1)
    assert sorted(text for text in got if text != "end") == sorted(expected)
