"""Replies to sends, held until the store says that their messages are durable.

The channel joins all replies that one flush frees for a connection into one write. What is stored but not yet
acknowledged is counted per connection, so that no sender can pile up work without bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rocketcore._fast.command import encode_send_response
from rocketcore.broker.store import MessageStore, PutStatus
from rocketcore.codes import CURRENT_VERSION, RemotingFlag, ResponseCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.schema import Header
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.channel import Channel
from rocketcore.transport.slow_requests import SlowRequests

_STORED_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
}


SendReply: TypeAlias = tuple[int, int, int, int, bytes, bytes | None]
"""What the answer to one send says: opaque, serialize type, queue id, queue offset, message id, transaction id.

A bare tuple, because one is made for each message: a class with names costs as much as to encode the answer.
"""


class Acknowledger:
    """Waits for the store on behalf of senders.

    region, trace_on  what every answer carries as MSG_REGION and TRACE_ON; ``trace_on`` is asked at each answer
    on_stored         is told how many seconds it took from the append until messages of one write were durable
    slow              is told where that took too long
    """

    def __init__(
        self,
        store: MessageStore,
        region: str,
        trace_on: Callable[[], bool],
        *,
        on_stored: Callable[[float], object] = lambda seconds: None,
        slow: SlowRequests | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._on_stored = on_stored
        self._slow = slow or SlowRequests()
        self._monotonic = clock.monotonic
        self._store = store
        self._region = region
        self._region_bytes = region.encode()
        self._trace_on = trace_on
        self._pending_bytes: dict[Channel, int] = {}

    def pending_bytes(self, channel: Channel) -> int:
        """Bytes stored for a connection that it has no answer for yet."""
        return self._pending_bytes.get(channel, 0)

    def reply_when_durable(
        self,
        channel: Channel,
        end_offset: int,
        size: int,
        replies: Sequence[SendReply],
        recall_handle: str | None = None,
        topic: str = "-",
    ) -> None:
        """Send the replies once everything before ``end_offset`` is durable; until then ``size`` bytes are pending.

        recall_handle  by which the message of the one reply can be taken back
        topic          of the messages, for a line about a slow disk
        """
        self._pending_bytes[channel] = self._pending_bytes.get(channel, 0) + size
        began = self._monotonic()
        self._store.wait(
            end_offset, lambda status: self._flushed(channel, size, replies, began, status, recall_handle, topic)
        )

    def encode(
        self,
        replies: Sequence[SendReply],
        status: PutStatus = PutStatus.PUT_OK,
        recall_handle: str | None = None,
    ) -> bytes:
        """The frames of the replies, back to back."""
        if status is PutStatus.PUT_OK and self._trace_on() and recall_handle is None:
            region = self._region_bytes
            return b"".join(
                [
                    encode_send_response(
                        opaque, CURRENT_VERSION, queue_id, queue_offset, msg_id, transaction_id, serialize_type, region
                    )
                    for opaque, serialize_type, queue_id, queue_offset, msg_id, transaction_id in replies
                ]
            )
        return b"".join([self._general(reply, status, recall_handle).encode() for reply in replies])

    def refusal(self, request: RemotingCommand, code: int, remark: str) -> RemotingCommand:
        """The answer to a send that stored nothing."""
        return self.answer(request, code, remark)

    def answer(
        self, request: RemotingCommand, code: int, remark: str | None, header: Header | None = None
    ) -> RemotingCommand:
        """The answer to one send, marked as those of all sends are."""
        response = RemotingCommand.response(request, code, remark, header)
        self._mark(response)
        return response

    def _flushed(
        self,
        channel: Channel,
        size: int,
        replies: Sequence[SendReply],
        began: float,
        status: PutStatus,
        recall_handle: str | None,
        topic: str,
    ) -> None:
        waited = self._monotonic() - began
        self._on_stored(waited)
        if waited >= self._slow.seconds:
            self._slow.tell_send(channel.remote_address, topic, waited, max(1, len(replies)))
        left = self._pending_bytes[channel] - size
        if left:
            self._pending_bytes[channel] = left
        else:
            del self._pending_bytes[channel]
        if replies and not channel.closed:
            channel.write(self.encode(replies, status, recall_handle))

    def _general(self, reply: SendReply, status: PutStatus, recall_handle: str | None) -> RemotingCommand:
        opaque, serialize_type, queue_id, queue_offset, msg_id, transaction_id = reply
        code = _STORED_CODES.get(status)
        response = RemotingCommand(
            ResponseCode.SERVICE_NOT_AVAILABLE if code is None else code,
            opaque=opaque,
            flag=RemotingFlag.RESPONSE,
            serialize_type=serialize_type,
        )
        if code is None:
            response.remark = "the message could not be written to disk: the store takes no more messages"
        else:
            response.add_ext_field("msgId", msg_id.decode())
            response.add_ext_field("queueId", str(queue_id))
            response.add_ext_field("queueOffset", str(queue_offset))
            if transaction_id is not None:
                response.add_ext_field("transactionId", transaction_id.decode())
            if recall_handle is not None:
                response.add_ext_field("recallHandle", recall_handle)
        self._mark(response)
        return response

    def _mark(self, response: RemotingCommand) -> None:
        response.add_ext_field("MSG_REGION", self._region)
        response.add_ext_field("TRACE_ON", "true" if self._trace_on() else "false")
