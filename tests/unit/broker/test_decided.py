"""What known pulls note is what the general way notes, whatever becomes of groups, topics and counters meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore._fast.decided import Decided
from rocketcore.broker.state import consumer_offset
from rocketcore.broker.state.consumer_offset import ConsumerOffsets
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.stats import BrokerStats
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.service import ManualClock

PLACES = [("g", "t", 0), ("g", "t", 1), ("g", "u", 0), ("h", "t", 0)]
EVENTS = ["topic", "group", "snapshot", "totals", "reset"]


def header(place: tuple[str, str, int]) -> PullMessageRequestHeader:
    group, topic, queue_id = place
    return PullMessageRequestHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, queue_offset=0, max_msg_nums=32,
        sys_flag=0, commit_offset=0, suspend_timeout_millis=0, sub_version=0,
    )  # fmt: skip


class Tables:
    def __init__(self) -> None:
        self.offsets = ConsumerOffsets(JsonFile(Path("none")), ManualClock())
        self.stats = BrokerStats(ManualClock())

    def happen(self, event: str) -> None:
        if event == "topic":
            self.offsets.remove_topics(["t"])
            self.stats.forget_topics(["t"])
        elif event == "group":
            self.offsets.remove_group("g")
            self.stats.forget_group("g")
        elif event == "reset":
            self.offsets.reset("g", "t", 0, 1)
        elif event == "snapshot":
            self.stats.snapshot()
        else:
            self.stats.totals  # noqa: B018 - settles

    def seen(self) -> object:
        pulled = [(self.offsets.pull_offset(*place), self.offsets.find(*place)) for place in PLACES]
        counted = [(name, item.value, item.times) for name, item in sorted(self.stats.counters(), key=lambda x: x[0])]
        return pulled, counted, self.stats.totals, [self.stats.data("QUEUE_GET_NUMS", f"t@{n}@g") for n in (0, 1)]


@given(
    st.lists(st.one_of(st.tuples(st.integers(0, 3), st.integers(1, 9)), st.sampled_from(EVENTS)), max_size=40),
    st.booleans(),
)
def test_pulls_are_noted_as_by_the_general_way(steps: list[tuple[int, int] | str], commits: bool) -> None:
    ours, general = Tables(), Tables()
    decided = [Decided(header(place), None, ours.offsets, ours.stats, commits, None) for place in PLACES]
    for offset, step in enumerate(steps):
        if isinstance(step, str):
            ours.happen(step)
            general.happen(step)
            continue
        index, messages = step
        group, topic, queue_id = PLACES[index]
        decided[index].note(offset, offset + messages, messages, 100 * messages)
        if commits:
            general.offsets.commit(group, topic, queue_id, offset)
        general.offsets.note_pull(group, topic, queue_id, offset + messages)
        general.stats.count_get(group, topic, messages, 100 * messages, queue_id)
    assert ours.seen() == general.seen()


def test_no_more_pull_offsets_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offset, "CAPACITY", 1)
    tables = Tables()
    decided = [Decided(header(place), None, tables.offsets, tables.stats, False, None) for place in PLACES[:2]]
    for one in decided * 2:
        one.note(0, 5, 5, 500)
    assert [tables.offsets.pull_offset(*place) for place in PLACES[:2]] == [5, 0]
    tables.offsets.remove_topics(["t"])
    decided[1].note(0, 7, 7, 700)
    assert [tables.offsets.pull_offset(*place) for place in PLACES[:2]] == [0, 7]
