"""``send_batch`` of none, of one topic and of several: what leaves, what is returned, and what is said of a part."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from rocketcore.client.config import ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.sender import Sender
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import (
    ClientClosed,
    ConfigError,
    MessageIllegal,
    NoPermission,
    PartlyDone,
    PartlySent,
    RequestTimeout,
)
from rocketcore.message import Message, MessageQueue, SendStatus
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import SendMessageRequestHeaderV2
from rocketcore.transport.blocking.client import run_sync
from tests.unit.client.fakes import FakeRemoting, ManualRuntime, Outcome, answer_heartbeat_or_send, route

ROUTES = {"T": route("a"), "U": route("a"), "V": route("b")}


def sender(remoting: FakeRemoting, **options: Any) -> Sender:
    config = ProducerConfig(group="pg", retries=0, **options)
    return Sender(config, ClientInstance(config, remoting, ManualRuntime(remoting.clock)), remoting.clock)


def topic_of(request: RemotingCommand) -> str:
    return request.header(SendMessageRequestHeaderV2).topic


def sent_topics(remoting: FakeRemoting) -> list[str]:
    return [topic_of(request) for _, request in remoting.asked if request.code == RequestCode.SEND_BATCH_MESSAGE]


def refusing(*topics: str) -> Callable[[str, RemotingCommand], Outcome]:
    def serve(address: str, request: RemotingCommand) -> Outcome:
        if topic_of(request) in topics:
            return RemotingCommand.response(request, ResponseCode.NO_PERMISSION, "no")
        return answer_heartbeat_or_send(request)

    return serve


def test_none_is_fine() -> None:
    remoting = FakeRemoting(ROUTES)
    result = run_sync(sender(remoting).send_batch([]))
    assert list(result) == []
    assert (result.msg_ids, len(result), bool(result), result.status) == ((), 0, True, SendStatus.SEND_OK)
    assert run_sync(sender(remoting).send_batch(iter(()))) == result
    with pytest.raises(ConfigError, match="no message was sent"):
        _ = result.queue
    assert not remoting.asked


def test_one_topic_is_one_batch_with_the_first_messages_place() -> None:
    remoting = FakeRemoting(ROUTES)
    result = run_sync(sender(remoting).send_batch(Message("T", f"{i}") for i in range(3)))
    [one] = result
    assert sent_topics(remoting) == ["T"]
    assert result.msg_ids == one.msg_ids
    assert len(set(one.msg_ids)) == 3
    assert result.msg_id == one.msg_id == one.msg_ids[0]
    assert (result.queue, result.offset, result.offset_msg_id) == (one.queue, one.offset, one.offset_msg_id)
    assert "," not in one.offset_msg_id
    assert result[0] is one
    assert result[:1] == (one,)


def test_the_ids_of_a_single_message_are_its_own() -> None:
    one = run_sync(sender(FakeRemoting(ROUTES)).send("T", b"x"))
    assert one.msg_ids == (one.msg_id,)


def test_topics_and_groups_leave_as_batches_of_their_own() -> None:
    remoting = FakeRemoting(ROUTES)
    messages = [
        Message("U", b"0"),
        Message("T", b"1", message_group="g"),
        Message("U", b"2"),
        Message("V", b"3"),
        Message("T", b"4"),
        Message("T", b"5", message_group="g"),
    ]
    result = run_sync(sender(remoting).send_batch(messages))
    assert sent_topics(remoting) == ["U", "T", "V", "T"]
    assert [each.queue.topic for each in result] == ["U", "T", "V", "T"]
    ids = result.msg_ids
    assert [each.msg_ids for each in result] == [(ids[0], ids[2]), (ids[1], ids[5]), (ids[3],), (ids[4],)]
    for place, msg_id in enumerate(ids):
        body = next(request.body for _, request in remoting.asked if msg_id.encode() in request.body)
        assert str(place).encode() in body


def test_what_is_stored_and_what_is_not_is_said() -> None:
    remoting = FakeRemoting(ROUTES, refusing("T"))
    messages = [Message("U", b"0"), Message("T", b"1"), Message("V", b"2"), Message("T", b"3")]
    with pytest.raises(PartlySent) as raised:
        run_sync(sender(remoting).send_batch(messages))
    error = raised.value
    assert isinstance(error, PartlyDone)
    assert error.done == ("U", "V")
    assert list(error.failed) == ["T"]
    assert isinstance(error.failed["T"], NoPermission)
    assert error.unsent == (messages[1], messages[3])
    assert [each.queue.topic for each in error.results] == ["U", "V"]
    assert len(error.results.msg_ids) == 2
    assert "stored in U, V, not in T" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_where_nothing_is_stored_the_error_is_the_first_one() -> None:
    with pytest.raises(NoPermission):
        run_sync(sender(FakeRemoting(ROUTES, refusing("T", "U"))).send_batch([Message("T", b"1"), Message("U", b"2")]))


def test_all_batches_share_one_time() -> None:
    def slow(address: str, request: RemotingCommand) -> Outcome:
        remoting.clock.advance(2.0)
        return answer_heartbeat_or_send(request)

    remoting = FakeRemoting(ROUTES, slow)
    with pytest.raises(PartlySent) as raised:
        run_sync(sender(remoting).send_batch([Message(topic, b"x") for topic in "TUV"], timeout=3.0))
    assert raised.value.done == ("T", "U")
    assert isinstance(raised.value.failed["V"], RequestTimeout)
    assert sent_topics(remoting) == ["T", "U"]


@pytest.mark.parametrize(
    ("batch", "options", "kind", "said"),
    [
        ([Message("T", b"1"), Message("U", b"")], {}, MessageIllegal, "body is empty"),
        ([Message("T", b"1"), Message("U", b"2", delay=1)], {}, MessageIllegal, "a batch cannot contain"),
        ([Message("T", b"1"), "U"], {}, TypeError, "got str among them"),
        (
            [Message("T", b"1"), *(Message("U", bytes(600)) for _ in range(2))],
            {},
            MessageIllegal,
            "a batch of 2 messages to U has .* bytes, 1000 are allowed: it is stored as a whole",
        ),
        (
            [Message("T", b"1"), Message("U", b"2")],
            {"queue": MessageQueue("T", "a", 0)},
            ConfigError,
            "a queue is for one batch, got 2 of T, U",
        ),
    ],
)
def test_nothing_is_sent_before_all_is_checked(
    batch: list[Any], options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    remoting = FakeRemoting(ROUTES)
    with pytest.raises(kind, match=said):
        run_sync(sender(remoting, max_message_bytes=1000, batch_bytes=1000).send_batch(batch, **options))
    assert not remoting.asked


def test_a_closed_producer_takes_no_batch_not_even_an_empty_one() -> None:
    closed = sender(FakeRemoting(ROUTES))
    closed.refuse()
    with pytest.raises(ClientClosed):
        run_sync(closed.send_batch([]))
