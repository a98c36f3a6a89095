"""What was sent, what was acknowledged, and what was found: the judge of every fault run.

Acknowledged means: served whole, or named as damaged. All that can be wrong:

lost       acknowledged, neither found nor named as damaged
blamed     acknowledged, not found, named as damaged, and its bytes in the log were sound
corrupt    found with other bytes than were sent, or than lay in the log before
phantom    found, never sent, or found twice
moved      found at another queue offset or log position than the acknowledgement said
reordered  two messages of a sender in one queue, the later one first
alarm      a damage is named where nothing was damaged
early      a delayed message shown before its time (blamed by the harness)
unreadable a queue that the broker refuses to read, delayed messages that do not come (blamed by the harnesses)
unfound    read from its queue, and not found by its key (blamed by the harness)

A message may be missing without a word in one case only, which is counted as ``traceless``: its bytes at the end of the
log are gone (they read as zeros, or the file ends before them), nothing that was acknowledged is left behind them, and
no note that is left says that the log went so far.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

HEAD = struct.Struct(">4sIIQI")
MAGIC = b"flt1"
DIGEST_BYTES = 16

Key = tuple[int, int, int]
"""cycle, sender, sequence number"""

Place = tuple[int, int, int]
"""queue id, queue offset, physical offset"""

Span = tuple[int, int]
"""bytes of the log, from and to"""


@dataclass(frozen=True, slots=True)
class Found:
    """A message as it was read back; ``record`` is all of it as it lies in the log, where the reader has that."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    topic: str = ""
    record: bytes = b""


@dataclass(slots=True)
class Damage:
    """What a test did to the log, and what the broker said of it.

    touched    bytes that were changed; gone: those of them that read as zeros now, or lie behind the end of a file
    confirmed  the log before this is known to have been durable, by a note that was left alone
    named      what the broker called damaged; a span of one byte is a record that begins there
    records    physical offset → the bytes of each record before the damage; copies: the records of each message
    """

    touched: list[Span] = field(default_factory=list)
    gone: list[Span] = field(default_factory=list)
    confirmed: int = 0
    named: list[Span] = field(default_factory=list)
    records: Mapping[int, bytes] = field(default_factory=dict)
    copies: Mapping[Key, list[Span]] = field(default_factory=dict)

    def is_sound(self, key: Key, message: Found) -> bool:
        """Whether a message that was there before has the bytes that it had.

        A delayed one may have been delivered a second time to where its damaged first copy was cut off.
        """
        spans = [span for span in self.copies.get(key, ()) if span[0] == message.physical_offset]
        if not spans or message.record == self.records[message.physical_offset]:
            return True
        return len(self.copies[key]) > 1 and _overlaps(self.touched, *spans[0])


@dataclass(slots=True)
class Verdict:
    """How many messages broke which promise, with the first of each kind."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    traceless: int = 0
    named: int = 0

    def blame(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        self.examples.setdefault(kind, what)

    def __bool__(self) -> bool:
        return not self.counts


def make_body(key: Key, rng: random.Random, sizes: tuple[int, ...] = (0, 10, 100, 1000, 5000)) -> bytes:
    """Return a body that says who sent it and proves that it is whole."""
    padding = rng.randbytes(rng.choice(sizes))
    body = HEAD.pack(MAGIC, key[0], key[1], key[2], len(padding)) + padding
    return body + hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


def read_body(body: bytes) -> Key | None:
    """Return the key of a whole body, None for any other."""
    if len(body) < HEAD.size + DIGEST_BYTES:
        return None
    magic, cycle, sender, sequence, length = HEAD.unpack_from(body)
    if magic != MAGIC or len(body) != HEAD.size + length + DIGEST_BYTES:
        return None
    if hashlib.blake2b(body[:-DIGEST_BYTES], digest_size=DIGEST_BYTES).digest() != body[-DIGEST_BYTES:]:
        return None
    return cycle, sender, sequence


def find_bodies(data: bytes) -> Iterator[tuple[Key, Span]]:
    """Find every whole body in bytes of any kind, and where it lies there."""
    at = data.find(MAGIC)
    while at >= 0:
        if at + HEAD.size <= len(data):
            end = at + HEAD.size + HEAD.unpack_from(data, at)[-1] + DIGEST_BYTES
            if (key := read_body(data[at:end])) is not None:
                yield key, (at, end)
        at = data.find(MAGIC, at + 1)


class Ledger:
    """Sent and acknowledged messages of a whole run."""

    def __init__(self) -> None:
        self.sent: dict[Key, tuple[str, int]] = {}
        self.acknowledged: dict[Key, Place | None] = {}
        self.delayed: set[Key] = set()

    def copy(self) -> Ledger:
        other = Ledger()
        other.sent, other.acknowledged = dict(self.sent), dict(self.acknowledged)
        other.delayed = set(self.delayed)
        return other

    def send(self, key: Key, queue_id: int, topic: str = "", *, delayed: bool = False) -> None:
        self.sent[key] = (topic, queue_id)
        if delayed:
            self.delayed.add(key)

    def acknowledge(self, key: Key, place: Place) -> None:
        """Note a success and where it said that the message lies; a delayed one is found elsewhere later."""
        self.acknowledged[key] = None if key in self.delayed else place

    def once(self, found: Collection[Found]) -> list[Found]:
        """Leave out delayed messages that come again, for where nobody can know that they were delivered before."""
        seen: set[Key | None] = set()
        kept = []
        for message in found:
            key = read_body(message.body)
            if key not in seen or key not in self.delayed:
                kept.append(message)
            seen.add(key)
        return kept

    def judge(self, found: Collection[Found], must: Collection[Key], damage: Damage | None = None) -> Verdict:
        """Compare what was read, in the order it was read, with the acknowledgements that it must cover."""
        verdict = Verdict()
        damage = damage or Damage()
        seen: set[Key] = set()
        last: dict[tuple[str, int, int, int], int] = {}
        for message in found:
            key = read_body(message.body)
            where = f"{message.topic}/{message.queue_id} offset {message.queue_offset} at {message.physical_offset}"
            if key is None or not damage.is_sound(key, message):
                verdict.blame("corrupt", where)
                continue
            if key in seen or self.sent.get(key) != (message.topic, message.queue_id):
                verdict.blame("phantom", f"{key} {'again' if key in seen else ''} in {where}")
                continue
            seen.add(key)
            place = (message.queue_id, message.queue_offset, message.physical_offset)
            if (said := self.acknowledged.get(key)) is not None and said != place:
                verdict.blame("moved", f"{key} acknowledged at {said}, found in {where}")
            stream = (message.topic, message.queue_id, key[0], key[1])
            if key not in self.delayed:
                if last.get(stream, -1) > key[2]:
                    verdict.blame("reordered", f"{key} in {where}")
                last[stream] = key[2]
        # A message that comes anew after the damage may lie where another one lay.
        old = (one for one in found if not damage.records or damage.records.get(one.physical_offset) == one.record)
        served_end = max((one.physical_offset for one in old), default=0)
        for key in must:
            if key not in seen:
                self._judge_missing(key, damage, served_end, verdict)
        for start, end in damage.named:
            end = max(end, start + len(damage.records.get(start, b"")))
            if not _overlaps(damage.touched, start, end):
                verdict.blame("alarm", f"{start} to {end} called damaged")
        return verdict

    def _judge_missing(self, key: Key, damage: Damage, served_end: int, verdict: Verdict) -> None:
        copies = damage.copies.get(key, [])
        hurt = [(start, end) for start, end in copies if _overlaps(damage.touched, start, end)]
        what = f"{key} acknowledged at {self.acknowledged.get(key)}, lay at {copies}"
        if any(_overlaps(damage.named, start, end) for start, end in hurt):
            verdict.named += 1
        elif any(_overlaps(damage.named, start, end) for start, end in copies):
            verdict.blame("blamed", what)
        elif any(
            start >= max(served_end, damage.confirmed) and _overlaps(damage.gone, start, start + 8) for start, _ in hurt
        ):
            verdict.traceless += 1
        else:
            verdict.blame("lost", what)


def _overlaps(spans: list[Span], start: int, end: int) -> bool:
    return any(first < end and start < last for first, last in spans)
