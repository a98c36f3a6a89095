"""MessageIndex: what is found by key, brought up to the log (Java: ``IndexService``). ``index_query`` asks it.

It follows the log, on a thread of its own: what is durable and not indexed yet is read from the log's files in runs,
without the GIL, and its keys go into the index files (``index_folder``). A committed group costs the loop one look at
a flag: the thread goes to work ``PAUSE_SECONDS`` after the first of them, for all that came until then, so that sends
do not pay for its wake-ups. A query has it go to work at once and waits until it has come to where the log ended then,
so that whoever sent a message finds it.

The index is derived, and nobody's sends wait for it: what fails harms the index alone. A refusal (no room, no
descriptor) is tried again; after a lost write, and where a file is damaged, its entries are made again from the log. A
store that failed writes nothing any more, and so neither does its index.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rocketcore._fast.commit_log import END_OF_DATA, END_OF_LOG, FILLER, FULL, UNREADABLE
from rocketcore._fast.index import KEY_COLUMNS, scan_keys
from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.flush import DiskThread
from rocketcore.broker.store.index.index_folder import IndexFiles, LogView
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.log.record_head import HEAD_BYTES, RecordHead
from rocketcore.broker.store.log.segment_file import Segment
from rocketcore.broker.store.notes.checkpoint import Notes
from rocketcore.broker.store.writing.committer import Committer
from rocketcore.service import Clock, PeriodicTask
from rocketcore.table import Table

__all__ = ["MessageIndex", "log_view"]

PAUSE_SECONDS = 0.1
"""From the first group that is not indexed to its being so: what comes meanwhile is indexed with it."""
RUN_BYTES = 8 << 20
"""Of the log, that one job of the thread reads at most; a query waits for one at most."""
ROWS = 1 << 14
RETRY_SECONDS = 1.0
STOP_SECONDS = 10.0
"""For which a stop waits for the index; a longer way to the end of the log is gone by the next start."""
GIVE_UP_SECONDS = 60.0
"""After which a page of the log that cannot be read is passed over."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


def log_view(log: CommitLog, begin: int, end: int) -> LogView:
    """Return what index files are compared with of a log that begins and ends there."""
    rows = Table(1, KEY_COLUMNS)

    def head(physical_offset: int) -> RecordHead | None:
        segment = log.find_segment(physical_offset)
        if segment is None or physical_offset + HEAD_BYTES > segment.end:
            return None
        found = RecordHead.read(segment.read(physical_offset - segment.start, HEAD_BYTES))
        return found if found is not None and found.physical_offset == physical_offset else None

    def timestamp_at(physical_offset: int) -> int | None:
        found = head(physical_offset)
        return None if found is None else found.store_timestamp

    def behind(physical_offset: int) -> int | None:
        found = head(physical_offset)
        return None if found is None else physical_offset + found.size

    def first_keyed(position: int) -> int:
        while position < end:
            segment = log.find_segment(position)
            assert segment is not None, "within the log"
            start = segment.start
            stop = min(end, segment.end) - start
            _, at, _, status = scan_keys(segment.view(), position - start, stop, start, rows.view, 0)
            position = start + at
            if status != FILLER:
                return position
            position = segment.end
        return end

    return LogView(begin, end, timestamp_at, behind, first_keyed)


class MessageIndex:
    """Loop thread only, except what its thread does. Built, loaded and started with the store, stopped once.

    position  of the log: everything before it is indexed; -1 before the files are opened
    errors    attempts that failed, since the start; passed_over: places of the log that could not be read
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        committer: Committer,
        files: FileSystem,
        clock: Clock,
    ) -> None:
        self.position = -1
        self.errors = 0
        self.passed_over = 0
        self._config = config
        self._log = log
        self._committer = committer
        self._clock = clock
        self.files = IndexFiles(config, files, clock)
        self._rows = Table(ROWS, KEY_COLUMNS)
        self._notes: Notes | None = None
        thorough_seconds = config.flush_consume_queue_thorough_interval / 1000
        self._noting = PeriodicTask("store-note-index", self.note, thorough_seconds)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: DiskThread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._working = False
        self._stopping = self._stopped = False
        self._reaching: list[tuple[int, asyncio.Future[None]]] = []
        self._unreadable: tuple[int, float] | None = None
        self._failure = ""

    # ------------------------------------------------------------------ life

    @property
    def behind(self) -> int:
        """Bytes of the log that are durable and not indexed yet; 0 where no index is kept."""
        return self._committer.durable_offset - max(self.position, 0) if self._thread is not None else 0

    def load(self, notes: Notes) -> None:
        """Take what the last run noted; the files are opened by the thread."""
        self._notes = notes

    @property
    def is_kept(self) -> bool:
        """Whether there is an index, by ``messageIndexEnable``."""
        return self._config.message_index_enable

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.is_kept:
            return
        self._loop = loop
        self._thread = DiskThread("rocket-store-index", loop)
        self._noting.start()
        self._committer.on_durable = self.follow
        self._work()

    async def stop(self) -> None:
        """Index what is durable, leave the files as RocketMQ would, and end the thread."""
        if self._thread is None:
            return
        await self._noting.stop()
        self._stopping = True
        latched = self._committer.read_only_reason is not None
        if not self._failure and not latched:
            await self.reach(self._committer.durable_offset, STOP_SECONDS)
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self.position >= 0 and not latched:
                await self._thread.run(self.files.finish)
                await self._note()
        except Exception as error:
            logger.error("index not closed in order reason=%s", error)
        await self._thread.run(self.files.close)
        await self._thread.stop()

    def whole_until(self) -> int:
        """Store time up to which RocketMQ may believe the files, whatever happens now (``indexMsgTimestamp``)."""
        return self.files.noted_end

    async def note(self) -> None:
        """Make durable what is indexed, and note it."""
        if self.position < 0 or self._committer.read_only_reason is not None:
            return
        try:
            await self._note()
        except OSError as error:
            self._failed(error)

    async def _note(self) -> None:
        assert self._thread is not None, "started"
        write = await self._thread.run(self.files.sync)
        # What a power cut could take of the log is not to be noted as indexed.
        await self._committer.sync_up_to(self.files.position)
        await self._thread.run(write)

    # ------------------------------------------------------------------ following the log

    def follow(self) -> None:
        """Something was committed; called for each group."""
        if self._timer is None and not self._working:
            self._timer = self._loop.call_later(PAUSE_SECONDS, self._work)  # type: ignore[union-attr]  # started

    def _work(self) -> None:
        """Have the thread do the next job, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._working or self._stopped or self._committer.read_only_reason is not None:
            return
        assert self._thread is not None, "started"
        begin, end = max(self.position, self._log.min_offset), self._committer.durable_offset
        job: Callable[[], int]
        if self.position < 0:
            job = partial(self._open, self._log.min_offset, end)
        elif begin >= end:
            if not self.files.unchecked:
                return
            job = self.files.check_one
        else:
            segment = self._log.find_segment(begin)
            assert segment is not None, "the durable log is in files"
            job = partial(self._index, segment, self.position, begin, end)
        self._working = True
        self._thread.submit(job, self._worked)

    def _worked(self, position: int | None, error: BaseException | None) -> None:
        self._working = False
        if error is not None or position is None:
            self._failed(error)
            return
        self._failure = ""
        if 0 <= self.position < position:
            self._log.resident.was_read(self.position, position)
        self._came_to(position)
        left = self._committer.durable_offset - position
        if left >= RUN_BYTES or self._reaching:
            self._work()
        elif left > 0 or self.files.unchecked:
            self.follow()

    def _came_to(self, position: int) -> None:
        self.position = position
        still = []
        for target, reached in self._reaching:
            if target > position:
                still.append((target, reached))
            elif not reached.done():
                reached.set_result(None)
        self._reaching = still

    def _failed(self, error: BaseException | None) -> None:
        """Count and name a failure; try again soon."""
        self.errors += 1
        reason = f"{type(error).__name__}: {error}"
        if reason != self._failure:
            self._failure = reason
            logger.error("index not written, it is tried again seconds=%g reason=%s", RETRY_SECONDS, reason)
        if self.position >= 0:
            self._came_to(self.files.position)
        if self._stopping:
            for _, reached in self._reaching:
                reached.cancel()
        elif self._timer is None:
            self._timer = self._loop.call_later(RETRY_SECONDS, self._work)  # type: ignore[union-attr]  # started

    # What the thread does

    def _open(self, begin: int, end: int) -> int:
        assert self._notes is not None, "loaded"
        notes = self._notes
        self.files.load(
            log_view(self._log, begin, end),
            clean=notes.mark is None,
            ours=notes.index_is_ours,
            index_timestamp=notes.index_timestamp,
        )
        self.files.open()
        return self.files.position

    def _index(self, segment: Segment, position: int, begin: int, end: int) -> int:
        """Index a run of a log file; returns up to where. It is called again with what is left."""
        files, rows = self.files, self._rows
        if files.position != position:
            return files.position  # a file was found damaged after this job was made
        if begin > position:
            files.pass_over(begin)  # the log was cut at its begin
        stop = min(end, segment.end)
        limit = min(ROWS, files.room)
        if files.position != begin:
            return files.position  # the newest file was found damaged
        count, at, done, status = self._scan(segment, begin, min(stop, begin + RUN_BYTES), limit)
        if status == END_OF_DATA and not count and segment.start + at == begin and begin + RUN_BYTES < stop:
            count, at, done, status = self._scan(segment, begin, stop, limit)  # a record that is longer than a run
        if status == FULL and not count:
            files.add(rows, 0, segment.start + at, done)
            files.begin_next()  # for messages of a clock that was set back
            return files.position
        files.add(rows, count, segment.start + at, done)
        if status == FILLER:
            files.pass_over(segment.end)
        elif status == UNREADABLE and files.position == begin:
            self._wait_for_page(segment, begin, end)
        elif status == END_OF_LOG or (status == END_OF_DATA and files.position == begin):
            self._pass_damage(segment, files.position, end)
        return files.position

    def _scan(self, segment: Segment, begin: int, stop: int, limit: int) -> tuple[int, int, int, int]:
        start = segment.start
        return scan_keys(
            segment.view(), begin - start, stop - start, start, self._rows.view, limit, self.files.done,
            self.files.newest_timestamp,
        )  # fmt: skip

    def _wait_for_page(self, segment: Segment, position: int, end: int) -> None:
        """A page of the log cannot be read: it may be the next time, but not for ever."""
        now = self._clock.monotonic()
        if self._unreadable is None or self._unreadable[0] != position:
            self._unreadable = position, now
        if now - self._unreadable[1] < GIVE_UP_SECONDS:
            raise OSError(f"{segment.path}: the page at byte {position - segment.start} cannot be read")
        self._pass_damage(segment, position, end)

    def _pass_damage(self, segment: Segment, position: int, end: int) -> None:
        """Go on behind what is no record of the log; it was sound when it came."""
        found = self._log.find_behind(segment, position - segment.start, sealed=self._log.is_sealed(segment))
        behind = end if found is None else min(found, end)
        self.passed_over += 1
        within = position - segment.start
        logger.error("not indexed, damaged path=%s position=%d bytes=%d", segment.path, within, behind - position)
        self.files.pass_over(behind)

    # ------------------------------------------------------------------ asking

    async def reach(self, target: int, seconds: float) -> bool:
        """Wait until everything before ``target`` is indexed; whether it is, in time."""
        if self.position >= target:
            return True
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reaching.append((target, reached))
        if not self._failure:
            self._work()
        await asyncio.wait([reached], timeout=seconds)
        self._reaching = [each for each in self._reaching if each[1] is not reached]
        return reached.done() and not reached.cancelled()

    async def run(self, work: Callable[[], T]) -> T:
        """Run something on the index thread, which alone knows the files; raises what it raises."""
        assert self._thread is not None, "started"
        try:
            return await self._thread.run(work)
        finally:
            if self.position >= 0:
                self._came_to(self.files.position)

    async def remove_before(self, begin: int) -> None:
        """Let go of the log before ``begin``, which is going to be removed, and of what leads there."""
        if self._thread is None:
            return
        try:
            count = await self._thread.run(partial(self.files.remove_before, begin))
        except OSError as error:
            logger.error("old index files not deleted reason=%s", error)
            return
        if count:
            logger.info("old index files deleted files=%d", count)
