"""What was sent, what the topic holds, what Spark made of it: the judge of the kill test of streams.

Three comparisons, each a function of its own, so that a fault is blamed on who has it.

``judge_topic``: what the senders were told against the topic.

lost      acknowledged, and not in the topic
moved     in the topic at another place than the acknowledgement said
phantom   in the topic, and never sent; or there twice, which no sender asked for

``judge_table``: the topic against the table that a query fills. A message is known by its place: broker, queue, offset.

lost        in the topic, and not in the table
duplicated  in the table more than once
phantom     in the table, and not in the topic, or not with that body there

``judge_copy``: the topic against another topic that a query fills, at least once.

lost      in the topic, and not in the copy
phantom   in the copy, and not in the topic
renamed   copies of one message that have different ids: nobody finds them by their id
shared    different messages under one id: who keeps one message of each id loses the others

``corrupt`` is a body that is not whole, in any of them. Messages that are in the copy more than once under one id are
what at least once allows: they are counted as ``repeated``, not blamed.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tests.fault.ledger import Key, Verdict, make_body, read_body

Place = tuple[str, int, int]
"""broker, queue id, queue offset"""

BODY_SIZES = (0, 50, 100, 1000)


@dataclass(slots=True)
class Ledger:
    """Filled by the senders; each writes keys of its own, so no lock is needed."""

    sent: set[Key] = field(default_factory=set)
    acknowledged: dict[Key, Place] = field(default_factory=dict)

    def send(self, key: Key, rng: random.Random) -> bytes:
        """Note a message and return its body."""
        self.sent.add(key)
        return make_body(key, rng, BODY_SIZES)

    def acknowledge(self, keys: Iterable[Key], broker: str, queue_id: int, first_offset: int) -> None:
        """Note that messages lie one after the other in a queue."""
        for offset, key in enumerate(keys, first_offset):
            self.acknowledged[key] = (broker, queue_id, offset)


def places(table: pa.Table) -> Iterator[Place]:
    """Return the places of rows, in their order."""
    columns = (table[name].to_pylist() for name in ("brokerName", "queueId", "queueOffset"))
    return zip(*columns, strict=True)


def keys_of(table: pa.Table, verdict: Verdict) -> Iterator[Key | None]:
    """Return the key of each row's body, None for one that is not whole, which is blamed."""
    for number, body in enumerate(table["body"].to_pylist()):
        key = read_body(body)
        if key is None:
            verdict.blame("corrupt", f"row {number}: {body[:40]!r}, {len(body)} bytes")
        yield key


def judge_topic(ledger: Ledger, topic: pa.Table) -> tuple[Verdict, dict[Place, Key]]:
    """Compare acknowledgements with the topic, as read in one piece at the end; returns its messages, too."""
    verdict = Verdict()
    messages: dict[Place, Key] = {}
    where: dict[Key, Place] = {}
    for place, key in zip(places(topic), keys_of(topic, verdict), strict=True):
        if key is None:
            continue
        if key in where:
            verdict.blame("phantom", f"{key} at {where[key]} and at {place}")
        elif key not in ledger.sent:
            verdict.blame("phantom", f"{key} at {place} was never sent")
        messages[place] = key
        where[key] = place
    for key, place in ledger.acknowledged.items():
        if key not in where:
            verdict.blame("lost", f"{key} acknowledged at {place}")
        elif messages.get(place) != key:
            verdict.blame("moved", f"{key} acknowledged at {place}, found at {where[key]}")
    return verdict, messages


def judge_table(messages: Mapping[Place, Key], table: pa.Table) -> Verdict:
    """Compare a topic's messages with the rows made of them, each of which is to be there once."""
    verdict = Verdict()
    seen: set[Place] = set()
    for place, key in zip(places(table), keys_of(table, verdict), strict=True):
        if place in seen:
            verdict.blame("duplicated", f"{key} of {place}")
        elif key is not None and messages.get(place) != key:
            verdict.blame("phantom", f"{key} of {place}, where the topic has {messages.get(place)}")
        seen.add(place)
    for place, key in messages.items():
        if place not in seen:
            verdict.blame("lost", f"{key} of {place}")
    return verdict


@dataclass(slots=True)
class Copies:
    """How the messages of a topic are in another one: ``repeated`` are those of which there is more than one."""

    verdict: Verdict
    rows: int = 0
    repeated: int = 0
    most: int = 0
    """copies of one message"""


def judge_copy(messages: Mapping[Place, Key], copy: pa.Table) -> Copies:
    """Compare a topic's messages with those of another topic, where each is to be at least once, under one id."""
    verdict = Verdict()
    wanted = set(messages.values())
    count: Counter[Key] = Counter()
    ids: dict[Key, set[str]] = defaultdict(set)
    owner: dict[str, Key] = {}
    for key, msg_id in zip(keys_of(copy, verdict), copy["msgId"].to_pylist(), strict=True):
        if key is None:
            continue
        if key not in wanted:
            verdict.blame("phantom", f"{key} under {msg_id}")
            continue
        count[key] += 1
        ids[key].add(msg_id)
        if owner.setdefault(msg_id, key) != key:
            verdict.blame("shared", f"{msg_id} is {owner[msg_id]} and {key}")
    for key in wanted - count.keys():
        verdict.blame("lost", f"{key}")
    for key, names in ids.items():
        if len(names) > 1:
            verdict.blame("renamed", f"{key} is {', '.join(sorted(names))}")
    repeated = [number for number in count.values() if number > 1]
    return Copies(verdict, count.total(), sum(repeated) - len(repeated), max(count.values(), default=0))
