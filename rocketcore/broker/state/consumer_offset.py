"""How far each group has read each queue (Java: ``ConsumerOffsetManager``, 5.5.0).

File       ``config/consumerOffset.json``: ``{"dataVersion", "offsetTable": {"topic@group": {queueId: offset}}}``;
           saved every few seconds, so a crash makes consumers receive a little again, never lose anything.
In memory  pull offsets (how far a group was handed messages) and pending resets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from rocketcore.broker.state.json_file import JsonFile
from rocketcore.errors import BrokerSystemError
from rocketcore.protocol.bodies.stats import ConsumerOffsetSerializeWrapper
from rocketcore.protocol.bodies.topic import DataVersion
from rocketcore.service import SYSTEM_CLOCK, Clock

CAPACITY = 1_000_000
"""Offsets that are kept: one for each queue in which a group is. As many pull offsets beside them."""

_SEPARATOR = "@"
_COMMITS_PER_VERSION = 500
_NONE: Mapping[int, int] = {}


class ConsumerOffsets:
    """Offsets by ``topic@group`` and queue id; smaller offsets may be committed, that is how a group goes back."""

    def __init__(self, file: JsonFile, clock: Clock = SYSTEM_CLOCK) -> None:
        self.file = file
        self._clock = clock
        self._offsets: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        self._commits = 0
        self._count = self._pulled_count = 0
        self._dirty = False
        self.data_version = DataVersion()
        self.on_reset: Callable[[str, str, int, int], None] = lambda group, topic, queue_id, queue_offset: None
        """Hears of each reset."""
        self.on_remove: Callable[[Collection[str], str], int] = lambda topics, group: 0
        """Hears of topics, or else of a group, that are forgotten; the other is empty. Returns what they do."""
        self.on_delete: Callable[[], None] = lambda: None
        """Called after each deletion that found something."""

    def load(self) -> None:
        """Read the file; what is missing or malformed counts as never committed."""
        saved = self.file.load(ConsumerOffsetSerializeWrapper.from_json)
        if saved is not None:
            self.data_version, self._offsets = saved.data_version, saved.offset_table
            self._count = _count(self._offsets)

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Set an offset; False, and nothing set, where there is no room, and while a reset waits for the next pull."""
        key = self.place(group, topic)
        if self._resets and queue_id in self._resets.get(key, ()):
            return False
        queues = self._offsets.get(key)
        if queues is None or queue_id not in queues:
            if self._count >= CAPACITY:
                return False
            self._count += 1
            queues = self._offsets.setdefault(key, {})
        queues[queue_id] = queue_offset
        self._dirty = True
        self._commits += 1
        if self._commits % _COMMITS_PER_VERSION == 0:
            self.data_version.next_version(self._clock.time_millis())
        return True

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset, that of a reset while it waits for a pull; None where there is neither."""
        key = self.place(group, topic)
        if self._resets and (target := self._resets.get(key, {}).get(queue_id)) is not None:
            return target  # offsets may have been copied from another group since
        queues = self._offsets.get(key)
        return None if queues is None else queues.get(queue_id)

    def check_room(self, group: str, topic: str, queue_id: int) -> None:
        """Raise BrokerSystemError where a group that has no offset in a queue cannot get one."""
        if self._count >= CAPACITY and self.find(group, topic, queue_id) is None:
            raise BrokerSystemError(
                BrokerSystemError.response_code, f"{CAPACITY} offsets of groups in queues are there, no more are kept"
            )

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return a copy of the group's offsets in a topic."""
        return dict(self._offsets.get(self.place(group, topic), ()))

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> dict[int, int]:
        """Remember how far a group was handed messages.

        returns  where: what is set there by a queue id that is in it is remembered too. Empty where there is no room;
                 it is emptied when the group or topic goes
        """
        key = self.place(group, topic)
        queues = self._pulled.get(key)
        if queues is None or queue_id not in queues:
            if self._pulled_count >= CAPACITY:
                return {}
            self._pulled_count += 1
            queues = self._pulled.setdefault(key, {})
        queues[queue_id] = next_offset
        return queues

    def pull_offset(self, group: str, topic: str, queue_id: int) -> int:
        """How far the group was handed messages, at least its committed offset, at least 0."""
        pulled = self._pulled.get(self.place(group, topic), {}).get(queue_id, 0)
        return max(pulled, self.find(group, topic, queue_id) or 0, 0)

    def progress(self, group: str, topic: str) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Return the group's committed offsets in a topic, and how far it was handed messages, by queue.

        They change with the group, so they are read at once, or looked at only.
        """
        key = self.place(group, topic)
        return self._offsets.get(key, _NONE), self._pulled.get(key, _NONE)

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set an offset and tell the next pull of the queue; commits are ignored until then.

        raises  BrokerSystemError where there is no room for one more, BrokerError where the log does not take it
        """
        self.check_room(group, topic, queue_id)
        self.on_reset(group, topic, queue_id, queue_offset)
        key = self.place(group, topic)
        queues = self._offsets.setdefault(key, {})
        self._count += queue_id not in queues
        queues[queue_id] = queue_offset
        self._resets.setdefault(key, {})[queue_id] = queue_offset
        self._dirty = True

    @property
    def resets(self) -> dict[str, dict[int, int]]:
        """The resets that wait for the next pull of their queue, by place; to be looked at, always the same dict."""
        return self._resets

    @staticmethod
    def place(group: str, topic: str) -> str:
        """Return what a group in a topic is called in the tables, and in the file."""
        return topic + _SEPARATOR + group

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return and forget the pending reset of a queue, if there is one."""
        if not self._resets:
            return None
        key = self.place(group, topic)
        queues = self._resets.get(key)
        if queues is None:
            return None
        target = queues.pop(queue_id, None)
        if not queues:
            del self._resets[key]
        return target

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in the topic."""
        return [group for name, group in map(_split, self._offsets) if name == topic]

    def places(self) -> Iterator[tuple[str, str]]:
        """Topic and group of every pair that has offsets now, also while they change."""
        return map(_split, list(self._offsets))

    def remove_topics(self, topics: Collection[str]) -> int:
        """Forget every group's offsets in topics that were deleted.

        returns  where the log has to be stored to before nothing brings them back; 0: it tells of none
        """
        gone = frozenset(topics)
        end_offset = self.on_remove(gone, "")
        self._remove(lambda name, _: name in gone)
        return end_offset

    def remove_group(self, group: str) -> int:
        """Forget a group's offsets in every topic; returns what ``remove_topics`` does.

        raises  BrokerError where the log has to tell and cannot; nothing is forgotten then
        """
        end_offset = self.on_remove((), group)
        self._remove(lambda _, owner: owner == group)
        return end_offset

    def clone(self, source: str, destination: str, topic: str) -> None:
        """Copy a group's offsets in a topic to another group; raises BrokerSystemError where there is no room."""
        if found := self.queues(source, topic):
            for queue_id in found:
                self.check_room(destination, topic, queue_id)
            before = self._offsets.get(self.place(destination, topic), ())
            self._count += len(found) - len(before)
            self._offsets[self.place(destination, topic)] = found
            self._dirty = True

    def encode(self) -> bytes:
        """The table as the file holds it and as request 43 answers it."""
        # The table may hold 100,000 numbers and is written every few seconds on the event loop: this encoder takes
        # milliseconds for them. It quotes the queue ids, which every reader takes as well as bare ones.
        return msgspec.json.encode({"dataVersion": self.data_version.to_json(), "offsetTable": self._offsets})

    def take_changes(self) -> bool:
        """Say whether anything changed since the last call."""
        changed, self._dirty = self._dirty, False
        return changed

    def _remove(self, doomed: Callable[[str, str], bool]) -> None:
        found = False
        for table in (self._offsets, self._pulled, self._resets):
            for key in [key for key in table if doomed(*_split(key))]:
                table.pop(key).clear()
                found = self._dirty = True
        self._count, self._pulled_count = _count(self._offsets), _count(self._pulled)
        if found:
            self.on_delete()


def _split(key: str) -> tuple[str, str]:
    topic, _, group = key.rpartition(_SEPARATOR)
    return topic, group


def _count(table: Mapping[str, Mapping[int, int]]) -> int:
    return sum(map(len, table.values()))
