"""Automatic batches: what leaves together, when, and what becomes of the futures."""

from __future__ import annotations

import asyncio

import pytest

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.sender import Sender
from rocketcore.errors import (
    MessageIllegal,
)
from rocketcore.message import Message, MessageQueue
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import SendMessageRequestHeaderV2
from tests.unit.client.batches import Gate, append, run
from tests.unit.client.fakes import Outcome, stored


def sizes(remoting: Gate) -> list[tuple[str, int, int]]:
    """Topic, queue and length of each request that was sent."""
    headers = [(request.header(SendMessageRequestHeaderV2), len(request.body)) for _, request in remoting.asked]
    return [(header.topic, header.queue_id, length) for header, length in headers]


def test_messages_of_a_topic_leave_as_one_batch_with_their_own_results() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.serve = lambda address, request: batch_answer(request, 3)
        remoting.open.set()
        futures = [await append(accumulator, logic, Message("T", f"m{i}")) for i in range(3)]
        assert not futures[0].done()
        results = [await future for future in futures]
        assert len(remoting.asked) == 1
        assert [result.offset for result in results] == [7, 8, 9]
        assert [result.msg_id for result in results] == [future.msg_id for future in futures]
        assert [result.offset_msg_id for result in results] == ["A0", "A1", "A2"]
        assert {result.queue for result in results} == {results[0].queue}

    run(body)


def batch_answer(request: RemotingCommand, count: int) -> Outcome:
    response = stored(request)
    assert response.ext_fields is not None
    response.ext_fields["msgId"] = ",".join(f"A{i}" for i in range(count))
    return response


def test_topics_and_queues_do_not_share_a_batch() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        for message in (
            Message("T", b"1"),
            Message("U", b"2"),
            Message("T", b"3", message_group="g"),
            Message("T", b"4"),
        ):
            await append(accumulator, logic, message)
        await accumulator.flush()
        assert sorted(topic for topic, _, _ in sizes(remoting)) == ["T", "T", "U"]

    run(body)


def test_a_full_batch_does_not_linger() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(4)]
        await asyncio.gather(*futures)
        assert len(remoting.asked) == 2

    run(body, linger=60.0, batch_count=2)


def test_bytes_bound_a_batch() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        for _ in range(10):
            await append(accumulator, logic, Message("T", b"x" * 400))
        await accumulator.flush()
        assert len(remoting.asked) == 5
        assert max(length for _, _, length in sizes(remoting)) <= 1100

    run(body, batch_bytes=1100)


def test_batches_of_one_queue_leave_one_after_the_other() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        await logic.publisher("T")
        for i in range(12):
            await append(accumulator, logic, Message("T", f"{i:02}", message_group="g"))
        flushed = asyncio.create_task(accumulator.flush())
        await asyncio.sleep(0.02)
        assert remoting.under_way == 1
        remoting.open.set()
        await flushed
        assert remoting.most_under_way == 1
        bodies = [body for _, request in remoting.asked for body in (request.body,)]
        positions = [index for index, body in enumerate(bodies) for i in range(12) if f"{i:02}".encode() in body[20:22]]
        assert positions == sorted(positions)
        assert [body[20:22] for body in bodies] == [b"00", b"02", b"04", b"06", b"08", b"10"]

    run(body, batch_count=2)


def test_batches_of_a_topic_leave_side_by_side_up_to_a_limit() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        for _ in range(20):
            await append(accumulator, logic, Message("T", b"x"))
        await asyncio.sleep(0.02)
        assert remoting.under_way == 8
        remoting.open.set()
        await accumulator.flush()
        assert len(remoting.asked) == 20

    run(body, batch_count=1)


def test_a_delayed_message_leaves_alone() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        await append(accumulator, logic, Message("T", b"x"))
        await append(accumulator, logic, Message("T", b"later", delay_level=3))
        await append(accumulator, logic, Message("T", b"y"))
        await accumulator.flush()
        assert sorted(request.code for _, request in remoting.asked) == [310, 320]

    run(body)


def test_a_given_queue_is_kept() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        queue = MessageQueue("T", "a", 2)
        future = accumulator.append(Message("T", b"x"), queue)
        assert future is not None
        assert (await future).queue == queue

    run(body)


def test_a_message_alone_does_not_linger() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        for _ in range(3):
            assert (await (await append(accumulator, logic, Message("T", b"x")))).offset == 7

    run(body, linger=60.0)


def test_messages_behind_others_leave_together_when_those_are_answered() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        first = await append(accumulator, logic, Message("T", b"x"))
        await remoting.begun.wait()
        others = [await append(accumulator, logic, Message("T", b"y")) for _ in range(10)]
        await asyncio.sleep(0)
        assert remoting.under_way == 1
        remoting.open.set()
        await asyncio.gather(first, *others)
        assert [request.code for _, request in remoting.asked] == [310, 320]

    run(body, linger=60.0)


@pytest.mark.parametrize(
    ("name", "value"), [("flag", 2**40), ("flag", "a"), ("body", 5), ("properties", {"p": "\ud800"})]
)
def test_a_message_that_cannot_be_sent_is_refused_before_it_joins_a_batch(name: str, value: object) -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        good = [await append(accumulator, logic, Message("T", b"x")) for _ in range(3)]
        bad = Message("T", b"x")
        setattr(bad, name, value)
        with pytest.raises((MessageIllegal, TypeError)):
            accumulator.append(bad)
        good.append(await append(accumulator, logic, Message("T", b"x")))
        assert [(await future).offset for future in good] == [7, 8, 9, 10]

    run(body)
