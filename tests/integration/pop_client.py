"""POP spelled out, on a connection of ``broker_client``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rocketcore._fast.properties import decode_properties
from rocketcore.broker.record import RecordReader
from rocketcore.codes import RequestCode
from rocketcore.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rocketcore.protocol.pop_info import (
    Handle,
    marker_of,
    parse_message_offsets,
    parse_order_counts,
    parse_start_offsets,
)
from rocketcore.service import SYSTEM_CLOCK, Clock
from tests.integration.broker_client import TIMEOUT, BrokerClient

GROUP = "poppers"


@dataclass(slots=True)
class Popped:
    """One message as a client has it: its handle is what a Java client would make."""

    topic: str
    body: bytes
    handle: Handle
    reconsume_times: int
    properties: dict[str, str]
    count: int | None = None
    """How often it was handed out before, where it was popped in order."""


def pop_header(topic: str, *, clock: Clock = SYSTEM_CLOCK, **fields: Any) -> PopMessageRequestHeader:
    defaults: dict[str, Any] = {
        "consumer_group": GROUP,
        "queue_id": -1,
        "max_msg_nums": 32,
        "invisible_time": 60_000,
        "poll_time": 0,
        "born_time": clock.time_millis(),
        "init_mode": 0,
    }
    return PopMessageRequestHeader(topic=topic, **(defaults | fields))


async def ask_pop(client: BrokerClient, topic: str, **fields: Any) -> RemotingCommand:
    return await client.ask(RequestCode.POP_MESSAGE, pop_header(topic, **fields))


async def pop(client: BrokerClient, topic: str, **fields: Any) -> list[Popped]:
    """Pop once; nothing where the answer is that there is nothing."""
    answer = await ask_pop(client, topic, **fields)
    assert answer.code in (0, 210), (answer.code, answer.remark)
    return read_popped(client, answer) if answer.code == 0 else []


def read_popped(client: BrokerClient, answer: RemotingCommand) -> list[Popped]:
    header = answer.header(PopMessageResponseHeader)
    starts = parse_start_offsets(header.start_offset_info)
    offsets = parse_message_offsets(header.msg_offset_info)
    counts = parse_order_counts(header.order_count_info)
    broker = client.broker.config.broker_name
    found = []
    for record in RecordReader(100).read(answer.body):
        message = record.message
        properties = decode_properties(message.properties)
        if "POP_CK" in properties:
            handle = Handle.decode(properties["POP_CK"])
        else:
            key = marker_of(message.topic), str(message.queue_id)
            assert record.queue_offset in offsets[key]
            handle = Handle(
                starts[key], header.pop_time, header.invisible_time, header.revive_qid, key[0], broker,
                message.queue_id, record.queue_offset,
            )  # fmt: skip
        queue = str(message.queue_id)
        count = counts.get((handle.marker, f"qo{queue}%{record.queue_offset}"), counts.get((handle.marker, queue)))
        body = bytes(message.body)
        found.append(Popped(message.topic, body, handle, message.reconsume_times, properties, count))
    assert len(found) == sum(map(len, offsets.values()))
    return found


async def ack(client: BrokerClient, message: Popped, group: str = GROUP) -> RemotingCommand:
    handle = message.handle
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=handle.stored_topic(message.topic, group),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        offset=handle.queue_offset,
    )
    return await client.ask(RequestCode.ACK_MESSAGE, header)


async def ask_hide(
    client: BrokerClient, message: Popped, invisible_time: int, group: str = GROUP, **fields: Any
) -> RemotingCommand:
    handle = message.handle
    header = ChangeInvisibleTimeRequestHeader(
        consumer_group=group,
        topic=handle.stored_topic(message.topic, group),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        offset=handle.queue_offset,
        invisible_time=invisible_time,
        **fields,
    )
    return await client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)


async def hide(client: BrokerClient, message: Popped, invisible_time: int, **fields: Any) -> Popped:
    """Change a message's invisible time; returns it with its new handle."""
    answer = await ask_hide(client, message, invisible_time, **fields)
    assert answer.code == 0, answer.remark
    header = answer.header(ChangeInvisibleTimeResponseHeader)
    handle = message.handle._replace(
        start_offset=message.handle.queue_offset,
        pop_time=header.pop_time,
        invisible_time=header.invisible_time,
        revive_queue_id=header.revive_qid,
    )
    return replace(message, handle=handle)


async def ack_batch(client: BrokerClient, messages: list[Popped], group: str = GROUP) -> RemotingCommand:
    """Acknowledge messages of POPs together, a part for each POP of a queue."""
    parts: dict[Any, BatchAck] = {}
    bits: dict[Any, set[int]] = {}
    for message in messages:
        handle = message.handle
        key = (message.topic, handle.marker, handle.queue_id, handle.start_offset, handle.pop_time)
        parts[key] = BatchAck(
            consumer_group=group,
            topic=message.topic,
            retry=handle.marker,
            start_offset=handle.start_offset,
            queue_id=handle.queue_id,
            revive_queue_id=handle.revive_queue_id,
            pop_time=handle.pop_time,
            invisible_time=handle.invisible_time,
        )
        bits.setdefault(key, set()).add(handle.queue_offset - handle.start_offset)
    acks = [replace(part, bits=BatchAck.encode_bits(bits[key])) for key, part in parts.items()]
    body = BatchAckMessageRequestBody(client.broker.config.broker_name, acks)
    return await client.ask(RequestCode.BATCH_ACK_MESSAGE, body=body.encode())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what nothing tells of."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110  # the broker has no event for it
            await asyncio.sleep(0.002)
