"""POP consumption and queue assignment by the broker [5.x]. Times are milliseconds."""

from __future__ import annotations

import base64
import re
from dataclasses import field
from enum import Enum
from typing import Final

from rocketcore.errors import DecodeError
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.bodies.base import Body, Int, body, wire
from rocketcore.protocol.bodies.heartbeat import MessageModel

_NOT_ZERO: Final = re.compile(rb"[^\0]")


class MessageRequestMode(Enum):
    """Whether a queue is read by pull or by POP."""

    PULL = "PULL"
    POP = "POP"


@body
class QueryAssignmentRequestBody(Body):
    """Body of QUERY_ASSIGNMENT (400)."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str = ""
    message_model: MessageModel | None = None


@body
class MessageQueueAssignment(Body):
    """One queue that a client gets, and how it reads it."""

    message_queue: MessageQueue | None = None
    mode: MessageRequestMode | None = MessageRequestMode.PULL
    attachments: dict[str, str] | None = None


@body
class QueryAssignmentResponseBody(Body):
    """Answer to QUERY_ASSIGNMENT (400); None means: leave things as they are this time."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


@body
class SetMessageRequestModeRequestBody(Body):
    """Body of SET_MESSAGE_REQUEST_MODE (401)."""

    topic: str = ""
    consumer_group: str = ""
    mode: MessageRequestMode | None = MessageRequestMode.PULL
    pop_share_queue_num: Int = 0


@body
class MessageRequestModeSerializeWrapper(Body):
    """Answer to GET_ALL_MESSAGE_REQUEST_MODE (402), and the file of the modes: by topic and group."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = field(default_factory=dict)


@body
class BatchAck(Body):
    """Acknowledged messages of one POP: the bit i of ``bit_set`` is the message ``start_offset`` index i.

    On the wire the bits are base64 of bytes, bit 0 being the lowest of the first byte, without zero bytes at the end.
    """

    consumer_group: str = field(default="", metadata=wire("c"))
    topic: str = field(default="", metadata=wire("t"))
    retry: str = field(default="0", metadata=wire("r"))
    start_offset: int = field(default=0, metadata=wire("so"))
    queue_id: int = field(default=0, metadata=wire("q"))
    revive_queue_id: int = field(default=0, metadata=wire("rq"))
    pop_time: int = field(default=0, metadata=wire("pt"))
    invisible_time: int = field(default=0, metadata=wire("it"))
    bits: str = field(default="", metadata=wire("b"))

    @property
    def bit_count(self) -> int:
        """How many bits are set; raises DecodeError where the text is not base64."""
        return int.from_bytes(self._bytes()).bit_count()

    @property
    def bit_set(self) -> set[int]:
        """Indexes of the bits that are set; raises DecodeError where the text is not base64."""
        data = self._bytes()
        places = (found.start() for found in _NOT_ZERO.finditer(data))
        return {8 * index + bit for index in places for bit in range(8) if data[index] >> bit & 1}

    def _bytes(self) -> bytes:
        try:
            return base64.b64decode(self.bits, validate=True)
        except ValueError as error:  # binascii.Error, and what is no ASCII
            raise DecodeError(f"BatchAck.b: {error}") from None

    @staticmethod
    def encode_bits(bit_set: set[int]) -> str:
        """Return the wire form of a set of bit indexes."""
        value = sum(1 << bit for bit in bit_set)
        return base64.b64encode(value.to_bytes((value.bit_length() + 7) // 8, "little")).decode()


@body
class BatchAckMessageRequestBody(Body):
    """Body of BATCH_ACK_MESSAGE (200151)."""

    broker_name: str = ""
    acks: list[BatchAck] = field(default_factory=list)
