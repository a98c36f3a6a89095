"""Lists of topics and groups, settings, and what a broker tells of all groups at once (broker.md §16, §28)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.broker.connection import Connection, group_config
from tests.conformance.broker.differences import expected
from tests.conformance.broker.seen import read
from tests.conformance.peer import unique


def topic_config(name: str, **more: Any) -> dict[str, Any]:
    return {
        "topicName": name, "readQueueNums": 2, "writeQueueNums": 3, "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": False, "attributes": {}, **more,
    }  # fmt: skip


def put_topics(broker: Connection, *topics: dict[str, Any]) -> tuple[int, str]:
    answer = broker.ask(18, {}, json.dumps({"topicConfigList": topics}).encode())
    return answer.code, answer.remark or ""


def put_groups(broker: Connection, *groups: dict[str, Any]) -> tuple[int, str]:
    answer = broker.ask(225, {}, json.dumps({"groupConfigList": groups}).encode())
    return answer.code, answer.remark or ""


def has_group(broker: Connection, name: str) -> bool:
    return name in broker.ask(201).json["subscriptionGroupTable"]


def test_several_topics(broker: Connection) -> None:
    one, two = unique("T"), unique("T")
    for _ in range(2):
        assert put_topics(broker, topic_config(one), topic_config(two, attributes={"+message.type": "FIFO"}))[0] == 0
        assert broker.ask(351, {"topic": one}).json == topic_config(one)
        found = broker.ask(351, {"topic": two}).json
        assert found == topic_config(two, attributes={"message.type": "FIFO"})
    assert put_topics(broker)[0] == 0


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("a b", "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("TBW102", "The topic[TBW102] is conflict with system topic."),
    ],
)
def test_a_name_that_cannot_be_refuses_all_topics(broker: Connection, name: str, remark: str) -> None:
    others = unique("T"), unique("T")
    first, last = (topic_config(each) for each in others)
    assert put_topics(broker, first, topic_config(name), last) == (29, remark)
    assert [broker.ask(351, {"topic": each}).code for each in others] == [17, 17]


def test_a_name_that_cannot_be_refuses_all_groups(broker: Connection) -> None:
    others = unique("G"), unique("G")
    first, last = (group_config(each) for each in others)
    assert put_groups(broker, first, group_config("a b"), last) == (
        29,
        "The specified group: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
    )
    assert [has_group(broker, each) for each in others] == [False, False]


def test_several_groups(broker: Connection) -> None:
    one, two = unique("G"), unique("G")
    for times in (3, 5):
        assert put_groups(broker, group_config(one), group_config(two, retryMaxTimes=times)) == (0, "")
        assert has_group(broker, one)
        assert broker.ask(352, {"group": two}).json["retryMaxTimes"] == times
    assert put_groups(broker) == (0, "")


@pytest.mark.parametrize("code", [18, 225])
@pytest.mark.parametrize("body", [b"", b"{", b"{}", b'{"topicConfigList":null,"groupConfigList":null}'])
def test_lists_that_are_none(broker: Connection, code: int, body: bytes) -> None:
    assert broker.ask(code, {}, body).code == 1


def test_attributes_of_a_group(broker: Connection) -> None:
    name = unique("G")
    assert put_groups(broker, group_config(name, attributes={"+priority.factor": "20"})) == (0, "")
    assert broker.ask(352, {"group": name}).json["attributes"] == {"priority.factor": "20"}
    broker.group(name, attributes={"-priority.factor": ""})
    assert broker.ask(352, {"group": name}).json["attributes"] == {}


@pytest.mark.parametrize(
    ("signed", "value", "remark"),
    [
        ("+y", "1", "unsupported key: y"),
        ("y", "1", "kv string format wrong"),
        ("-priority.factor", "", "only add attribute is supported while creating topic. key: priority.factor"),
        ("+priority.factor", "101", "value is not in range(0, 100)"),
        ("+lite.sub.model", "x", "value is not in set: ["),
    ],
)
def test_attributes_that_a_group_cannot_have(broker: Connection, signed: str, value: str, remark: str) -> None:
    config = group_config(unique("G"), attributes={signed: value})
    for code, body in ((200, config), (225, {"groupConfigList": [config]})):
        answer = broker.ask(code, body=json.dumps(body).encode())
        assert answer.code == 1
        assert remark in (answer.remark or "")
        assert not has_group(broker, config["groupName"])


def test_a_group_without_a_body(broker: Connection) -> None:
    assert broker.ask(200).code == expected(broker, "200 without a body")


def test_topics_of_the_system(broker: Connection) -> None:
    names = set(broker.ask(305).json["topicList"])
    assert names >= {
        "TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "DefaultCluster", "broker-a", "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "CHECKPOINT_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster",
        "DefaultCluster_REPLY_TOPIC",
    }  # fmt: skip
    container = "rmq_sys_SYNC_BROKER_MEMBER_broker-a" in names
    assert container == expected(broker, "305 names the topic of a container")


def test_settings_that_tools_look_for(broker: Connection) -> None:
    """What mqadmin's exportConfigs takes out of each broker's."""
    lines = broker.ask(26).body.decode().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    for name, value in (
        ("brokerClusterName", "DefaultCluster"), ("brokerId", "0"), ("brokerName", "broker-a"),
        ("brokerRole", "ASYNC_MASTER"), ("fileReservedTime", "72"), ("maxMessageSize", "4194304"),
        ("messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"),
        ("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC"), ("slaveReadEnable", "false"), ("traceTopicEnable", "false"),
        ("useTLS", "false"), ("autoCreateTopicEnable", "true"), ("autoCreateSubscriptionGroup", "true"),
    ):  # fmt: skip
        assert settings[name] == value, name


@pytest.mark.parametrize("body", [b"", b"# nothing\n", b"\n"])
def test_changes_of_settings_that_are_none(broker: Connection, body: bytes) -> None:
    before = broker.ask(26).body
    assert broker.ask(25, body=body).code == 0
    assert broker.ask(26).body == before


def test_a_setting_that_cannot_be_read(broker: Connection) -> None:
    answer = broker.ask(25, body=b"defaultTopicQueueNums=many\n")
    assert answer.code == expected(broker, "25 with a value that does not parse")
    assert b"defaultTopicQueueNums=8\n" in broker.ask(26).body


def test_a_change_of_settings_has_a_version(broker: Connection) -> None:
    def version() -> int:
        counter: int = json.loads(broker.ask(26).fields["version"])["counter"]
        return counter

    before = version()
    assert broker.ask(25, body=b"traceOn=true\nbrokerPermission=6\n").code == 0
    assert version() == before + 1


def test_the_offsets_of_all_groups(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.ask(15, {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "7"})
    body = read(broker.ask(43).body)
    offsets = body["offsetTable"][f"{topic}@{group}"]
    assert {int(queue_id): offset for queue_id, offset in offsets.items()} == {0: 7}
    assert body["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}
    assert body.keys() - {"offsetTable", "dataVersion"} == expected(broker, "what 43 has beside the offsets")


def test_positions_of_delay_levels(broker: Connection) -> None:
    topic = broker.topic()
    broker.send_message(topic, b"x", settle=False, said={"DELAY": "1"})
    broker.wait_for_offset(topic, 0, 1)
    broker.eventually(lambda: read(broker.ask(45).body)["offsetTable"].get("1", 0) >= 1)
    body = read(broker.ask(45).body)
    assert body.keys() == {"dataVersion", "offsetTable"}
    assert (len(body["offsetTable"]) == 18) == expected(broker, "45 has all levels")


@pytest.mark.parametrize("is_order", ["false", "true", None])
def test_where_all_groups_are(broker: Connection, is_order: str | None) -> None:
    topic, group = broker.topic(order="true" if is_order == "true" else "false"), broker.group()
    broker.sent(topic, b"x", b"y", b"z")
    broker.ask(15, {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"})
    body = read(broker.ask(317, {} if is_order is None else {"isOrder": is_order}).body)
    assert body.keys() == {"brokerAddr", "consumeStatsList", "totalDiff", "totalInflightDiff"}
    groups = {name: several for each in body["consumeStatsList"] for name, several in each.items()}
    assert groups.keys() >= {group, "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"}
    [stats] = groups[group]
    [progress] = stats["offsetTable"].values()
    assert (progress["brokerOffset"], progress["consumerOffset"]) == (3, 1)
    assert progress["lastTimestamp"] > 0
    assert progress["pullOffset"] == expected(broker, "the pull offset of 317")
    assert {type(body["totalDiff"]), type(body["totalInflightDiff"])} == {int}


def test_topics_without_order_are_no_ordered_topics(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.ask(15, {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"})
    groups = read(broker.ask(317, {"isOrder": "true"}).body)["consumeStatsList"]
    assert {group: []} in groups


@pytest.mark.parametrize("code", [306, 316, 329])
def test_cleaning_takes_nothing_that_is_used(broker: Connection, code: int) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"x", b"y")
    at = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    broker.ask(15, {**at, "commitOffset": "1"})
    answer = broker.ask(code)
    assert (answer.code, answer.remark, answer.fields, answer.body) == (0, None, {}, b"")
    assert broker.pull(topic).bodies == [b"x", b"y"]
    assert broker.ask(14, at).fields == {"offset": "1"}


@pytest.mark.parametrize("code", [13, 22, 23, 27, 47, 209, 210, 211, 212, 213, 214, 301, 302])
def test_codes_that_nobody_serves(broker: Connection, code: int) -> None:
    answer = broker.ask(code, {"topic": "T", "group": "g", "consumerGroup": "g"})
    assert (answer.code, answer.remark, answer.fields) == (3, f" request type {code} not supported", {})
