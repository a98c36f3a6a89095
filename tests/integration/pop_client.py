"""POP spelled out, on a connection of ``broker_client``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rocketcore._fast.properties import decode_properties
from rocketcore.broker.record import RecordReader
from rocketcore.codes import RequestCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.pop import (
    AckMessageRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rocketcore.protocol.pop_info import Handle, marker_of, parse_message_offsets, parse_start_offsets
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
        found.append(Popped(message.topic, bytes(message.body), handle, message.reconsume_times, properties))
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


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what nothing tells of."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110  # the broker has no event for it
            await asyncio.sleep(0.002)
