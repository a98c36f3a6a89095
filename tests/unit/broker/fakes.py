"""Stand-ins for the store and for connections: no files, no sockets, everything happens at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from rocketcore._fast import message_id
from rocketcore._fast import record as record_kernel
from rocketcore._fast.consume_queue import UNIT_SIZE, put_unit
from rocketcore._fast.properties import decode_properties
from rocketcore._fast.timer_heap import timer_code
from rocketcore.broker.record import RecordReader
from rocketcore.broker.store import GetResult, GetStatus, PutResult, PutStatus, StoreConfig, StoredMessage
from rocketcore.broker.store.timed import timer_due
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock

STORE_HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")


class FakeChannel:
    """A connection that keeps what was written to it."""

    def __init__(self, remote_address: str = "127.0.0.1:50001") -> None:
        self.remote_address = remote_address
        self.attributes: dict[str, Any] = {}
        self.closed = self.write_paused = False
        self.sent: list[RemotingCommand] = []
        self.written: list[bytes] = []

    def send(self, command: RemotingCommand) -> None:
        self.sent.append(command)

    def invoke_oneway(self, command: RemotingCommand) -> None:
        self.sent.append(command)

    def write(self, data: bytes | list[bytes]) -> None:
        self.written.append(data if isinstance(data, bytes) else b"".join(data))

    def close(self) -> None:
        self.closed = True


class Warm:
    """Reads that never wait for a disk."""

    def now(self, owner: object, call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments)


class FakeStore:
    """Keeps records in lists; what was put is durable when ``flush`` is called."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.reads = Warm()
        self.store_host = STORE_HOST
        self.config = StoreConfig()
        self.bad_units: dict[int, int] = {}
        self.refuse: PutStatus | None = None
        self.due: dict[tuple[int, int], int] = {}
        self.bytes_walked = 0
        self.synced_offset = 0
        self.damaged: dict[tuple[str, int, int], Exception] = {}
        self._queues: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self._log: dict[int, bytes] = {}
        self._end = 0
        self._waiting: list[tuple[int, Callable[[PutStatus], None]]] = []

    def put(self, message: StoredMessage) -> PutResult:
        if self.refuse is not None:
            return PutResult(self.refuse, reason="told to refuse")
        queue = self._queues[message.topic, message.queue_id]
        record = record_kernel.encode_stored(
            topic=message.topic.encode(),
            queue_id=message.queue_id,
            flag=message.flag,
            queue_offset=len(queue),
            physical_offset=self._end,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=self.clock.time_millis(),
            store_host=self.store_host,
            reconsume_times=message.reconsume_times,
            prepared_offset=message.prepared_transaction_offset,
            body=message.body,
            properties=message.properties,
        )
        result = PutResult(
            PutStatus.PUT_OK,
            self._end,
            len(queue),
            len(record),
            self.clock.time_millis(),
            self._end + len(record),
            message_id.offset_msg_id(self.store_host, self._end),
            1,
        )
        queue.append(record)
        self._log[self._end] = record
        self._end += len(record)
        return result

    def wait(self, end_offset: int, callback: Callable[[PutStatus], None]) -> None:
        self._waiting.append((end_offset, callback))

    def flush(self, status: PutStatus = PutStatus.PUT_OK) -> None:
        """Make everything durable, or fail to."""
        if status is PutStatus.PUT_OK:
            self.synced_offset = self._end
        waiting, self._waiting = self._waiting, []
        for _, callback in waiting:
            callback(status)

    @property
    def waits(self) -> bool:
        """Whether anything that was put is not durable yet."""
        return bool(self._waiting)

    def lose(self, topic: str, queue_id: int, count: int = 1) -> None:
        """Take back the last messages of a queue, as a crash may."""
        for record in self._queues[topic, queue_id][-count:]:
            del self._log[int.from_bytes(record[28:36], "big")]
        del self._queues[topic, queue_id][-count:]

    def crash(self) -> None:
        """Take back all that is not on disk, as a power cut may."""
        for queue in self._queues.values():
            while queue and int.from_bytes(queue[-1][28:36], "big") >= self.synced_offset:
                del self._log[int.from_bytes(queue.pop()[28:36], "big")]
        self._waiting.clear()
        self._end = self.synced_offset

    def get(self, topic: str, queue_id: int, queue_offset: int, max_count: int, tag_codes: object = None) -> GetResult:
        queue = self._queues[topic, queue_id]
        found = queue[queue_offset : queue_offset + max_count]
        for offset in range(queue_offset, queue_offset + len(found)):
            if (topic, queue_id, offset) in self.damaged:
                raise self.damaged[topic, queue_id, offset]
        status = GetStatus.FOUND if found else GetStatus.OFFSET_OVERFLOW_ONE
        return GetResult(status, queue_offset + len(found), 0, len(queue), b"".join(found), len(found))

    def place(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        queue = self._queues[topic, queue_id]
        return int.from_bytes(queue[queue_offset][28:36], "big") if queue_offset < len(queue) else None

    def units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes:
        """Of messages that wait for a time; ``bad_units`` has some that say another one."""
        made = bytearray()
        for index, record in enumerate(self._queues[topic, queue_id][queue_offset : queue_offset + count]):
            [stored] = RecordReader(1).read(record)
            due = timer_due(decode_properties(stored.message.properties), stored.store_timestamp)
            at = len(made)
            made += bytes(UNIT_SIZE)
            code = 0 if due is None else timer_code(due, stored.physical_offset, len(record))
            code = self.bad_units.get(queue_offset + index, code)
            put_unit(made, at, stored.physical_offset, len(record), code)
        return bytes(made)

    def lookup(self, physical_offset: int) -> bytes | None:
        return self._log.get(physical_offset)

    def is_in_repair(self, topic: str, queue_id: int) -> bool:
        return False

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self._queues[topic, queue_id])

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    @property
    def max_physical_offset(self) -> int:
        return self._end

    @property
    def min_physical_offset(self) -> int:
        return 0

    def queues(self) -> list[tuple[str, int]]:
        return [place for place, queue in self._queues.items() if queue]

    def tags_code(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Only of delayed messages: when they are due."""
        return self.due.get((queue_id, queue_offset))

    def deliveries(self, physical_offset: int, *, by_level: bool) -> set[int]:
        at = 48 + 8 + 8 + 8 + 4
        records = [record for start, record in self._log.items() if start >= physical_offset]
        self.bytes_walked += sum(map(len, records))
        return {int.from_bytes(record[at : at + 8], "big") for record in records} - {0}

    def records(self, topic: str, queue_id: int) -> list[bytes]:
        return self._queues[topic, queue_id]
