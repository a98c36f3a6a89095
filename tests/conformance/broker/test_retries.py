"""What failed, is delayed, or is for a time (broker.md §18, §19, §24)."""

from __future__ import annotations

import base64
import json
import time

import pytest

from tests.conformance.broker.connection import Answer, Connection, consumer, group_config, properties_of
from tests.conformance.broker.differences import expected
from tests.conformance.peer import unique


def place_of(answer: Answer) -> str:
    return str(int(answer.fields["msgId"][16:], 16))


def send_back(broker: Connection, group: str, offset: str, level: int, **more: str) -> Answer:
    return broker.ask(
        36,
        {"offset": offset, "group": group, "delayLevel": str(level), "originTopic": "x", "unitMode": "false", **more},
    )


def test_a_failed_message_comes_again(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    sent = broker.send_message(topic, b"x", said={"KEYS": "k"})
    answer = send_back(broker, group, place_of(sent), 1)
    assert (answer.code, answer.remark, answer.fields) == (0, None, {})
    retry = f"%RETRY%{group}"
    broker.wait_for_offset(retry, 0, 1)
    (record,) = broker.pull(retry).records
    assert (record.body, record.reconsume_times, record.topic) == (b"x", 1, retry.encode())
    said = properties_of(record)
    assert said.items() >= {
        "RETRY_TOPIC": topic, "ORIGIN_MESSAGE_ID": sent.fields["msgId"], "KEYS": "k", "DELAY": "1", "WAIT": "false",
        "REAL_TOPIC": retry, "REAL_QID": "0",
    }.items()  # fmt: skip
    assert (record.prepared_offset == 0) == expected(broker, "the prepared offset of what was delayed")


def test_a_group_whose_retry_topic_has_no_queue(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group(retryQueueNums=0)
    broker.heartbeat("c1", consumer(group, topic))
    assert broker.ask(200, body=json.dumps(group_config(group)).encode()).code == 0
    assert send_back(broker, group, place_of(broker.send_message(topic, b"x")), -1).code == 0
    broker.wait_for_offset(f"%DLQ%{group}", 0, 1)
    failed = send_back(broker, group, place_of(broker.send_message(topic, b"x")), 1)
    assert failed.code == expected(broker, "36 where the retry topic has no queue")


@pytest.mark.parametrize(("level", "more"), [(-1, {}), (0, {"maxReconsumeTimes": "0"})])
def test_a_failed_message_is_a_dead_letter(broker: Connection, level: int, more: dict[str, str]) -> None:
    topic, group = broker.topic(), broker.group()
    assert send_back(broker, group, place_of(broker.send_message(topic, b"x")), level, **more).code == 0
    dead = f"%DLQ%{group}"
    broker.wait_for_offset(dead, 0, 1)
    (record,) = broker.pull(dead).records
    assert (record.body, record.reconsume_times, properties_of(record)["DELAY"]) == (b"x", 1, "0")
    assert broker.ask(351, {"topic": f"%RETRY%{group}"}).code == 0


def test_what_cannot_be_sent_back(broker: Connection) -> None:
    group = broker.group()
    answer = send_back(broker, group, str(1 << 40), 0)
    assert (answer.code, answer.remark) == (1, f"look message by offset failed, {1 << 40}")
    assert send_back(broker, "a b", "0", 0).code == 26
    assert send_back(broker, broker.group(retryQueueNums=0), str(1 << 40), 0).code == 0


@pytest.mark.parametrize("level", ["1", "+1"])
def test_a_delayed_message(broker: Connection, level: str) -> None:
    topic = broker.topic()
    began = time.time()
    answer = broker.send_message(topic, b"x", settle=False, said={"DELAY": level, "TAGS": "t"})
    assert (answer.code, answer.fields["queueId"]) == (0, "0")
    assert "recallHandle" not in answer.fields
    broker.wait_for_offset(topic, 0, 1)
    assert 0.9 < time.time() - began < 5
    (record,) = broker.pull(topic, tags="t").records
    said = properties_of(record)
    assert (said["DELAY"], said["REAL_TOPIC"], said["REAL_QID"]) == (level, topic, "0")


@pytest.mark.parametrize("level", ["x", "99999999999", "1.5"])
def test_a_level_that_is_no_number(broker: Connection, level: str) -> None:
    answer = broker.send_message(broker.topic(), said={"DELAY": level})
    assert answer.code == 1
    assert answer.remark


@pytest.mark.parametrize("level", ["0", "-1", "-0"])
def test_a_level_that_is_none(broker: Connection, level: str) -> None:
    topic = broker.topic()
    broker.sent(topic, b"x", said={"DELAY": level})
    assert properties_of(broker.pull(topic).records[0])["DELAY"] == level


def test_a_message_for_a_time(broker: Connection) -> None:
    topic, name = broker.topic(), unique("id")
    due = int(time.time() * 1000) + 2500
    answer = broker.send_message(topic, b"x", settle=False, said={"UNIQ_KEY": name, "TIMER_DELIVER_MS": str(due)})
    version, said_topic, said_broker, _, said_name = (
        base64.urlsafe_b64decode(answer.fields["recallHandle"]).decode().split()
    )
    assert (version, said_topic, said_broker, said_name) == ("v1", topic, "broker-a", name)
    broker.wait_for_offset(topic, 0, 1)
    early = due - int(time.time() * 1000)
    assert (early > 0) == expected(broker, "a message for a time comes before it") or abs(early) < 1500
    said = properties_of(broker.pull(topic).records[0])
    assert (said["REAL_TOPIC"], said["REAL_QID"], said["TIMER_DELIVER_MS"]) == (topic, "0", str(due))


@pytest.mark.parametrize(("name", "value"), [("TIMER_DELAY_SEC", "x"), ("TIMER_DELAY_SEC", "300000")])
def test_times_that_cannot_be(broker: Connection, name: str, value: str) -> None:
    assert broker.send_message(broker.topic(), settle=False, said={name: value}).code == 13


def test_a_time_that_is_over(broker: Connection) -> None:
    topic = broker.topic()
    broker.sent(topic, b"x", said={"TIMER_DELIVER_MS": "1"})
    assert broker.pull(topic).bodies == [b"x"]


def test_a_message_is_taken_back(broker: Connection) -> None:
    topic, name = broker.topic(), unique("id")
    due = int(time.time() * 1000) + 4000
    said = {"TIMER_DELIVER_MS": str(due)}
    answer = broker.send_message(topic, b"x", settle=False, said={**said, "UNIQ_KEY": name})
    recalled = broker.ask(370, {"topic": topic, "recallHandle": answer.fields["recallHandle"]})
    assert (recalled.code, recalled.fields["msgId"]) == (0, name)
    broker.send_message(topic, b"y", settle=False, said=said)
    broker.wait_for_offset(topic, 0, 1)
    assert broker.pull(topic).bodies == [b"y"]


@pytest.mark.parametrize("handle", ["", "x", base64.urlsafe_b64encode(b"v1 T broker-a 1 id").decode()])
def test_handles_that_are_none(broker: Connection, handle: str) -> None:
    assert broker.ask(370, {"topic": broker.topic(), "recallHandle": handle}).code == 604
    assert broker.ask(370, {"topic": "nobody", "recallHandle": handle}).code == 17
