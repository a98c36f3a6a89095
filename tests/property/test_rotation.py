"""The rotation against Java's counter and loop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketcore._fast.rotation import QueueRotation
from tests.reference import rotation as reference


@given(
    brokers=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    start=st.integers(),
    skips=st.lists(st.none() | st.integers(-1, 4), max_size=30),
)
def test_is_the_oracle(brokers: list[int], start: int, skips: list[int | None]) -> None:
    ours, oracle = QueueRotation(brokers, start), reference.QueueRotation(brokers, start)
    for skip in skips:
        if skip is None:
            assert ours.next() == oracle.next()
        else:
            assert ours.next_skipping(skip) == oracle.next_skipping(skip)
