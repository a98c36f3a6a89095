"""Spans of sends and consumptions, and the context that a message carries from the one to the other."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("opentelemetry.trace")

from opentelemetry import trace

import rocketcore as rmq
from rocketcore.client.telemetry import TelemetryHook
from rocketcore.local import LocalCluster
from rocketcore.message import Message

GIVEN = "00-00000000000000000000000000000def-0000000000000abc-01"
"""Trace context that a message has of its own."""


class Recorded(trace.NonRecordingSpan):
    """A span that keeps what is said of it."""

    def __init__(
        self, number: int, name: str, parent: Any, kind: Any, attributes: dict[str, Any], links: Sequence[Any]
    ) -> None:
        trace_id = parent.trace_id if parent.is_valid else 1000 + number
        super().__init__(trace.SpanContext(trace_id, number, False, trace.TraceFlags(1)))
        self.name, self.parent, self.kind, self.attributes = name, parent, kind, dict(attributes)
        self.links = [link.context.span_id for link in links]
        self.status: Any = None
        self.ended = 0

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.status = status

    def end(self, end_time: int | None = None) -> None:
        self.ended += 1


class Recorder:
    """A provider of tracers, and a tracer, whose spans are kept."""

    def __init__(self) -> None:
        self.spans: list[Recorded] = []
        self._numbers = itertools.count(1)

    def get_tracer(self, *arguments: Any, **options: Any) -> Recorder:
        return self

    def start_span(
        self, name: str, context: Any = None, *, kind: Any, attributes: dict[str, Any], links: Sequence[Any] = ()
    ) -> Recorded:
        parent = trace.get_current_span(context).get_span_context()
        self.spans.append(Recorded(next(self._numbers), name, parent, kind, attributes, links))
        return self.spans[-1]


def test_a_consumption_is_below_the_send_of_its_message() -> None:
    recorder: Any = Recorder()
    hook = TelemetryHook(recorder)
    outer = trace.NonRecordingSpan(trace.SpanContext(77, 78, False, trace.TraceFlags(1)))
    with LocalCluster() as cluster, rmq.Producer(cluster.namesrv, group="makers", hooks=[hook]) as producer:
        with trace.use_span(outer):
            result = producer.send("orders", b"12345", tag="t", properties={"own": "kept"})
        with trace.use_span(outer):
            producer.send_batch([Message("orders", b"a"), Message("orders", b"b", properties={"traceparent": GIVEN})])
            futures = [producer.send_nowait("orders", body) for body in (b"c", b"d")]
        producer.flush()
        with rmq.PushConsumer(cluster.namesrv, group="readers", start_from="first", hooks=[hook]) as consumer:
            consumer.subscribe("orders")
            seen: dict[bytes, rmq.ReceivedMessage] = {}
            for message in consumer:
                seen[message.body] = message
                message.ack()
                if len(seen) == 5:
                    break
    assert {span.ended for span in recorder.spans} == {1}
    processed = [span for span in recorder.spans if span.name == "process orders"]
    created = [span for span in recorder.spans if span.name == "create orders"]
    send, batch, *later = [span for span in recorder.spans if span.name == "send orders"]
    assert (len(processed), len(created)) == (5, 3)
    assert (send.name, send.kind, send.status) == ("send orders", trace.SpanKind.PRODUCER, None)
    assert (send.parent.trace_id, send.parent.span_id) == (77, 78)
    assert send.attributes["messaging.message.id"] == result.msg_id
    assert send.attributes["messaging.message.body.size"] == 5
    assert (batch.kind, batch.attributes["messaging.batch.message_count"]) == (trace.SpanKind.CLIENT, 2)
    assert batch.links == [created[0].get_span_context().span_id, 0xABC]
    assert [link for each in later for link in each.links] == [each.get_span_context().span_id for each in created[1:]]
    assert {each.parent.span_id for each in created} == {78}
    assert [each.attributes["messaging.message.id"] for each in created[1:]] == [each.msg_id for each in futures]
    for body, span_id in zip(
        (b"a", b"b", b"c", b"d"), (batch.links[0], 0xABC, *(each.get_span_context().span_id for each in created[1:])),
        strict=True,
    ):  # fmt: skip
        [span] = [each for each in processed if each.attributes["messaging.message.id"] == seen[body].msg_id]
        assert span.parent.span_id == span_id
    message = seen[b"12345"]
    assert message.properties["traceparent"] == f"00-{77:032x}-{send.get_span_context().span_id:016x}-01"
    assert (message.properties["own"], message.tag) == ("kept", "t")
    [below] = [span for span in processed if span.attributes["messaging.message.id"] == message.msg_id]
    assert (below.name, below.kind) == ("process orders", trace.SpanKind.CONSUMER)
    assert (below.parent.trace_id, below.parent.span_id) == (77, send.get_span_context().span_id)
    assert below.attributes["messaging.consumer.group.name"] == "readers"


def test_what_fails_says_so() -> None:
    recorder: Any = Recorder()
    hook = TelemetryHook(recorder)
    with LocalCluster() as cluster:
        with rmq.Admin(cluster.namesrv) as admin:
            admin.create_topic("closed", 1)
        with rmq.Producer(cluster.namesrv, group="makers", hooks=[hook], retries=0) as producer:
            producer.send("closed", b"x")
            with rmq.Admin(cluster.namesrv) as admin:
                admin.update_broker_config(
                    cluster.broker_addresses[0],
                    {"startAcceptSendRequestTimeStamp": str(round(time.time() * 1000) + 3_600_000)},
                )
            with pytest.raises(rmq.RocketError) as caught:
                producer.send("closed", b"x")
    first, second = recorder.spans
    assert (first.status, second.status) == (None, trace.StatusCode.ERROR)
    assert second.attributes["error.type"] == type(caught.value).__name__
