"""Where the log begins, moved on: what must be true of notes and queues before its oldest files may go.

First every queue is searched for its first message behind the new begin, a few at a time and without keeping saves
waiting; then, under the save lock, the begin is noted and the queues follow. Files of queues may go when the next save
has noted where these begin. While a queue could not be searched, ``queuebounds`` tells the begin of before: a start
then searches all of them, as after a crash between the cut and its note.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from rocketcore.broker.store.file_system import FileSystem, LostWrite
from rocketcore.broker.store.keeping.queue_saver import QueueSaver
from rocketcore.broker.store.keeping.repair_schedule import QueueRepairs
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.log.segment_file import Segment
from rocketcore.broker.store.notes.checkpoint import note_begin
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue, DamagedUnit
from rocketcore.broker.store.queues.queue_table import Span

__all__ = ["LogBegin"]

PIECE: Final = 1000
"""Queues that the save thread looks at before it does other work."""

logger = logging.getLogger(__name__)


class _Found(NamedTuple):
    """What a search found of a queue: where it begins; or which unit is damaged, -1 where its files cannot be read.

    deleted_before  of its topic, when that was looked at: another means that it is another queue by now
    """

    span: Span
    first: int
    damaged: int | None
    deleted_before: int


class LogBegin:
    """Loop thread only, except what it has the save thread do."""

    def __init__(
        self, log: CommitLog, saver: QueueSaver, repairs: QueueRepairs, checkpoint_path: Path, files: FileSystem
    ) -> None:
        self._log = log
        self._saver = saver
        self._queues = saver.queues
        self._repairs = repairs
        self._checkpoint_path = checkpoint_path
        self._files = files
        self._shortened: dict[tuple[str, int], None] = {}  # queues that begin later than their files, perhaps
        self._unsearched: set[tuple[str, int]] = set()  # queues whose begin could not be looked for
        self._queues_begin = 0  # begin of the log before the first cut at which one of them could not be searched
        saver.notes.queues_begin = lambda: self._queues_begin if self._unsearched else log.min_offset
        self._tried: set[tuple[str, int, int]] = set()  # damaged units whose repair was begun

    def run_crashed(self) -> None:
        """The last run did not end in order: any queue may begin later than its files."""
        if self._log.min_offset:
            self._shortened = dict.fromkeys(self._queues.names())

    async def move_to(self, begin: int) -> list[Segment]:
        """Have the log, and every queue, begin at ``begin`` or behind it; returns what may be removed of the log.

        That is noted first, and where the disk is full too: else the next start would miss files that are gone.

        returns  nothing while it cannot be noted or queues are repaired, which reads the log
        raises   OSError
        """
        saver = self._saver
        if not saver.may_note or not await self._ends_are_known(begin):
            return []
        found: list[_Found] = []
        deleted, spans = dict(saver.notes.deleted.before), self._queues.spans()
        for first in range(0, len(spans), PIECE):
            piece = [(span, deleted.get(span.topic, 0)) for span in spans[first : first + PIECE]]
            found += await saver.run(partial(self._search, piece, begin))
        self._repair(found)
        async with saver.lock:
            if not saver.may_note or self._repairs.are_under_way():
                return []
            await self._catch_up(found, begin)
            try:
                await saver.run(partial(note_begin, self._checkpoint_path, begin, self._files))
            except LostWrite as error:
                saver.failed(error)
                raise
            if self._repairs.are_under_way():
                return []
            if not self._unsearched:
                self._queues_begin = self._log.min_offset
            for each in found:
                self._follow(each, begin)
            return self._log.begin_at(begin)

    async def search_again(self) -> None:
        """Search queues once more whose files could not be read when the log was cut; raises OSError."""
        if not self._unsearched:
            return
        async with self._saver.lock:
            names, self._unsearched = self._unsearched, set()
            queues = [queue for name in names if (queue := self._queues.find(*name)) is not None]
            deleted = self._saver.notes.deleted.before
            spans = [
                (Span(queue.topic, queue.queue_id, queue.min_offset, queue.saved), deleted.get(queue.topic, 0))
                for queue in queues
                if queue.begins_later
            ]
            for each in await self._saver.run(partial(self._search, spans, self._log.min_offset)):
                self._follow(each, self._log.min_offset)

    async def _ends_are_known(self, begin: int) -> bool:
        """Have noted where the queues end of which the log before ``begin`` is to go: it could not tell any more."""
        if self._saver.notes.known_until < begin:
            await self._saver.save_now()
        return self._saver.notes.known_until >= begin

    async def _catch_up(self, found: list[_Found], begin: int) -> None:
        """Search on where all units that were in the files lead to before ``begin``, and more have come there since."""
        more: dict[int, Span] = {}
        for index, each in enumerate(found):
            if each.damaged is None and each.first >= each.span.high:
                queue = self._is_same(each)
                if queue is not None and queue.saved > each.span.high:
                    more[index] = each.span._replace(low=each.first, high=queue.saved)
        if more:
            spans = [(span, found[index].deleted_before) for index, span in more.items()]
            searched = await self._saver.run(partial(self._search, spans, begin))
            for (index, span), each in zip(more.items(), searched, strict=True):
                found[index] = each._replace(span=span._replace(low=found[index].span.low))

    def _repair(self, found: list[_Found]) -> None:
        """Have damaged queues repaired; one that stays damaged does not hold up the others."""
        for span, _, damaged, _ in found:
            place = span.topic, span.queue_id, -1 if damaged is None else damaged
            queue = self._queues.find(span.topic, span.queue_id) if place[2] >= 0 else None
            if queue is not None and place not in self._tried:
                self._tried.add(place)
                self._repairs.begin(queue, place[2])

    def _follow(self, found: _Found, begin: int) -> None:
        span, first, damaged, _ = found
        queue = self._is_same(found)
        if queue is None:
            return
        queue.begins_later = damaged is not None
        if queue.begins_later:
            self._unsearched.add((span.topic, span.queue_id))
        elif first > span.low or first >= span.high:  # none of those in the files: some in memory, perhaps
            queue.begin_at(first, begin)
            self._shortened[span.topic, span.queue_id] = None
            self._saver.notes.changed(span.topic)

    def _is_same(self, found: _Found) -> ConsumeQueue | None:
        """Return the queue that was searched, None where its topic was deleted meanwhile."""
        topic, queue_id = found.span.topic, found.span.queue_id
        is_same = self._saver.notes.deleted.end(topic) <= found.deleted_before
        return self._queues.find(topic, queue_id) if is_same else None

    # The save thread

    def _search(self, spans: list[tuple[Span, int]], begin: int) -> list[_Found]:
        """Search queues, each with what is noted of the deletion of its topic."""
        files = self._queues.files
        found = []
        for span, deleted_before in spans:
            first, damaged = span.low, None
            try:
                if span.low < span.high:
                    first = files.first_at(span, span.low, span.high, begin)
            except DamagedUnit as damage:
                damaged = damage.queue_offset
            except OSError as error:
                logger.error("begin of a queue not found reason=%s", error)
                damaged = -1
            found.append(_Found(span, first, damaged, deleted_before))
        return found

    # ------------------------------------------------------------------ files of queues

    async def remove_old_units(self) -> int:
        """Remove the files of queues that only lead to where the log is no more; returns how many.

        raises  OSError; the queues that are left have their turn the next time
        """
        count = 0
        while self._shortened:
            done: dict[tuple[str, int], int] = {}
            async with self._saver.lock:
                if self._saver.notes.noted_begin != self._log.min_offset:
                    break
                begins = {name: self._queues.min_offset(*name) for name in islice(self._shortened, PIECE)}
                try:
                    await self._saver.run(partial(self._remove, begins, done))
                except OSError:
                    failed = next(name for name in begins if name not in done)
                    self._shortened[failed] = self._shortened.pop(failed)
                    raise
                finally:
                    self._queues.files.forget_before(begins)
                    for name in done:
                        del self._shortened[name]
            count += sum(done.values())
        return count

    def _remove(self, begins: dict[tuple[str, int], int], done: dict[tuple[str, int], int]) -> None:
        for name, begin in begins.items():
            done[name] = self._queues.files.remove_before(Span(*name, begin, begin), begin) if begin else 0
