"""Giving disk back: the oldest files of the log, and the files of queues that lead there.

A look every ``cleanResourceInterval`` deletes from the oldest file on, ``deleteFileBatchMax`` at most, never the last:

expired   the file was written ``fileReservedTime`` hours ago for the last time; in the hours of ``deleteWhen``, while
          the disk is used from ``diskMaxUsedSpaceRatio`` on, and for a while after request 329
any       whatever their age while the disk is used from ``diskSpaceCleanForciblyRatio`` on, unless
          ``cleanFileForciblyEnable`` is off. From ``diskSpaceWarningLevelRatio`` on sends are refused, too

What a delayed message or an unsynced byte needs stays, whatever the disk says. A clock that is set does not make files
old: for an hour after a jump none is deleted for its age, nor after a start that comes more than an hour after the
store's last sign of life, as the clock may have been set meanwhile. A file that says it was written in the future is as
old as the next that does not.

Readers copy what they read in one step of the loop, and the index is told before, so a map that is closed has no
reader. A thread that reads ahead of them has a descriptor of its own.

RocketMQ 5.5.0: ``DefaultMessageStore.CleanCommitLogService``, ``CleanConsumeQueueService``, which keeps files that are
read for ``destroyMapedFileIntervalForcibly``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rocketcore.broker.store.config import StoreConfig, parse_hours
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.index.message_index import MessageIndex
from rocketcore.broker.store.keeping.log_begin import LogBegin
from rocketcore.broker.store.keeping.queue_saver import QueueSaver
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.log.pages import Cold
from rocketcore.broker.store.log.segment_file import Segment
from rocketcore.broker.store.reading.cold_reads import ColdReads
from rocketcore.errors import RocketError
from rocketcore.service import Clock, PeriodicTask

__all__ = ["Cleaner"]

logger = logging.getLogger(__name__)

FIRST_LOOK_SECONDS: Final = 60.0
MANUAL_LOOKS: Final = 20
"""Looks at any hour after somebody asked for it."""

_JUMP_SECONDS: Final = 60.0
_SETTLING_SECONDS: Final = 3600.0
_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Need:
    """What a look found: whether expired files go, and whether the oldest do whatever their age."""

    expired: bool
    any_age: bool


class Cleaner:
    """Loop thread only.

    on_full  is told why sends must be refused while the disk is too full; an empty text when it is not any more
    task     makes the looks, once it is started
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        saver: QueueSaver,
        begin: LogBegin,
        index: MessageIndex,
        reads: ColdReads,
        files: FileSystem,
        clock: Clock,
        on_full: Callable[[str], None],
    ) -> None:
        self.deleted_bytes = 0
        interval = config.clean_resource_interval / 1000
        self.task = PeriodicTask("store-clean", self.look, interval, initial_delay=FIRST_LOOK_SECONDS)
        self._needed_from: list[Callable[[], int | None]] = []
        self._config = config
        self._log = log
        self._saver = saver
        self._begin = begin
        self._index = index
        self._reads = reads
        self._files = files
        self._clock = clock
        self._on_full = on_full
        self._hours = parse_hours(config.delete_when)
        self._manual_looks = 0
        self._retired: list[Segment] = []
        self._retry_at = 0.0
        self._is_full = False
        self._offset = self._clock_offset()
        self._settled_at = float("-inf")

    def begin_at(self, last_millis: int) -> None:
        """Begin where the store was there at that time for the last time, as far as is known; 0: it is new."""
        behind = self._clock.time_millis() / 1000 - last_millis / 1000
        if last_millis and behind > _SETTLING_SECONDS:
            self._settled_at = self._clock.monotonic() + _SETTLING_SECONDS
            logger.warning(
                "no file is deleted for its age for an hour: the store was there %.0f s ago for the last time, and the "
                "clock may have been set since",
                behind,
            )

    def keep_from(self, needed_from: Callable[[], int | None]) -> None:
        """Have one more function say from which physical offset on the log is needed, whatever its age; None: nothing.

        It may raise Cold, to be asked again, and OSError, after which no file is deleted for now.
        """
        self._needed_from.append(needed_from)

    def anything_waits(self) -> bool:
        """Whether any part of the log is needed; also where that is not known now."""
        try:
            return any(self._reads.now(self, needed_from) is not None for needed_from in self._needed_from)
        except (Cold, OSError, RocketError):
            return True

    def ask(self) -> None:
        """Have expired files of the log, and what leads there, deleted at any hour, soon and for some minutes."""
        self._manual_looks = MANUAL_LOOKS
        self.task.wake()

    async def look(self) -> None:
        """Delete what is to go now.

        A file that cannot be deleted holds the disk that others would give: none behind it goes before it.
        """
        await self._remove_retired()
        need = self._need()
        if (need.expired or need.any_age) and not self._retired:
            await self._retire(any_age=need.any_age)
            await self._remove_retired()
        await self.remove_units()

    # ------------------------------------------------------------------ what is to go

    def _need(self) -> _Need:
        config = self._config
        folder, percent = self._fullest()
        self._warn(folder, percent)
        asked = self._manual_looks > 0
        if self._clock_is_settled():
            self._manual_looks = max(self._manual_looks - 1, 0)
        hour = time.localtime(self._clock.time_millis() / 1000).tm_hour
        return _Need(
            expired=asked or hour in self._hours or percent >= config.disk_max_used_space_ratio,
            any_age=config.clean_file_forcibly_enable and percent >= config.disk_space_clean_forcibly_ratio,
        )

    def _fullest(self) -> tuple[str, float]:
        """Return the folder whose disk is used most, and how much of it is, in percent."""
        found = [("", 0.0)]
        for folder in dict.fromkeys((self._config.commit_log_folder, self._config.root)):
            try:
                found.append((str(folder), self._files.used_percent(folder)))
            except OSError as error:
                logger.error("disk not looked at path=%s reason=%s", folder, error)
        return max(found, key=lambda each: each[1])

    def _warn(self, folder: str, percent: float) -> None:
        limit = self._config.disk_space_warning_level_ratio
        was_full, self._is_full = self._is_full, percent >= limit
        reason = (
            f"disk full: {percent:.1f} % of the disk of {folder} are used, diskSpaceWarningLevelRatio is {limit}; "
            "sends are taken again when old files were deleted, or space was freed"
        )
        self._on_full(reason if self._is_full else "")
        if self._is_full and not was_full:
            logger.error("sends refused reason=%s", reason)

    async def _doomed(self, *, any_age: bool) -> list[Segment]:
        """Return the files to delete now, oldest first."""
        try:
            needed = [await self._reads.read(self, needed_from) for needed_from in self._needed_from]
        except (OSError, RocketError) as error:
            logger.error("old files not deleted, what waiting messages need is not known reason=%s", error)
            return []
        end = min([self._log.synced, *(place for place in needed if place is not None)])
        deletable = [each for each in self._log.segments[:-1] if each.end <= end]
        if not any_age:
            deletable = deletable[: self._expired(deletable)]
        return deletable[: self._config.delete_file_batch_max]

    def _expired(self, segments: list[Segment]) -> int:
        """Return how many, from the oldest on, are expired."""
        if not self._clock_is_settled():
            return 0
        now = self._clock.time_millis() / 1000
        expired = 0
        for number, segment in enumerate(segments, 1):
            try:
                modified = self._files.modified(segment.path)
            except OSError as error:
                logger.error("age of a file not known path=%s reason=%s", segment.path, error)
                break
            if modified > now + _JUMP_SECONDS:
                continue
            if modified + self._config.file_reserved_time * _HOUR > now:
                break
            expired = number
        return expired

    def _clock_is_settled(self) -> bool:
        now = self._clock.monotonic()
        offset = self._clock_offset()
        if abs(offset - self._offset) > _JUMP_SECONDS:
            logger.warning("clock set by %.0f s: no file is deleted for its age for an hour", offset - self._offset)
            self._settled_at = now + _SETTLING_SECONDS
        self._offset = offset
        return now >= self._settled_at

    def _clock_offset(self) -> float:
        return self._clock.time_millis() / 1000 - self._clock.monotonic()

    # ------------------------------------------------------------------ deleting

    async def _retire(self, *, any_age: bool) -> None:
        """Have the log begin behind the files that are to go."""
        doomed = await self._doomed(any_age=any_age)
        if doomed:
            try:
                self._retired = await self._begin.move_to(doomed[-1].end)
            except OSError as error:
                logger.error("old files not deleted, their end cannot be noted reason=%s", error)

    async def _remove_retired(self) -> None:
        if self._clock.monotonic() < self._retry_at:
            return
        if self._retired:
            await self._index.remove_before(self._log.min_offset)
        while self._retired:
            segment = self._retired[0]
            try:
                await self._saver.run(segment.remove)
            except FileNotFoundError:
                pass
            except OSError as error:
                self._retry_at = self._clock.monotonic() + self._config.redelete_hanged_file_interval / 1000
                logger.error("old file not deleted path=%s reason=%s", segment.path, error)
                return
            del self._retired[0]
            self.deleted_bytes += segment.size
            logger.info("old file deleted path=%s bytes=%d", segment.path, segment.size)
            if self._retired:
                await asyncio.sleep(self._config.delete_commit_log_files_interval / 1000)

    def close(self) -> None:
        """Let go of files that are to go and are still there; the next start removes them."""
        for segment in self._retired:
            segment.close()

    async def remove_units(self) -> None:
        """Remove the files of queues that only lead to where the log is no more."""
        try:
            await self._begin.search_again()
            count = await self._begin.remove_old_units()
        except OSError as error:
            logger.error("old consume queue files not deleted reason=%s", error)
            return
        if count:
            logger.info("old consume queue files deleted files=%d", count)
