"""What the store takes and what it answers. Expected outcomes are values here, not exceptions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["GetResult", "GetStatus", "PutResult", "PutRows", "PutStatus", "StoredMessage"]


class PutStatus(Enum):
    """The outcome of a put (Java: ``PutMessageStatus``)."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"


class GetStatus(Enum):
    """The outcome of a get (Java: ``GetMessageStatus``)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True, kw_only=True)
class StoredMessage:
    """A message to append (Java: ``MessageExtBrokerInner``).

    properties   encoded text (``name`` U+0001 ``value`` U+0002 …) as it is to be stored
    born_host    address and port of the producer, 8 bytes (IPv4) or 20 (IPv6); the IPv6 bit of sys_flag follows from it
    """

    topic: str
    queue_id: int
    body: bytes | bytearray | memoryview
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@dataclass(slots=True)
class PutResult:
    """Where a message, or a batch, went (Java: ``PutMessageResult``, ``AppendMessageResult``).

    ``end_offset`` is what ``MessageStore.wait`` takes. ``msg_id`` is the offset message id; a batch has one per
    message, joined by commas, and ``queue_offset`` is that of its first message. With another status than PUT_OK
    nothing was stored and ``reason`` says why.
    """

    status: PutStatus
    physical_offset: int = -1
    queue_offset: int = -1
    size: int = 0
    store_timestamp: int = 0
    end_offset: int = -1
    msg_id: bytes = b""
    count: int = 0
    reason: str = ""


@dataclass(slots=True)
class PutRows:
    """How far ``MessageStore.put_rows`` came.

    ``count`` rows were stored from ``first`` on; where it is less than asked, the next row may be of another topic, or
    one that ``put`` stores or says why not. The physical offset of a stored row is ``base`` plus its RESULT_POSITION.
    """

    count: int
    base: int
    end_offset: int


@dataclass(slots=True)
class GetResult:
    """Messages of one queue (Java: ``GetMessageResult``).

    ``body`` is the stored records back to back, ready to be the body of a pull reply.
    """

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    count: int = 0
