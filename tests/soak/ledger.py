"""What was sent and what came of it: the judge of a soak run.

failed     sends that raised, or that were stored less safely than asked
lost       messages that were acknowledged and that a group did not get
phantom    messages that a group got and no one sent
moved      messages that a group got twice from one place: a queue changed hands although the group stayed the same
reordered  messages that a group which consumes in order got for the first time when it had had a later one of the same
           sender and message group
stuck      consumers that got nothing for longer than allowed while messages were sent all the time

A message that is stored twice, because its sender tried again after a time-out, is a duplicate but not blamed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection

from rocketcore.message import MessageQueue, ReceivedMessage
from tests.fault.ledger import Verdict

Key = tuple[str, int]
"""producer, sequence number"""


def make_body(key: Key) -> bytes:
    return f"{key[0]}:{key[1]}:".encode().ljust(100, b".")


def read_body(body: bytes) -> Key:
    producer, sequence, _ = body.split(b":", 2)
    return producer.decode(), int(sequence)


class Ledger:
    """Filled by all clients of a run, from any thread.

    in_order  the consumer groups that consume in order
    """

    def __init__(self, in_order: Collection[str] = ()) -> None:
        self._lock = threading.Lock()
        self._in_order = frozenset(in_order)
        self._newest: dict[tuple[str, str, str, str], int] = {}
        self._reordered: list[str] = []
        self.grouped = 0
        """Messages with a message group that groups which consume in order got."""
        self.sent: set[Key] = set()
        self.acknowledged: dict[Key, float] = {}
        self.failures: list[str] = []
        self.consumed: dict[str, Counter[Key]] = defaultdict(Counter)
        self._places: dict[str, Counter[tuple[MessageQueue, int]]] = defaultdict(Counter)
        self.longest_delay = 0.0
        self._closed = False
        self._last_progress: dict[str, float] = {}
        self._longest_gap: dict[str, float] = defaultdict(float)

    # Producers

    def send(self, key: Key) -> None:
        with self._lock:
            self.sent.add(key)

    def acknowledge(self, key: Key) -> None:
        with self._lock:
            self.acknowledged[key] = time.monotonic()

    def fail(self, key: Key, reason: object) -> None:
        with self._lock:
            self.failures.append(f"{key[0]} message {key[1]}: {reason!r}")

    # Consumers

    def watch(self, consumer: str) -> None:
        """Begin to measure how long a consumer goes without a message."""
        with self._lock:
            self._last_progress[consumer] = time.monotonic()

    def consume(self, group: str, consumer: str, message: ReceivedMessage) -> None:
        key = read_body(message.body)
        now = time.monotonic()
        with self._lock:
            if self._closed:
                return
            self.consumed[group][key] += 1
            self._places[group][message.queue, message.offset] += 1
            self._note_gap(consumer, now)
            if self.consumed[group][key] > 1:
                return
            if key in self.acknowledged:
                self.longest_delay = max(self.longest_delay, now - self.acknowledged[key])
            if group in self._in_order and message.message_group is not None:
                self._note_order(group, message.topic, message.message_group, key)

    def end_watch(self) -> None:
        """End the measurement of all consumers: nothing is sent any more."""
        now = time.monotonic()
        with self._lock:
            for consumer in list(self._last_progress):
                self._note_gap(consumer, now)
            self._last_progress.clear()

    def close(self) -> None:
        """Take no notice of anything any more."""
        with self._lock:
            self._closed = True

    def _note_gap(self, consumer: str, now: float) -> None:
        if consumer in self._last_progress:
            self._longest_gap[consumer] = max(self._longest_gap[consumer], now - self._last_progress[consumer])
            self._last_progress[consumer] = now

    def _note_order(self, group: str, topic: str, message_group: str, key: Key) -> None:
        producer, sequence = key
        self.grouped += 1
        newest = self._newest.setdefault((group, topic, message_group, producer), sequence)
        if sequence < newest:
            self._reordered.append(f"{key} of {topic} {message_group!r} after {newest} in group {group}")
        else:
            self._newest[group, topic, message_group, producer] = sequence

    # Judgement

    @property
    def longest_gap(self) -> float:
        return max(self._longest_gap.values(), default=0.0)

    @property
    def duplicates(self) -> int:
        return sum(count - 1 for messages in self.consumed.values() for count in messages.values())

    def missing(self, group: str, producers: str) -> set[Key]:
        """Return what a group has not got yet of the acknowledged messages of producers whose names begin so."""
        with self._lock:
            return {key for key in self.acknowledged if key[0].startswith(producers)} - self.consumed[group].keys()

    def judge(self, groups: dict[str, str], gap_allowed: float) -> Verdict:
        """Compare everything with the promises; ``groups`` says which producers' messages each group gets."""
        verdict = Verdict()
        for failure in self.failures:
            verdict.blame("failed", failure)
        for group, producers in groups.items():
            for key in sorted(self.missing(group, producers)):
                verdict.blame("lost", f"{key} in group {group}")
        for group, messages in self.consumed.items():
            for key in messages.keys() - self.sent:
                verdict.blame("phantom", f"{key} in group {group}")
        for group, places in self._places.items():
            for (queue, offset), count in places.items():
                if count > 1:
                    verdict.blame("moved", f"offset {offset} of {queue} in group {group}")
        for what in self._reordered:
            verdict.blame("reordered", what)
        for consumer, gap in self._longest_gap.items():
            if gap > gap_allowed:
                verdict.blame("stuck", f"{consumer} got nothing for {gap:.1f} s")
        return verdict
