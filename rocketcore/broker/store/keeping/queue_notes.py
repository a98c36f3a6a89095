"""What is noted on disk of the queues, and what the next note has to say of them.

``queuebounds`` and ``checkpoint`` are written together, when the queues' files are on disk and the log before them is:
they bound how much of the log the next start reads. A note of the bounds has the topics that changed since the last
one, or all of them. It is decided on the loop, as a ``QueueNote``, and written by the save thread.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace

from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.notes.checkpoint import Checkpoint, Notes
from rocketcore.broker.store.notes.deleted_topics import DeletedTopics
from rocketcore.broker.store.notes.queue_bounds import BoundsEnd, QueueBounds, Rows
from rocketcore.broker.store.queues.queue_table import QueueTable

__all__ = ["QueueNote", "QueueNotes"]


@dataclass(slots=True)
class QueueNote:
    """One note.

    bounds     of the topics that changed
    after      the end of the note that it is added to; None: it has all topics, and replaces the last
    log_begin  where the log begins, which the bounds tell only when every queue has followed
    topics     which may have changed
    deletions  how many changes of the table of deleted topics it tells; with_deletions: some that no note told
    end        where it ends, when it is written
    """

    bounds: QueueBounds
    after: BoundsEnd | None
    log_begin: int
    topics: Set[str]
    deletions: int
    with_deletions: bool
    end: BoundsEnd | None = None


class QueueNotes:
    """Loop thread only, except ``write``.

    deleted       the topics that were deleted
    queues_begin  returns where the log began when every queue was last known to begin there or behind it
    index_until   returns the time up to which the index is whole
    noted_offset  the end of the log that the last note is of; noted_begin: the begin of the log that it tells
    is_ours       the notes in the folder, and so what they say of the begin of the log, are ours
    """

    def __init__(self, config: StoreConfig, log: CommitLog, queues: QueueTable, files: FileSystem) -> None:
        self.deleted = DeletedTopics(config.root, files)
        self.queues_begin: Callable[[], int] = lambda: log.min_offset
        self.index_until: Callable[[], int] = lambda: 0
        self.noted_offset = self.noted_begin = self._noted_queues_begin = self._adopted_until = -1
        self.is_ours = False
        self._noted_index = 0
        self._root = config.root
        self._bounds_path = config.root / "queuebounds"
        self._checkpoint_path = config.root / "checkpoint"
        self._log = log
        self._queues = queues
        self._files = files
        self._noted: dict[str, Rows] = {}  # of each topic in ``queuebounds``, which ends there; None: to be replaced
        self._note_end: BoundsEnd | None = None
        self._unnoted: set[str] = set()  # topics that may have changed since
        self._has_moved = False  # the begin of a queue, and nothing else, perhaps

    # ------------------------------------------------------------------ at a start

    def read(self) -> Notes:
        """Read what the last run noted."""
        notes = Notes.read(self._root, self._files)
        self.is_ours = not notes.rocketmq_ran
        self.deleted.read(notes.bounds.deleted_before)
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

    # ------------------------------------------------------------------ the next note

    @property
    def known_until(self) -> int:
        """Physical offset: where the queues end that follow from the log before it is noted on disk."""
        return max(self._adopted_until, self.noted_offset)

    def changed(self, topic: str) -> None:
        """Have the next note say where the queues of a topic begin and end."""
        self._unnoted.add(topic)
        self._has_moved = True

    def grew(self, topics: Set[str]) -> None:
        """Have the next note that is due, for whatever reason, say where the queues of topics end."""
        self._unnoted |= topics

    def next(self, confirm_offset: int, store_timestamp: int) -> QueueNote | None:
        """Return the note of the queues as they are now; None where there is nothing new.

        confirm_offset, store_timestamp  the end of what is durable, and when the last of it was stored
        """
        queues_begin = self.queues_begin()
        begins_later = self._log.min_offset != self.noted_begin or queues_begin != self._noted_queues_begin
        news = confirm_offset != self.noted_offset or begins_later or self.deleted.has_news
        if not (news or self.index_until() != self._noted_index or self._has_moved):
            return None
        self.deleted.forget_before(self._log.min_offset)
        topics, self._unnoted, self._has_moved = self._unnoted, set(), False
        rows, after = self._rows(topics)
        bounds = QueueBounds(
            begin_offset=queues_begin,
            sealed_from=self._log.sealed_from,
            confirm_offset=confirm_offset,
            store_timestamp=store_timestamp,
            file_bytes=self._queues.files.file_bytes,
            rows=rows,
            deleted_before=dict(self.deleted.before),
        )
        return QueueNote(bounds, after, self._log.min_offset, topics, self.deleted.changes, self.deleted.has_news)

    def _rows(self, topics: Set[str]) -> tuple[dict[str, Rows], BoundsEnd | None]:
        """Return what the next note says of queues, and the end of the one that it is added to."""
        if self._note_end is None:
            return self._queues.all_rows(), None
        found = {topic: self._queues.rows(topic) for topic in topics}
        news = {topic: rows for topic, rows in found.items() if rows != self._noted.get(topic, b"")}
        if self._note_end.has_room:
            return news, self._note_end
        return {topic: rows for topic, rows in {**self._noted, **news}.items() if rows}, None

    def write(self, note: QueueNote) -> None:
        """Sync the queues, then write a note: it is true at any crash, as the log before it is on disk.

        raises  OSError
        """
        if note.with_deletions:
            self.deleted.write(note.bounds.deleted_before)
        self._queues.files.sync()
        if note.after is None:
            note.end = note.bounds.write(self._bounds_path, self._files)
        else:
            note.end = note.bounds.add(self._bounds_path, note.after, self._files)
        index_until = self.index_until()
        Checkpoint(
            physic_msg_timestamp=note.bounds.store_timestamp,
            logics_msg_timestamp=note.bounds.store_timestamp,
            index_msg_timestamp=index_until,
            confirm_physical_offset=note.bounds.confirm_offset,
            begin_offset=note.log_begin,
        ).write(self._checkpoint_path, self._files)
        self._noted_index = index_until

    def noted(self, note: QueueNote) -> None:
        """Remember what is noted now."""
        self.noted_offset = note.bounds.confirm_offset
        self.noted_begin = note.log_begin
        self._noted_queues_begin = note.bounds.begin_offset
        self.deleted.noted_changes = note.deletions
        self.is_ours = True
        self._note_end = note.end
        if note.after is None:
            self._noted.clear()
        for topic, rows in note.bounds.rows.items():
            if rows:
                self._noted[topic] = rows
            else:
                self._noted.pop(topic, None)

    def not_noted(self, note: QueueNote) -> None:
        """Remember what a failed save did not note; where the note ends now is not known."""
        self._unnoted |= note.topics
        self._has_moved = True
        self._note_end = None
