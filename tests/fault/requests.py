"""What the harnesses ask of a broker, and what they make of its answers: sends, places, queues read to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rocketcore.protocol.schema import Header
from rocketcore.transport.client import RemotingClient
from tests.fault.ledger import Found, Place, Verdict
from tests.fixtures.stores import record_spans, records

NOTHING_THERE = (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER)
"""Answers that end a queue; the last one says that the topic has not so many."""

UNREADABLE_ROUNDS = 20


class Ask(Protocol):
    """Sends a request of a code, and perhaps a body, and returns the answer."""

    def __call__(self, code: int, header: Header, body: bytes = b"") -> Awaitable[RemotingCommand]: ...


def asker(client: RemotingClient, address: str, seconds: float) -> Ask:
    """Return what asks the broker at an address, and waits so long for each answer."""

    async def ask(code: int, header: Header, body: bytes = b"") -> RemotingCommand:
        return await client.invoke(address, RemotingCommand.request(code, header, body), seconds)

    return ask


def send_header(
    topic: str, queue_id: int, properties: str, born_timestamp: int, *, batch: bool = False
) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(
        producer_group="fault",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=born_timestamp,
        flag=0,
        properties=properties,
        reconsume_times=0,
        unit_mode=False,
        batch=batch,
    )


def by_id_header(topic: str, unique_id: str) -> QueryMessageRequestHeader:
    """Return the question for a message of any time by its unique id, as a key."""
    return QueryMessageRequestHeader(
        topic=topic, key=unique_id, max_num=32, begin_timestamp=0, end_timestamp=(1 << 63) - 1
    )


def places(answer: RemotingCommand) -> list[Place]:
    """Return where the messages of a send lie, one of a batch after another."""
    header = answer.header(SendMessageResponseHeader)
    return [
        (header.queue_id, header.queue_offset + index, int(msg_id[-16:], 16))
        for index, msg_id in enumerate(header.msg_id.split(","))
    ]


async def read_queue(ask: Ask, topic: str, queue_id: int, verdict: Verdict, begin: int = 0) -> list[Found]:
    """Return the messages of a queue as a consumer pulls them: it follows what it is told."""
    found: list[Found] = []
    offset, errors = begin, 0
    while True:
        answer = await ask(RequestCode.PULL_MESSAGE, _pull_header(topic, queue_id, offset))
        if answer.code == ResponseCode.SUCCESS:
            for one, (start, end) in zip(records(answer.body), record_spans(answer.body), strict=True):
                place = (one["queue_id"], one["queue_offset"], one["physical_offset"])
                found.append(Found(*place, one["body"], topic, answer.body[start:end]))
        elif answer.code in NOTHING_THERE:
            return found
        elif answer.code not in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
            errors += 1
            if errors > UNREADABLE_ROUNDS:
                verdict.blame("unreadable", f"{topic}/{queue_id} at {offset}: {answer.code} {answer.remark}")
                return found
            await asyncio.sleep(0.01)
            continue
        following = answer.header(PullMessageResponseHeader).next_begin_offset
        if following == offset:
            return found
        offset = following


def _pull_header(topic: str, queue_id: int, queue_offset: int) -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group="reader",
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=32,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        expression_type="TAG",
        sub_version=0,
    )
