"""What an expression selects: the kernel's way over the map, the way message by message, and an oracle are alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocketcore._fast.consume_queue import UNIT_SIZE, put_blank, put_unit, unit
from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore.broker.store import Cold, MessageStore
from rocketcore.broker.store.log.pages import CHUNK_BYTES, LogRange
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue
from rocketcore.broker.store.reading import property_reader
from rocketcore.errors import StoreCorrupted
from rocketcore.filter_sql import compile_sql
from tests.fixtures.cold_disk import PAGE, ColdDisk
from tests.fixtures.stores import message, running_store, store_config, stored
from tests.reference import sql_filter as reference

MESSAGES = 240
SEGMENT = 4 * CHUNK_BYTES
EXPRESSIONS = ["price > 5", "region = 'eu' AND price < 3", "price IS NULL", "TRUE", "price = 7.5 OR price = 2", "a = 1"]


class Scene:
    """A store of four files of the log, and one queue of it."""

    def __init__(self, store: MessageStore, disk: ColdDisk) -> None:
        self.store, self.disk = store, disk
        self.log, self.pages, self.records = store._log, store._pages, store._records
        queue = store._queues.find("T", 0)
        assert queue is not None
        self.queue: ConsumeQueue = queue
        self.units = b"".join(bytes(self.records.units(queue, at, 50)) for at in range(0, MESSAGES, 50))
        self.end = self.log.end_offset


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root, source, disk = tmp_path_factory.mktemp("store"), Random(1), ColdDisk()
    options: dict[str, Any] = {"mapped_file_size_commit_log": SEGMENT}

    async def fill() -> None:
        async with running_store(root, **options) as store:
            for number in range(MESSAGES):
                values = {"region": source.choice(["eu", "us"]), "price": source.choice(["1", "7", "2.0", "7.5", "x"])}
                if not number % 9:
                    del values["price"]
                body = source.randbytes(source.choice([0, 10, 3000, 12_000]))
                await stored(store, store.put(message(body, properties=encode_properties(values))))
                await stored(store, store.put(message(body, topic="other")))

    asyncio.run(fill())
    store = MessageStore(store_config(root, **options), files=disk)
    store.load()
    store._records._on_damage = lambda queue, offset: "not now"
    yield Scene(store, disk)
    store._log.close()
    store._folder.close()


def oracle(
    scene: Scene, expression: str, units: bytes, queue_offset: int, max_count: int, max_bytes: int
) -> tuple[bytes, int, int]:
    """The rule itself, one unit after the other."""
    wanted, records, found = reference.compile_sql(expression), scene.records, b""
    count = 0
    for index in range(len(units) // UNIT_SIZE):
        physical_offset, size, _ = unit(units, index)
        if count and (count >= max_count or len(found) + size > max_bytes):
            return found, count, index
        is_blank = (physical_offset, size) == (0, 0x7FFFFFFF)
        if is_blank or scene.queue.is_gone(physical_offset, size, scene.log.min_offset):
            continue
        try:
            record = records.checked(scene.queue, queue_offset + index, physical_offset, size)
        except (OSError, StoreCorrupted, Cold):
            if not index:
                raise
            return found, count, index
        if record is None:
            continue
        try:
            matches = reference.evaluate(wanted, decode_properties(records.properties(record))) is True
        except reference.NotConvertible:
            matches = False
        if matches:
            found += record
            count += 1
    return found, count, len(units) // UNIT_SIZE


def outcome_of(scene: Scene, way: Any) -> Any:
    """Return what a way answers, or raises, and how many damaged messages it names."""
    before = scene.records.damaged_records
    try:
        answer = way()
    except Cold as cold:
        answer = cold.ranges
    except (OSError, StoreCorrupted) as error:
        answer = type(error), str(error)
    return answer, scene.records.damaged_records - before


OFFSETS = st.integers(0, 4 * SEGMENT)
CHUNKS = st.integers(0, 15).map(lambda chunk: chunk * CHUNK_BYTES)
UNIT_DAMAGE = st.tuples(st.integers(0, 119), st.sampled_from(["blank", "size", "place", "negative", "tiny", "gone"]))


@settings(max_examples=60)
@given(
    expression=st.sampled_from(EXPRESSIONS),
    first=st.integers(0, MESSAGES - 1),
    count=st.integers(1, 120),
    max_count=st.integers(1, 40),
    max_bytes=st.sampled_from([1, 20_000, 1 << 20]),
    unit_damage=st.lists(UNIT_DAMAGE, max_size=3),
    flips=st.lists(OFFSETS, max_size=3),
    asks=st.sampled_from([True, True, False]),
    recent_from=OFFSETS | st.just(5 * SEGMENT),
    loaded=st.sets(CHUNKS, min_size=6),
    failed=st.sets(CHUNKS, max_size=1),
)
@example("TRUE", 0, 1, 1, 1, [(0, "blank"), (0, "size")], [], True, 5 * SEGMENT, set(), set())
@example("TRUE", 0, 120, 120, 1 << 20, [], [], True, 5 * SEGMENT, {at * CHUNK_BYTES for at in range(16)}, {CHUNK_BYTES})
def test_ways_are_alike(
    scene: Scene,
    expression: str,
    first: int,
    count: int,
    max_count: int,
    max_bytes: int,
    unit_damage: list[tuple[int, str]],
    flips: list[int],
    asks: bool,
    recent_from: int,
    loaded: set[int],
    failed: set[int],
) -> None:
    units = bytearray(scene.units[first * UNIT_SIZE : (first + count) * UNIT_SIZE])
    for index, kind in unit_damage:
        if index < len(units) // UNIT_SIZE:
            damage_unit(units, index, kind)
    bits = [(segment.path, at - segment.start) for at in flips for segment in scene.log.segments if holds(segment, at)]

    def begin() -> None:
        scene.disk.evict()
        for _ in range(2):
            scene.pages.age()
        scene.pages.asks, scene.pages.recent_from = asks, recent_from
        for at in (*loaded, *failed):
            segment = scene.log.find_segment(at)
            if segment is not None:
                chunk = LogRange(segment, at - segment.start, at - segment.start + CHUNK_BYTES)
                scene.pages.loaded(chunk, chunk.load(), None)
                if at in failed:  # it went from memory, and the disk does not give it again
                    scene.pages.loaded(chunk, chunk.begin + PAGE, None)

    def answer(way: Any) -> Any:
        begin()
        return outcome_of(scene, way)

    def select() -> Any:
        return property_reader.select(
            compile_sql(expression), bytes(units), scene.queue, first, max_count, max_bytes,
            scene.log, scene.pages, scene.records,
        )  # fmt: skip

    scene.queue.begins_later = any(kind == "gone" for _, kind in unit_damage)
    flip(bits)
    try:
        expected = answer(lambda: oracle(scene, expression, bytes(units), first, max_count, max_bytes))
        with patch.object(property_reader, "_window", return_value=property_reader._NOTHING):
            assert answer(select) == expected
        assert answer(select) == expected
    finally:
        flip(bits)
        scene.queue.begins_later = scene.pages.asks = False


def holds(segment: Any, at: int) -> bool:
    return bool(segment.start <= at < segment.end)


def flip(bits: list[tuple[Path, int]]) -> None:
    for path, position in bits:
        with path.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 4]))


def damage_unit(units: bytearray, index: int, kind: str) -> None:
    physical_offset, size, code = unit(units, index)
    at = index * UNIT_SIZE
    if kind == "blank":
        put_blank(units, at, 1)
    elif kind == "size":
        put_unit(units, at, physical_offset, size ^ 1, code)
    elif kind == "place":
        put_unit(units, at, physical_offset + 1, size, code)
    elif kind == "tiny":
        put_unit(units, at, physical_offset, 12, code)
    else:
        put_unit(units, at, -5, size if kind == "gone" else -size, code)


def test_the_kernel_takes_most_of_a_pull(scene: Scene) -> None:
    """What is known to be in memory is not read message by message; else this test of two ways has one."""
    with patch.object(scene.records, "checked", wraps=scene.records.checked) as checked:
        answer = property_reader.select(
            compile_sql("price > 5"), scene.units, scene.queue, 0, 1000, 1 << 20, scene.log, scene.pages, scene.records
        )
    assert answer[2] == MESSAGES
    assert checked.call_count < len(scene.log.segments) + 1
