"""Set-ups that are wrong, in ``rocket doctor`` and ``rocket group describe``, and two brokers of one name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

import rocketcore as rmq
from rocketcore.local import LocalCluster
from tests.fixtures.commands import Rocket

pytestmark = pytest.mark.timeout(120)


class Wrong:
    """Makes groups that are wrong in one way each."""

    def __init__(self, namesrv: str, stack: ExitStack) -> None:
        self.namesrv = namesrv
        self.stack = stack
        self.group = f"G-{uuid4().hex[:12]}"
        self.topics = [f"T-{uuid4().hex[:12]}" for _ in range(2)]
        with rmq.Admin(namesrv) as admin:
            for topic in self.topics:
                admin.create_topic(topic, queues=1)

    def member(self, topic: str, **options: Any) -> None:
        consumer = self.stack.enter_context(
            rmq.PushConsumer(self.namesrv, group=self.group, start_from="first", **options)
        )
        consumer.subscribe(topic, handler=options.pop("handler", None) or (lambda message: None))

    def unlike(self) -> None:
        for topic in self.topics:
            self.member(topic)

    def shared(self) -> None:
        for _ in range(2):
            self.member(self.topics[0], instance_name="app")

    def stopped(self) -> None:
        with rmq.PullConsumer(self.namesrv, group=self.group, start_from="first") as consumer:
            consumer.subscribe(self.topics[0])
            with rmq.Producer(self.namesrv) as producer:
                producer.send(self.topics[0], b"1")
                assert consumer.poll(30)
                consumer.commit()
                producer.send(self.topics[0], b"2")

    def dead(self) -> None:
        consumer = rmq.PushConsumer(self.namesrv, group=self.group, start_from="first", max_reconsume_times=0)
        with consumer:
            consumer.subscribe(self.topics[0])
            with rmq.Producer(self.namesrv) as producer:
                producer.send(self.topics[0], b"1")
            for message in consumer:
                message.retry()
                break


@pytest.fixture
def wrong(cluster: LocalCluster) -> Iterator[Wrong]:
    with ExitStack() as stack:
        yield Wrong(cluster.namesrv, stack)


CASES: dict[str, tuple[Callable[[Wrong], None], str, str]] = {
    "unlike": (Wrong.unlike, "subscriptions", "fail"),
    "shared": (Wrong.shared, "client id", "fail"),
    "stopped": (Wrong.stopped, "stopped group", "warn"),
    "dead": (Wrong.dead, "dead letters", "warn"),
}


@pytest.mark.parametrize("name", CASES)
def test_doctor_and_describe_name_what_is_wrong_with_a_group(name: str, wrong: Wrong, rocket: Rocket) -> None:
    make, check, state = CASES[name]
    make(wrong)
    code, out, err = rocket("doctor", "--no-message", "-o", "json")
    found = [row for row in json.loads(out) if row["target"] == wrong.group]
    assert [(row["check"], row["state"]) for row in found] == [(check, state)], err
    assert code == (1 if state == "fail" else 0)
    code, out, err = rocket("group", "describe", wrong.group, "-o", "json")
    assert code == 0, err
    document = json.loads(out)
    assert [set(each) for each in document["troubles"]] == [{"check", "state", "detail", "hint"}]
    assert [(each["check"], each["state"]) for each in document["troubles"]] == [(check, state)]
    assert document["dead_letters"] == (1 if name == "dead" else 0)
    assert check in rocket("group", "describe", wrong.group)[1]


def test_two_brokers_of_one_name_are_named(cluster: LocalCluster, rocket: Rocket) -> None:
    with LocalCluster() as first, LocalCluster(properties={"namesrvAddr": first.namesrv}):
        code, out, err = rocket("doctor", "--namesrv", first.namesrv, "--no-message", "-o", "json")
    found = [row for row in json.loads(out) if row["check"] == "two brokers"]
    assert [(row["target"], row["state"]) for row in found] == [("broker-a/0", "fail")], err
    assert code == 1
