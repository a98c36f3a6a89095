"""What was sent, what was acknowledged, and what was found: the judge of a fault run.

lost       acknowledged, not found
phantom    found, never sent, or found twice
corrupt    found with other bytes than were sent
moved      found at another queue offset or log position than the acknowledgement said
reordered  two messages of a sender in one queue, the later one first
unreadable a queue that the broker refuses to read (blamed by the harness)
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections import Counter
from dataclasses import dataclass, field

HEAD = struct.Struct(">4sIIQI")
MAGIC = b"flt1"
DIGEST_BYTES = 16

Key = tuple[int, int, int]
"""cycle, sender, sequence number"""


@dataclass(frozen=True, slots=True)
class Found:
    """A message as it was read back."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes


@dataclass(slots=True)
class Verdict:
    """How many messages broke which promise, with the first of each kind."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def blame(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        self.examples.setdefault(kind, what)

    def __bool__(self) -> bool:
        return not self.counts


def make_body(key: Key, rng: random.Random) -> bytes:
    """Return a body that says who sent it and proves that it is whole."""
    padding = rng.randbytes(rng.choice((0, 10, 100, 1000, 5000)))
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


class Ledger:
    """Sent and acknowledged messages of a whole run."""

    def __init__(self) -> None:
        self.sent: dict[Key, int] = {}
        self.acknowledged: dict[Key, tuple[int, int, int]] = {}

    def send(self, key: Key, queue_id: int) -> None:
        self.sent[key] = queue_id

    def acknowledge(self, key: Key, queue_id: int, queue_offset: int, physical_offset: int) -> None:
        self.acknowledged[key] = (queue_id, queue_offset, physical_offset)

    def judge(self, found: list[Found], acknowledged: dict[Key, tuple[int, int, int]]) -> Verdict:
        """Compare what was read, in the order it was read, with the acknowledgements that it must cover."""
        verdict = Verdict()
        seen: set[Key] = set()
        last: dict[tuple[int, int, int], int] = {}
        for message in found:
            key = read_body(message.body)
            where = f"queue {message.queue_id} offset {message.queue_offset} position {message.physical_offset}"
            if key is None:
                verdict.blame("corrupt", where)
                continue
            if key in seen or self.sent.get(key) != message.queue_id:
                verdict.blame("phantom", f"{key} at {where}")
                continue
            seen.add(key)
            place = (message.queue_id, message.queue_offset, message.physical_offset)
            if self.acknowledged.get(key, place) != place:
                verdict.blame("moved", f"{key} acknowledged at {self.acknowledged[key]}, found at {where}")
            stream = (message.queue_id, key[0], key[1])
            if last.get(stream, -1) > key[2]:
                verdict.blame("reordered", f"{key} at {where}")
            last[stream] = key[2]
        for key in acknowledged.keys() - seen:
            verdict.blame("lost", f"{key} acknowledged at {acknowledged[key]}")
        return verdict
