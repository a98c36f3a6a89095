"""Saving what is derived: consume queues, and the note of what is on disk (Java: ``FlushConsumeQueueService``).

What a save writes is decided on the loop; the save thread writes it; the loop learns the outcome. Units are written
often, so that memory does not hold them, and made durable seldom, together with ``queuebounds`` and ``checkpoint``:
those bound how much of the log the next start reads.

Saves follow one another under a lock, so that no note is written over a newer one. A save does not sync the log: it
asks the flush thread to, and notes what that has made durable. The system reports a write that it could not finish once
for each open file, so of two threads that sync, one would be told that all is well.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Set
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from rocketcore.broker.store.checkpoint import Checkpoint, Notes
from rocketcore.broker.store.commit_log import CommitLog
from rocketcore.broker.store.committer import Committer
from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.consume_queue import Units
from rocketcore.broker.store.deleted_topics import DeletedTopics
from rocketcore.broker.store.flush import DiskThread
from rocketcore.broker.store.queue_bounds import BoundsEnd, QueueBounds, Rows, unpack_rows
from rocketcore.broker.store.queue_table import QueueTable
from rocketcore.broker.store.segment_file import FileSystem, LostWrite, is_full
from rocketcore.errors import StoreError
from rocketcore.service import Clock

__all__ = ["QueueSaver"]

T = TypeVar("T")

TRIMMED_TOPICS: Final = 100
"""Topics that nobody has looked at since an unclean end, whose queues one save cuts to their bounds."""

logger = logging.getLogger(__name__)

_MANY_MESSAGES = 10_000
"""Read by a start in some hundredths of a second."""


class _Save:
    """One save: ``work`` on the save thread, then ``done`` or ``failed`` on the loop.

    bounds     the note, of the topics that changed; None: none is due
    after      the end of the note that it is added to; None: it has all topics, and replaces the last
    log_begin  where the log begins, which the bounds tell only when every queue has followed
    """

    __slots__ = (
        "_deletions", "_end", "_saver", "_topics", "_unsaved", "_with_deletions", "after", "bounds", "log_begin",
    )  # fmt: skip

    def __init__(
        self,
        saver: QueueSaver,
        unsaved: list[Units],
        bounds: QueueBounds | None = None,
        after: BoundsEnd | None = None,
        topics: Set[str] = frozenset(),
    ) -> None:
        self.bounds = bounds
        self.after = after
        self.log_begin = saver.log_begin
        self._topics = topics
        self._end: BoundsEnd | None = None
        self._saver = saver
        self._deletions = saver.deletions
        self._with_deletions = saver.has_deletions_to_note
        self._unsaved = unsaved

    def work(self) -> None:
        """raises  OSError"""
        for units in self._unsaved:
            self._saver.queues.files.write(units)
        if self.bounds is not None:
            if self._with_deletions:
                self._saver.deleted.write(self.bounds.deleted_before)
            self._end = self._saver.write_notes(self.bounds, self.after, self.log_begin)

    def done(self) -> None:
        for units in self._unsaved:
            units.queue.mark_saved(units.end)
        if self.bounds is not None:
            self._saver.noted(self.bounds, self._end, self.log_begin, whole=self.after is None)
            self._saver.noted_deletions = self._deletions

    def failed(self) -> None:
        for units in self._unsaved:
            units.queue.not_saved(units)
            self._saver.queues.changed.add(units.queue)
        if self.bounds is not None:
            self._saver.not_noted(self._topics)


class QueueSaver:
    """Loop thread only, except what ``_Save.work`` does.

    lock             held by one save, and by whoever needs that none writes notes or files of queues
    queues_begin     returns where the log began when every queue was last known to begin there or behind it
    on_full          is told why sends must be refused until the queues can be saved; an empty text when they can be
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        committer: Committer,
        files: FileSystem,
        clock: Clock,
        on_full: Callable[[str], None],
    ) -> None:
        self.queues = queues
        self.deleted = DeletedTopics(config.root, files)
        self.noted_offset = self.noted_begin = self._noted_queues_begin = self._adopted_until = -1
        self.queues_begin: Callable[[], int] = lambda: log.min_offset
        self.index_until: Callable[[], int] = lambda: 0
        self._noted_index = 0
        self.deletions = self.noted_deletions = 0
        self._root = config.root
        self._bounds_path = config.root / "queuebounds"
        self._checkpoint_path = config.root / "checkpoint"
        self._thorough_seconds = config.flush_consume_queue_thorough_interval / 1000
        self._committer = committer
        self._files = files
        self._clock = clock
        self._on_full = on_full
        self._thread: DiskThread | None = None
        self.lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thorough_at = 0.0
        self._log = log
        self._is_ours = False  # the notes in the folder, and so what they say of the begin of the log
        self._noted: dict[str, Rows] = {}  # of each topic in ``queuebounds``, which ends there; None: to be replaced
        self._note_end: BoundsEnd | None = None
        self._unnoted: set[str] = set()  # topics that may have changed since
        self._has_moved = False  # the begin of a queue, and nothing else, perhaps

    # ------------------------------------------------------------------ life

    def read(self) -> Notes:
        """Read what the last run noted."""
        notes = Notes.read(self._root, self._files)
        self._is_ours = not notes.rocketmq_ran
        self.deleted.read(notes.bounds.deleted_before)
        self.deletions += self.deleted.is_damaged  # so that the next save writes it anew
        notes.bounds.deleted_before = dict(self.deleted.before)
        return notes

    def adopted(self, bounds: QueueBounds) -> None:
        """Note that a start took over the queues as a note has them, which stands."""
        self._adopted_until = bounds.confirm_offset

    def log_ends_at(self, end_offset: int) -> None:
        """Make sure, before anything is put there, that no deletion is noted for what comes behind the log's end."""
        if self.deleted.cut_at(end_offset):
            self.deleted.write(self.deleted.before)
            bounds = QueueBounds.read(self._bounds_path, self._files)
            if bounds is not None:
                replace(bounds, deleted_before=dict(self.deleted.before)).write(self._bounds_path, self._files)

    def remove_deleted(self) -> None:
        """At a start: remove the files of deleted topics that a crash left behind the note of the deletion."""
        try:
            left = self.deleted.before.keys() & set(self.queues.files.topics())
        except OSError as error:
            logger.error("folders of deleted topics not looked for reason=%s", error)
            return
        for topic in left:
            self._remove_files(topic, self._kept_folders(topic))

    def start(self, loop: asyncio.AbstractEventLoop, messages_read: int) -> None:
        """Save on this loop from now on.

        messages_read  by this start; where they are many they are noted soon: a broker that is killed again and again
                       before its first note would read more each time
        """
        self._thread = DiskThread("rocket-store-queues", loop)
        soon = messages_read >= _MANY_MESSAGES
        self._thorough_at = -math.inf if soon else self._clock.monotonic()

    @property
    def log_begin(self) -> int:
        return self._log.min_offset

    @property
    def known_until(self) -> int:
        """Physical offset: where the queues end that follow from the log before it is noted on disk."""
        return max(self._adopted_until, self.noted_offset)

    async def save_now(self) -> None:
        """Save what there is, and note it; what goes wrong is dealt with."""
        async with self.lock:
            if self._committer.read_only_reason is None:
                await self._save(thorough=True)

    async def save_all(self) -> bool:
        """Save everything, for good, before the end; whether all of it is on disk."""
        await asyncio.gather(*self._tasks)
        if self._committer.read_only_reason is not None:
            return False
        async with self.lock:
            return await self._save(thorough=True, everything=True) is None

    async def stop(self) -> None:
        """End the thread."""
        assert self._thread is not None, "started"
        await self._thread.stop()

    # ------------------------------------------------------------------ saving

    def save_some(self) -> None:
        """Write new units into the queue files; at the longer interval make them durable and note it."""
        if self.lock.locked() or self._committer.read_only_reason is not None:
            return
        now = self._clock.monotonic()
        thorough = now - self._thorough_at >= self._thorough_seconds
        if thorough:
            self._thorough_at = now
        self.do(self._locked_save(thorough=thorough))

    def do(self, work: Coroutine[None, None, None]) -> None:
        """Begin something that a stop waits for."""
        task = asyncio.get_running_loop().create_task(work, name="store-save")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _locked_save(self, *, thorough: bool) -> None:
        async with self.lock:
            await self._save(thorough=thorough)

    async def _save(self, *, thorough: bool, everything: bool = False) -> Exception | None:
        """Save the queues as they are now; for the holder of the lock.

        thorough    make it durable and note it, if there is anything new
        everything  also cut off what an unclean end left behind the ends of queues that nobody has looked at
        returns     what went wrong, dealt with already: sends are refused until it heals, or for good
        """
        assert self._thread is not None, "started"
        save = self._prepare(thorough=thorough, everything=everything)
        try:
            if save.bounds is not None:
                await self._committer.sync_up_to(save.bounds.confirm_offset)
            await self._thread.run(save.work)
        except Exception as error:
            save.failed()
            self.failed(error)
            return error
        save.done()
        self._on_full("")
        return None

    def _prepare(self, *, thorough: bool, everything: bool) -> _Save:
        changed = self.queues.take_changed(None if everything else TRIMMED_TOPICS)
        self._unnoted.update(queue.topic for queue in changed)
        unsaved = [units for queue in changed if (units := queue.unsaved()) is not None]
        confirm_offset = self._committer.durable_offset
        queues_begin = self.queues_begin()
        begins_later = self._log.min_offset != self.noted_begin or queues_begin != self._noted_queues_begin
        news = confirm_offset != self.noted_offset or begins_later or self.has_deletions_to_note
        news = news or self.index_until() != self._noted_index or self._has_moved
        if not thorough or not news:
            return _Save(self, unsaved)
        self.deleted.forget_before(self._log.min_offset)
        topics, self._unnoted, self._has_moved = self._unnoted, set(), False
        rows, after = self._rows_to_note(topics)
        bounds = QueueBounds(
            begin_offset=queues_begin,
            sealed_from=self._log.sealed_from,
            confirm_offset=confirm_offset,
            store_timestamp=self._committer.durable_timestamp,
            file_bytes=self.queues.files.file_bytes,
            rows=rows,
            deleted_before=dict(self.deleted.before),
        )
        return _Save(self, unsaved, bounds, after, topics)

    def _rows_to_note(self, topics: Set[str]) -> tuple[dict[str, Rows], BoundsEnd | None]:
        """Return what the next note says of queues, and the end of the one that it is added to."""
        if self._note_end is None:
            return self.queues.all_rows(), None
        found = {topic: self.queues.rows(topic) for topic in topics}
        news = {topic: rows for topic, rows in found.items() if rows != self._noted.get(topic, b"")}
        if self._note_end.has_room:
            return news, self._note_end
        return {topic: rows for topic, rows in {**self._noted, **news}.items() if rows}, None

    def write_notes(self, bounds: QueueBounds, after: BoundsEnd | None, log_begin: int) -> BoundsEnd:
        """Sync the queues, then write the notes: they are true at any crash, as the log before them is on disk."""
        self.queues.files.sync()
        if after is None:
            end = bounds.write(self._bounds_path, self._files)
        else:
            end = bounds.add(self._bounds_path, after, self._files)
        index_until = self.index_until()
        Checkpoint(
            physic_msg_timestamp=bounds.store_timestamp,
            logics_msg_timestamp=bounds.store_timestamp,
            index_msg_timestamp=index_until,
            confirm_physical_offset=bounds.confirm_offset,
            begin_offset=log_begin,
        ).write(self._checkpoint_path, self._files)
        self._noted_index = index_until
        return end

    def noted(self, bounds: QueueBounds, end: BoundsEnd | None, log_begin: int, *, whole: bool) -> None:
        """Remember what is noted now; ``whole`` if the note has all topics."""
        self.noted_offset = bounds.confirm_offset
        self.noted_begin = log_begin
        self._noted_queues_begin = bounds.begin_offset
        self._is_ours = True
        self._note_end = end
        if whole:
            self._noted.clear()
        for topic, rows in bounds.rows.items():
            if rows:
                self._noted[topic] = rows
            else:
                self._noted.pop(topic, None)

    def not_noted(self, topics: Set[str]) -> None:
        """Remember what a failed save did not note; where the note ends now is not known."""
        self._unnoted |= topics
        self._has_moved = True
        self._note_end = None

    def failed(self, error: Exception) -> None:
        """Deal with what went wrong on the save thread: sends are refused until it heals, or for good."""
        if not isinstance(error, OSError) or isinstance(error, LostWrite):
            self._committer.fail("write or fsync of consume queues", error)
            return
        # The units are still in memory, and the log has them anyway.
        if is_full(error):
            what = f"disk full: consume queues below {self._root} cannot be written: {error}; free space"
        else:
            what = f"consume queues below {self._root} cannot be saved: {error}"
        reason = f"{what}; sends are taken again as soon as they can"
        self._on_full(reason)
        logger.error("consume queues not saved reason=%s", reason)

    # ------------------------------------------------------------------ deleting

    @property
    def has_deletions_to_note(self) -> bool:
        return self.deletions != self.noted_deletions

    def topic_deleted(self, topic: str, end_offset: int) -> None:
        """Have the next note say that what the log holds of a topic before ``end_offset`` belongs to no queue."""
        self.deleted.add(topic, end_offset)
        self.deletions += 1
        self._unnoted.add(topic)

    def note_deletions(self, topic: str) -> asyncio.Future[None]:
        """Make deletions durable, then remove the files of ``topic``; see ``MessageStore.delete_topic``."""
        noted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.do(self._note_deletions(topic, noted, self.deletions))
        return noted

    async def _note_deletions(self, topic: str, noted: asyncio.Future[None], number: int) -> None:
        """Note the first ``number`` deletions; others may come meanwhile."""
        async with self.lock:
            error = None
            if self.noted_deletions < number and self._committer.read_only_reason is None:
                error = await self._save(thorough=True)
            if self.noted_deletions < number:
                reason = error or self._committer.read_only_reason
                if not noted.done():
                    noted.set_exception(StoreError(f"the deletion of topic {topic} is not durable: {reason}"))
                return
            if not noted.done():
                noted.set_result(None)
            # Noted before the files go: a crash in between must not bring the topic back.
            await self.run(partial(self._remove_files, topic, self._kept_folders(topic)))

    def _kept_folders(self, topic: str) -> set[str]:
        """Names of the folders of queues that a new topic of the name has: they are its own by now."""
        return {str(queue_id) for queue_id in unpack_rows(self.queues.rows(topic))}

    def _remove_files(self, topic: str, kept: Set[str]) -> None:
        try:
            self.queues.files.remove_topic(topic, kept)
        except OSError as error:
            logger.error("files of a deleted topic not removed topic=%s reason=%s", topic, error)

    # ------------------------------------------------------------------ for repairs, and whoever moves the log's begin

    @property
    def runs(self) -> bool:
        return self._thread is not None

    @property
    def may_note(self) -> bool:
        """Whether a note tells where the log begins now, and another may be written."""
        return self._is_ours and self._committer.read_only_reason is None

    def changed(self, topic: str) -> None:
        """Have the next note say where the queues of a topic begin and end."""
        self._unnoted.add(topic)
        self._has_moved = True

    async def run(self, work: Callable[[], T]) -> T:
        """Run something on the save thread, which waits for the disk; raises what it raises."""
        assert self._thread is not None, "started"
        return await self._thread.run(work)
