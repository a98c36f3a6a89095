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
from collections.abc import Callable, Coroutine
from typing import Final, TypeVar

from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.file_system import LostWrite, is_full
from rocketcore.broker.store.flush import DiskThread
from rocketcore.broker.store.keeping.queue_notes import QueueNote, QueueNotes
from rocketcore.broker.store.queues.consume_queue import Units
from rocketcore.broker.store.queues.queue_table import QueueTable
from rocketcore.broker.store.writing.committer import Committer
from rocketcore.service import Clock

__all__ = ["QueueSaver"]

T = TypeVar("T")

TRIMMED_TOPICS: Final = 100
"""Topics that nobody has looked at since an unclean end, whose queues one save cuts to their bounds."""

logger = logging.getLogger(__name__)

_MANY_MESSAGES = 10_000
"""Read by a start in some hundredths of a second."""


class _Save:
    """One save: ``work`` on the save thread, then ``done`` or ``failed`` on the loop; mostly without a note."""

    __slots__ = ("_saver", "_unsaved", "note")

    def __init__(self, saver: QueueSaver, unsaved: list[Units], note: QueueNote | None) -> None:
        self.note = note
        self._saver = saver
        self._unsaved = unsaved

    def work(self) -> None:
        """raises  OSError"""
        for units in self._unsaved:
            self._saver.queues.files.write(units)
        if self.note is not None:
            self._saver.notes.write(self.note)

    def done(self) -> None:
        for units in self._unsaved:
            units.queue.mark_saved(units.end)
        if self.note is not None:
            self._saver.notes.noted(self.note)

    def failed(self) -> None:
        for units in self._unsaved:
            units.queue.not_saved(units)
            self._saver.queues.changed.add(units.queue)
        if self.note is not None:
            self._saver.notes.not_noted(self.note)


class QueueSaver:
    """Loop thread only, except what ``_Save.work`` does.

    lock     held by one save, and by whoever needs that none writes notes or files of queues
    notes    what is noted of the queues
    on_full  is told why sends must be refused until the queues can be saved; an empty text when they can be
    """

    def __init__(
        self,
        config: StoreConfig,
        queues: QueueTable,
        notes: QueueNotes,
        committer: Committer,
        clock: Clock,
        on_full: Callable[[str], None],
    ) -> None:
        self.queues = queues
        self.notes = notes
        self.lock = asyncio.Lock()
        self._root = config.root
        self._thorough_seconds = config.flush_consume_queue_thorough_interval / 1000
        self._thorough_at = 0.0
        self._committer = committer
        self._clock = clock
        self._on_full = on_full
        self._thread: DiskThread | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ life

    def start(self, loop: asyncio.AbstractEventLoop, messages_read: int) -> None:
        """Save on this loop from now on.

        messages_read  by this start; where they are many they are noted soon: a broker that is killed again and again
                       before its first note would read more each time
        """
        self._thread = DiskThread("rocket-store-queues", loop)
        soon = messages_read >= _MANY_MESSAGES
        self._thorough_at = -math.inf if soon else self._clock.monotonic()

    async def save_now(self, *, thorough: bool = True) -> None:
        """Save what there is, and note it if that is to be ``thorough``; what goes wrong is dealt with."""
        async with self.lock:
            await self.save_under_lock(thorough=thorough)

    async def save_under_lock(self, *, thorough: bool = True) -> Exception | str | None:
        """The same, for the holder of the lock; returns why not all of it was saved."""
        return self._committer.read_only_reason or await self._save(thorough=thorough)

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
        self.do(self.save_now(thorough=thorough))

    def do(self, work: Coroutine[None, None, None]) -> None:
        """Begin something that a stop waits for."""
        task = asyncio.get_running_loop().create_task(work, name="store-save")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _save(self, *, thorough: bool, everything: bool = False) -> Exception | None:
        """Save the queues as they are now; for the holder of the lock.

        thorough    make it durable and note it, if there is anything new
        everything  also cut off what an unclean end left behind the ends of queues that nobody has looked at
        returns     what went wrong, dealt with already: sends are refused until it heals, or for good
        """
        assert self._thread is not None, "started"
        save = self._prepare(thorough=thorough, everything=everything)
        try:
            if save.note is not None:
                await self._committer.sync_up_to(save.note.bounds.confirm_offset)
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
        self.notes.grew({queue.topic for queue in changed})
        unsaved = [units for queue in changed if (units := queue.unsaved()) is not None]
        committer = self._committer
        note = self.notes.next(committer.durable_offset, committer.durable_timestamp) if thorough else None
        return _Save(self, unsaved, note)

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

    # ------------------------------------------------------------------ for repairs, and whoever moves the log's begin

    @property
    def runs(self) -> bool:
        return self._thread is not None

    @property
    def may_note(self) -> bool:
        """Whether a note tells where the log begins now, and another may be written."""
        return self.notes.is_ours and self._committer.read_only_reason is None

    async def run(self, work: Callable[[], T]) -> T:
        """Run something on the save thread, which waits for the disk; raises what it raises."""
        assert self._thread is not None, "started"
        return await self._thread.run(work)
