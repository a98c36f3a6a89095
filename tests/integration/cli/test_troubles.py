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


def unread(rocket: Rocket) -> list[str]:
    """Return the topics with queues that nobody reads, as doctor knows them."""
    _, out, _ = rocket("doctor", "--no-message", "-o", "json")
    return [row["target"] for row in json.loads(out) if row["check"] == "unread queues"]


def test_queues_that_nobody_reads_are_named(rocket: Rocket) -> None:
    topic = f"T-{uuid4().hex[:12]}"
    said = "note: producers write to more queues than consumers read"
    code, _, err = rocket("topic", "create", topic, "--read-queues", "2", "--write-queues", "5")
    assert code == 0
    assert said in err
    assert "rocket topic update --read-queues 5 " + topic in err
    assert said in rocket("topic", "describe", topic)[2]
    assert topic in unread(rocket)
    assert said not in rocket("topic", "update", "--read-queues", "5", topic)[2]
    assert said not in rocket("topic", "describe", topic)[2]
    assert topic not in unread(rocket)
    code, _, err = rocket("topic", "update", "--write-queues", "6", topic)
    assert code == 0
    assert said in err
    rocket("topic", "delete", topic, "--yes")


def test_the_hints_for_a_group_that_begins_with_a_dash_can_be_run(wrong: Wrong, rocket: Rocket) -> None:
    wrong.group = f"-G-{uuid4().hex[:12]}"
    wrong.dead()
    out = rocket("doctor", "--no-message", "-o", "json")[1]
    [found] = [row for row in json.loads(out) if row["target"] == wrong.group]
    for hint in found["hint"].split("; "):
        noun, verb, *rest = hint.removeprefix("rocket ").split()
        code, _, err = rocket(noun, verb, *(["--yes"] if verb == "redrive" else []), *rest)
        assert code == 0, err


def test_a_topic_of_dead_letters_of_no_group_is_no_trouble(rocket: Rocket, cluster: LocalCluster) -> None:
    with rmq.Admin(cluster.namesrv) as admin:
        admin.create_topic("%DLQ%", queues=1)
    _, out, err = rocket("doctor", "--no-message", "-o", "json")
    rows = json.loads(out)
    assert [row for row in rows if row["target"] in ("", "%DLQ%")] == []
    assert [row for row in rows if row["check"] == "groups" and row["state"] == "unknown"] == [], err


def test_two_brokers_of_one_name_are_named(cluster: LocalCluster, rocket: Rocket) -> None:
    with LocalCluster() as first, LocalCluster(properties={"namesrvAddr": first.namesrv}):
        code, out, err = rocket("doctor", "--namesrv", first.namesrv, "--no-message", "-o", "json")
    found = [row for row in json.loads(out) if row["check"] == "two brokers"]
    assert [(row["target"], row["state"]) for row in found] == [("broker-a/0", "fail")], err
    assert code == 1
