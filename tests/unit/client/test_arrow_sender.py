"""What it takes to make batches of rows and to hand them over, counted."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest

from rocketcore.client import send_buffers
from rocketcore.client.arrow_sender import RecordBatchSender, SendSettings
from rocketcore.client.config import ClientConfig, ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.sender import Sender
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock
from rocketcore.transport.blocking.client import run_sync
from tests.unit.client.fakes import FakeRemoting, ManualRuntime, answer_heartbeat_or_send, route
from tests.unit.client.opcodes import counted_opcodes


def arrow_sender(remoting: FakeRemoting, **settings: Any) -> RecordBatchSender:
    config = ProducerConfig(namesrv=["n:1"], group="g")
    instance = ClientInstance(
        ClientConfig(namesrv=["n:1"]), remoting, ManualRuntime(remoting.clock), clock=remoting.clock
    )
    return RecordBatchSender(Sender(config, instance, remoting.clock), SendSettings(topic="T", **settings))


def rows(count: int) -> pa.RecordBatch:
    numbers = range(count)
    return pa.record_batch(
        {
            "body": [b"body of row %010d" % number for number in numbers],
            "tags": ["even" if number % 2 == 0 else None for number in numbers],
            "keys": pa.array([["a", str(number)] for number in numbers], pa.list_(pa.string())),
            "shardingKey": [f"key {number % 5}" for number in numbers],
            "properties": pa.array([[("city", "Łódź")]] * count, pa.map_(pa.string(), pa.string())),
            "flag": pa.array(numbers, pa.int32()),
        }
    )


class Count:
    """Opcodes that are run, and the most blocks that Python's objects take at the requests."""

    def __init__(self) -> None:
        self.opcodes = 0
        self.blocks = 0
        self.requests = 0

    def serve(self, address: str, request: RemotingCommand) -> RemotingCommand:
        self.requests += 1
        self.blocks = max(self.blocks, sys.getallocatedblocks())
        return answer_heartbeat_or_send(request)


def cost(count: int) -> Count:
    """Send so many rows in as many requests, whatever their number is."""
    counted = Count()
    sender = arrow_sender(
        FakeRemoting({"T": route("a", "b")}, counted.serve, ManualClock()), batch_bytes=10 * count, ordered=True
    )
    batch = rows(count)
    before = sys.getallocatedblocks()
    with counted_opcodes() as opcodes:
        run_sync(sender.send(batch))
        run_sync(sender.finish())
        run_sync(sender.abandon())
    counted.opcodes = opcodes.count
    counted.blocks -= before
    assert sender.summary.rows == count
    return counted


def test_no_object_and_no_step_of_python_per_row() -> None:
    cost(1000)  # what is imported and made once
    few, many = cost(1000), cost(100_000)
    assert few.requests == many.requests > 8
    assert many.opcodes < few.opcodes * 1.1
    assert many.blocks < few.blocks + 1000


def test_one_task_after_the_other_has_the_same_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(send_buffers, "_kept", type(send_buffers._kept)(maxlen=send_buffers.KEPT_BUFFERS))
    kind = send_buffers.SendBuffer
    monkeypatch.setattr(send_buffers, "SendBuffer", lambda size: made.append(size) or kind(size))
    for _ in range(3):
        sender = arrow_sender(FakeRemoting({"T": route("a", "b")}), batch_bytes=1000, max_in_flight=4)
        run_sync(sender.send(rows(1000)))
        run_sync(sender.finish())
        run_sync(sender.abandon())
        assert sender.summary.batches > 50
    # One is read while the next is filled, and a blocking sender has one request under way.
    assert len(made) == 2
