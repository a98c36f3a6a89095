"""Consume-queue units, and the tag expressions that pick among them.

input  u8: length of the expression · u8: limits · expression (UTF-8, damage replaced) · units
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from rocketcore._fast import consume_queue, properties
from rocketcore.errors import ConfigError, DecodeError
from rocketcore.filter import TagFilter, parse_tags
from rocketcore.protocol.bodies.heartbeat import SubscriptionData
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact
from tests.reference import consume_queue as reference
from tests.reference.consume_queue import Unit


def run(data: bytes) -> None:
    if len(data) < 2:
        return
    length, limits, rest = data[0], data[1], data[2:]
    text, units = rest[:length].decode(errors="replace"), rest[length:]
    chosen = expression(text)
    codes = None if chosen is None or chosen.takes_all else np.array(chosen.codes, np.int64)
    scan(units, codes, limits)


def expression(text: str) -> TagFilter | None:
    """Parse an expression; it means the same when it is written again from its tags."""
    try:
        chosen = parse_tags(text)
    except ConfigError:
        assert not text.replace("|", ""), text
        return None
    assert list(chosen.codes) == sorted({properties.java_hash(tag) for tag in chosen.tags})
    again = parse_tags(" || ".join(chosen.tags))
    if "*" not in chosen.tags:
        assert (again.tags, again.codes) == (chosen.tags, chosen.codes)
    subscription = SubscriptionData.build("T", text)
    assert (subscription.tags_set, subscription.code_set) == (set(chosen.tags), set(chosen.codes))
    return chosen


def scan(data: bytes, codes: np.ndarray[tuple[int], np.dtype[np.int64]] | None, limits: int) -> None:
    if len(data) % consume_queue.UNIT_SIZE:
        with pytest.raises(ValueError, match="whole number"):
            consume_queue.unit(exact(data), 0)
        data = data[: len(data) // consume_queue.UNIT_SIZE * consume_queue.UNIT_SIZE]
    block = exact(data)
    units = reference.decode(data)
    assert [consume_queue.unit(block, index) for index in range(len(units))] == units
    capacity, max_count, max_bytes, disk_before = limits & 7, limits >> 3 & 7, (limits & 31) << 8, limits << 20
    out = np.zeros((capacity, consume_queue.OUT_COLUMNS), np.int64)
    wanted = None if codes is None else codes.tolist()
    rows, examined = reference.scan(units, wanted, max_count, max_bytes, capacity, disk_before, 3, 500)
    try:
        found = consume_queue.scan_units(block, codes, max_count, max_bytes, out, disk_before, 3, 500)
    except DecodeError:
        assert examined == 0
        assert units[0].physical_offset < 0 or units[0].size < 0
    else:
        assert found == (len(rows), examined)
        assert out[: len(rows)].tolist() == [list(row) for row in rows]


def seeds() -> Iterable[bytes]:
    units = reference.encode(
        [
            Unit(0, reference.BLANK_SIZE, 0),
            Unit(100, 200, 97),
            Unit(300, 150, 98),
            Unit(5000, 91, -5),
            Unit(1 << 40, 99, 97),
        ]
    )
    for text in ("", "*", "a", "a || b", "a||b||", " || ", "||", "é||😀", "*||a"):
        raw = text.encode()
        yield bytes([len(raw), 0x3F]) + raw + units
        yield bytes([len(raw), 0x9B]) + raw + units[:45]
    yield b"\x00\xff" + reference.encode([Unit(-1, 5, 5), Unit(5, -1, 5)])
    for record in vectors("hash.jsonl"):
        if record["name"].startswith("subscription/") and isinstance(record["input"].get("subString"), str):
            raw = record["input"]["subString"].encode()
            if len(raw) < 256:
                yield bytes([len(raw), 0x2F]) + raw + units


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b"||", b" || ", b"*", b"\x00\x00\x00\x00\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\xff" * 8, bytes(20), b"\xe3\x80\x80", b"\xc2\xa0", b"\x1f",
    ),
    max_length=1024,
)  # fmt: skip
