"""Hooks around sends and consumptions, and the traces that are made of what they see."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from rocketcore.client import trace as trace_module
from rocketcore.client.config import ClientConfig, ConsumerConfig, ProducerConfig
from rocketcore.client.hooks import ConsumeContext, SendContext
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.sender import Sender
from rocketcore.client.trace import MOST_QUEUED, Tracer
from rocketcore.client.watched import Watched
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import ConfigError, ConnectionLost, NoPermission
from rocketcore.message import ConsumeResult, Message, MessageQueue, ReceivedMessage, TransactionState
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.trace import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TracedKind,
    decode_traces,
)
from rocketcore.service import ManualClock
from tests.unit.client.fakes import FakeRemoting, Outcome, answer_heartbeat_or_send, route, stored


class Seeing:
    """A hook that keeps what it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def before_send(self, context: SendContext) -> None:
        self.seen.append(("before", context.result))

    def after_send(self, context: SendContext) -> None:
        self.seen.append(("after", context.error or context.result))

    def before_consume(self, context: ConsumeContext) -> None:
        self.seen.append(("handed", context.message))

    def after_consume(self, context: ConsumeContext) -> None:
        self.seen.append(("done", (context.result, context.seconds)))


class Failing(Seeing):
    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self._error = error or ValueError("no")

    def before_send(self, context: SendContext) -> None:
        raise self._error


class SentTraces:
    """In place of the producer of traces."""

    sent: list[Message]
    arrived: threading.Semaphore

    def __init__(self, *, config: ProducerConfig) -> None:
        type(self).config = config  # type: ignore[attr-defined]

    def send(self, topic: Message) -> None:
        type(self).sent.append(topic)
        type(self).arrived.release()

    def close(self) -> None:
        pass


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> type[SentTraces]:
    SentTraces.sent, SentTraces.arrived = [], threading.Semaphore(0)
    monkeypatch.setattr("rocketcore.client.watched.Producer", SentTraces)
    return SentTraces


def sender(*hooks: Any, answer: Any = None) -> Sender:
    def serve(address: str, request: RemotingCommand) -> Outcome:
        return answer(request) if answer is not None else answer_heartbeat_or_send(request)

    config = ProducerConfig(group="pg", hooks=hooks, retries=0)
    remoting = FakeRemoting({"T": route("a")}, serve)
    clock = ManualClock()
    return Sender(config, ClientInstance(config, remoting, ASYNCIO, clock=clock), clock)


def received(**properties: str) -> ReceivedMessage:
    return ReceivedMessage("T", b"x", MessageQueue("T", "a", 0), 7, "ID", "OID", properties, reconsume_times=2)


def test_a_send_is_seen_before_and_after() -> None:
    hook = Seeing()
    result = asyncio.run(sender(hook).send("T", b"x"))
    assert hook.seen == [("before", None), ("after", result)]


def test_a_send_that_failed_is_seen_too() -> None:
    hook = Seeing()

    def refuse(request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, ResponseCode.NO_PERMISSION, "no")

    with pytest.raises(NoPermission):
        asyncio.run(sender(hook, answer=refuse).send("T", b"x"))
    assert [point for point, _ in hook.seen] == ["before", "after"]
    assert isinstance(hook.seen[1][1], NoPermission)


@pytest.mark.parametrize("hook", [Failing(), Failing(SystemExit(3)), Failing(asyncio.CancelledError())])
def test_a_hook_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture, hook: Failing) -> None:
    with caplog.at_level(logging.ERROR):
        assert asyncio.run(sender(hook).send("T", b"x"))
    assert "hook failed" in caplog.text


def test_a_consumption_is_seen_before_and_after() -> None:
    hook, clock, message = Seeing(), ManualClock(), received()
    watched = Watched(ConsumerConfig(group="cg", hooks=[hook]), clock)
    watched.handed([message])
    clock.advance(2.0)
    watched.settled(message, ConsumeResult.RETRY)
    watched.settled(message, ConsumeResult.RETRY)
    assert hook.seen == [("handed", message), ("done", (ConsumeResult.RETRY, 2.0))]


class Half:
    def before_send(self, context: SendContext) -> None:
        pass


class Awaited(Half):
    async def after_send(self, context: SendContext) -> None:
        pass


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (object(), "before_request and after_response or before_send and after_send or before_consume and"),
        (Half(), "has no after_send"),
        (Awaited(), "after_send of a hook is a plain function"),
        (Seeing, "a hook must be an object, got the class Seeing"),
    ],
)
def test_what_would_fail_around_a_send_is_refused(hook: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ClientConfig(hooks=[hook])


def test_hooks_of_sends_are_none_of_connections() -> None:
    assert ClientConfig(hooks=[Seeing()]).remoting["hooks"] == ()


def sent_traces(traces: type[SentTraces]) -> list[Trace]:
    return [trace for message in traces.sent for trace in decode_traces(message.body)]


def test_sends_are_traced(traces: type[SentTraces]) -> None:
    def answer(request: RemotingCommand) -> RemotingCommand:
        response = stored(request) if request.code != RequestCode.HEART_BEAT else RemotingCommand.response(request)
        if response.ext_fields:
            response.ext_fields |= {"MSG_REGION": "north", "TRACE_ON": "true"}
        return response

    producer = sender(answer=answer)
    producer._trace_with(Tracer(producer.config, "PRODUCE", traces))
    result = asyncio.run(producer.send("T", b"hello", tag="a", keys=["k1", "k2"], message_group="g"))
    producer._end_traces()
    [trace] = sent_traces(traces)
    assert isinstance(trace, PubTrace)
    assert (trace.region, trace.group, trace.topic, trace.msg_id) == ("north", "pg", "T", result.msg_id)
    assert (trace.kind, trace.keys, trace.store_host) == (TracedKind.ORDER, "k1 k2", "a:1")
    [message] = traces.sent
    assert (message.topic, message.keys) == ("RMQ_SYS_TRACE_TOPIC", (result.msg_id, "k1", "k2"))
    assert traces.config.group.startswith("_INNER_TRACE_PRODUCER-pg-PRODUCE-")  # type: ignore[attr-defined]


def test_a_send_without_an_answer_is_traced_once_it_has_left(
    traces: type[SentTraces], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = sender()
    producer._trace_with(Tracer(producer.config, "PRODUCE", traces))
    asyncio.run(producer.send_oneway("T", b"hello", keys="k"))

    async def cut(address: str, command: RemotingCommand, timeout: float) -> None:
        raise ConnectionLost("cut")

    monkeypatch.setattr(FakeRemoting, "invoke_oneway", staticmethod(cut))
    with pytest.raises(ConnectionLost):
        asyncio.run(producer.send_oneway("T", b"lost"))
    producer._end_traces()
    [trace] = sent_traces(traces)
    assert isinstance(trace, PubTrace)
    assert (trace.topic, trace.keys, trace.store_host, trace.body_length) == ("T", "k", "a:1", 5)
    assert (trace.offset_msg_id, trace.success) == (None, True)
    assert len(trace.msg_id) == 32


def test_a_broker_can_switch_traces_off(traces: type[SentTraces]) -> None:
    def answer(request: RemotingCommand) -> RemotingCommand:
        response = stored(request)
        response.ext_fields = {**(response.ext_fields or {}), "TRACE_ON": "false"}
        return response

    producer = sender(answer=answer)
    producer._trace_with(Tracer(producer.config, "PRODUCE", traces))
    asyncio.run(producer.send("T", b"hello"))
    producer._end_traces()
    assert traces.sent == []


def test_consumptions_are_traced(traces: type[SentTraces]) -> None:
    async def consume() -> None:
        clock, message = ManualClock(), received(KEYS="k", MSG_REGION="north")
        untraced = received(TRACE_ON="false")
        watched = Watched(ConsumerConfig(group="cg", trace=True), clock)
        watched.handed([message, untraced])
        clock.advance(0.25)
        watched.settled(message, ConsumeResult.RETRY)
        watched.settled(untraced, ConsumeResult.SUCCESS)
        await watched.close()

    asyncio.run(consume())
    before, after = sent_traces(traces)
    assert isinstance(before, SubBeforeTrace)
    assert isinstance(after, SubAfterTrace)
    assert (before.region, before.group, before.retry_times, before.keys) == ("north", "cg", 2, "k")
    assert (after.request_id, after.success, after.code, after.cost_millis) == (before.request_id, False, 4, 250)


def test_traces_leave_together_and_soon(traces: type[SentTraces]) -> None:
    tracer = Tracer(ConsumerConfig(group="cg"), "CONSUME", traces)
    context = ConsumeContext(group="cg", message=received(), begun_at=1, begun=0.0)
    for _ in range(trace_module.RECORDS_AT_ONCE):
        tracer.before_consume(context)
    assert traces.arrived.acquire(timeout=10)  # and not only after FLUSH_SECONDS
    assert len(sent_traces(traces)) == trace_module.RECORDS_AT_ONCE
    tracer.close()


def test_what_cannot_be_sent_fast_enough_is_not_kept(
    traces: type[SentTraces], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Tracer, "_send_queued", lambda self: None)
    tracer = Tracer(ConsumerConfig(group="cg"), "CONSUME", traces)
    context = ConsumeContext(group="cg", message=received(), begun_at=1, begun=0.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(MOST_QUEUED + 10):
            tracer.before_consume(context)
    assert len(tracer._queue) == MOST_QUEUED
    assert "not traced" in caplog.text
    tracer.close()


def test_the_end_of_a_transaction_is_traced(traces: type[SentTraces]) -> None:
    tracer = Tracer(ProducerConfig(group="pg"), "PRODUCE", traces)
    half = Message("T", b"x", tag="a", keys="k")
    tracer.transaction_ended(half, "ID", "a:1", TransactionState.ROLLBACK)
    asked = received(KEYS="k")
    tracer.transaction_ended(asked, "ID", "a:1", TransactionState.COMMIT, from_check=True)
    tracer.close()
    rolled_back, committed = sent_traces(traces)
    assert isinstance(rolled_back, EndTransactionTrace)
    assert isinstance(committed, EndTransactionTrace)
    assert (rolled_back.state, rolled_back.from_check, rolled_back.kind) == ("ROLLBACK_MESSAGE", False, 2)
    assert (committed.state, committed.from_check, committed.keys) == ("COMMIT_MESSAGE", True, "k")
