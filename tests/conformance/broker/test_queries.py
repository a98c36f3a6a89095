"""Messages by key, by id and by place (broker.md §5, §28.1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.broker.connection import Answer, Connection, consumer, subscription
from tests.conformance.broker.differences import expected
from tests.conformance.peer import unique


def query(broker: Connection, topic: str, key: str, count: int = 32, **more: str) -> Answer:
    fields = {"topic": topic, "key": key, "maxNum": str(count), "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    return broker.ask(12, {**fields, **more})


def found(broker: Connection, topic: str, key: str, bodies: list[bytes], **more: Any) -> None:
    """Apache's index is a moment later than its answer to a send."""
    broker.eventually(lambda: query(broker, topic, key, **more).code == 0)
    assert query(broker, topic, key, **more).bodies == bodies


def test_messages_by_key(broker: Connection) -> None:
    """Of the newest, the oldest first; keys are parted by blanks."""
    topic = broker.topic()
    broker.sent(topic, b"a", said={"KEYS": "k1 k2"})
    broker.sent(topic, b"b", said={"KEYS": "k2  k3"})
    found(broker, topic, "k3", [b"b"])
    found(broker, topic, "k2", [b"a", b"b"])
    found(broker, topic, "k1", [b"a"])
    found(broker, topic, "k2", [b"b"], maxNum="1")
    found(broker, topic, "k2", [b"a", b"b"], indexType="K")


def test_messages_by_their_own_id(broker: Connection) -> None:
    topic, name = broker.topic(), unique("id")
    broker.sent(topic, b"a", said={"UNIQ_KEY": name})
    found(broker, topic, name, [b"a"], _UNIQUE_KEY_QUERY="true")


def test_messages_by_tag(broker: Connection) -> None:
    topic = broker.topic()
    broker.sent(topic, b"a", said={"TAGS": "red"})
    found(broker, topic, "red", [b"a"], indexType="T")
    assert query(broker, topic, "red").code == 22


def test_nothing_is_found(broker: Connection) -> None:
    answer = query(broker, broker.topic(), "nobody")
    assert (answer.code, answer.remark) == (22, "can not find message, maybe time range not correct")
    assert answer.fields.keys() == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}


def test_a_message_by_its_place(broker: Connection) -> None:
    topic = broker.topic()
    place = int(broker.send_message(topic, b"a").fields["msgId"][16:], 16)
    assert broker.ask(33, {"offset": str(place)}).bodies == [b"a"]
    answer = broker.ask(33, {"offset": str(1 << 40)})
    assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {1 << 40}")


def test_units_of_a_queue(broker: Connection) -> None:
    topic = broker.topic()
    where = {"topic": topic, "queueId": "0", "index": "0", "count": "10"}
    answer = broker.ask(321, where)
    assert (answer.code, answer.remark) == (1, f"0@{topic} is not exist!")
    places = [
        int(broker.send_message(topic, b"x", said={"TAGS": tag}).fields["msgId"][16:], 16) for tag in ("TagA", "Aa")
    ]
    body = broker.ask(321, where).json
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 2)
    assert [(unit["physicOffset"], unit["tagsCode"]) for unit in body["queueData"]] == [
        (places[0], 2598919), (places[1], 2112),
    ]  # fmt: skip
    answer = broker.ask(321, {**where, "index": "5"})
    assert (answer.code, answer.body, answer.remark) == (0, b"", f"Index 5 of 0@{topic} is not exist!")


def test_the_expression_of_a_group_with_the_units_of_a_queue(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"x")
    where = {"topic": topic, "queueId": "0", "index": "0", "count": "10"}

    def told() -> Any:
        return broker.ask(321, {**where, "consumerGroup": group}).json.get("filterData")

    assert broker.ask(321, where).json.get("filterData") is None
    assert told() == f"{group}@{topic} is not online!"
    broker.heartbeat("c1", consumer(group, topic))
    assert told() == "null"
    chosen = consumer(group, topic, version=2)
    chosen["subscriptionDataSet"] = [subscription(topic, "a in ('[', ']')", 3, "SQL92")]
    broker.heartbeat("c1", chosen)
    found = json.loads(told())
    assert found.pop("bloomFilterData")["bitNum"] > 0
    assert found.pop("bornTime") > 0
    assert found == {
        "clientVersion": 3, "consumerGroup": group, "dead": False, "deadTime": 0, "expression": "a in ('[', ']')",
        "expressionType": "SQL92", "topic": topic,
    }  # fmt: skip
    lines = told().split("\n")
    assert next(line for line in lines if "bitPos" in line).startswith('\t\t"bitPos":[')
    assert lines[-2] == f'\t"topic":"{topic}"'


@pytest.mark.parametrize("code", [300, 343])
def test_who_reads_what(broker: Connection, code: int) -> None:
    topic, group = broker.topic(), broker.group()
    broker.ask(15, {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"})
    if code == 300:
        assert broker.ask(300, {"topic": topic}).json["groupList"] == [group]
    else:
        assert broker.ask(343, {"group": group}).json["topicList"] == [topic]


def test_a_group_that_gave_up_a_topic(broker: Connection) -> None:
    one, two, group = broker.topic(), broker.topic(), broker.group()
    broker.heartbeat("c1", consumer(group, one, two))
    broker.heartbeat("c1", consumer(group, two, version=2))
    there = group in broker.ask(300, {"topic": one}).json["groupList"]
    assert there == expected(broker, "a group gave up a topic")


def test_a_subscription_that_a_pull_brought(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    assert broker.pull(topic, group=group).code == 19
    said = broker.ask(345, {"group": group, "topic": topic}).json
    assert (said.get("subscriptionData") is not None) == expected(broker, "a subscription that a pull brought")


def test_the_pull_offset_of_a_topic_that_was_made_anew(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"x")
    broker.pull(topic, group=group)
    broker.ask(215, {"topic": topic})
    broker.topic(topic)
    body = broker.ask(208, {"consumerGroup": group, "topic": topic}).body
    assert b'"pullOffset":%d' % expected(broker, "the pull offset of a topic made anew") in body


def test_a_place_inside_of_a_message(broker: Connection) -> None:
    """Apache's takes what lies there for a length."""
    place = int(broker.send_message(broker.topic(), b"a").fields["msgId"][16:], 16)
    if not broker.apache:
        assert broker.ask(33, {"offset": str(place + 1)}).code == 1
