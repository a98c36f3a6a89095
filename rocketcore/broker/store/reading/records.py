"""Single records and units as reads get them: asked for, read, checked; what is wrong with them is named and counted.

Every record is checked on its way out: its CRC, its queue and its queue offset. A damaged body is named in the log of
this process and left out, so that a consumer neither gets it nor stands still before it; a unit that points at another
message means that the queue is damaged, and is an error until the unit is made again from the log, which begins at once
(``queue_repair``). A page that cannot be read is an error of the reads that begin at it, as the disk may give it the
next time, until it has failed for so long that it counts as damaged (``unreadable``).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import NoReturn

from rocketcore._fast.record import PROPERTIES_LENGTH, PROPERTIES_START, STORED_COLUMNS, scan_stored
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.log.pages import Pages
from rocketcore.broker.store.log.record_head import HEAD_BYTES
from rocketcore.broker.store.log.unreadable import UnreadablePages
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue
from rocketcore.broker.store.queues.queue_repair import leads_to
from rocketcore.broker.store.queues.queue_table import QueueTable
from rocketcore.errors import DecodeError, StoreCorrupted
from rocketcore.service import Clock
from rocketcore.table import Table

__all__ = ["Records"]

logger = logging.getLogger(__name__)


class Records:
    """Loop thread only. Every read here may raise Cold (``pages``).

    table      the row of the record that was checked last
    on_damage  is told of a queue that is damaged at an offset, and says what becomes of it
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        pages: Pages,
        clock: Clock,
        on_damage: Callable[[ConsumeQueue, int], str],
    ) -> None:
        self.read_errors = 0
        self.table = Table(1, STORED_COLUMNS)
        self._log = log
        self._queues = queues
        self._pages = pages
        self._on_damage = on_damage
        self._unreadable = UnreadablePages(log, self._bytes, clock)
        self._damaged_records = 0

    @property
    def damaged_records(self) -> int:
        """Messages found damaged, or given up, and left out of answers."""
        return self._damaged_records + self._unreadable.passed_over

    def units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes | bytearray:
        """Return units of a queue as it gives them; raises OSError."""
        return queue.units(queue_offset, count, self._pages if self._pages.asks else None)

    def sound_units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes | bytearray:
        """Return units of a queue, one at least.

        raises  StoreCorrupted when they are not there, or the disk does not give them; OSError
        """
        try:
            units = self.units(queue, queue_offset, count)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOENT):
                raise
            self.queue_damaged(queue, queue_offset, str(error))
        if not units:
            self.queue_damaged(queue, queue_offset, "the file ends before it")
        return units

    def read(self, physical_offset: int, size: int) -> bytes | None:
        """See ``CommitLog.read``; names and counts what cannot be read."""
        try:
            return self._bytes(physical_offset, size)
        except OSError as error:
            self.read_errors += 1
            logger.error("commit log not readable physical_offset=%d bytes=%d reason=%s", physical_offset, size, error)
            raise

    def _bytes(self, physical_offset: int, size: int) -> bytes | None:
        if self._pages.asks:
            self._pages.want(physical_offset, size)
        return self._log.read(physical_offset, size)

    def is_given_up(self, error: OSError, physical_offset: int, size: int) -> bool:
        """Whether a record that could not be read counts as damaged by now."""
        return error.errno == errno.EIO and self._unreadable.failed(physical_offset, size)

    def checked(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int, size: int) -> bytes | None:
        """Return one record, or None if its body or its properties are damaged, or it was given up.

        raises  StoreCorrupted when the unit does not lead to the message of this queue offset; OSError
        """
        try:
            record = self.read(physical_offset, size)
        except OSError as error:
            if not self.is_given_up(error, physical_offset, size):
                raise
            return None
        if record is None or len(record) < HEAD_BYTES:
            self.queue_damaged(queue, queue_offset, f"there is no record of {size} bytes at {physical_offset}")
        if not leads_to(record, queue, queue_offset, physical_offset, size):
            self.queue_damaged(queue, queue_offset, f"it leads to {physical_offset}, where another message lies")
        try:
            if self.scan(record, physical_offset):
                return record
            reason = "its length is wrong"
        except DecodeError as error:
            reason = str(error)
        self._record_damaged(physical_offset, reason)
        return None

    def scan(self, record: bytes, physical_offset: int) -> bool:
        """Read a record's fields into ``table``, checked; whether it is one, whole; raises DecodeError."""
        if self._pages.asks:
            self._pages.want_seal(physical_offset)
        sealed = self._log.is_sealed_at(physical_offset)
        count, position = scan_stored(record, 0, len(record), self.table.view, whole=True, sealed=sealed)
        return bool(count) and position == len(record)

    @property
    def properties_range(self) -> tuple[int, int]:
        """Begin and length of the properties of the record that was just checked."""
        row = self.table.flat
        return row[PROPERTIES_START], row[PROPERTIES_LENGTH]

    def properties(self, record: bytes) -> bytes:
        """Return the properties of the record that was just checked."""
        start, length = self.properties_range
        return record[start : start + length]

    def _record_damaged(self, physical_offset: int, reason: str) -> None:
        self._damaged_records += 1
        segment = self._log.find_segment(physical_offset)
        assert segment is not None, "the record was read from a segment"
        logger.error(
            "message damaged path=%s position=%d reason=%s", segment.path, physical_offset - segment.start, reason
        )

    def queue_damaged(self, queue: ConsumeQueue, queue_offset: int, reason: str) -> NoReturn:
        """Have a queue repaired that leads nowhere; raises StoreCorrupted."""
        self._queues.files.read_anew(queue)
        remedy = self._on_damage(queue, queue_offset)
        folder = self._queues.files.folder(queue.topic, queue.queue_id)
        fault = f"consume queue {folder} is damaged at offset {queue_offset}: {reason}"
        logger.error("%s", fault)
        raise StoreCorrupted(f"{fault}; {remedy}")
