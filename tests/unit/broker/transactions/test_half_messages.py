"""Which half messages are undecided, and which op messages are needed for that."""

from __future__ import annotations

import pytest

from rocketcore.broker.transactions import half_messages
from rocketcore.broker.transactions.half_messages import HalfMessages, HalfState, OpMessages, op_body, read_op_body


def test_undecided_ones_come_in_runs() -> None:
    halves = HalfMessages(10)
    halves.grow(16)
    for offset in (10, 13):
        halves.end_one(offset, HalfState.COMMITTED, offset)
    assert halves.next_open(0, 16) == (11, 13)
    assert halves.next_open(12, 16) == (12, 13)
    assert halves.next_open(13, 15) == (14, 15)
    assert halves.next_open(16, 16) == (16, 16)


def test_what_is_decided_is_forgotten_up_to_the_first_that_is_not() -> None:
    halves = HalfMessages(10)
    halves.grow(14)
    for offset in (11, 12):
        halves.end_one(offset, HalfState.ROLLED_BACK, offset)
    assert halves.advance() == 10
    halves.end_one(10, HalfState.COMMITTED, 10)
    assert halves.advance() == 13
    assert (halves.state(12), halves.state(13), halves.end) == (None, HalfState.OPEN, 14)
    halves.end_one(12, HalfState.COMMITTED, 12)  # of a time that is over
    assert halves.state(13) is HalfState.OPEN
    halves.end_one(13, HalfState.COMMITTED, 13)
    assert (halves.advance(), halves.end) == (14, 14)


def test_a_message_that_moved_is_known_by_its_first_offset() -> None:
    halves = HalfMessages()
    halves.moved(0, 0, 1)
    halves.moved(1, 0, 2)
    assert [halves.state(offset) for offset in range(3)] == [HalfState.ENDED, HalfState.ENDED, HalfState.OPEN]
    assert halves.current(0, 0) == halves.current(1, 0) == (2, HalfState.OPEN)
    halves.end_one(2, HalfState.COMMITTED, 0)
    assert halves.advance() == 3
    assert halves.current(0, 0)[1] is halves.current(2, 0)[1] is HalfState.COMMITTED


def test_so_many_outcomes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_messages, "REMEMBERED", 2)
    halves = HalfMessages()
    for first in range(3):
        halves.moved(first, first, 10 + first)
        halves.end_one(10 + first, HalfState.ROLLED_BACK, first)
    halves.advance()
    assert [halves.current(first, first)[1] for first in range(3)] == [None, *[HalfState.ROLLED_BACK] * 2]


def test_one_that_was_set_aside_has_no_outcome_yet() -> None:
    halves = HalfMessages()
    halves.moved(0, 0, 1)
    halves.end_one(1, HalfState.DISCARDED, 0)
    assert halves.current(1, 0) == (1, HalfState.DISCARDED)


def test_op_messages_are_needed_until_all_that_they_name_is_behind() -> None:
    ops = OpMessages(5)
    for offset in range(5, 200):
        ops.stored(offset, offset + 100)
    assert ops.advance(105) == 5
    begin = ops.advance(200)
    assert 5 < begin <= 100
    assert ops.advance(1000) == 200


def test_bodies_of_op_messages() -> None:
    assert op_body([3, 4, 9]) == b"3,4,9"
    assert read_op_body(b"3,4,9") == [3, 4, 9]
    assert read_op_body(b"17") == [17]
    assert read_op_body(b"3,,x,-4, 5,") == [3, 5]
