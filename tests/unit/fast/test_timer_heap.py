"""The heap of messages that wait: order, what units make of it, what is taken out."""

from __future__ import annotations

import random

import pytest

from rocketcore._fast.consume_queue import UNIT_SIZE, put_blank, put_unit
from rocketcore._fast.timer_heap import TimerHeap, timer_code, timer_code_due

LATEST = 1 << 40


def units(*rows: tuple[int, int, int]) -> bytearray:
    """Place, size and time of each."""
    made = bytearray(UNIT_SIZE * len(rows))
    for index, (place, size, due) in enumerate(rows):
        put_unit(made, index * UNIT_SIZE, place, size, timer_code(due, place, size))
    return made


def offsets(heap: TimerHeap, now: int = LATEST) -> list[int]:
    return [queue_offset for _, queue_offset in heap.pop_due(now, len(heap))]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1_000, 5_000])
def test_the_first_due_comes_first_and_of_two_the_older(count: int) -> None:
    rng, heap = random.Random(count), TimerHeap()
    entries = [(rng.randrange(-50, count), queue_offset) for queue_offset in range(count)]
    for entry in rng.sample(entries, count):
        heap.push(*entry)
    assert len(heap) == count
    assert heap.first_due() == min((due for due, _ in entries), default=None)
    assert heap.lowest_offset() == (0 if count else None)
    middle = sorted(entries)[: count // 2]
    assert heap.pop_due(LATEST, count // 2) == middle
    assert heap.pop_due(LATEST, count) == sorted(entries)[count // 2 :]
    assert (len(heap), heap.first_due(), heap.pop_due(LATEST, 5)) == (0, None, [])


def test_pushes_and_pops_in_turn_are_those_of_a_sorted_list() -> None:
    rng, heap, model = random.Random(3), TimerHeap(), list[tuple[int, int]]()
    for step in range(2_000):
        for _ in range(rng.randrange(6)):
            entry = rng.randrange(10_000), rng.randrange(1 << 60)
            heap.push(*entry)
            model.append(entry)
        now, limit = rng.randrange(10_000), rng.randrange(8)
        model.sort()
        due = [entry for entry in model if entry[0] <= now][:limit]
        assert heap.pop_due(now, limit) == due, step
        model = model[len(due) :]
        assert heap.lowest_offset() == min((entry[1] for entry in model), default=None)


def test_units_of_what_was_delivered_are_left_out() -> None:
    heap, delivered = TimerHeap(), {201, 301, 999}
    rows = units((100, 50, 10), (200, 50, 30), (300, 50, 40), (400, 50, 11), (500, 50, 12), (600, 50, 5))
    assert heap.push_units(rows, 7, 11, 11, LATEST, delivered) == (0, 40)
    assert delivered == {999}
    assert heap.pop_due(LATEST, 9) == [(5, 12), (12, 11)]


def test_a_time_that_is_too_late_counts_as_due() -> None:
    heap = TimerHeap()
    assert heap.push_units(units((100, 50, 1_001), (200, 50, 1_000)), 0, -1, 0, 1_000, set()) == (0, -1)
    assert heap.pop_due(LATEST, 9) == [(0, 0), (1_000, 1)]


def test_damaged_units_count_as_due_whatever_they_say() -> None:
    heap, rows = TimerHeap(), units(*((100 + index, 50, 1_000 + index) for index in range(5)))
    rows[7] ^= 1  # the place
    rows[UNIT_SIZE + 11] ^= 1  # the size
    rows[2 * UNIT_SIZE + 19] ^= 1  # the time
    rows[3 * UNIT_SIZE : 4 * UNIT_SIZE] = bytes(UNIT_SIZE)
    rows += bytearray(UNIT_SIZE)
    put_blank(rows, 5 * UNIT_SIZE, 1)
    assert heap.push_units(rows, 0, 2_000, 9, LATEST, set()) == (5, -1)
    assert heap.pop_due(LATEST, 9) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_code_holds_a_time_and_tells_every_flipped_bit() -> None:
    rng = random.Random(5)
    for _ in range(200):
        due, place, size = rng.randrange(1 << 43), rng.randrange(1 << 50), rng.randrange(1, 1 << 22)
        code = timer_code(due, place, size)
        assert 0 <= code < 1 << 63
        assert timer_code_due(code, place, size) == due
        wrong = [timer_code_due(code ^ 1 << bit, place, size) for bit in range(63)]
        wrong += [timer_code_due(code, place ^ 1 << bit, size) for bit in range(50)]
        assert set(wrong) == {-1}
    assert timer_code_due(0, 0, 0) == timer_code_due(-5, 100, 50) == timer_code_due(123_456, 100, 50) == -1


@pytest.mark.parametrize("due", [-1, 1 << 43])
def test_what_is_no_time_has_no_code(due: int) -> None:
    with pytest.raises(ValueError, match="no time of 43 bits"):
        timer_code(due, 1, 1)


@pytest.mark.parametrize("length", [1, 19, 21])
def test_part_of_a_unit_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="not a whole number of 20-byte units"):
        TimerHeap().push_units(bytes(length), 0, -1, 0, LATEST, set())
