"""Saving what is derived: consume queues, and the note of what is on disk (Java: ``FlushConsumeQueueService``).

What a save writes is settled on the loop; the disk thread writes it; the loop learns the outcome. Units are written
often, so that memory does not hold them, and made durable seldom, together with ``queuebounds`` and ``checkpoint``:
those bound how much of the log the next start reads.
"""

from __future__ import annotations

from pathlib import Path

from rocketcore.broker.store.checkpoint import Checkpoint, QueueBounds
from rocketcore.broker.store.commit_log import CommitLog
from rocketcore.broker.store.consume_queue import QueueTable, Units
from rocketcore.broker.store.segment_file import FileSystem

__all__ = ["QueueSaver", "Save"]


class Save:
    """One save: ``work`` on the disk thread, then ``done`` or ``failed`` on the loop."""

    __slots__ = ("_bounds", "_deletions", "_saver", "_unsaved")

    def __init__(self, saver: QueueSaver, unsaved: list[Units], bounds: QueueBounds | None) -> None:
        self._saver = saver
        self._deletions = saver.deletions
        self._unsaved = unsaved
        self._bounds = bounds

    def work(self) -> None:
        """raises  OSError"""
        for units in self._unsaved:
            self._saver.queues.files.write(units)
        if self._bounds is not None:
            self._saver.make_durable(self._bounds)

    def done(self) -> None:
        for units in self._unsaved:
            units.queue.mark_saved(units.end)
        if self._bounds is not None:
            self._saver.noted_offset = self._bounds.confirm_offset
            self._saver.noted_deletions = self._deletions

    def failed(self) -> None:
        for units in self._unsaved:
            units.queue.not_saved(units)


class QueueSaver:
    """Prepares saves; loop thread only, except ``make_durable``."""

    def __init__(self, root: Path, log: CommitLog, queues: QueueTable, files: FileSystem) -> None:
        self.queues = queues
        self.deleted_before: dict[str, int] = {}
        self.noted_offset = -1
        self.deletions = self.noted_deletions = 0
        self._bounds_path = root / "queuebounds"
        self._checkpoint_path = root / "checkpoint"
        self._log = log
        self._files = files
        self._trusted = True

    def read(self) -> tuple[QueueBounds | None, Checkpoint]:
        """Read what the last run noted."""
        bounds = QueueBounds.read(self._bounds_path)
        if bounds is not None:
            self.deleted_before = bounds.deleted_before
        return bounds, Checkpoint.read(self._checkpoint_path)

    def topic_deleted(self, topic: str, end_offset: int) -> None:
        """Have the next note say that what the log holds of a topic before ``end_offset`` belongs to no queue."""
        self.deleted_before[topic] = end_offset
        self.deletions += 1

    @property
    def has_deletions_to_note(self) -> bool:
        return self.deletions != self.noted_deletions

    def prepare(self, dispatched_offset: int, store_timestamp: int, *, thorough: bool) -> Save:
        """Return a save of the queues as they are now.

        dispatched_offset  the log before it is in the queues; store_timestamp the time of the last message there
        thorough           make it durable and note it, if there is anything new
        """
        unsaved = [units for queue in self.queues if (units := queue.unsaved()) is not None]
        news = dispatched_offset != self.noted_offset or self.has_deletions_to_note
        if not thorough or not self._trusted or not news:
            return Save(self, unsaved, None)
        bounds: dict[str, dict[int, tuple[int, int]]] = {}
        for queue in self.queues:
            bounds.setdefault(queue.topic, {})[queue.queue_id] = (queue.min_offset, queue.max_offset)
        return Save(
            self,
            unsaved,
            QueueBounds(
                confirm_offset=dispatched_offset,
                store_timestamp=store_timestamp,
                queues=bounds,
                deleted_before=dict(self.deleted_before),
            ),
        )

    def make_durable(self, bounds: QueueBounds) -> None:
        """Sync log and queues, then write the notes: they are true at any crash."""
        self._log.sync_written()
        self.queues.files.sync()
        bounds.write(self._bounds_path, self._files)
        Checkpoint(
            physic_msg_timestamp=bounds.store_timestamp,
            logics_msg_timestamp=bounds.store_timestamp,
            index_msg_timestamp=bounds.store_timestamp,
            confirm_physical_offset=bounds.confirm_offset,
        ).write(self._checkpoint_path, self._files)

    def distrust(self) -> None:
        """A queue was found damaged: without the note, the next start builds all queues again."""
        if self._trusted:
            self._trusted = False
            self._bounds_path.unlink(missing_ok=True)
