"""Half messages, their ends, and questions about them (broker.md §20)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.broker.connection import Answer, Connection, properties_of
from tests.conformance.broker.differences import expected
from tests.conformance.peer import unique


def half(broker: Connection, topic: str, **said: str) -> Answer:
    said = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": unique("id"), **said}
    now = str(int(time.time() * 1000))
    answer = broker.send_message(topic, b"x", settle=False, said=said, queue=1, f="4", g=now)
    assert (answer.code, answer.fields["transactionId"]) == (0, said["UNIQ_KEY"])
    return answer


def end(broker: Connection, message: Answer, outcome: int, **more: str) -> Answer:
    fields = {
        "producerGroup": "producers", "tranStateTableOffset": message.fields["queueOffset"], "msgId": "x",
        "commitLogOffset": str(int(message.fields["msgId"][16:], 16)), "commitOrRollback": str(outcome), **more,
    }  # fmt: skip
    return broker.ask(37, fields)


def test_a_commit(broker: Connection) -> None:
    topic = broker.topic(queues=2)
    message = half(broker, topic, TAGS="t")
    assert message.fields["queueId"] == "1"
    assert broker.max_offset(topic, 1) == 0
    answer = end(broker, message, 8)
    assert (answer.code, answer.fields, answer.body) == (0, {}, b"")
    broker.wait_for_offset(topic, 1, 1)
    (record,) = broker.pull(topic, queue=1, tags="t").records
    assert (record.queue_id, record.queue_offset, record.sys_flag) == (1, 0, 8)
    assert record.prepared_offset == int(message.fields["msgId"][16:], 16)
    said = properties_of(record)
    assert said["TRAN_MSG"] == "true"
    assert said["__transactionId__"] == said["UNIQ_KEY"] == message.fields["transactionId"]
    assert not said.keys() & {"REAL_TOPIC", "REAL_QID"}


@pytest.mark.parametrize(("reconsumed", "delay", "dead"), [(1, None, False), (17, None, True), (17, "3", True)])
def test_what_a_consumer_gives_back_is_no_half_message(
    broker: Connection, reconsumed: int, delay: str | None, dead: bool
) -> None:
    """Of a client that leaves in it how it was sent; Apache's makes a half message of it, whose end nobody tells."""
    group = broker.group()
    retry = broker.topic(f"%RETRY%{group}")
    half_topic = "RMQ_SYS_TRANS_HALF_TOPIC"
    before = broker.max_offset(half_topic, 0)
    said = {"TRAN_MSG": "true", "PGROUP": "producers", **({} if delay is None else {"DELAY": delay})}
    answer = broker.send_message(retry, b"x", settle=False, said=said, j=str(reconsumed), l="16", f="4")
    assert answer.code == 0
    halves = expected(broker, "half messages of what is given back")
    if halves:
        broker.wait_for_offset(half_topic, 0, before + halves)
        return
    stored = f"%DLQ%{group}" if dead else retry
    broker.wait_for_offset(stored, 0, 1)
    (record,) = broker.pull(stored).records
    assert (record.body, record.sys_flag, properties_of(record).get("TRAN_MSG")) == (b"x", 0, None)
    assert broker.max_offset(half_topic, 0) == before


def test_a_rollback(broker: Connection) -> None:
    topic = broker.topic(queues=2)
    assert end(broker, half(broker, topic), 12).code == 0
    broker.sent(topic, b"y", queue=1)
    assert broker.pull(topic, queue=1).bodies == [b"y"]


@pytest.mark.parametrize(
    ("more", "remark"),
    [
        ({"producerGroup": "others"}, "The producer group wrong"),
        ({"tranStateTableOffset": "999999"}, "The transaction state table offset wrong"),
        ({"commitLogOffset": str(1 << 40)}, "Find prepared transaction message failed"),
    ],
)
def test_ends_that_are_refused(broker: Connection, more: dict[str, str], remark: str) -> None:
    answer = end(broker, half(broker, broker.topic(queues=2)), 8, **more)
    assert (answer.code, answer.remark) == (1, remark)


def test_an_outcome_that_is_none(broker: Connection) -> None:
    assert end(broker, half(broker, broker.topic(queues=2)), 5).code == 1


def test_an_outcome_that_nobody_knows_yet(broker: Connection) -> None:
    """It is not answered."""
    message = half(broker, broker.topic(queues=2))
    fields = {
        "producerGroup": "producers", "tranStateTableOffset": message.fields["queueOffset"], "msgId": "x",
        "commitLogOffset": str(int(message.fields["msgId"][16:], 16)), "commitOrRollback": "0",
    }  # fmt: skip
    assert broker.is_silent(broker.begin(37, fields), 0.5)


def test_a_commit_that_comes_twice(broker: Connection) -> None:
    topic = broker.topic(queues=2)
    message = half(broker, topic)
    assert [end(broker, message, 8).code for _ in range(2)] == [0, 0]
    count: Any = expected(broker, "messages of a commit that comes twice")
    broker.wait_for_offset(topic, 1, count)
    assert broker.max_offset(topic, 1) == count


def test_a_rollback_after_a_commit(broker: Connection) -> None:
    message = half(broker, broker.topic(queues=2))
    assert end(broker, message, 8).code == 0
    assert end(broker, message, 12).code == expected(broker, "a rollback after a commit")


@pytest.mark.parametrize("flag", [8, 12])
def test_a_message_that_says_it_is_committed(broker: Connection, flag: int) -> None:
    answer = broker.send_message(broker.topic(), settle=False, f=str(flag))
    assert answer.code == expected(broker, "a send with bits of a transaction")


def test_a_producer_is_asked(broker: Connection) -> None:
    """At the first round that finds the message old enough."""
    topic, group = broker.topic(queues=2), unique("producers")
    broker.heartbeat("c1", producers=[group])
    message = half(broker, topic, PGROUP=group)
    broker.socket.settimeout(90)
    asked = broker.hears(39)
    (record,) = asked.records
    assert (record.topic, record.queue_id, record.body) == (topic.encode(), 1, b"x")
    assert asked.fields["transactionId"] == message.fields["transactionId"]
    fields = {
        "producerGroup": group, "tranStateTableOffset": asked.fields["tranStateTableOffset"], "msgId": "x",
        "commitLogOffset": asked.fields["commitLogOffset"], "commitOrRollback": "8", "fromTransactionCheck": "true",
    }  # fmt: skip
    assert broker.ask(37, fields).code == 0
    broker.wait_for_offset(topic, 1, 1)
    assert broker.pull(topic, queue=1).bodies == [b"x"]
