"""The process_queue of one queue."""

from __future__ import annotations

import random
from dataclasses import replace

from rocketcore.client.process_queue import ProcessQueue
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.service import ManualClock

QUEUE = MessageQueue("T", "b", 0)


def message(offset: int, body: bytes = b"12345") -> ReceivedMessage:
    return ReceivedMessage("T", body, QUEUE, offset, f"id-{offset}", f"offset-id-{offset}")


def process_queue(*offsets: int, start: int = 0, next_offset: int | None = None) -> ProcessQueue:
    result = ProcessQueue(QUEUE, start, ManualClock())
    result.put([message(offset) for offset in offsets], offsets[-1] + 1 if next_offset is None else next_offset)
    return result


def test_the_commit_offset_waits_for_the_first_unsettled_message() -> None:
    queue = process_queue(5, 6, 7, start=5)
    first, second, third = queue.take(10)
    assert queue.remove(second)
    assert queue.commit_offset == 5
    assert queue.remove(first)
    assert queue.commit_offset == 7
    assert queue.remove(third)
    assert queue.commit_offset == 8
    assert not queue.remove(third)


def test_offsets_that_hold_nothing_for_us_are_passed_over() -> None:
    queue = process_queue(5, start=3, next_offset=40)
    assert (queue.commit_offset, queue.next_offset, queue.span) == (5, 40, 0)
    queue.remove(queue.take(1)[0])
    assert queue.commit_offset == 40
    queue.put([], 50)
    assert queue.commit_offset == 50


def test_an_empty_window_commits_where_it_began() -> None:
    assert ProcessQueue(QUEUE, 17, ManualClock()).commit_offset == 17


def test_bytes_and_span_are_counted() -> None:
    queue = process_queue(10, 11, 19)
    assert (len(queue), queue.cached_bytes, queue.span) == (3, 15, 9)
    queue.remove(queue.take(1)[0])
    assert (len(queue), queue.cached_bytes, queue.span) == (2, 10, 8)


def test_a_message_that_comes_twice_is_kept_once() -> None:
    queue = process_queue(1, 2)
    queue.put([message(2), message(3)], 4)
    assert [each.offset for each in queue.take(10)] == [1, 2, 3]


def test_what_is_given_back_is_taken_next_in_order() -> None:
    queue = process_queue(1, 2, 3, 4)
    taken = queue.take(3)
    queue.give_back(taken[:2])
    assert [each.offset for each in queue.take(10)] == [1, 2, 4]
    queue.give_back([message(3)])
    assert queue.handed_count == 3


def test_expired_is_what_someone_has_worked_on_for_too_long() -> None:
    clock = ManualClock()
    queue = ProcessQueue(QUEUE, 0, clock)
    queue.put([message(0), message(1), message(2)], 3)
    queue.take(1)
    clock.advance(10.0)
    queue.take(1)
    assert [each.offset for each in queue.expired(5.0)] == [0]


def test_after_clear_a_verdict_on_an_old_message_does_not_count() -> None:
    queue = process_queue(1, 2)
    [first, _] = queue.take(2)
    queue.clear()
    assert not queue.holds(first)
    assert not queue.remove(first)
    assert (len(queue), queue.cached_bytes, queue.waiting_count, queue.handed_count) == (0, 0, 0, 0)


def test_any_order_of_settlement_never_commits_past_an_open_message() -> None:
    rng = random.Random(7)
    queue = process_queue(*range(100, 200), start=100)
    open_messages = queue.take(100)
    rng.shuffle(open_messages)
    while open_messages:
        queue.remove(open_messages.pop())
        assert queue.commit_offset == min((each.offset for each in open_messages), default=200)


def test_an_administrator_sees_when_messages_were_last_consumed() -> None:
    clock = ManualClock()
    queue = ProcessQueue(QUEUE, 0, clock)
    queue.put([message(0)], 1)
    assert queue.info().last_consume_timestamp == 0
    clock.advance(10.0)
    queue.take(1)
    consumed = clock.time_millis()
    clock.advance(10.0)
    assert queue.info().last_consume_timestamp == consumed
    assert queue.info().last_pull_timestamp == consumed - 10_000


def test_a_message_of_a_queue_that_began_anew_takes_the_place_of_the_one_that_was() -> None:
    queue = ProcessQueue(QUEUE, 0)
    old = [replace(message(offset), physical_offset=offset, store_timestamp=1) for offset in range(3)]
    queue.put(old, 3)
    [taken] = queue.take(1)
    again = [replace(each, physical_offset=50 + each.offset, body=b"longer") for each in old[:2]]
    queue.displace([*again, old[2]])
    queue.put([*again, old[2]], 3)
    assert not queue.holds(taken)
    assert queue.take(9) == [old[2], *again]
    assert queue.cached_bytes == sum(len(each.body) for each in [old[2], *again])
