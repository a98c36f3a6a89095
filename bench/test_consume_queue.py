"""Consume-queue units: the tag scan of one pull (800 units) and appends, beside the reference and ``struct``."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from rocketcore._fast import commit_log, consume_queue
from tests.reference import consume_queue as reference
from tests.reference.consume_queue import Unit

COUNT = 800
UNITS = [Unit(1200 * i, 1200, 2598919 if i % 40 == 0 else 7) for i in range(COUNT)]


@pytest.mark.parametrize("row", ["kernel", "reference"])
@pytest.mark.parametrize("tags", [0, 1, 100])
def test_scan(benchmark: Any, row: str, tags: int) -> None:
    """No filter stops at 32 messages; one tag in forty examines them all; a hundred tags search for each."""
    data = reference.encode(UNITS)
    codes = None if tags == 0 else np.array(sorted([2598919, *range(1000, 1000 + 10 * (tags - 1), 10)]), np.int64)
    out = np.zeros((32, consume_queue.OUT_COLUMNS), np.int64)
    benchmark.group = f"consume-queue-scan-{tags}-tags"
    benchmark.extra_info |= {"units": COUNT}
    if row == "kernel":
        found = benchmark(consume_queue.scan_units, data, codes, 32, 262144, out)
    else:
        wanted = None if codes is None else frozenset(codes.tolist())
        rows, examined = benchmark(lambda: reference.scan(reference.decode(data), wanted, 32, 262144, 32))
        found = len(rows), examined
    assert found == ((32, 32) if tags == 0 else (20, COUNT))


@pytest.mark.parametrize("row", ["kernel", "struct"])
def test_append(benchmark: Any, row: str) -> None:
    out = bytearray(20 * COUNT)
    pack_into = struct.Struct(">qiq").pack_into
    benchmark.group = "consume-queue-append-800"

    def one_by_one() -> None:
        position = 0
        for offset, size, code in UNITS:
            position = consume_queue.put_unit(out, position, offset, size, code)

    def with_struct() -> None:
        position = 0
        for offset, size, code in UNITS:
            pack_into(out, position, offset, size, code)
            position += 20

    benchmark(one_by_one if row == "kernel" else with_struct)
    assert bytes(out) == reference.encode(UNITS)


@pytest.mark.parametrize("queues", [8, 1000])
def test_collect(benchmark: Any, queues: int) -> None:
    """The rows of a walk over messages that a start finds, into their queues."""
    names = [b"topic-%d" % (queue // 8) for queue in range(queues)]
    topics = b"".join(names)
    starts = [sum(map(len, names[:queue])) for queue in range(queues)]
    rows = np.zeros((4096, commit_log.COLUMNS), np.int64)
    for index in range(len(rows)):
        queue = index * 37 % queues
        rows[index, commit_log.TOPIC_START], rows[index, commit_log.TOPIC_LENGTH] = starts[queue], len(names[queue])
        rows[index, commit_log.QUEUE_ID] = queue % 8
        rows[index, commit_log.QUEUE_OFFSET] = index // queues

    def followed() -> tuple[tuple[consume_queue.UnitCollector], dict[str, Any]]:
        collector = consume_queue.UnitCollector()
        for queue, name in enumerate(names):
            collector.follow(name, queue % 8, 0)
        return (collector,), {}

    benchmark.group = f"consume-queue-collect-{queues}-queues"
    benchmark.extra_info |= {"messages": len(rows)}
    taken = benchmark.pedantic(lambda collector: collector.collect(topics, rows, 0, 4096), setup=followed, rounds=50)
    assert taken == len(rows)
