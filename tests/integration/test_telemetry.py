"""Spans of sends and consumptions, and the context that a message carries from the one to the other."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

pytest.importorskip("opentelemetry.trace")

from opentelemetry import trace

import rocketcore as rmq
from rocketcore.client.telemetry import TelemetryHook
from rocketcore.local import LocalCluster
from rocketcore.message import Message


class Recorded(trace.NonRecordingSpan):
    """A span that keeps what is said of it."""

    def __init__(self, number: int, name: str, parent: Any, kind: Any, attributes: dict[str, Any]) -> None:
        trace_id = parent.trace_id if parent.is_valid else 1000 + number
        super().__init__(trace.SpanContext(trace_id, number, False, trace.TraceFlags(1)))
        self.name, self.parent, self.kind, self.attributes = name, parent, kind, dict(attributes)
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

    def start_span(self, name: str, context: Any = None, *, kind: Any, attributes: dict[str, Any]) -> Recorded:
        parent = trace.get_current_span(context).get_span_context()
        self.spans.append(Recorded(next(self._numbers), name, parent, kind, attributes))
        return self.spans[-1]


def test_a_consumption_is_below_the_send_of_its_message() -> None:
    recorder: Any = Recorder()
    hook = TelemetryHook(recorder)
    outer = trace.NonRecordingSpan(trace.SpanContext(77, 78, False, trace.TraceFlags(1)))
    with LocalCluster() as cluster, rmq.Producer(cluster.namesrv, group="makers", hooks=[hook]) as producer:
        with trace.use_span(outer):
            result = producer.send("orders", b"12345", tag="t", properties={"own": "kept"})
        producer.send_batch([Message("orders", b"a"), Message("orders", b"b")])
        with rmq.PushConsumer(cluster.namesrv, group="readers", start_from="first", hooks=[hook]) as consumer:
            consumer.subscribe("orders")
            seen: dict[bytes, rmq.ReceivedMessage] = {}
            for message in consumer:
                seen[message.body] = message
                message.ack()
                if len(seen) == 3:
                    break
    assert len(recorder.spans) == 5
    assert {span.ended for span in recorder.spans} == {1}
    send, batch, *processed = recorder.spans
    assert (send.name, send.kind, send.status) == ("send orders", trace.SpanKind.PRODUCER, None)
    assert (send.parent.trace_id, send.parent.span_id) == (77, 78)
    assert send.attributes["messaging.message.id"] == result.msg_id
    assert send.attributes["messaging.message.body.size"] == 5
    assert not batch.parent.is_valid
    message = seen[b"12345"]
    assert message.properties["traceparent"] == f"00-{77:032x}-{send.get_span_context().span_id:016x}-01"
    assert (message.properties["own"], message.tag) == ("kept", "t")
    assert "traceparent" not in seen[b"a"].properties
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
