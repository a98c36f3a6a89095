"""The latency-fault table: when a broker is left alone, and which queue is taken instead."""

from __future__ import annotations

import pytest

from rocketcore._fast.fault import FaultTable
from rocketcore._fast.rotation import QueueRotation

QUEUES = [0, 0, 1, 1, 2, 2]


def choices(table: FaultTable, last: int, now: float, count: int = 6) -> list[int]:
    rotation = QueueRotation(QUEUES, 0)
    return [table.select(rotation, last, now) for _ in range(count)]


def test_unknown_broker_is_available_and_reachable() -> None:
    table = FaultTable()
    assert table.is_available(5000, 0.0)
    assert table.is_reachable(5000)


def test_available_again_at_the_time_itself() -> None:
    table = FaultTable()
    table.update(1, 10.0, True)
    assert not table.is_available(1, 9.999)
    assert table.is_available(1, 10.0)


def test_grows() -> None:
    table = FaultTable(0)
    for broker in range(100):
        table.update(broker, float(broker), broker % 2 == 0)
    assert [table.is_available(broker, 50.0) for broker in range(100)] == [broker <= 50 for broker in range(100)]
    assert [table.is_reachable(broker) for broker in range(100)] == [broker % 2 == 0 for broker in range(100)]


def test_selects_in_turn_without_faults() -> None:
    assert choices(FaultTable(), -1, 0.0) == [0, 1, 2, 3, 4, 5]
    assert choices(FaultTable(), 1, 0.0) == [0, 1, 4, 5, 0, 1]


def test_leaves_out_what_is_not_available() -> None:
    table = FaultTable()
    table.update(0, 10.0, True)
    assert choices(table, -1, 5.0) == [2, 3, 4, 5, 2, 3]
    assert choices(table, 2, 5.0) == [2, 3, 2, 3, 2, 3]
    assert choices(table, -1, 10.0) == [0, 1, 2, 3, 4, 5]


def test_second_choice_is_reachable() -> None:
    table = FaultTable()
    for broker in range(3):
        table.update(broker, 10.0, broker == 2)
    assert choices(table, -1, 5.0) == [4, 5, 4, 5, 4, 5]


def test_last_choice_is_any() -> None:
    table = FaultTable()
    for broker in range(3):
        table.update(broker, 10.0, False)
    assert choices(table, 0, 5.0) == [0, 1, 2, 3, 4, 5]


def test_only_the_last_broker_is_left() -> None:
    assert [FaultTable().select(QueueRotation([3, 3], 1), 3, 0.0) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("capacity", [-1])
def test_wrong_capacity(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity"):
        FaultTable(capacity)


def test_wrong_broker() -> None:
    with pytest.raises(ValueError, match="broker index -1"):
        FaultTable().update(-1, 0.0, True)
    with pytest.raises(TypeError):
        FaultTable().select(None, 0, 0.0)  # type: ignore[arg-type]
