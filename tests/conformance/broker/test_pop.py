"""POP (broker.md §25)."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable

import pytest

from tests.conformance.broker.connection import Answer, Connection, properties_of, topic_fields
from tests.conformance.broker.differences import expected

NO_NUMBERS = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}


def pop_fields(
    topic: str, group: str, queue: int = 0, *, count: int = 32, poll: int = 0, **more: str
) -> dict[str, str]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": str(queue), "maxMsgNums": str(count),
        "invisibleTime": "600000", "pollTime": str(poll), "bornTime": "0", "initMode": "0",
        "expType": "TAG", "exp": "*", "order": "false", **more,
    }  # fmt: skip


def handle_of(answer: Answer, queue: int, offset: int) -> str:
    said = answer.fields
    marker, said_queue, start = said["startOffsetInfo"].split()
    assert said_queue == str(queue)
    return f"{start} {said['popTime']} {said['invisibleTime']} {said['reviveQid']} {marker} broker-a {queue} {offset}"


def ack_fields(topic: str, group: str, answer: Answer, offset: int) -> dict[str, str]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": "0", "offset": str(offset),
        "extraInfo": handle_of(answer, 0, offset),
    }  # fmt: skip


def test_messages_are_handed_out_once(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0", b"1", b"2")
    answer = broker.ask(200050, pop_fields(topic, group, count=2))
    assert (answer.code, answer.remark, answer.bodies) == (0, "FOUND", [b"0", b"1"])
    assert (answer.fields["startOffsetInfo"], answer.fields["msgOffsetInfo"]) == ("0 0 0", "0 0 0,1")
    assert (answer.fields["restNum"], answer.fields["invisibleTime"]) == ("1", "600000")
    assert abs(int(answer.fields["popTime"]) - time.time() * 1000) < 10_000
    assert broker.ask(200050, pop_fields(topic, group)).bodies == [b"2"]
    answer = broker.ask(200050, pop_fields(topic, group))
    assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")
    assert (answer.fields["startOffsetInfo"], answer.fields["msgOffsetInfo"], answer.fields["restNum"]) == ("", "", "0")
    at = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    broker.eventually(lambda: broker.ask(14, at).fields == {"offset": "3"})


def test_a_pop_that_comes_late_takes_nothing(broker: Connection) -> None:
    """Half a second after it was made, beyond what it would have waited: who asked is not there any more."""
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0")
    answer = broker.ask(200050, pop_fields(topic, group, bornTime=str(int(time.time() * 1000) - 1000)))
    assert (answer.code, answer.bodies) == (210, [])
    assert (answer.remark or "").endswith("pop message is timeout too much")
    assert broker.ask(200050, pop_fields(topic, group)).bodies == [b"0"]


def test_a_first_pop_says_where_the_group_begins(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    assert broker.ask(200050, pop_fields(topic, group, initMode="1")).code == 210
    assert broker.ask(14, {"consumerGroup": group, "topic": topic, "queueId": "0"}).fields == {"offset": "0"}


def test_tags(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    for tag in ("red", "blue", "red"):
        broker.sent(topic, tag.encode(), said={"TAGS": tag})
    answer = broker.ask(200050, pop_fields(topic, group, exp="red"))
    assert (answer.bodies, answer.fields["msgOffsetInfo"]) == ([b"red", b"red"], "0 0 0,2")


def test_any_queue(broker: Connection) -> None:
    topic, group = broker.topic(queues=2), broker.group()
    broker.sent(topic, b"0", queue=0)
    broker.sent(topic, b"1", queue=1)
    answer = broker.ask(200050, pop_fields(topic, group, -1))
    assert sorted(answer.bodies) == [b"0", b"1"]
    assert sorted(answer.fields["msgOffsetInfo"].split(";")) == ["0 0 0", "0 1 0"]


def test_acknowledgements(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0", b"1")
    popped = broker.ask(200050, pop_fields(topic, group))
    for _ in range(2):
        answer = broker.ask(200051, ack_fields(topic, group, popped, 0))
        assert (answer.code, answer.remark, answer.fields) == (0, None, {})
    start, pop_time, invisible, revive, marker, name, queue, _ = handle_of(popped, 0, 1).split()
    ack = {
        "c": group, "t": topic, "r": marker, "so": int(start), "q": int(queue), "rq": int(revive), "pt": int(pop_time),
        "it": int(invisible), "b": base64.b64encode(b"\x02").decode(),
    }  # fmt: skip
    assert broker.ask(200151, body=json.dumps({"brokerName": name, "acks": [ack]}).encode()).code == 0


@pytest.mark.parametrize(
    ("change", "code"), [({"offset": "99"}, 208), ({"queueId": "9"}, 13), ({"topic": "nobody"}, 17)]
)
def test_acknowledgements_that_are_refused(broker: Connection, change: dict[str, str], code: int) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0")
    fields = {**ack_fields(topic, group, broker.ask(200050, pop_fields(topic, group)), 0), **change}
    assert broker.ask(200051, fields).code == code
    answer = broker.ask(200053, {**fields, "invisibleTime": "5000"})
    assert (answer.code, answer.fields) == (code, {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"})


def test_a_handle_that_is_none(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"x")
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "offset": "0", "extraInfo": "x"}
    assert broker.ask(200051, fields).code == 1
    assert broker.ask(200053, {**fields, "invisibleTime": "1"}).code == 1


def test_another_invisible_time(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0")
    popped = broker.ask(200050, pop_fields(topic, group))
    fields = ack_fields(topic, group, popped, 0)
    answer = broker.ask(200053, {**fields, "invisibleTime": "700000"})
    assert (answer.code, answer.fields["invisibleTime"]) == (0, "700000")
    assert int(answer.fields["popTime"]) > int(popped.fields["popTime"])
    ack = broker.ask(200051, fields)
    assert ack.code == 0


def test_another_invisible_time_of_what_was_acknowledged(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0")
    fields = ack_fields(topic, group, broker.ask(200050, pop_fields(topic, group)), 0)
    assert broker.ask(200051, fields).code == 0
    answer = broker.ask(200053, {**fields, "invisibleTime": "5000"})
    assert answer.code == expected(broker, "200053 of what was acknowledged")


def test_what_is_not_acknowledged_comes_again(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0", said={"KEYS": "k"})
    assert broker.ask(200050, pop_fields(topic, group, invisibleTime="2000")).bodies == [b"0"]
    found: list[Answer] = []

    def comes() -> bool:
        answer = broker.ask(200050, pop_fields(topic, group))
        if answer.records:
            found.append(answer)
        return bool(answer.records)

    broker.eventually(comes, 60.0)
    (record,) = found[0].records
    said = properties_of(record)
    assert (record.topic, record.reconsume_times, said["KEYS"]) == (topic.encode(), 1, "k")
    assert said["ORIGIN_GROUP"] == group
    assert said.keys() >= {"1ST_POP_TIME", "POP_CK"}
    assert said["POP_CK"].split()[4] == "1"
    assert found[0].fields["startOffsetInfo"].split()[:2] == ["1", "0"]


def test_in_order(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0", b"1")
    popped = broker.ask(200050, pop_fields(topic, group, count=1, order="true"))
    assert (popped.code, popped.bodies, popped.fields["reviveQid"]) == (0, [b"0"], "999")
    blocked = broker.ask(200050, pop_fields(topic, group, count=1, order="true"))
    assert (blocked.code, blocked.records) == (210, [])
    assert broker.ask(200051, ack_fields(topic, group, popped, 0)).code == 0
    assert broker.ask(200050, pop_fields(topic, group, count=1, order="true")).bodies == [b"1"]


def test_a_pop_waits(broker: Connection, connect: Callable[[], Connection]) -> None:
    topic, group, producer = broker.topic(), broker.group(), connect()
    opaque = broker.begin(200050, pop_fields(topic, group, poll=15_000))
    assert broker.is_silent(opaque, 0.5)
    producer.sent(topic, b"x")
    assert broker.end(opaque).bodies == [b"x"]


def test_a_pop_waits_in_vain(broker: Connection) -> None:
    answer = broker.ask(200050, pop_fields(broker.topic(), broker.group(), poll=1000))
    assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "nobody"}, 17), ({"queueId": "9"}, 29), ({"consumerGroup": "a b"}, 26), ({"maxMsgNums": "33"}, 29),
        ({"exp": "||"}, 23), ({"bornTime": "1"}, 210),
    ],
)  # fmt: skip
def test_what_is_refused(broker: Connection, change: dict[str, str], code: int) -> None:
    answer = broker.ask(200050, {**pop_fields(broker.topic(), broker.group()), **change})
    assert (answer.code, answer.fields) == (code, NO_NUMBERS)


def test_a_look_without_taking(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "maxMsgNums": "2"}
    assert broker.ask(200052, fields).code == 19
    broker.sent(topic, b"0", b"1", b"2")
    for _ in range(2):
        answer = broker.ask(200052, fields)
        assert (answer.code, answer.bodies) == (0, [b"0", b"1"])
    assert broker.ask(200052, {**fields, "maxMsgNums": "33"}).bodies == [b"0", b"1", b"2"]


def test_whether_there_is_something(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    fields = pop_fields(topic, group)
    assert broker.ask(200054, fields).fields["hasMsg"] == "false"
    broker.sent(topic, b"x")
    assert broker.ask(200054, fields).fields["hasMsg"] == "true"
    assert broker.ask(200055, fields).fields == {"pollingNum": "0"}


@pytest.mark.parametrize("code", [200052, 200054, 200055])
def test_refusals_of_the_others(broker: Connection, code: int) -> None:
    fields = pop_fields(broker.topic(perm=2), broker.group())
    answer = broker.ask(code, fields)
    assert answer.code == 16
    assert answer.remark == f"the topic[{fields['topic']}] peeking message is forbidden"
    assert answer.fields == {
        200052: NO_NUMBERS, 200054: {"hasMsg": "false", "pollingFull": "false"}, 200055: {"pollingNum": "0"},
    }[code]  # fmt: skip


def test_a_commit_of_a_group_that_pops(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0", b"1")
    assert len(broker.ask(200050, pop_fields(topic, group)).records) == 2
    at = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    broker.eventually(lambda: broker.ask(14, at).fields == {"offset": "2"})
    assert broker.ask(15, {**at, "commitOffset": "0"}).code == 0
    again = broker.ask(200050, pop_fields(topic, group))
    assert len(again.records) == expected(broker, "messages popped after a commit of 0")


def test_an_empty_queue_and_an_offset_behind_its_end(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    at = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    assert broker.ask(15, {**at, "commitOffset": "2"}).code == 0
    assert broker.ask(200050, pop_fields(topic, group)).code == 210
    stays = expected(broker, "the offset behind the end of an empty queue")
    broker.eventually(lambda: broker.ask(14, at).fields == {"offset": stays})


def test_who_asks_with_the_attempt_that_has_the_messages_is_told_of_them(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"x")
    assert broker.ask(200050, pop_fields(topic, group, order="true", attemptId="a")).bodies == [b"x"]
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "pollTime": "0", "bornTime": "0", "order": "true"}
    for attempt, has in (("a", "true"), ("b", "false")):
        assert broker.ask(200054, {**fields, "attemptId": attempt}).fields["hasMsg"] == has


def test_what_was_acknowledged_between_others_in_order(broker: Connection) -> None:
    """Of three the first and the third are acknowledged; the second comes again, and new messages behind it."""
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0", b"1", b"2", b"3")
    popped = broker.ask(200050, pop_fields(topic, group, count=3, order="true", invisibleTime="60000"))
    assert popped.bodies == [b"0", b"1", b"2"]
    for offset in (0, 2):
        assert broker.ask(200051, ack_fields(topic, group, popped, offset)).code == 0
    later = {**ack_fields(topic, group, popped, 1), "invisibleTime": "300"}
    assert broker.ask(200053, later).code == 0
    seen: list[list[bytes]] = []

    def comes() -> bool:
        seen.append(broker.ask(200050, pop_fields(topic, group, count=3, order="true")).bodies)
        return bool(seen[-1])

    broker.eventually(comes)
    assert seen[-1] == expected(broker, "popped again in order beside what was acknowledged")


def test_a_look_at_what_was_handed_out_in_order(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"x")
    assert broker.ask(200050, pop_fields(topic, group, order="true")).bodies == [b"x"]
    answer = broker.ask(200052, pop_fields(topic, group))
    assert answer.bodies == expected(broker, "a look at what was handed out in order")


@pytest.mark.parametrize("what", ["group", "topic"])
def test_what_was_handed_out_in_order_before_a_deletion(broker: Connection, what: str) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"x")
    assert broker.ask(200050, pop_fields(topic, group, order="true")).bodies == [b"x"]
    if what == "group":
        assert broker.ask(207, {"groupName": group, "cleanOffset": "true"}).code == 0
    else:
        assert broker.ask(215, {"topic": topic}).code == 0
        assert broker.ask(17, topic_fields(topic)).code == 0
        broker.sent(topic, b"x")
    again = broker.ask(200050, pop_fields(topic, group, order="true"))
    assert again.bodies == expected(broker, "popped in order before a deletion")
