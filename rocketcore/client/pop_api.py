"""What a client asks of brokers in POP mode [5.x]: one coroutine per request, as in ``rocketcore.client.api``.

RocketMQ 5.5.0: ``MQClientAPIImpl``.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import DecodeError
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.protocol.bodies.pop import (
    BatchAck,
    BatchAckMessageRequestBody,
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rocketcore.protocol.message import decode_messages
from rocketcore.protocol.pop_info import (
    POP_CK,
    Handle,
    marker_of,
    parse_message_offsets,
    parse_order_counts,
    parse_start_offsets,
)
from rocketcore.transport.remoting import Remoting
from rocketcore.warning import warn

__all__ = [
    "MAX_BATCH_SPAN",
    "MAX_POP",
    "Popped",
    "ack_message",
    "ack_messages",
    "change_invisible_time",
    "has_message",
    "pop_messages",
    "query_assignment",
]

logger = logging.getLogger(__name__)

MAX_POP: Final = 32
"""Messages that a broker gives at a time."""
MAX_BATCH_SPAN: Final = 4096
"""Offsets behind the first of a POP that a batch of acknowledgements reaches: it has a bit for each."""

_NOTHING: Final = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)


class Popped(NamedTuple):
    """A message and the handle that it is acknowledged by."""

    message: ReceivedMessage
    handle: Handle


async def pop_messages(
    remoting: Remoting, address: str, header: PopMessageRequestHeader, broker: str, timeout: float
) -> list[Popped]:
    """Take messages, which nobody else gets as long as they are invisible; none where there are none.

    raises  DecodeError for an answer that does not say by what its messages are acknowledged, beside what a refusal
            raises
    """
    response = await remoting.invoke(address, RemotingCommand.request(RequestCode.POP_MESSAGE, header), timeout)
    if response.code in _NOTHING:
        return []
    what = f"pop of topic {header.topic!r} queue {header.queue_id} by group {header.consumer_group!r}"
    response.raise_for_code(address, what)
    messages = decode_messages(
        response.body,
        broker,
        unreadable=partial(_as_it_is, header.consumer_group),
        skipped=partial(_pass_over, what),
    )
    popped = _with_handles(messages, response.header(PopMessageResponseHeader), broker, order=header.order)
    for message, handle in popped:
        stored = handle.stored_topic(message.topic, header.consumer_group)
        if stored != message.queue.topic:  # a broker names the topic that a redelivered message was sent to
            object.__setattr__(message, "queue", MessageQueue(stored, broker, handle.queue_id))
    return popped


def _as_it_is(group: str, message: ReceivedMessage, error: DecodeError) -> None:
    """Hand a message out whose body is damaged: one that nobody acknowledges comes for ever."""
    text = "body not decoded group=%s queue=%s offset=%d error=%s"
    warn(logger, text, group, message.queue, message.offset, error)


def _pass_over(what: str, error: DecodeError) -> None:
    warn(logger, "damaged message passed over %s error=%s", what, error)


def _with_handles(
    messages: list[ReceivedMessage], answer: PopMessageResponseHeader, broker: str, *, order: bool
) -> list[Popped]:
    starts = parse_start_offsets(answer.start_offset_info)
    offsets = parse_message_offsets(answer.msg_offset_info)
    counts = parse_order_counts(answer.order_count_info) if order else {}
    firsts: dict[tuple[str, str], int] = {}  # of a broker that does not say where the POP began
    seen: dict[tuple[str, str], int] = defaultdict(int)
    popped = []
    for message in messages:
        given = message.properties.get(POP_CK)
        queue_id, stored_offset = message.queue.queue_id, message.offset
        if given is not None and answer.start_offset_info is not None:
            popped.append(Popped(message, Handle.decode(given)))
            continue
        key = (marker_of(message.queue.topic), str(queue_id))
        if answer.start_offset_info is None:
            start, offset = firsts.setdefault(key, stored_offset), stored_offset
        else:
            position, seen[key] = seen[key], seen[key] + 1
            try:
                start, given_offsets = starts[key], offsets[key]
                # By its offset, where it is there: records before it may have been passed over.
                offset = stored_offset if stored_offset in given_offsets else given_offsets[position]
            except (KeyError, IndexError):
                raise DecodeError(f"pop at {broker!r}: no handle for {message.queue} offset {stored_offset}") from None
        count = counts.get((key[0], f"qo{queue_id}%{stored_offset}"), counts.get(key, 0))
        if count > 0:
            object.__setattr__(message, "reconsume_times", count)
        handle = Handle(
            start, answer.pop_time, answer.invisible_time, answer.revive_qid, key[0], broker, queue_id, offset
        )
        popped.append(Popped(message, handle))
    return popped


async def has_message(
    remoting: Remoting, address: str, header: NotificationRequestHeader, timeout: float
) -> NotificationResponseHeader:
    """Ask whether there is something to take, and take nothing; held by the broker until there is, or time is over."""
    response = await remoting.invoke(address, RemotingCommand.request(RequestCode.NOTIFICATION, header), timeout)
    response.raise_for_code(address, f"notification of topic {header.topic!r} for group {header.consumer_group!r}")
    return response.header(NotificationResponseHeader)


async def ack_message(remoting: Remoting, address: str, group: str, topic: str, handle: Handle, timeout: float) -> None:
    """Acknowledge one message of a topic."""
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=handle.stored_topic(topic, group),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        offset=handle.queue_offset,
        bname=handle.broker,
    )
    response = await remoting.invoke(address, RemotingCommand.request(RequestCode.ACK_MESSAGE, header), timeout)
    response.raise_for_code(address, f"ack of {topic!r} queue {handle.queue_id} at {handle.queue_offset}")


async def ack_messages(
    remoting: Remoting, address: str, group: str, acks: Iterable[tuple[str, Handle]], timeout: float
) -> None:
    """Acknowledge messages of one broker, topic and handle of each; none more than ``MAX_BATCH_SPAN`` behind the first.

    A broker does not say which of them it did not find.
    """
    by_pop: dict[tuple[str, Handle], set[int]] = defaultdict(set)
    for topic, handle in acks:
        by_pop[topic, handle._replace(queue_offset=0)].add(handle.queue_offset - handle.start_offset)
    [broker] = {handle.broker for _, handle in by_pop}
    body = BatchAckMessageRequestBody(
        broker_name=broker,
        acks=[
            BatchAck(
                consumer_group=group,
                topic=topic,
                retry=handle.marker,
                start_offset=handle.start_offset,
                queue_id=handle.queue_id,
                revive_queue_id=handle.revive_queue_id,
                pop_time=handle.pop_time,
                invisible_time=handle.invisible_time,
                bits=BatchAck.encode_bits(bits),
            )
            for (topic, handle), bits in by_pop.items()
        ],
    )
    request = RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, body=body.encode())
    response = await remoting.invoke(address, request, timeout)
    response.raise_for_code(address, f"acks of group {group!r}")


async def change_invisible_time(
    remoting: Remoting, address: str, group: str, topic: str, handle: Handle, seconds: float, timeout: float
) -> Handle:
    """Have a message be invisible for so long from now; return the handle that it has from now on."""
    header = ChangeInvisibleTimeRequestHeader(
        consumer_group=group,
        topic=handle.stored_topic(topic, group),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        offset=handle.queue_offset,
        invisible_time=round(seconds * 1000),
        bname=handle.broker,
    )
    request = RemotingCommand.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    response = await remoting.invoke(address, request, timeout)
    what = f"invisible time of {topic!r} queue {handle.queue_id} at {handle.queue_offset}"
    response.raise_for_code(address, what)
    answer = response.header(ChangeInvisibleTimeResponseHeader)
    return handle._replace(
        start_offset=handle.queue_offset,
        pop_time=answer.pop_time,
        invisible_time=answer.invisible_time,
        revive_queue_id=answer.revive_qid,
    )


async def query_assignment(
    remoting: Remoting, address: str, body: QueryAssignmentRequestBody, timeout: float
) -> list[MessageQueueAssignment] | None:
    """Ask a broker which queues of a topic a member reads, and how; None: as before."""
    request = RemotingCommand.request(RequestCode.QUERY_ASSIGNMENT, body=body.encode())
    response = await remoting.invoke(address, request, timeout)
    response.raise_for_code(address, f"assignment of topic {body.topic!r} in group {body.consumer_group!r}")
    return QueryAssignmentResponseBody.decode(response.body).message_queue_assignments
