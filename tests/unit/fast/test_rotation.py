"""The rotation: the order of Java's counter, and one broker passed over."""

from __future__ import annotations

import pytest

from rocketcore._fast.rotation import QueueRotation


def test_takes_turns() -> None:
    rotation = QueueRotation([0, 0, 1], 2)
    assert [rotation.next() for _ in range(5)] == [2, 0, 1, 2, 0]
    assert len(rotation) == rotation.count == 3


@pytest.mark.parametrize(("start", "first"), [(7, 1), (-1, 2), (1 << 70, (1 << 70) % 3)])
def test_start_is_taken_modulo(start: int, first: int) -> None:
    assert QueueRotation([0, 0, 0], start).next() == first


def test_skips_all_queues_of_a_broker() -> None:
    rotation = QueueRotation([0, 0, 1, 1, 2], 0)
    assert [rotation.next_skipping(0) for _ in range(5)] == [2, 3, 4, 2, 3]
    assert [rotation.next_skipping(2) for _ in range(5)] == [0, 1, 2, 3, 0]


def test_skips_past_the_end_into_the_same_broker() -> None:
    rotation = QueueRotation([1, 0, 2, 1, 1], 3)
    assert rotation.next_skipping(1) == 1


def test_the_only_broker_is_not_skipped() -> None:
    rotation = QueueRotation([4, 4], 1)
    assert [rotation.next_skipping(4) for _ in range(3)] == [1, 0, 1]


@pytest.mark.parametrize("brokers", [[], [0, -1]])
def test_wrong_brokers(brokers: list[int]) -> None:
    with pytest.raises(ValueError):
        QueueRotation(brokers, 0)
