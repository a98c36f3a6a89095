"""What a group is handed of a queue, noted on the path of each pull: how far, and how much."""

from __future__ import annotations

from rocketcore.broker.state.consumer_offset import ConsumerOffsets
from rocketcore.broker.stats import BrokerStats, Tally
from rocketcore.codes import PullSysFlag
from rocketcore.protocol.headers.message import PullMessageRequestHeader

__all__ = ["Handed"]

_COMMIT_OFFSET = int(PullSysFlag.COMMIT_OFFSET)


class Handed:
    """Of one group and queue, for pulls that ask as ``header`` does.

    Both tables are the caller's. Their entries are kept at hand, as to find them costs more than to change them, until
    they say that these are not theirs any more: pull offsets that were removed are empty, counters that were settled
    are not noted.
    """

    __slots__ = ("_commits", "_counts", "_group", "_offsets", "_pulled", "_queue_id", "_stats", "_tally", "_topic")

    def __init__(self, offsets: ConsumerOffsets, stats: BrokerStats, header: PullMessageRequestHeader) -> None:
        self._offsets = offsets
        self._stats = stats
        self._group, self._topic, self._queue_id = header.consumer_group, header.topic, header.queue_id
        self._commits = bool(header.sys_flag & _COMMIT_OFFSET)
        self._pulled: dict[int, int] = {}
        self._tally: Tally | None = None
        self._counts: list[int] = []

    def note(self, commit_offset: int, next_offset: int, messages: int, size: int) -> None:
        """Note one answer with messages, of ``size`` bytes together; ``commit_offset`` came with the pull."""
        queue_id = self._queue_id
        if self._commits:
            self._offsets.commit(self._group, self._topic, queue_id, commit_offset)
        if queue_id in self._pulled:
            self._pulled[queue_id] = next_offset
        else:
            self._pulled = self._offsets.note_pull(self._group, self._topic, queue_id, next_offset)
        tally = self._tally
        if tally is None or not tally.is_noted:
            tally = self._tally = self._stats.gets(self._group, self._topic)
            self._counts = tally[queue_id]
        counts = self._counts
        counts[0] += messages
        counts[1] += size
        counts[2] += 1
