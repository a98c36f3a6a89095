"""Answers to sends: when they leave, what they say, what counts as pending."""

from __future__ import annotations

from typing import cast

import pytest

from rocketcore.broker.processors.acknowledge import Acknowledger, SendReply
from rocketcore.broker.store import MessageStore, PutStatus
from rocketcore.codes import SerializeType
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.service import ManualClock
from rocketcore.transport.channel import Channel
from rocketcore.transport.slow_requests import SlowRequests
from tests.unit.broker.fakes import FakeChannel, FakeStore


def reply(opaque: int, *, serialize_type: int = SerializeType.JSON, unique: bytes | None = b"U" * 32) -> SendReply:
    return opaque, int(serialize_type), 3, 40 + opaque, b"M" * 32, unique


class Scene:
    def __init__(self, *, trace_on: bool = True) -> None:
        self.store = FakeStore(ManualClock())
        self.channel = FakeChannel()
        self.acknowledger = Acknowledger(cast(MessageStore, self.store), "Region-1", lambda: trace_on)

    def wait(self, size: int, *replies: SendReply) -> None:
        self.acknowledger.reply_when_durable(cast(Channel, self.channel), 100, size, replies)

    @property
    def pending(self) -> int:
        return self.acknowledger.pending_bytes(cast(Channel, self.channel))

    def answers(self) -> list[RemotingCommand]:
        return FrameDecoder().feed(b"".join(self.channel.written))


def test_answers_wait_for_the_disk_and_leave_together() -> None:
    scene = Scene()
    scene.wait(500, reply(1), reply(2))
    assert (scene.channel.written, scene.pending) == ([], 500)
    scene.store.flush()
    assert len(scene.channel.written) == 1
    assert scene.pending == 0
    assert [answer.opaque for answer in scene.answers()] == [1, 2]


@pytest.mark.parametrize("serialize_type", list(SerializeType))
@pytest.mark.parametrize("unique", [b"U" * 32, None])
@pytest.mark.parametrize("trace_on", [True, False])
def test_what_a_success_says(serialize_type: SerializeType, unique: bytes | None, trace_on: bool) -> None:
    scene = Scene(trace_on=trace_on)
    scene.wait(1, reply(7, serialize_type=serialize_type, unique=unique))
    scene.store.flush()
    [answer] = scene.answers()
    assert (answer.code, answer.opaque, answer.is_response, answer.serialize_type) == (0, 7, True, serialize_type)
    expected = {
        "msgId": "M" * 32,
        "queueId": "3",
        "queueOffset": "47",
        "MSG_REGION": "Region-1",
        "TRACE_ON": "true" if trace_on else "false",
    }
    if unique is not None:
        expected["transactionId"] = unique.decode()
    assert answer.ext_fields == expected


def test_a_slow_disk_is_told_with_the_place_of_the_message() -> None:
    scene = Scene()
    scene.wait(1, reply(1))
    scene.store.flush(PutStatus.FLUSH_DISK_TIMEOUT)
    [answer] = scene.answers()
    assert (answer.code, (answer.ext_fields or {})["queueOffset"]) == (10, "41")


def test_a_failed_write_is_never_a_success() -> None:
    scene = Scene()
    scene.wait(1, reply(1))
    scene.store.flush(PutStatus.SERVICE_NOT_AVAILABLE)
    [answer] = scene.answers()
    assert answer.code == 14
    assert "could not be written" in (answer.remark or "")
    assert "msgId" not in (answer.ext_fields or {})


def test_a_closed_connection_gets_nothing_and_owes_nothing() -> None:
    scene = Scene()
    scene.wait(300, reply(1))
    scene.wait(200)
    assert scene.pending == 500
    scene.channel.closed = True
    scene.store.flush()
    assert (scene.channel.written, scene.pending) == ([], 0)


def test_one_way_sends_count_without_an_answer() -> None:
    scene = Scene()
    scene.wait(300)
    assert scene.pending == 300
    scene.store.flush()
    assert (scene.channel.written, scene.pending) == ([], 0)


def test_a_slow_disk_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = FakeStore(ManualClock()), ManualClock()
    slow = SlowRequests(500, clock)
    acknowledger = Acknowledger(cast(MessageStore, store), "R", lambda: True, slow=slow, clock=clock)
    for seconds in (0.4, 0.6):
        acknowledger.reply_when_durable(cast(Channel, FakeChannel()), 100, 10, (reply(1), reply(2)), topic="orders")
        clock.advance(seconds)
        store.flush()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("slow request=SEND_MESSAGE remote=")
    assert line.endswith(" topic=orders group=- requests=2 disk_ms=600 unsaid=0")
    assert slow.count == 2
