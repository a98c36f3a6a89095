"""POP spelled out, on a connection of ``broker_client``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rocketcore.codes import RequestCode
from rocketcore.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import ResetOffsetRequestHeader
from rocketcore.protocol.headers.pop import (
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
)
from rocketcore.service import SYSTEM_CLOCK, Clock
from tests.fixtures.popped import Popped, ack_header, read_popped
from tests.integration.broker_client import TIMEOUT, BrokerClient

GROUP = "poppers"


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
    return read_popped(answer, client.broker.config.broker_name) if answer.code == 0 else []


async def ack(client: BrokerClient, message: Popped, group: str = GROUP) -> RemotingCommand:
    return await client.ask(RequestCode.ACK_MESSAGE, ack_header(message, group))


async def reset(client: BrokerClient, topic: str, **fields: Any) -> RemotingCommand:
    """Move the group, forward and back."""
    header = ResetOffsetRequestHeader(topic=topic, group=GROUP, force=True, **fields)
    return await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


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
