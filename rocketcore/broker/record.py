"""Stored records taken apart, for those that store a message again: delayed delivery and retries."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from rocketcore._fast import record as kernel
from rocketcore._fast.message_id import offset_msg_id
from rocketcore.broker.store import StoredMessage
from rocketcore.codes import MessageSysFlag
from rocketcore.table import Table

_BORN_V6 = int(MessageSysFlag.BORN_HOST_V6)
_STORE_V6 = int(MessageSysFlag.STORE_HOST_V6)


class StoredRecord(NamedTuple):
    """One record: where and when it was stored, and the message, ready to be changed and stored again."""

    queue_offset: int
    physical_offset: int
    store_timestamp: int
    store_host: bytes
    message: StoredMessage

    @property
    def msg_id(self) -> str:
        """The offset message id."""
        return offset_msg_id(self.store_host, self.physical_offset).decode()


class RecordReader:
    """Reads records that lie back to back; its table serves one ``read`` at a time."""

    def __init__(self, capacity: int) -> None:
        self._table = Table(capacity, kernel.STORED_COLUMNS)

    def read(self, data: bytes) -> Iterator[StoredRecord]:
        """Yield the records of ``data``, at most as many as the capacity; raises DecodeError at the first bad one."""
        count, _ = kernel.scan_stored(data, 0, len(data), self._table.view)
        for row in range(count):
            yield _record(data, self._table.row(row))


def _record(data: bytes, row: array[int]) -> StoredRecord:
    sys_flag = row[kernel.SYS_FLAG]
    store_host = row[kernel.STORE_HOST]
    born_host = row[kernel.BORN_HOST]
    body, topic, properties = row[kernel.BODY_START], row[kernel.TOPIC_START], row[kernel.PROPERTIES_START]
    message = StoredMessage(
        topic=data[topic : topic + row[kernel.TOPIC_LENGTH]].decode(),
        queue_id=row[kernel.QUEUE_ID],
        body=data[body : body + row[kernel.BODY_LENGTH]],
        properties=data[properties : properties + row[kernel.PROPERTIES_LENGTH]],
        flag=row[kernel.FLAG],
        sys_flag=sys_flag,
        born_timestamp=row[kernel.BORN_TIMESTAMP],
        born_host=data[born_host : born_host + (20 if sys_flag & _BORN_V6 else 8)],
        reconsume_times=row[kernel.RECONSUME_TIMES],
    )
    return StoredRecord(
        row[kernel.QUEUE_OFFSET],
        row[kernel.PHYSICAL_OFFSET],
        row[kernel.STORE_TIMESTAMP],
        data[store_host : store_host + (20 if sys_flag & _STORE_V6 else 8)],
        message,
    )
