"""What it takes to make batches of rows and to hand them over, counted."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

import pyarrow as pa
import pytest

from rocketcore.client import send_buffers
from rocketcore.client.arrow_sender import LINGER, RecordBatchSender, SendSettings
from rocketcore.client.config import ClientConfig, ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import ASYNCIO, Runtime, ThreadRuntime
from rocketcore.client.sender import Sender
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import MessageIllegal, MessageRefused
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock
from rocketcore.transport.blocking.client import run_sync
from tests.unit.client.fakes import FakeRemoting, ManualRuntime, answer_heartbeat_or_send, route
from tests.unit.client.opcodes import counted_opcodes


def arrow_sender(remoting: FakeRemoting, runtime: Runtime | None = None, **settings: Any) -> RecordBatchSender:
    config = ProducerConfig(namesrv=("n:1",), group="g")
    runtime = runtime or ManualRuntime(remoting.clock)
    instance = ClientInstance(ClientConfig(namesrv=("n:1",)), remoting, runtime, clock=remoting.clock)
    return RecordBatchSender(Sender(config, instance, remoting.clock), SendSettings(**{"topic": "T", **settings}))


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


class Requests:
    """The send requests of a broker: the topic of each, and its rows by the numbers in their ids."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[int]]] = []
        self.first = asyncio.Event()
        self.fails = False

    def serve(self, address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            assert request.ext_fields is not None
            ids = re.findall(rb"UNIQ_KEY\x01([0-9A-F]{32})", bytes(request.body))
            self.seen.append((request.ext_fields["b"], [int(text[24:], 16) for text in ids]))
            self.first.set()
            if self.fails:
                return RemotingCommand.response(request, ResponseCode.MESSAGE_ILLEGAL, "no")
        return answer_heartbeat_or_send(request)

    def sender(self, runtime: Runtime = ASYNCIO, **settings: Any) -> RecordBatchSender:
        routes = {"T": route("a", "b"), "U": route("a")}
        return arrow_sender(FakeRemoting(routes, self.serve, ManualClock()), runtime, **settings)

    def of(self, batches: list[pa.RecordBatch], **settings: Any) -> list[tuple[str, list[int]]]:
        """Return the requests that record batches make which come one right after the other."""

        async def send() -> None:
            sender = self.sender(**settings)
            for batch in batches:
                await sender.send(batch)
            summary = await sender.finish()
            await sender.abandon()
            assert summary.rows == sum(batch.num_rows for batch in batches)
            assert summary.batches == len(self.seen)

        asyncio.run(send())
        return self.seen


def test_bodies_go_on_across_record_batches() -> None:
    whole = Requests().of([rows(1000)], batch_bytes=9000)
    parts = Requests().of([rows(1000).slice(first, 70) for first in range(0, 1000, 70)], batch_bytes=9000)
    assert [numbers for _, numbers in parts] == [numbers for _, numbers in whole]
    assert [number for _, numbers in parts for number in numbers] == list(range(1000))
    assert len(parts) < 20


def test_a_body_has_rows_of_one_topic() -> None:
    def batch(*topics: str) -> pa.RecordBatch:
        return pa.record_batch({"body": [b"x"] * len(topics), "topic": list(topics)})

    requests = Requests().of([batch("T", "T"), batch("T", "U"), batch("U"), batch("U", "T")], topic=None)
    assert requests == [("T", [0, 1, 2]), ("U", [3, 4, 5]), ("T", [6])]


def test_a_wrong_topic_is_named_with_its_row() -> None:
    async def send() -> None:
        sender = requests.sender(topic=None)
        await sender.send(pa.record_batch({"body": [b"x"] * 3, "topic": ["T"] * 3}))
        with pytest.raises(MessageIllegal, match=r"row 5: the topic name 'no no' may hold only"):
            await sender.send(pa.record_batch({"body": [b"x"] * 4, "topic": ["T", "U", "no no", "no no"]}))
        await sender.abandon()

    requests = Requests()
    asyncio.run(send())


def test_rows_of_a_key_do_not_wait_for_the_body_of_the_others() -> None:
    keys = pa.array(["k", None, "k", None], pa.string())
    batch = pa.record_batch({"body": [b"x"] * 4, "shardingKey": keys})
    requests = Requests().of([batch, batch], ordered=True)
    assert [numbers for _, numbers in requests] == [[0, 2], [4, 6], [1, 3, 5, 7]]


def test_rows_leave_while_no_others_come() -> None:
    async def send() -> None:
        sender = requests.sender()
        await sender.send(rows(3))
        assert not requests.seen
        await asyncio.wait_for(requests.first.wait(), 20)
        await sender.send(rows(2))
        await sender.finish()
        await sender.abandon()

    requests = Requests()
    asyncio.run(send())
    assert requests.seen == [("T", [0, 1, 2]), ("T", [3, 4])]


def test_rows_that_others_follow_wait_from_the_last_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send() -> None:
        sender = requests.sender()
        await sender.send(rows(3))
        timer = sender._timer
        await sender.send(rows(2))
        assert sender._timer is timer  # none is made for each record batch
        passed["seconds"] = LINGER
        await sender.send(rows(1))
        sender._send_waiting_rows()
        assert not requests.seen
        passed["seconds"] = 2 * LINGER
        await asyncio.wait_for(requests.first.wait(), 20)
        await sender.finish()
        sender._send_waiting_rows()
        assert sender._timer is None  # nothing wakes the loop of a sender that has nothing
        await sender.abandon()

    passed = {"seconds": 0.0}
    monkeypatch.setattr("rocketcore.client.arrow_sender.time.monotonic", lambda: passed["seconds"])
    requests = Requests()
    asyncio.run(send())
    assert requests.seen == [("T", [0, 1, 2, 3, 4, 5])]


def test_columns_have_the_names_that_the_caller_gives() -> None:
    async def send() -> None:
        sender = requests.sender()
        await sender.send(pa.record_batch({"BODY": [b"x"], "Keys": ["k"]}), ["body", "keys"])
        await sender.finish()
        await sender.abandon()

    requests = Requests()
    asyncio.run(send())
    assert requests.seen == [("T", [0])]


def test_what_such_rows_fail_with_is_raised_later() -> None:
    async def send() -> None:
        sender = requests.sender()
        await sender.send(rows(3))
        await asyncio.wait_for(requests.first.wait(), 20)
        with pytest.raises(MessageRefused, match="no"):
            await sender.finish()
        await sender.abandon()

    requests = Requests()
    requests.fails = True
    asyncio.run(send())
    assert [numbers for _, numbers in requests.seen] == [[0, 1, 2]]


def test_rows_that_wait_go_with_a_sender_that_is_given_up() -> None:
    async def send() -> None:
        sender = requests.sender()
        await sender.send(rows(3))
        await sender.abandon()
        await asyncio.sleep(2 * LINGER)

    requests = Requests()
    asyncio.run(send())
    assert not requests.seen


def test_without_a_loop_no_rows_wait() -> None:
    requests = Requests()
    sender = requests.sender(ThreadRuntime())
    run_sync(sender.send(rows(3)))
    assert requests.seen == [("T", [0, 1, 2])]
    run_sync(sender.finish())
    run_sync(sender.abandon())


def test_one_task_after_the_other_has_the_same_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(send_buffers, "_kept", type(send_buffers._kept)(maxlen=send_buffers.KEPT_BUFFERS))
    kind = send_buffers.SendBuffer  # type: ignore[attr-defined]
    monkeypatch.setattr(send_buffers, "SendBuffer", lambda size: made.append(size) or kind(size))
    for _ in range(3):
        sender = arrow_sender(FakeRemoting({"T": route("a", "b")}), batch_bytes=1000, max_in_flight=4)
        run_sync(sender.send(rows(1000)))
        run_sync(sender.finish())
        run_sync(sender.abandon())
        assert sender.summary.batches > 50
    # One is read while the next is filled, and a blocking sender has one request under way.
    assert len(made) == 2
