"""Figures of a store, for whoever shows them: runtime information and metrics."""

from __future__ import annotations

from rocketcore.broker.store.keeping.cleaner import Cleaner
from rocketcore.broker.store.keeping.repair_schedule import QueueRepairs
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.reading.records import Records
from rocketcore.broker.store.writing.committer import Committer
from rocketcore.broker.store.writing.dispatch import Dispatcher

__all__ = ["StoreStats"]


class StoreStats:
    """Loop thread only. What is counted is counted since the start, by each part for itself."""

    def __init__(
        self,
        log: CommitLog,
        committer: Committer,
        dispatcher: Dispatcher,
        records: Records,
        repairs: QueueRepairs,
        cleaner: Cleaner,
    ) -> None:
        self._log = log
        self._committer = committer
        self._dispatcher = dispatcher
        self._records = records
        self._repairs = repairs
        self._cleaner = cleaner

    @property
    def dispatch_behind(self) -> int:
        """Bytes that are appended and not visible yet."""
        return self._log.end_offset - self._committer.durable_offset

    @property
    def waiting_puts(self) -> int:
        """How many wait until what they put counts as stored."""
        return self._committer.waiting

    @property
    def repaired_queues(self) -> int:
        """Consume queues that were damaged and repaired from the log."""
        return self._repairs.repaired

    @property
    def read_errors(self) -> int:
        """Reads of the log that failed because the disk did not give a page."""
        return self._records.read_errors

    @property
    def listener_errors(self) -> int:
        """Calls of ``on_arrival`` that raised."""
        return self._dispatcher.listener_errors

    @property
    def deleted_bytes(self) -> int:
        """Bytes of the log that were deleted because of their age or of the disk."""
        return self._cleaner.deleted_bytes

    @property
    def damaged_records(self) -> int:
        """Messages found damaged, and left out of answers."""
        return self._records.damaged_records + self._repairs.lost
