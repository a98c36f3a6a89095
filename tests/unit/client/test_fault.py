"""LatencyFaultTolerance: what a latency means, and which queue is chosen."""

from __future__ import annotations

import pytest

from rocketcore._fast.rotation import QueueRotation
from rocketcore.client.fault import ASSUMED_LATENCY, BrokerNumbers, LatencyFaultTolerance, not_available_duration
from rocketcore.service import ManualClock


@pytest.mark.parametrize(
    ("latency", "seconds"),
    [(0.0, 0), (0.05, 0), (0.549, 0), (0.55, 2), (1.8, 5), (3.0, 6), (5.0, 10), (14.9, 10), (15.0, 30), (60.0, 30)],
)
def test_a_late_answer_keeps_the_broker_away(latency: float, seconds: float) -> None:
    assert not_available_duration(latency) == seconds


def test_a_failure_counts_as_ten_seconds() -> None:
    assert not_available_duration(ASSUMED_LATENCY) == 10.0


def test_broker_numbers_stay() -> None:
    numbers = BrokerNumbers()
    assert [numbers.number(name) for name in ("b", "a", "b", "c")] == [0, 1, 0, 2]


def test_a_slow_broker_is_left_alone_until_its_time_is_over() -> None:
    clock = ManualClock()
    fault = LatencyFaultTolerance(True, clock)
    rotation = QueueRotation([0, 0, 1, 1], 0)
    fault.update(0, 0.01)
    fault.update(1, 2.0)
    assert {fault.select(rotation) for _ in range(20)} == {0, 1}
    clock.advance(5.1)
    assert {fault.select(rotation) for _ in range(20)} == {0, 1, 2, 3}


def test_off_it_takes_turns() -> None:
    fault = LatencyFaultTolerance(False, ManualClock())
    fault.update(1, 100.0, reachable=False)
    rotation = QueueRotation([0, 0, 1, 1], 0)
    assert sorted(fault.select(rotation) for _ in range(4)) == [0, 1, 2, 3]
