"""The table of popped messages: what it keeps of those that are done with."""

from __future__ import annotations

from rocketcore.broker.pop.state import PopState
from rocketcore.service import ManualClock


def test_what_is_done_is_not_kept_until_its_time() -> None:
    """One message whose time is changed again and again, behind one that is due before."""
    clock = ManualClock()
    state = PopState(clock)
    now = clock.time_millis()
    state.apply(["pop", "T", "g", 0, 0, [0, 1], 2, now, 3_600_000])
    for number in range(10_000):
        state.apply(["hide", "T", "g", 0, 1, now + number, 86_400_000, False])
    assert len(state._due) <= 2 * 2 + 1024 + 1
    assert state.in_flight == 2
    state.apply(["hide", "T", "g", 0, 1, now, 1000, False])
    clock.advance(2)
    assert [each.left for each in iter(state.take_due, None)] == [{1}]
    clock.advance(3600)
    assert [each.left for each in iter(state.take_due, None)] == [{0}]
