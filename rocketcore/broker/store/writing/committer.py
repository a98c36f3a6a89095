"""Committing: groups to the log by the flush policy, who waits for them, and the end of it all when the disk fails
(Java: ``GroupCommitService``, ``FlushRealTimeService``).

One group is in flight at a time; what is put meanwhile is the next one. That needs no timer: while the flush thread
(``_fast.flusher``) is in fdatasync the next group grows, and the slower the disk the larger it gets. On a slow disk a
group waits a moment for those whom the one before it answered (``group_wait``). Marks of the log, each at or behind the
one before it: end (appended), written, durable by the flush policy, which is also dispatched: readable.

The first write or fsync that fails makes the store read-only for good: the kernel drops the dirty pages and reports
success the next time, so a second attempt proves nothing. Nothing is written or synced any more, and nothing new is
said to be durable.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rocketcore._fast.flusher import Flusher, Work
from rocketcore.broker.store.config import FlushDiskType, StoreConfig
from rocketcore.broker.store.file_system import lost_write
from rocketcore.broker.store.log.commit_log import CommitLog, Group
from rocketcore.broker.store.values import PutStatus
from rocketcore.broker.store.writing.dispatch import Dispatcher
from rocketcore.broker.store.writing.group_wait import GroupWait
from rocketcore.service import Clock

__all__ = ["Committer"]

RETRY_SECONDS = 0.2
"""Before a commit is tried again for which there was no memory."""

TIME_AHEAD_MILLIS = 60_000
"""How far ahead of the clock the last run's time is taken over: further than clocks are corrected by."""

logger = logging.getLogger(__name__)


class _Waiter(NamedTuple):
    end_offset: int
    deadline: float
    callback: Callable[[PutStatus], None]


class _Commit(NamedTuple):
    group: Group
    store_timestamp: int
    began: float


class Committer:
    """Loop thread only. Built with the store, ``begin_at`` the end that recovery found, started, stopped once.

    on_failure  is told, once, why the store takes no more messages
    on_durable  is called for each group when it is durable; it must be quick, and not raise
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        dispatcher: Dispatcher,
        clock: Clock,
        on_failure: Callable[[str], None],
    ) -> None:
        self.store_timestamp = 0
        self.durable_offset = 0
        self.durable_timestamp = 0
        self.read_only_reason: str | None = None
        self.on_durable: Callable[[], None] | None = None
        self._config = config
        self._log = log
        self._dispatcher = dispatcher
        self._clock = clock
        self._on_failure = on_failure
        self._sync_flush = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flusher: Flusher | None = None
        self._scheduled = False
        self._group_wait = GroupWait()
        self._waits: asyncio.TimerHandle | None = None  # until when, at most, the next group does
        self._in_flight: _Commit | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._waiting: deque[_Waiter] = deque()

    # ------------------------------------------------------------------ life

    def begin_at(self, end_offset: int, store_timestamp: int) -> None:
        """Everything before ``end_offset`` is stored, the last of it at ``store_timestamp``."""
        self.durable_offset = end_offset
        # The store's time never falls, so that searches by time work; it waits while the clock is behind it. Not longer
        # than this, though: after a moment of a clock that was years ahead it would stand still for good.
        latest = self._clock.time_millis() + TIME_AHEAD_MILLIS
        self.store_timestamp = self.durable_timestamp = min(store_timestamp, latest)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._flusher = Flusher("rocket-store-flush", loop)

    async def drain(self) -> None:
        """Commit everything that was put; returns at once when the store failed."""
        while self.read_only_reason is None and (self._in_flight is not None or self._log.position):
            self._commit_now()
            await self._do(Work())

    async def stop(self) -> None:
        """End the flush thread."""
        if self._flusher is not None:
            await self._do(Work())
            self._flusher.stop()

    async def _do(self, work: Work) -> None:
        """Have the flush thread do a work, after those before it; raises LostWrite when one of them failed."""
        assert self._loop is not None, "started"
        assert self._flusher is not None, "started"
        answer: asyncio.Future[None] = self._loop.create_future()

        def done(error: BaseException | None) -> None:
            if answer.cancelled():
                return
            if isinstance(error, OSError):
                answer.set_exception(lost_write(error, error.filename))
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(None)

        self._flusher.submit(work, done)
        await answer

    # ------------------------------------------------------------------ committing

    def next_timestamp(self) -> int:
        """Now, in milliseconds; the store's time stands still while the wall clock is behind it."""
        self.store_timestamp = max(self.store_timestamp, self._clock.time_millis())
        return self.store_timestamp

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet written."""
        return self._log.position + (self._in_flight.group.size if self._in_flight is not None else 0)

    def schedule(self) -> None:
        """Commit what was appended, at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            assert self._loop is not None, "a store that was not started refuses messages"
            self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        """Commit what was appended, or wait a moment for more."""
        self._scheduled = False
        if self._group_wait.pays and self._in_flight is None and self._log.position:
            left = self._group_wait.left(self._clock.monotonic())
            if left > 0:
                if self._waits is None:
                    self._waits = self._loop.call_later(left, self._waited)  # type: ignore[union-attr]  # started
                return
        self._commit_now()

    def _waited(self) -> None:
        self._waits = None
        self._commit_now()

    def _commit_now(self) -> None:
        if self._in_flight is not None or self.read_only_reason is not None:
            return
        try:
            group = self._log.take()
        except MemoryError as error:
            logger.error("commit put off seconds=%g reason=%s", RETRY_SECONDS, error)
            self._loop.call_later(RETRY_SECONDS, self.schedule)  # type: ignore[union-attr]  # started
            return
        if group is None:
            return
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
        began = self._clock.monotonic() if self._sync_flush else 0.0
        commit = self._in_flight = _Commit(group, self.store_timestamp, began)
        try:
            work = self._log.work(group, sync=self._sync_flush)
            if self._sync_flush:
                assert self._flusher is not None, "started"
                self._flusher.submit(work, self._synced)
                return
            work.run()
        except Exception as error:
            # What was taken is in nobody's hands any more: nothing behind it may count as stored.
            self.fail("write", error)
            return
        self._in_flight = None
        self._log.written = group.end_offset
        self._finish(commit)

    def _synced(self, error: BaseException | None) -> None:
        """The flush thread is done with the group in flight."""
        commit, self._in_flight = self._in_flight, None
        if error is not None or commit is None:
            self.fail("write or fsync", error)
            return
        if self.read_only_reason is not None:
            return
        self._log.written = self._log.synced = commit.group.end_offset
        self._group_wait.synced(self._clock.monotonic() - commit.began)
        if self._group_wait.pays:
            try:
                self._finish(commit)
            finally:
                self._commit()
        else:
            try:
                self._commit_now()
            finally:
                self._finish(commit)
        if commit.group.wants_zeros and self.read_only_reason is None:
            self._zero_ahead(commit.group)

    def _zero_ahead(self, group: Group) -> None:
        """Prepare the log for the next groups, now that this one is answered."""
        assert self._flusher is not None, "started"

        def done(error: BaseException | None) -> None:
            if error is not None:
                self.fail("write", error)

        self._flusher.submit(self._log.zeros(group), done)

    def _finish(self, commit: _Commit) -> None:
        """Make a committed group visible and answer those who wait for it."""
        try:
            self._dispatcher.dispatch(commit.group)
        except Exception as error:
            # It is in the log, and a start will find it; what nobody can read is not acknowledged.
            self.fail("dispatch", error)
            return
        self._log.give_back(commit.group)
        end = self.durable_offset = commit.group.end_offset
        self.durable_timestamp = commit.store_timestamp
        if self.on_durable is not None:
            self.on_durable()
        waiting = self._waiting
        due = []
        while waiting and waiting[0].end_offset <= end:
            due.append(waiting.popleft())
        if due and self._sync_flush:
            self._group_wait.answered(len(due), self._clock.monotonic())
        for waiter in due:
            _answer(waiter, PutStatus.PUT_OK)

    async def sync_up_to(self, end_offset: int) -> None:
        """Return when the log before ``end_offset``, which is written, is on disk; the flush thread sees to it.

        raises  OSError when a sync failed, now or before; the store is read-only then
        """
        while self._log.synced < end_offset:
            await asyncio.shield(self._sync())

    def sync_log(self) -> None:
        """Asynchronous flush: make durable what was written."""
        if self.read_only_reason is None and self._log.synced < self._log.written:
            self._sync()

    def _sync(self) -> asyncio.Future[None]:
        """Return the sync that is under way, or one that begins now.

        Not two at a time: of what the first has made durable, a file may be deleted before the second gets there.
        """
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.ensure_future(self._sync_written())
            self._syncing.add_done_callback(lambda done: done.exception())
        return self._syncing

    async def _sync_written(self) -> None:
        end = self._log.written
        try:
            await self._do(self._log.unsynced())
        except OSError as error:
            self.fail("fsync", error)
            raise
        self._log.synced = max(self._log.synced, end)

    # ------------------------------------------------------------------ waiting

    def wait(self, end_offset: int, callback: Callable[[PutStatus], None]) -> None:
        """Call back, on the loop and in order, with PUT_OK when everything before ``end_offset`` is stored.

        FLUSH_DISK_TIMEOUT after ``syncFlushTimeout``: the disk did not answer yet. That is "not known" and never
        "delivered": a power cut may still take the message. Whoever waits again learns what becomes of it.
        SERVICE_NOT_AVAILABLE when the write failed: the message may or may not be found after a restart.
        """
        now = self._clock.monotonic()
        waiter = _Waiter(end_offset, now + self._config.sync_flush_timeout / 1000, callback)
        if end_offset <= self.durable_offset:
            _answer(waiter, PutStatus.PUT_OK)
        elif self.read_only_reason is not None:
            _answer(waiter, PutStatus.SERVICE_NOT_AVAILABLE)
        else:
            self._waiting.append(waiter)
            if self._sync_flush:
                self._group_wait.came(now)

    @property
    def waiting(self) -> int:
        """How many wait until what they put counts as stored."""
        return len(self._waiting)

    def expire_waiters(self) -> None:
        """Answer those whose time is over."""
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0].deadline <= now:
            _answer(self._waiting.popleft(), PutStatus.FLUSH_DISK_TIMEOUT)

    # ------------------------------------------------------------------ failing

    def watch(self) -> None:
        """Fail where somebody removed or moved the file that is written: what is put there is gone with this run."""
        newest = self._log.segments[-1]
        if newest.is_gone():
            error = FileNotFoundError(errno.ENOENT, "it was removed or moved while it was written", str(newest.path))
            self.fail("look for the commit log's file", error)

    def fail(self, what: str, error: BaseException | None) -> None:
        """Stop taking messages for good; reads go on with what was durable before."""
        if self.read_only_reason is not None:
            return
        path = getattr(error, "filename", None) or self._config.commit_log_folder
        self.read_only_reason = (
            f"store read-only: {what} failed in {path}: {error}; check the disk, then restart the broker"
        )
        logger.critical("store failed, read-only reason=%s", self.read_only_reason)
        self._on_failure(self.read_only_reason)
        while self._waiting:
            _answer(self._waiting.popleft(), PutStatus.SERVICE_NOT_AVAILABLE)


def _answer(waiter: _Waiter, status: PutStatus) -> None:
    try:
        waiter.callback(status)
    except Exception:
        logger.exception("callback of a put failed end_offset=%d", waiter.end_offset)
