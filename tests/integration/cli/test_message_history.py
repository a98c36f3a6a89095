"""``rocket message status``, ``trace`` and ``resend``: a message on its way through groups."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rocketcore.admin.client import Admin, AsyncAdmin
from rocketcore.admin.history import MessageState
from rocketcore.client.sync import Producer, PushConsumer
from rocketcore.errors import ConsumerNotOnline
from rocketcore.local import LocalCluster
from rocketcore.message import MessageQueue, ReceivedMessage, RetryLater
from tests.fixtures.commands import Rocket


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.05)


def shown(rocket: Rocket, *arguments: str) -> Any:
    code, out, err = rocket(*arguments, "-o", "json")
    assert code == 0, err
    return json.loads(out)


def states(rocket: Rocket, message: ReceivedMessage) -> dict[str, tuple[str, int]]:
    rows = shown(rocket, "message", "status", message.msg_id, "--topic", message.topic)
    return {row["group"]: (row["state"], row["failed"]) for row in rows}


@pytest.fixture
def message(cluster: LocalCluster, topic: str) -> ReceivedMessage:
    """The third message of the topic's first queue."""
    with Admin(cluster.namesrv) as admin:
        return admin.message_at(MessageQueue(topic, "broker-a", 0), 2)


def test_groups_that_have_and_have_not_come_to_it(
    rocket: Rocket, cluster: LocalCluster, message: ReceivedMessage
) -> None:
    assert states(rocket, message) == {}
    with Admin(cluster.namesrv) as admin:
        for group, offset in (("history-behind", 2), ("history-past", 3)):
            admin.create_group(group)
            admin.update_consumer_offset(group, message.queue, offset)
    found = {"history-behind": ("not_yet", 0), "history-past": ("consumed", 0)}
    assert states(rocket, message) == found
    by_place = shown(rocket, "message", "status", message.offset_msg_id)
    assert {row["group"]: (row["state"], row["failed"]) for row in by_place} == found
    [row] = shown(rocket, "message", "status", message.msg_id, "--topic", message.topic, "-g", "history-behind")
    assert row == {
        "msg_id": message.msg_id, "topic": message.topic, "broker": "broker-a", "queue_id": 0, "offset": 2,
        "group": "history-behind", "state": "not_yet", "group_offset": 2, "failed": 0, "members": 0,
    }  # fmt: skip
    assert rocket("message", "status", "k2")[0] == 2
    assert rocket("message", "status", "0" * 32, "--topic", message.topic)[0] == 3
    assert rocket("message", "status", message.msg_id, "--topic", message.topic, "-g", "nobody")[0] == 3


def test_a_message_that_a_group_fails_for(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    with Admin(cluster.namesrv) as admin:
        failing = admin.message_at(MessageQueue(topic, "broker-a", 0), 1)
    consumer = PushConsumer(cluster.namesrv, group="history-failing", start_from="first", max_reconsume_times=1)
    let_go = threading.Event()

    @consumer.subscribe(topic)
    def consume(message: ReceivedMessage) -> None:
        if message.msg_id == failing.msg_id:
            if message.reconsume_times:
                let_go.wait(20)
            raise RetryLater(delay=1)

    with consumer:
        eventually(lambda: states(rocket, failing).get("history-failing") == ("retry", 1))
        let_go.set()
        eventually(lambda: states(rocket, failing).get("history-failing", ("", 0))[0] == "dead_letter")


def test_one_consumer_gets_it_again(rocket: Rocket, cluster: LocalCluster, message: ReceivedMessage) -> None:
    group = "history-again"
    again = ("message", "resend", message.msg_id, "--topic", message.topic, "-g", group)
    assert rocket(*again)[0] == 3
    with Admin(cluster.namesrv) as admin:
        admin.create_group(group)
        admin.update_consumer_offset(group, message.queue, 5)
    seen: list[str] = []
    consumer = PushConsumer(cluster.namesrv, group=group, start_from="last")

    @consumer.subscribe(message.topic)
    def consume(received: ReceivedMessage) -> None:
        seen.append(received.msg_id)
        if len(seen) > 1:
            raise ValueError("not again")

    with consumer, Admin(cluster.namesrv) as admin:
        eventually(lambda: len(admin.group_members(group)) == 1)
        result = shown(rocket, *again)
        assert (result["result"], result["msg_id"], seen) == ("CR_SUCCESS", message.msg_id, [message.msg_id])
        code, out, _ = rocket(*again, "--client", result["client_id"], "-o", "json")
        assert code == 1
        assert json.loads(out)["result"] in ("CR_LATER", "CR_THROW_EXCEPTION")
        assert rocket(*again, "--client", "nobody")[0] != 0

        async def ask() -> None:
            async with AsyncAdmin(cluster.namesrv) as asyncio_admin:
                with pytest.raises(ConsumerNotOnline):
                    await asyncio_admin.consume_directly(group, "nobody", message)
                states = await asyncio_admin.message_states(message)
                assert [each.members for each in states if each.group == group] == [1]
                assert all(each.state is not MessageState.RETRY for each in states)

        asyncio.run(ask())


def test_traces_of_a_message(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.namesrv, group="tracing", trace=True) as producer:
        result = producer.send(topic, b"traced", keys="traced-1")
    with PushConsumer(cluster.namesrv, group="traced-by", start_from="first", trace=True) as consumer:
        consumer.subscribe(topic)
        for received in consumer:
            received.ack()
            if received.msg_id == result.msg_id:
                break
    rows = shown(rocket, "message", "trace", result.msg_id)
    assert [row["event"] for row in rows] == ["sent", "handed out", "consumed"]
    assert [row["group"] for row in rows] == ["tracing", "traced-by", "traced-by"]
    assert all(row["success"] is not False and row["at"].endswith("Z") for row in rows)
    assert [row["event"] for row in shown(rocket, "message", "trace", "traced-1")] == [row["event"] for row in rows]
    code, _, err = rocket("message", "trace", "untraced", "-o", "json")
    assert (code, json.loads(err)["error"]["code"]) == (3, "NOT_FOUND")
    code, _, err = rocket("message", "trace", "x", "--trace-topic", "nothing")
    assert (code, "no client has traced 'x' in nothing" in err) == (3, True), "no topic: nobody has traced anything"
