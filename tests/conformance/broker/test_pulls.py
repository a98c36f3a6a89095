"""Pulls: checks, statuses and offsets, tags, limits, waiting (broker.md §14, §15, §26.1)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.conformance.broker.connection import Connection, consumer, pull_fields, send_fields, subscription
from tests.conformance.broker.differences import APACHES_FIELDS, expected
from tests.conformance.peer import unique

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
BOUNDS = ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId")


def numbers(begin: int, low: int, high: int) -> dict[str, str]:
    return dict(zip(BOUNDS, map(str, (begin, low, high, 0)), strict=True))


@pytest.mark.parametrize(
    ("offset", "code", "remark", "begin"),
    [
        (0, 0, "FOUND", 3), (1, 0, "FOUND", 3), (3, 19, "OFFSET_OVERFLOW_ONE", 3), (4, 21, "OFFSET_OVERFLOW_BADLY", 3),
        (-1, 21, "OFFSET_TOO_SMALL", 0),
    ],
)  # fmt: skip
def test_statuses(broker: Connection, offset: int, code: int, remark: str, begin: int) -> None:
    topic = broker.topic()
    broker.sent(topic, b"0", b"1", b"2")
    answer = broker.pull(topic, offset)
    assert (answer.code, answer.remark) == (code, remark)
    fields = {name: value for name, value in answer.fields.items() if name not in APACHES_FIELDS}
    assert fields == numbers(begin, 0, 3)
    assert answer.bodies == ([b"0", b"1", b"2"][offset:] if code == 0 else [])


@pytest.mark.parametrize(("offset", "code"), [(0, 19), (5, 21)])
def test_an_empty_queue(broker: Connection, offset: int, code: int) -> None:
    answer = broker.pull(broker.topic(), offset)
    assert (answer.code, answer.remark) == (code, "NO_MESSAGE_IN_QUEUE")
    assert answer.fields.items() >= numbers(0, 0, 0).items()


def test_the_system_flags_of_an_answer(broker: Connection) -> None:
    answer = broker.pull(broker.topic())
    assert answer.fields.keys() & APACHES_FIELDS == expected(broker, "system flags of a pull")


@pytest.mark.parametrize(("count", "found"), [(1, 1), (2, 2), (32, 32), (1000, 32), (0, 1), (-1, 1)])
def test_how_many(broker: Connection, count: int, found: int) -> None:
    topic = broker.topic()
    broker.sent(topic, *[b"x"] * 40)
    answer = broker.pull(topic, count=count)
    assert len(answer.records) == found
    assert answer.fields["nextBeginOffset"] == str(found)


def test_how_many_bytes(broker: Connection) -> None:
    """256 KiB, but one message at least."""
    topic = broker.topic()
    broker.sent(topic, *[bytes(100_000)] * 4, bytes(300_000))
    assert len(broker.pull(topic).records) == 2
    assert len(broker.pull(topic, 4).records) == 1


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("*", "abcde"), ("", "abcde"), (None, "abcde"), ("red", "a"), ("red || blue", "ab"), ("red||blue", "ab"),
        (" blue ", "b"), ("Aa", "cd"), ("none", ""), ("|| red", "a"),
    ],
)  # fmt: skip
def test_tags(broker: Connection, expression: str | None, found: str) -> None:
    """By the hash of the whole tag: "Aa" and "BB" have the same."""
    topic = broker.topic()
    for body, tag in zip("abcde", ["red", "blue", "Aa", "BB", ""], strict=True):
        broker.sent(topic, body.encode(), said={"TAGS": tag} if tag else {})
    fields = pull_fields(topic, tags="*")
    if expression is None:
        del fields["subscription"]
    else:
        fields["subscription"] = expression
    answer = broker.ask(11, fields)
    assert b"".join(answer.bodies) == found.encode()
    assert (answer.code, answer.remark) == ((0, "FOUND") if found else (20, "NO_MATCHED_MESSAGE"))
    assert answer.fields["nextBeginOffset"] == "5"


def test_tags_that_are_none(broker: Connection) -> None:
    answer = broker.pull(broker.topic(), tags="||")
    assert answer.code == 23
    assert answer.remark is not None
    assert answer.remark.startswith("parse the consumer's subscription failed")
    assert (answer.remark == "parse the consumer's subscription failed") == expected(broker, "remark of 23")


def test_blank_tags_match_nothing(broker: Connection) -> None:
    topic = broker.topic()
    broker.sent(topic, b"x")
    assert broker.pull(topic, tags=" ").code == broker.pull(topic, tags="|| ||").code == 20


def test_a_topic_that_is_not_there(broker: Connection) -> None:
    answer = broker.pull("nobody")
    assert (answer.code, answer.fields) == (17, {})
    assert answer.remark == f"topic[nobody] not exist, apply first please! {FAQ}"


@pytest.mark.parametrize("queue", [-1, 2, 99])
def test_a_queue_that_is_not_there(broker: Connection, queue: int) -> None:
    topic = broker.topic(queues=2)
    answer = broker.pull(topic, queue=queue)
    assert (answer.code, answer.fields) == (29, {})
    assert answer.remark is not None
    assert answer.remark.startswith(
        f"queueId[{queue}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[2] consumer:["
    )


def test_a_group_that_cannot_be(broker: Connection) -> None:
    answer = broker.pull(broker.topic(), group="a b")
    assert (answer.code, answer.remark) == (26, f"subscription group [a b] does not exist, {FAQ}")


def test_what_is_not_allowed(broker: Connection) -> None:
    """A 5.x client is told which rule forbids it."""
    topic = broker.topic(perm=2)
    answer = broker.pull(topic)
    assert (answer.code, answer.fields) == (16, {"forbiddenType": "3"})
    assert answer.remark == f"the topic[{topic}] pulling message is forbidden"
    group = broker.group(consumeEnable=False)
    answer = broker.pull(broker.topic(), group=group)
    assert (answer.code, answer.fields) == (16, {"forbiddenType": "2"})
    assert answer.remark == f"subscription group no permission, {group}"


def test_subscriptions_of_heartbeats(broker: Connection) -> None:
    topic, other, group = broker.topic(), broker.topic(), broker.group()
    broker.sent(topic, b"a", said={"TAGS": "red"})
    broker.sent(topic, b"b", said={"TAGS": "blue"})
    answer = broker.pull(topic, group=group, tags=None)
    assert (answer.code, answer.remark) == (24, f"the consumer's group info not exist{FAQ}")
    broker.heartbeat("client", consumer(group, topic, tags="blue", version=5))
    answer = broker.pull(other, group=group, tags=None)
    assert (answer.code, answer.remark) == (24, f"the consumer's subscription not exist{FAQ}")
    answer = broker.pull(topic, group=group, tags=None, subVersion="6")
    assert (answer.code, answer.remark) == (25, "the consumer's subscription not latest")
    assert broker.pull(topic, group=group, tags=None, subVersion="5").bodies == [b"b"]


def test_broadcasting_that_is_not_allowed(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group(consumeBroadcastEnable=False)
    broker.heartbeat("client", consumer(group, topic, model="BROADCASTING"))
    answer = broker.pull(topic, group=group, tags=None)
    assert (answer.code, answer.fields) == (16, {"forbiddenType": "4"})


def test_a_group_that_may_not_read_a_topic(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.heartbeat("client", consumer(group, topic))
    assert broker.ask(353, {"group": group, "topic": topic, "readable": "false"}).code == 0
    answer = broker.pull(topic, group=group, tags=None)
    assert (answer.code, answer.fields) == (16, {"forbiddenType": "5"})
    assert broker.ask(353, {"group": group, "topic": topic, "readable": "true"}).code == 0
    assert broker.pull(topic, group=group, tags=None).code == 19


def test_sql(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    for number in range(3):
        broker.sent(topic, b"%d" % number, said={"a": str(number)})
    said = subscription(topic, "a > 0", kind="SQL92")
    broker.heartbeat("client", {**consumer(group), "subscriptionDataSet": [said]})
    assert broker.pull(topic, group=group, tags=None, expressionType="SQL92").bodies == [b"1", b"2"]
    assert broker.pull(topic, tags="a < 1", expressionType="SQL92").bodies == [b"0"]


def test_sql_that_does_not_compile(broker: Connection) -> None:
    topic = broker.topic()
    broker.sent(topic, b"x")
    answer = broker.pull(topic, tags="a >", expressionType="SQL92")
    assert answer.code == expected(broker, "SQL92 that does not compile")


def test_commits_of_pulls(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"x", b"y")
    broker.pull(topic, group=group, commit=2)
    assert broker.ask(14, {"consumerGroup": group, "topic": topic, "queueId": "0"}).fields == {"offset": "2"}


def test_lite_pulls(broker: Connection) -> None:
    topic = broker.topic()
    broker.sent(topic, b"x")
    assert broker.ask(361, pull_fields(topic)).bodies == [b"x"]


def test_a_pull_waits_for_a_message(broker: Connection, connect: Callable[[], Connection]) -> None:
    topic, producer = broker.topic(), connect()
    opaque = broker.begin(11, pull_fields(topic, hold=15_000))
    assert broker.is_silent(opaque, 0.5)
    began = time.monotonic()
    producer.sent(topic, b"x")
    answer = broker.end(opaque)
    assert (answer.code, answer.bodies) == (0, [b"x"])
    assert time.monotonic() - began < 4, "not by the look that comes every five seconds"


def test_a_pull_that_waits_for_a_tag(broker: Connection, connect: Callable[[], Connection]) -> None:
    topic, producer = broker.topic(), connect()
    opaque = broker.begin(11, pull_fields(topic, hold=60_000, tags="red"))
    producer.sent(topic, b"x", said={"TAGS": "blue"})
    producer.sent(topic, b"y", said={"TAGS": "red"})
    answer = broker.end(opaque)
    assert answer.fields["nextBeginOffset"] in ("1", "2")
    assert (answer.code, answer.bodies) in ((0, [b"y"]), (20, []))


def test_a_pull_waits_in_vain(broker: Connection) -> None:
    topic = broker.topic()
    began = time.monotonic()
    answer = broker.pull(topic, hold=300)
    assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert 0.3 <= time.monotonic() - began < 8


def test_what_is_answered_at_once_although_it_may_wait(broker: Connection) -> None:
    topic = broker.topic()
    broker.sent(topic, b"x")
    assert broker.pull(topic, 5, hold=15_000).code == 21
    assert broker.pull(topic, 0, hold=15_000, tags="none").code == 20


def test_a_pull_from_an_offset_that_was_reset(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0", b"1", b"2")
    fields = {"group": group, "topic": topic, "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "1"}
    assert broker.ask(222, fields).code == 0
    answer = broker.pull(topic, 3, group=group)
    assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (21, "OFFSET_RESET", "1")
    assert broker.pull(topic, 1, group=group).bodies == [b"1", b"2"]


def test_a_pull_commits_after_a_reset(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0", b"1", b"2")
    fields = {"group": group, "topic": topic, "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "1"}
    assert broker.ask(222, fields).code == 0
    assert broker.pull(topic, 3, group=group, commit=3).code == 21
    answer = broker.ask(14, {"consumerGroup": group, "topic": topic, "queueId": "0"})
    assert answer.fields["offset"] == expected(broker, "a pull's commit after a reset")


@pytest.mark.parametrize("missing", ["consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag"])
def test_a_missing_field(broker: Connection, missing: str) -> None:
    fields = pull_fields(broker.topic())
    del fields[missing]
    answer = broker.ask(11, fields)
    assert answer.code == 1
    assert answer.remark


def test_pulls_in_a_row(broker: Connection) -> None:
    topic = broker.topic(unique("T"))
    for number in range(5):
        broker.ask(310, send_fields(topic), b"%d" % number)
    broker.wait_for_offset(topic, 0, 5)
    opaques = [broker.begin(11, pull_fields(topic, number, count=1)) for number in range(5)]
    assert [broker.end(opaque).bodies for opaque in opaques] == [[b"%d" % number] for number in range(5)]
