"""Topics, groups and settings (broker.md §16, §25, §26)."""

from __future__ import annotations

import json

import pytest

from tests.conformance.broker.connection import Connection, group_config, topic_fields
from tests.conformance.broker.differences import expected
from tests.conformance.peer import unique

CONFIG = {
    "attributes": {}, "order": False, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0, "writeQueueNums": 4,
}  # fmt: skip


def test_a_topic(broker: Connection) -> None:
    topic = broker.topic(queues=4)
    assert broker.ask(351, {"topic": topic}).json == {**CONFIG, "topicName": topic}
    assert broker.ask(21).json["topicConfigTable"][topic] == {**CONFIG, "topicName": topic}
    broker.topic(topic, queues=2, perm=4, order="true")
    found = broker.ask(351, {"topic": topic}).json
    assert found == {**CONFIG, "topicName": topic, "readQueueNums": 2, "writeQueueNums": 2, "perm": 4, "order": True}


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("", "The specified topic is blank."),
        ("a b", "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("a" * 128, f"The specified topic: {'a' * 128}, is longer than topic max length: 127"),
        ("TBW102", "The topic[TBW102] is conflict with system topic."),
        ("rmq_sys_mine", "The topic[rmq_sys_mine] is conflict with system topic."),
    ],
)
def test_topics_that_cannot_be(broker: Connection, name: str, remark: str) -> None:
    answer = broker.ask(17, topic_fields(name))
    assert (answer.code, answer.remark) == (29, remark)


@pytest.mark.parametrize(
    ("text", "new", "code", "remark"),
    [
        ("+message.type=NORMAL", True, 0, ""),
        ("+y=1", True, 1, "unsupported key: y"),
        ("+message.type", True, 1, "delete attribute format is wrong: +message.type"),
        ("-message.type=x", True, 1, "add/alter attribute format is wrong: -message.type"),
        ("-message.type", True, 1, "only add attribute is supported while creating topic. key: message.type"),
        ("-message.type", False, 1, "attempt to delete a nonexistent key: message.type"),
        ("-y", False, 1, "attempt to delete a nonexistent key: y"),
        ("+queue.type=BatchCQ", False, 1, "attempt to update an unchangeable attribute. key: queue.type"),
        ("+message.type=x", False, 1, "value is not in set: ["),
    ],
)
def test_attributes(broker: Connection, text: str, new: bool, code: int, remark: str) -> None:
    name = unique("T") if new else broker.topic()
    answer = broker.ask(17, topic_fields(name, attributes=text))
    assert answer.code == code
    assert code == 0 or (answer.remark or "").startswith(remark)


def test_a_topic_goes(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"x")
    at = {"consumerGroup": group, "topic": topic, "queueId": "0", "setZeroIfNotFound": "false"}
    broker.ask(15, {**at, "commitOffset": "1"})
    assert broker.ask(215, {"topic": topic}).code == 0
    answer = broker.ask(351, {"topic": topic})
    assert answer.code == 17
    broker.topic(topic)
    assert broker.max_offset(topic) == 0
    assert broker.ask(14, at).code == 22
    broker.sent(topic, b"y")
    assert broker.pull(topic).bodies == [b"y"]


@pytest.mark.parametrize("name", ["", "TBW102"])
def test_topics_that_do_not_go(broker: Connection, name: str) -> None:
    assert broker.ask(215, {"topic": name}).code == 29


def test_a_topic_that_no_name_can_be(broker: Connection) -> None:
    assert broker.ask(215, {"topic": "a b"}).code == expected(broker, "215 for what is no name")


def test_messages_of_a_topic_that_went(broker: Connection) -> None:
    topic = broker.topic()
    msg_id = broker.send_message(topic, b"x").fields["msgId"]
    broker.ask(215, {"topic": topic})
    assert broker.ask(33, {"offset": str(int(msg_id[16:], 16))}).code == expected(broker, "33 for a deleted topic")


def test_a_group(broker: Connection) -> None:
    name = broker.group(retryMaxTimes=3)
    found = broker.ask(352, {"group": name}).json
    assert (found["groupName"], found["retryMaxTimes"], found["retryQueueNums"]) == (name, 3, 1)
    table = broker.ask(201).json["subscriptionGroupTable"]
    assert table[name] == found
    assert broker.ask(207, {"groupName": name, "cleanOffset": "true"}).code == 0
    assert name not in broker.ask(201).json["subscriptionGroupTable"]


def test_a_group_that_goes_without_its_offsets(broker: Connection) -> None:
    name = broker.group(retryMaxTimes=3)
    assert broker.ask(207, {"groupName": name}).code == 0
    there = name in broker.ask(201).json["subscriptionGroupTable"]
    assert there == expected(broker, "a group is there after 207")


def test_a_group_is_made_when_it_is_looked_for(broker: Connection) -> None:
    name = unique("G")
    found = broker.ask(352, {"group": name}).json
    assert found == {
        "attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
        "consumeFromMinEnable": True, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15, "groupName": name,
        "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0, "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16, "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("", "The specified group is blank."),
        ("a b", "The specified group: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
    ],
)
def test_groups_that_cannot_be(broker: Connection, name: str, remark: str) -> None:
    answer = broker.ask(200, body=json.dumps(group_config(name)).encode())
    assert (answer.code, answer.remark) == (29, remark)


def test_what_a_broker_has_from_the_start(broker: Connection) -> None:
    table = broker.ask(21).json["topicConfigTable"]
    for name, queues, perm in (
        ("TBW102", 8, 7), ("SELF_TEST_TOPIC", 1, 6), ("BenchmarkTest", 1024, 6), ("OFFSET_MOVED_EVENT", 1, 6),
        ("DefaultCluster", 16, 7), ("broker-a", 1, 7), ("DefaultCluster_REPLY_TOPIC", 1, 6),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 1, 6), ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 6), ("rmq_sys_wheel_timer", 1, 6),
        ("rmq_sys_REVIVE_LOG_DefaultCluster", 8, 6), ("SCHEDULE_TOPIC_XXXX", 18, 6),
    ):  # fmt: skip
        assert (table[name]["writeQueueNums"], table[name]["perm"]) == (queues, perm), name
    groups = broker.ask(201).json["subscriptionGroupTable"]
    assert groups.keys() >= {
        "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS",
    }  # fmt: skip


def test_settings(broker: Connection) -> None:
    answer = broker.ask(26)
    settings = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert (settings["brokerName"], settings["traceOn"]) == ("broker-a", "true")
    assert json.loads(answer.fields["version"]).keys() == {"counter", "stateVersion", "timestamp"}
    assert broker.ask(25, body=b"traceOn=false\n").code == 0
    try:
        assert broker.send_message(broker.topic()).fields["TRACE_ON"] == "false"
    finally:
        assert broker.ask(25, body=b"traceOn=true\n").code == 0


def test_settings_that_no_request_changes(broker: Connection) -> None:
    answer = broker.ask(25, body=b"brokerConfigPath=/tmp/x\n")
    assert answer.code == 16
    assert broker.ask(25, body=b"listenPort=1\n").code == expected(broker, "25 with a name that is not live")


def test_figures_of_a_topic(broker: Connection) -> None:
    topic = broker.topic(queues=2)
    broker.sent(topic, b"x")
    body = broker.ask(202, {"topic": topic}).body
    assert b'"maxOffset":1' in body
    assert broker.ask(202, {"topic": "nobody"}).code == 17


def test_figures_of_a_broker(broker: Connection) -> None:
    table = broker.ask(28).json["table"]
    assert table.keys() >= {
        "bootTimestamp", "runtime", "brokerVersionDesc", "putTps", "getTransferredTps", "commitLogMaxOffset",
        "commitLogDiskRatio", "dispatchBehindBytes", "msgPutTotalTodayNow", "sendThreadPoolQueueSize",
        "pageCacheLockTimeMills", "earliestMessageTimeStamp", "timerReadBehind",
    }  # fmt: skip
    assert all(isinstance(value, str) for value in table.values())


def test_a_counter(broker: Connection) -> None:
    topic = broker.topic()
    broker.sent(topic, b"x", b"y")
    answer = broker.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": topic})
    assert answer.code == 0
    assert answer.json.keys() == {"statsMinute", "statsHour", "statsDay"}
    answer = broker.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "nobody"})
    assert (answer.code, answer.remark) == (1, "The stats <TOPIC_PUT_NUMS> <nobody> not exist")
