"""Queue locks of ordered consumers."""

from __future__ import annotations

import pytest

from rocketcore.broker.state.queue_locks import LOCK_MAX_LIVE_SECONDS, LOST_LOCK_SECONDS, QueueLocks
from rocketcore.message import MessageQueue
from rocketcore.service import ManualClock

QUEUES = [MessageQueue("T", "b", queue_id) for queue_id in range(3)]


def test_a_queue_has_one_owner_in_a_group() -> None:
    locks = QueueLocks(ManualClock())
    assert locks.lock("g", QUEUES[:2], "a") == QUEUES[:2]
    assert locks.lock("g", QUEUES, "b") == QUEUES[2:]
    assert locks.lock("h", QUEUES, "b") == QUEUES


def test_a_lease_ends_when_it_is_not_renewed() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", QUEUES, "a")
    clock.advance(LOCK_MAX_LIVE_SECONDS - 1)
    locks.lock("g", QUEUES[:1], "a")
    clock.advance(2)
    assert locks.lock("g", QUEUES, "b") == QUEUES[1:]


@pytest.mark.parametrize(
    ("after", "renewed", "free"),
    [
        (LOST_LOCK_SECONDS - 1, False, False),
        (LOST_LOCK_SECONDS + 1, False, True),
        (LOST_LOCK_SECONDS + 1, True, False),  # it made another connection, and renewed in its turn
    ],
)
def test_a_lease_ends_sooner_where_its_client_has_no_connection(after: float, renewed: bool, free: bool) -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", QUEUES, "a")
    locks.lock("h", QUEUES, "a")
    locks.connection_lost("g", "a")
    locks.connection_lost("g", "b")
    if renewed:
        locks.lock("g", QUEUES, "a")
    clock.advance(after)
    assert locks.lock("g", QUEUES, "b") == (QUEUES if free else [])
    assert locks.lock("h", QUEUES, "b") == [], "of another group"


def test_a_jump_of_the_wall_clock_frees_nothing() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", QUEUES, "a")
    clock.set_wall(clock.time_millis() + 3_600_000)
    assert locks.lock("g", QUEUES, "b") == []


def test_only_the_owner_unlocks() -> None:
    locks = QueueLocks(ManualClock())
    locks.lock("g", QUEUES, "a")
    locks.unlock("g", QUEUES, "b")
    assert locks.lock("g", QUEUES, "b") == []
    locks.unlock("g", QUEUES, "a")
    assert locks.lock("g", QUEUES, "b") == QUEUES


def test_dead_leases_are_forgotten() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", QUEUES, "a")
    assert locks.is_locked("g")
    clock.advance(LOCK_MAX_LIVE_SECONDS + 1)
    assert not locks.is_locked("g")
    locks.expire()
    locks.unlock("g", QUEUES, "a")
    assert not locks.is_locked("g")
