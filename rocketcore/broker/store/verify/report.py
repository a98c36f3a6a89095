"""What a verification found."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from rocketcore.broker.store.queues.consume_queue import ConsumeQueue

__all__ = ["Damage", "Kind", "LostMessages", "PutAside", "Report"]

Kind: TypeAlias = Literal["log", "queue", "index", "note", "config", "offset"]


@dataclass(frozen=True, slots=True)
class Damage:
    """``length`` bytes of a file, from ``position`` on, that are not what they should be.

    kind  of file: the log, a consume queue, an index, a note of what is on disk, or one of the configuration; of the
          latter ``offset`` says that a consumer or a delay level stands where its queue has no message
    """

    kind: Kind
    path: Path
    position: int
    length: int
    what: str


@dataclass(frozen=True, slots=True)
class LostMessages:
    """The queue offsets ``start`` to ``end`` - 1, of which the log holds no message any more."""

    topic: str
    queue_id: int
    start: int
    end: int


class PutAside(NamedTuple):
    """A file of ``damaged/``: ``length`` bytes that lay at ``physical_offset`` of the log when a start bridged them."""

    path: Path
    physical_offset: int
    length: int


class _Spans:
    """Bytes of the log, as ranges that come in any order and are asked for later."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []
        self._sorted = True

    def add(self, begin: int, end: int) -> None:
        self._spans.append((begin, end))
        self._sorted = False

    def holds(self, physical_offset: int) -> bool:
        if not self._sorted:
            merged: list[tuple[int, int]] = []
            for begin, end in sorted(self._spans):
                if merged and begin <= merged[-1][1]:
                    merged[-1] = merged[-1][0], max(end, merged[-1][1])
                else:
                    merged.append((begin, end))
            self._spans, self._sorted = merged, True
        index = bisect_right(self._spans, (physical_offset, 1 << 63)) - 1
        return index >= 0 and physical_offset < self._spans[index][1]


@dataclass(slots=True)
class Report:
    """What a verification found.

    file_count   files that were looked at; read_bytes: how many bytes of them
    log_begin    the log holds the bytes from here to ``log_end``
    gone_from    where it began before RocketMQ, which deletes old files, ran; None: it began nowhere else
    messages     sound records of the log
    served       those of them that are in a queue, of a topic that was not deleted and with a place of their own
    unsaved      messages whose units are not in the files of their queues, and need not be: the next start adds them
    damaged      what is not as it should be; empty for a store that is whole
    lost_bytes   those of them that are bytes of the log which hold no message any more: nothing brings them back
    lost         queue offsets without a message, found damaged now or by an earlier start
    put_aside    what earlier starts found damaged and bridged
    remarks      what is worth knowing and no damage
    bounds       first and next offset of each queue, by topic and queue id
    """

    root: Path
    file_count: int = 0
    read_bytes: int = 0
    log_begin: int = 0
    gone_from: int | None = None
    log_end: int = 0
    messages: int = 0
    served: int = 0
    unsaved: int = 0
    damaged: list[Damage] = field(default_factory=list)
    lost_bytes: list[Damage] = field(default_factory=list)
    lost: list[LostMessages] = field(default_factory=list)
    put_aside: list[PutAside] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    bounds: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    _spans: _Spans = field(default_factory=_Spans)

    @property
    def is_whole(self) -> bool:
        return not self.damaged

    @property
    def lost_messages(self) -> int:
        return sum(lost.end - lost.start for lost in self.lost)

    def name(self, kind: Kind, path: Path, position: int, length: int, what: str) -> None:
        self.damaged.append(Damage(kind, path, position, length, what))

    def name_log(self, path: Path, physical_offset: int, length: int, what: str) -> None:
        """Name bytes of the log, of the file at ``path``, that hold no message any more."""
        self.name("log", path, physical_offset - int(path.name), length, what)
        self.lost_bytes.append(self.damaged[-1])
        self._spans.add(physical_offset, physical_offset + length)

    def is_named(self, physical_offset: int) -> bool:
        """Whether a byte of the log was named as damaged."""
        return self._spans.holds(physical_offset)

    def lose(self, queue: ConsumeQueue, start: int, end: int) -> None:
        """Note queue offsets without a message; those of a queue come in order."""
        last = self.lost[-1] if self.lost else None
        if last is not None and (last.topic, last.queue_id, last.end) == (queue.topic, queue.queue_id, start):
            start = self.lost.pop().start
        self.lost.append(LostMessages(queue.topic, queue.queue_id, start, end))
