"""What a tool asks a consumer through its broker: 223, 307, 309; where a group is: 303, 308, 345 (broker.md §28)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.broker.connection import Answer, Connection, consumer, heartbeat_body
from tests.conformance.broker.differences import expected
from tests.conformance.broker.seen import read
from tests.conformance.peer import json_frame, unique

Connect = Callable[[], Connection]
OLD = 20
"""Version of a client that none of these can be asked of."""


def relayed(
    broker: Connection, member: Connection, code: int, fields: dict[str, str], answer: dict[str, Any], body: bytes = b""
) -> tuple[Answer, Answer]:
    """Ask through the broker; return what the tool hears, and what the client was asked."""
    opaque = broker.begin(code, fields)
    asked = member.hears(221 if code == 223 else code)
    header = {"code": 0, "language": "JAVA", "version": 477, "opaque": member.last_asked, "flag": 1, **answer}
    member.send(json_frame(header, body))
    return broker.end(opaque), asked


def member_of(connect: Connect, group: str, topic: str, client_id: str = "m1", *, version: int = 513) -> Connection:
    member = connect()
    assert member.ask(34, body=heartbeat_body(client_id, [consumer(group, topic)]), version=version).code == 0
    return member


@pytest.mark.parametrize(
    ("answer", "body"),
    [({"code": 0, "remark": "r", "extFields": {"x": "y"}}, b"{odd"), ({"code": 1, "remark": "no"}, b"")],
)
def test_running_info(broker: Connection, connect: Connect, answer: dict[str, Any], body: bytes) -> None:
    """The client's answer is the tool's, whatever it is."""
    topic, group = broker.topic(), broker.group()
    member = member_of(connect, group, topic)
    fields = {"consumerGroup": group, "clientId": "m1", "jstackEnable": "true"}
    heard, asked = relayed(broker, member, 307, fields, answer, body)
    assert heard == Answer(answer["code"], answer["remark"], answer.get("extFields", {}), body)
    assert (asked.fields, asked.body) == (fields, b"")


@pytest.mark.parametrize("named", [{}, {"topic": "other", "brokerName": "other"}])
def test_a_message_to_consume_now(broker: Connection, connect: Connect, named: dict[str, str]) -> None:
    topic, group = broker.topic(), broker.group()
    msg_id = broker.send_message(topic, b"by hand").fields["msgId"]
    member = member_of(connect, group, topic)
    fields = {"consumerGroup": group, "clientId": "m1", "msgId": msg_id, **named}
    heard, asked = relayed(broker, member, 309, fields, {"remark": None}, b"{}")
    assert heard == Answer(0, None, {}, b"{}")
    assert {"groupSysFlag": "0", **asked.fields} == {**fields, "brokerName": "broker-a", "groupSysFlag": "0"}
    assert asked.bodies == [b"by hand"]


@pytest.mark.parametrize("code", [307, 309])
def test_who_is_not_online(broker: Connection, connect: Connect, code: int) -> None:
    topic, group = broker.topic(), broker.group()
    msg_id = broker.send_message(topic, b"x").fields["msgId"]
    fields = {"consumerGroup": group, "clientId": "m1", "msgId": msg_id, "jstackEnable": "false"}
    for _ in range(2):
        answer = broker.ask(code, fields)
        assert (answer.code, answer.remark) == (1, f"The Consumer <{group}> <m1> not online")
        member_of(connect, group, topic, "m2")


def test_who_is_too_old(broker: Connection, connect: Connect) -> None:
    topic, group = broker.topic(), broker.group()
    member_of(connect, group, topic, version=OLD)
    version = expected(broker, "the version of a client in remarks")
    answer = broker.ask(307, {"consumerGroup": group, "clientId": "m1", "jstackEnable": "false"})
    assert (answer.code, answer.remark) == (
        1,
        f"The Consumer <m1> Version <{version}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT",
    )
    answer = broker.ask(223, {"topic": topic, "group": group})
    assert (answer.code, answer.remark) == (1, f"the client does not support this feature. version={version}")


@pytest.mark.parametrize("msg_id", ["", "x", "F" * 31, "7F00000100002A9F" + "0000010000000000"])
def test_a_message_that_is_not_there(broker: Connection, connect: Connect, msg_id: str) -> None:
    topic, group = broker.topic(), broker.group()
    member = member_of(connect, group, topic)
    assert broker.ask(309, {"consumerGroup": group, "clientId": "m1", "msgId": msg_id}).code == 1
    assert [each.code for each in member.told if each.code == 309] == []


@pytest.mark.parametrize("who", [{}, {"clientAddr": "m1"}, {"clientAddr": ""}])
def test_where_clients_are(broker: Connection, connect: Connect, who: dict[str, str]) -> None:
    topic, group = broker.topic(), broker.group()
    member = member_of(connect, group, topic)
    queue = f'{{"brokerName":"broker-a","queueId":0,"topic":"{topic}"}}'
    body = f'{{"messageQueueTable":{{{queue}:7}}}}'.encode()
    heard, asked = relayed(broker, member, 223, {"topic": topic, "group": group, **who}, {"remark": None}, body)
    assert asked.fields == {"topic": topic, "group": group}
    assert heard.code == 0
    assert heard.body == f'{{"consumerTable":{{"m1":{{{queue}:7}}}},"messageQueueTable":{{}}}}'.encode()


def test_where_clients_are_that_do_not_say(broker: Connection, connect: Connect) -> None:
    topic, group = broker.topic(), broker.group()
    member = member_of(connect, group, topic)
    fields = {"topic": topic, "group": group}
    heard, _ = relayed(broker, member, 223, fields, {"code": 1, "remark": "no"})
    assert (heard.code, heard.json) == (0, {"consumerTable": {}, "messageQueueTable": {}})
    answer = broker.ask(223, {**fields, "clientAddr": "nobody"})
    assert (answer.code, answer.json) == (0, {"consumerTable": {}, "messageQueueTable": {}})
    assert broker.ask(223, {"topic": topic, "group": unique("G")}).code == 1


def spans(broker: Connection, topic: str, group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.ask(303, {"topic": topic, "group": group}).json["consumeTimeSpanSet"]
    return sorted(found, key=lambda each: each["messageQueue"]["queueId"])


def test_the_time_that_a_group_is_behind(broker: Connection) -> None:
    topic, group = broker.topic(queues=2), broker.group()
    broker.sent(topic, b"a", b"b")
    times = [record.store_timestamp for record in broker.pull(topic).records]
    broker.ask(15, {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"})
    span, empty = spans(broker, topic, group)
    assert span["messageQueue"] == {"brokerName": "broker-a", "queueId": 0, "topic": topic}
    assert [span[f"{name}TimeStamp"] for name in ("min", "max", "consume")] == [times[0], times[1], times[0]]
    assert 0 <= span["delayTime"] <= time.time() * 1000 - times[1] + 1000
    assert [empty[f"{name}TimeStamp"] for name in ("min", "max", "consume")] == [-1, -1, -1]
    assert ("minTimeStampStr" in span) == expected(broker, "times of 303 as texts")
    assert (empty["delayTime"] > 1 << 40) == expected(broker, "the delay of a group without offsets is its age")
    broker.ask(15, {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "2"})
    assert spans(broker, topic, group)[0]["delayTime"] == 0


def test_the_time_of_a_group_without_offsets(broker: Connection) -> None:
    topic = broker.topic()
    broker.sent(topic, b"a")
    [span] = spans(broker, topic, unique("G"))
    assert span["consumeTimeStamp"] == span["minTimeStamp"]
    assert (span["delayTime"] > 1 << 40) == expected(broker, "the delay of a group without offsets is its age")


def test_the_time_of_what_is_not_named(broker: Connection) -> None:
    name = unique("T")
    answer = broker.ask(303, {"topic": name, "group": "g"})
    assert (answer.code, answer.remark) == (17, f"topic[{name}] not exist")
    assert broker.ask(303, {"topic": broker.topic()}).code == expected(broker, "303 without a group")


def corrections(broker: Connection, **fields: str) -> dict[str, int]:
    found: dict[str, int] = read(broker.ask(308, fields).body)["correctionOffsets"]
    return found


def test_the_slowest_group_of_a_topic(broker: Connection) -> None:
    topic, slow, fast = broker.topic(queues=2), broker.group(), broker.group()
    for group, offset in ((slow, "1"), (fast, "3")):
        broker.ask(15, {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": offset})
    assert corrections(broker, topic=topic, compareGroup=fast) == {"0": 1}
    assert corrections(broker, topic=topic, compareGroup=slow) == {"0": 1}
    assert corrections(broker, topic=topic, compareGroup=unique("G")) == {"0": 1}
    assert corrections(broker, topic=unique("T"), compareGroup=slow) == {}
    assert corrections(broker, topic=topic, compareGroup=fast, filterGroups=f"{unique('G')},{slow}") == {"0": 3}
    after = corrections(broker, topic=topic, compareGroup=fast)
    assert after == {"0": expected(broker, "the slowest group after filterGroups named it")}
    assert broker.ask(308, {}).code == 1


def test_the_subscription_of_a_group(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.heartbeat("c1", consumer(group, topic, tags="a || b", version=3))
    found = broker.ask(345, {"group": group, "topic": topic}).json
    said = found.pop("subscriptionData")
    assert found == {"group": group, "topic": topic}
    assert (said["subString"], sorted(said["tagsSet"]), said["subVersion"]) == ("a || b", ["a", "b"], 3)
    for fields in ({"group": group, "topic": "other"}, {"group": unique("G"), "topic": topic}):
        answer = broker.ask(345, fields)
        assert (answer.code, answer.remark, answer.json) == (0, None, fields)
    for fields in ({"group": group}, {"topic": topic}):
        assert broker.ask(345, fields).code == 1
