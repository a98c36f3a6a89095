"""Consumer offsets: commits, resets, files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcore.broker.state.consumer_offset import ConsumerOffsets
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.service import ManualClock


def topics_of(offsets: ConsumerOffsets, group: str) -> list[str]:
    return [topic for topic, owner in offsets.places() if owner == group]


def load(folder: Path) -> ConsumerOffsets:
    offsets = ConsumerOffsets(JsonFile(folder / "consumerOffset.json"), ManualClock())
    offsets.load()
    return offsets


@pytest.fixture
def offsets(tmp_path: Path) -> ConsumerOffsets:
    return load(tmp_path)


def test_the_last_commit_counts_also_a_smaller_one(offsets: ConsumerOffsets) -> None:
    assert offsets.find("g", "T", 0) is None
    offsets.commit("g", "T", 0, 9)
    offsets.commit("g", "T", 0, 4)
    assert offsets.find("g", "T", 0) == 4
    assert offsets.find("g", "T", 1) is None


def test_a_reset_that_waits_outlasts_a_copy_of_another_groups_offsets(offsets: ConsumerOffsets) -> None:
    offsets.reset("g", "T", 3, 100)
    offsets.commit("other", "T", 0, 5)
    offsets.clone("other", "g", "T")
    assert [offsets.find("g", "T", queue_id) for queue_id in (0, 3)] == [5, 100]
    assert offsets.take_reset("g", "T", 3) == 100
    assert offsets.find("g", "T", 3) is None


def test_a_reset_holds_until_the_next_pull(offsets: ConsumerOffsets) -> None:
    offsets.commit("g", "T", 0, 9)
    offsets.reset("g", "T", 0, 2)
    assert not offsets.commit("g", "T", 0, 9)
    assert offsets.commit("g", "T", 1, 9)
    assert offsets.take_reset("g", "T", 0) == 2
    assert offsets.take_reset("g", "T", 0) is None
    assert offsets.commit("g", "T", 0, 3)
    assert offsets.find("g", "T", 0) == 3


def test_the_pull_offset_is_at_least_the_committed_one(offsets: ConsumerOffsets) -> None:
    assert offsets.pull_offset("g", "T", 0) == 0
    offsets.note_pull("g", "T", 0, 5)
    offsets.commit("g", "T", 0, 3)
    assert offsets.pull_offset("g", "T", 0) == 5
    offsets.commit("g", "T", 0, 8)
    assert offsets.pull_offset("g", "T", 0) == 8


def test_topics_and_groups_with_an_at_sign_between_them(offsets: ConsumerOffsets) -> None:
    offsets.commit("g", "T", 0, 1)
    offsets.commit("g", "%RETRY%g", 0, 1)
    offsets.commit("h", "T", 0, 1)
    assert sorted(topics_of(offsets, "g")) == ["%RETRY%g", "T"]
    assert sorted(offsets.groups_of("T")) == ["g", "h"]
    offsets.remove_topics(["T"])
    assert topics_of(offsets, "g") == ["%RETRY%g"]
    offsets.remove_group("g")
    assert topics_of(offsets, "g") == []


def test_offsets_are_copied_to_another_group(offsets: ConsumerOffsets) -> None:
    offsets.commit("g", "T", 0, 1)
    offsets.commit("g", "U", 0, 2)
    offsets.clone("g", "h", "T")
    assert topics_of(offsets, "h") == ["T"]
    for topic in sorted(topics_of(offsets, "g")):
        offsets.clone("g", "h", topic)
    offsets.commit("h", "U", 0, 7)
    assert (offsets.find("g", "U", 0), offsets.find("h", "U", 0)) == (2, 7)


def test_changes_are_reported_once_and_survive_a_restart(offsets: ConsumerOffsets, tmp_path: Path) -> None:
    assert not offsets.take_changes()
    for queue_offset in range(1, 1_001):
        offsets.commit("g", "T", 0, queue_offset)
    assert offsets.take_changes()
    assert not offsets.take_changes()
    offsets.file.save(offsets.encode())
    again = load(tmp_path)
    assert again.find("g", "T", 0) == 1_000
    assert again.data_version.counter == 2
