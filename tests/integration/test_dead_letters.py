"""A message that fails reaches the dead letters of its group once, whatever it is and however it is read."""

from __future__ import annotations

import time
from collections import Counter
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
    "concurrent": {},
    "ordered": {"ordered": True, "suspend_time": 0.01},
    "pop": {"pop": True, "invisible": 5.0},
}
KINDS = {
    "plain", "transactional", "delayed by level", "delayed by time", "compressed", "in order", "request", "batch-0",
    "batch-1", "traced", "with properties",
}  # fmt: skip


def send_all(cluster: LocalCluster, topic: str, checks: list[str]) -> None:
    """Send one message of each kind; its body begins with the kind's name."""

    def check(message: rmq.ReceivedMessage) -> rmq.TransactionState:
        checks.append(message.msg_id)
        return rmq.TransactionState.UNKNOWN

    soon = datetime.now(UTC) + timedelta(seconds=1)
    with (
        rmq.Producer(cluster.namesrv, group="failing", checker=check, compress_over_bytes=1000) as producer,
        rmq.Producer(cluster.namesrv, group="traced", trace=True) as traced,
    ):
        producer.send(topic, b"plain|")
        with producer.transaction(rmq.Message(topic, b"transactional|")):
            pass
        producer.send(topic, b"delayed by level|", delay_level=1)
        producer.send(topic, b"delayed by time|", deliver_at=soon)
        producer.send(topic, b"compressed|" + bytes(5000))
        producer.send(topic, b"in order|", message_group="g")
        producer.send_batch([rmq.Message(topic, b"batch-%d|" % i) for i in range(2)])
        producer.send(topic, b"with properties|", keys="k", tag="t", properties={"a": "ü", "b": " "})
        traced.send(topic, b"traced|")
        with pytest.raises(rmq.RequestTimeout):
            producer.request(topic, b"request|", timeout=0.1)


@pytest.mark.parametrize("reader", READERS)
def test_every_kind_of_message_becomes_one_dead_letter(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, reader: str
) -> None:
    topic = make_topic(queues=1)
    dlq, checks = f"%DLQ%{group}", list[str]()
    bodies: dict[str, bytes] = {}

    def fail(message: rmq.ReceivedMessage) -> None:
        bodies[message.text().partition("|")[0]] = message.body
        raise ValueError("always")

    def dead() -> list[rmq.ReceivedMessage]:
        found = []
        for each in admin.dead_letter_queues(group):
            found += admin.dead_letters(each.queue, each.start)
        return found

    with (
        Admin(cluster.namesrv) as admin,
        rmq.PushConsumer(
            cluster.namesrv, group=group, start_from="first", max_reconsume_times=0, route_interval=0.5,
            **READERS[reader],
        ) as consumer,
    ):  # fmt: skip
        if reader == "pop":
            admin.create_group(group)
            admin.set_request_mode(group, topic, "pop")
        consumer.subscribe(topic, handler=fail)
        consumer.start()
        send_all(cluster, topic, checks)
        deadline = time.monotonic() + 30
        letters: list[rmq.ReceivedMessage] = []
        while len(letters) < len(KINDS) and time.monotonic() < deadline:
            time.sleep(0.1)
            if dlq in admin.topics():
                letters = dead()
        consumer.close()
        letters = dead()
        assert Counter(letter.text().partition("|")[0] for letter in letters) == Counter(KINDS)
        assert {letter.text().partition("|")[0]: letter.body for letter in letters} == bodies
        assert len(bodies["compressed"]) == 5011
        assert [letter.properties.get("a") for letter in letters if letter.tag == "t"] == ["ü"]
        # once more to its group, and it is received as any
        texts: list[str] = []
        with rmq.PushConsumer(
            cluster.namesrv, group=group, start_from="first", route_interval=0.5, **READERS[reader]
        ) as again:
            again.subscribe(topic, handler=lambda message: texts.append(message.text().partition("|")[0]))
            again.start()
            for each in admin.dead_letter_queues(group):
                if letters := admin.dead_letters(each.queue, each.start):
                    admin.redrive(group, letters)
            deadline = time.monotonic() + 20
            while len(texts) < len(KINDS) and time.monotonic() < deadline:
                time.sleep(0.05)
        assert Counter(texts) == Counter(KINDS)
    assert not checks
