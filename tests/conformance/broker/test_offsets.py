"""Offsets of groups and of queues (broker.md §22, §28.2)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.broker.connection import Connection, consumer
from tests.conformance.broker.differences import expected
from tests.conformance.peer import unique


def at(group: str, topic: str, queue: int = 0, **more: str) -> dict[str, str]:
    return {"consumerGroup": group, "topic": topic, "queueId": str(queue), **more}


@pytest.mark.parametrize("offset", ["0", "7", "3", "-1"])
def test_a_commit_is_kept_whatever_it_says(broker: Connection, offset: str) -> None:
    topic, group = broker.topic(), broker.group()
    for value in ("5", offset):
        answer = broker.ask(15, at(group, topic, 9, commitOffset=value))
        assert (answer.code, answer.remark, answer.fields) == (0, None, {})
    answer = broker.ask(14, at(group, topic, 9))
    assert answer.code == (22 if offset == "-1" else 0)
    assert answer.fields == ({} if offset == "-1" else {"offset": offset})


def test_a_commit_without_an_answer(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.tell(15, at(group, topic, commitOffset="4"))
    broker.eventually(lambda: broker.ask(14, at(group, topic)).fields == {"offset": "4"})


def test_commits_that_are_refused(broker: Connection) -> None:
    topic, group, nobody = broker.topic(), broker.group(), unique("G")
    answer = broker.ask(15, at(nobody, topic, commitOffset="1"))
    assert (answer.code, answer.remark) == (26, f"Group {nobody} not exist!")
    answer = broker.ask(15, at(group, "nobody", commitOffset="1"))
    assert (answer.code, answer.remark) == (17, "Topic nobody not exist!")


def test_a_commit_while_a_reset_waits(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    reset = {"group": group, "topic": topic, "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "0"}
    assert broker.ask(222, reset).code == 0
    answer = broker.ask(15, at(group, topic, commitOffset="5"))
    assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
    assert broker.ask(14, at(group, topic)).fields == {"offset": "0"}


@pytest.mark.parametrize("zero", [None, "true", "false"])
def test_an_offset_that_nobody_committed(broker: Connection, zero: str | None) -> None:
    topic, group = broker.topic(queues=2), broker.group()
    more: dict[str, Any] = {} if zero is None else {"setZeroIfNotFound": zero}
    answer = broker.ask(14, at(group, topic, **more))
    if zero == "false":
        assert (answer.code, answer.remark) == (22, "Not found, do not set to zero, maybe this group boot first")
        return
    empty = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    assert (answer.code, answer.remark) == (22, empty)
    broker.sent(topic, b"x", queue=1)
    answer = broker.ask(14, at(group, topic, 1, **more))
    assert (answer.code, answer.fields) == (0, {"offset": "0"})


def test_bounds_of_a_queue(broker: Connection) -> None:
    topic = broker.topic()
    where = {"topic": topic, "queueId": "0"}
    assert [broker.ask(code, where).fields for code in (30, 31, 32)] == [
        {"offset": "0"}, {"offset": "0"}, {"timestamp": "-1"},
    ]  # fmt: skip
    broker.sent(topic, b"x", b"y")
    stored = broker.pull(topic).records[0].store_timestamp
    assert [broker.ask(code, where).fields for code in (30, 31, 32)] == [
        {"offset": "2"}, {"offset": "0"}, {"timestamp": str(stored)},
    ]  # fmt: skip
    assert broker.ask(30, {**where, "committed": "false"}).fields == {"offset": "2"}


@pytest.mark.parametrize("topic", ["nobody", None])
def test_bounds_of_a_queue_that_is_not_there(broker: Connection, topic: str | None) -> None:
    where = {"topic": topic or broker.topic(), "queueId": "99"}
    for code in (30, 31, 32, 29):
        answer = broker.ask(code, {**where, "timestamp": "5"})
        assert answer.code == 0
        assert answer.fields == ({"timestamp": "-1"} if code == 32 else {"offset": "0"})


@pytest.mark.parametrize("boundary", [None, "LOWER", "UPPER", "lower"])
def test_an_offset_by_time(broker: Connection, boundary: str | None) -> None:
    topic = broker.topic()
    for body in (b"0", b"1", b"2"):
        broker.sent(topic, body)
    times = [record.store_timestamp for record in broker.pull(topic).records]
    more = {} if boundary is None else {"boundaryType": boundary}

    def search(timestamp: int) -> int:
        fields = {"topic": topic, "queueId": "0", "timestamp": str(timestamp), **more}
        return int(broker.ask(29, fields).fields["offset"])

    assert search(0) == 0
    if boundary == "UPPER":
        assert search(times[2] + 1000) == search(times[2]) == 2
        assert search(times[0]) == times.count(times[0]) - 1
    else:
        assert search(times[2] + 1000) == 3
        assert search(times[2]) == times.index(times[2])
        assert search(times[0] - 1) == 0


def reset(broker: Connection, group: str, topic: str, **fields: str) -> tuple[int, str | None]:
    answer = broker.ask(222, {"group": group, "topic": topic, "timestamp": "0", "isForce": "true", **fields})
    return answer.code, answer.remark


def test_resets(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.sent(topic, b"0", b"1", b"2")
    for fields, offset in (
        ({"queueId": "0", "offset": "1"}, "1"), ({"queueId": "0", "timestamp": "-1"}, "3"), ({"queueId": "-1"}, "0"),
        ({}, "0"), ({"queueId": "0", "offset": "-1", "timestamp": "-1"}, "3"),
    ):  # fmt: skip
        assert reset(broker, group, topic, **fields) == (0, None)
        assert broker.ask(14, at(group, topic)).fields == {"offset": offset}


def test_resets_that_are_refused(broker: Connection) -> None:
    topic, group, nobody = broker.topic(), broker.group(), unique("G")
    broker.sent(topic, b"0")
    assert reset(broker, group, "nobody")[0] == 17
    assert reset(broker, nobody, topic)[0] == 26
    assert reset(broker, group, topic, queueId="0", offset="5") == (
        1, "Target offset 5 not in consume queue range [0-1]",
    )  # fmt: skip


def test_a_group_gets_the_offsets_of_another(broker: Connection) -> None:
    topic, source, target = broker.topic(), broker.group(), broker.group()
    broker.ask(15, at(source, topic, commitOffset="4"))
    fields = {"srcGroup": source, "destGroup": target, "offline": "false"}
    assert broker.ask(314, {**fields, "topic": topic}).code == 0
    assert broker.ask(14, at(target, topic)).fields == {"offset": "4"}
    broker.heartbeat("c1", consumer(source, broker.topic()))
    left = broker.group()
    assert broker.ask(314, {**fields, "destGroup": left, "topic": topic}).code == 0
    assert broker.ask(14, at(left, topic)).code == 22, "the group does not subscribe to it"
    broker.ask(35, {"clientID": "c1", "consumerGroup": source})
    other = broker.group()
    assert broker.ask(314, {**fields, "destGroup": other}).code == 0
    assert broker.ask(14, at(other, topic)).code == expected(broker, "offsets of all topics are copied")
