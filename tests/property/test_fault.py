"""The latency-fault table against the oracle: any order of attempts, times and choices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketcore._fast.fault import FaultTable
from rocketcore._fast.rotation import QueueRotation
from tests.reference import fault as reference_fault
from tests.reference import rotation as reference_rotation

TIMES = st.integers(0, 20).map(float)
BROKERS = st.integers(0, 4)


@given(
    brokers=st.lists(BROKERS, min_size=1, max_size=10),
    start=st.integers(0, 100),
    capacity=st.integers(0, 3),
    steps=st.lists(
        st.tuples(st.just("update"), BROKERS, TIMES, st.booleans())
        | st.tuples(st.just("select"), st.integers(-1, 4), TIMES, st.none()),
        max_size=40,
    ),
)
def test_is_the_oracle(
    brokers: list[int], start: int, capacity: int, steps: list[tuple[str, int, float, bool | None]]
) -> None:
    table, oracle = FaultTable(capacity), reference_fault.FaultTable()
    ours, theirs = QueueRotation(brokers, start), reference_rotation.QueueRotation(brokers, start)
    for what, broker, time, reachable in steps:
        if what == "update":
            table.update(broker, time, bool(reachable))
            oracle.update(broker, time, bool(reachable))
        else:
            assert table.select(ours, broker, time) == oracle.select(theirs, broker, time)
            for other in range(6):
                assert table.is_available(other, time) == oracle.is_available(other, time)
                assert table.is_reachable(other) == oracle.is_reachable(other)
