"""The SQL92 expressions that heartbeats brought (Java: ``ConsumerFilterManager``, 5.5.0).

File       ``config/consumerFilter.json``, saved every ten seconds where something changed. After a start every entry
           is of a group without clients, until a heartbeat comes.
Kept       while the group has clients, and for a day after that; at most ``MAX_BYTES`` of expressions with their names.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable
from typing import Final

from rocketcore.broker.state.json_file import JsonFile
from rocketcore.errors import ConfigError
from rocketcore.filter import SQL92
from rocketcore.protocol.bodies.filter import (
    BloomFilterData,
    ConsumerFilterData,
    ConsumerFilterWrapper,
    FilterDataMapByTopic,
)
from rocketcore.protocol.bodies.heartbeat import SubscriptionData
from rocketcore.service import SYSTEM_CLOCK, Clock

__all__ = ["ConsumerFilters"]

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 8 << 20
KEPT_MILLIS: Final = 24 * 3600 * 1000
"""Apache's filterDataCleanTimeSpan."""

_LOADED_DEAD_MILLIS = 30_000

BLOOM_BITS, BLOOM_HASHES = 112, 3
"""Of Apache's bit maps with maxErrorRateOfBloomFilter=20 and expectConsumerNumUseFilter=32, as they are unless set.
We keep no bit maps; an Apache broker believes no entry of the file without these."""


class ConsumerFilters:
    """Expressions by group and topic; those that do not compile are not kept."""

    def __init__(self, file: JsonFile, clock: Clock = SYSTEM_CLOCK) -> None:
        self.file = file
        self._clock = clock
        self._filters: dict[str, dict[str, ConsumerFilterData]] = {}
        self._bytes = 0
        self._dirty = False

    def load(self) -> None:
        """Read the file; what is missing or malformed counts as never registered."""
        saved = self.file.load(ConsumerFilterWrapper.from_json)
        dead = self._clock.time_millis() - _LOADED_DEAD_MILLIS
        for by_topic in saved.filter_data_by_topic.values() if saved is not None else ():
            for entry in by_topic.group_filter_data.values():
                if not entry.is_dead:
                    entry.dead_time = max(dead, entry.born_time)
                if _compiles(entry.expression_type, entry.expression):
                    self._put(entry)
        self._dirty = False

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take in what a heartbeat says of a group."""
        offered = {one.topic: one for one in subscriptions if one.expression_type == SQL92 and one.sub_string}
        known = self._filters.get(group, {})
        if not offered and not known:
            return  # as almost every group
        for one in offered.values():
            self._register(group, one, known.get(one.topic))
        self._end(entry for topic, entry in known.items() if topic not in offered)

    def unregister(self, group: str) -> None:
        """Note that a group has no clients any more."""
        self._end(self._filters.get(group, {}).values())

    def find(self, group: str, topic: str) -> ConsumerFilterData | None:
        return self._filters.get(group, {}).get(topic)

    def expressions(self, group: str) -> dict[str, str]:
        """Return the expressions of a group by topic."""
        return {topic: entry.expression or "" for topic, entry in self._filters.get(group, {}).items()}

    def encode(self) -> bytes:
        """The file's text, without what was dead for too long."""
        self._clean()
        topics: dict[str, FilterDataMapByTopic] = {}
        for group, entries in self._filters.items():
            for topic, entry in entries.items():
                topics.setdefault(topic, FilterDataMapByTopic(topic)).group_filter_data[group] = entry
        return ConsumerFilterWrapper(topics).encode()

    def take_changes(self) -> bool:
        """Say whether anything changed since the last call."""
        changed, self._dirty = self._dirty, False
        return changed

    def _register(self, group: str, offered: SubscriptionData, known: ConsumerFilterData | None) -> None:
        if known is not None:
            if offered.sub_version < known.client_version and not known.is_dead:
                return
            if offered.sub_version == known.client_version or offered.sub_string == known.expression:
                self._dirty |= known.is_dead or offered.sub_version != known.client_version
                known.client_version = offered.sub_version
                if known.is_dead:
                    known.dead_time = 0
                return
        if not _compiles(offered.expression_type, offered.sub_string):
            self._drop(group, offered.topic)  # the client is told when it pulls
            return
        self._put(
            ConsumerFilterData(
                consumer_group=group,
                topic=offered.topic,
                expression=offered.sub_string,
                expression_type=offered.expression_type,
                born_time=self._clock.time_millis(),
                bloom_filter_data=BloomFilterData(_bloom_bits(f"{group}#{offered.topic}"), BLOOM_BITS),
                client_version=offered.sub_version,
            )
        )

    def _put(self, entry: ConsumerFilterData) -> None:
        self._drop(entry.consumer_group, entry.topic)
        size = _size(entry)
        if self._bytes + size > MAX_BYTES:
            self._clean()
        if self._bytes + size > MAX_BYTES:
            logger.warning("expression not kept group=%s topic=%s bytes=%d", entry.consumer_group, entry.topic, size)
            return
        self._filters.setdefault(entry.consumer_group, {})[entry.topic] = entry
        self._bytes += size
        self._dirty = True

    def _drop(self, group: str, topic: str) -> None:
        entry = self._filters.get(group, {}).pop(topic, None)
        if entry is None:
            return
        self._bytes -= _size(entry)
        self._dirty = True
        if not self._filters[group]:
            del self._filters[group]

    def _end(self, entries: Iterable[ConsumerFilterData]) -> None:
        for entry in entries:
            if not entry.is_dead:
                entry.dead_time = max(self._clock.time_millis(), entry.born_time)
                self._dirty = True

    def _clean(self) -> None:
        limit = self._clock.time_millis() - KEPT_MILLIS
        entries = [entry for topics in self._filters.values() for entry in topics.values()]
        for entry in entries:
            if entry.is_dead and entry.dead_time <= limit:
                self._drop(entry.consumer_group, entry.topic)


def _size(entry: ConsumerFilterData) -> int:
    return len(entry.consumer_group) + len(entry.topic) + len(entry.expression or "")


def _compiles(kind: str | None, expression: str | None) -> bool:
    from rocketcore.filter_sql import compile_sql  # most brokers start for tags alone

    if kind != SQL92 or not expression:
        return False
    try:
        compile_sql(expression)
    except ConfigError:
        return False
    return True


def _bloom_bits(text: str) -> list[int]:
    """Return the bits of a text (Java: ``BloomFilter.calcBitPositions``)."""
    value = _murmur3(text.encode())
    low, high = value & 0xFFFFFFFF, value >> 32
    positions = []
    for index in range(1, BLOOM_HASHES + 1):
        combined = (low + index * high) & 0xFFFFFFFF
        positions.append((combined ^ 0xFFFFFFFF if combined >> 31 else combined) % BLOOM_BITS)
    return positions


_WORD = (1 << 64) - 1
_FIRST, _SECOND = 0x87C37B91114253D5, 0x4CF5AD432745937F


def _murmur3(data: bytes) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128, seed 0."""
    left = right = 0
    whole = len(data) & ~15
    for first, second in struct.iter_unpack("<QQ", data[:whole]):
        left = ((_rotate(left ^ _mix_first(first), 27) + right) * 5 + 0x52DCE729) & _WORD
        right = ((_rotate(right ^ _mix_second(second), 31) + left) * 5 + 0x38495AB5) & _WORD
    first, second = struct.unpack("<QQ", data[whole:].ljust(16, b"\0"))
    left ^= _mix_first(first) ^ len(data)
    right ^= _mix_second(second) ^ len(data)
    left = (left + right) & _WORD
    right = (right + left) & _WORD
    return (_finish(left) + _finish(right)) & _WORD


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _WORD


def _mix_first(word: int) -> int:
    return _rotate(word * _FIRST & _WORD, 31) * _SECOND & _WORD


def _mix_second(word: int) -> int:
    return _rotate(word * _SECOND & _WORD, 33) * _FIRST & _WORD


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _WORD
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _WORD
    return value ^ value >> 33
