"""Consumer groups: creation by use, changes, files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.state.subscription_group import SubscriptionGroups
from rocketcore.errors import InvalidParameter
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.service import ManualClock


def load(folder: Path, *, auto_create: bool = True) -> tuple[SubscriptionGroups, list[int]]:
    changes: list[int] = []
    groups = SubscriptionGroups(
        JsonFile(folder / "subscriptionGroup.json"),
        lambda: changes.append(1),
        auto_create=lambda: auto_create,
        clock=ManualClock(),
    )
    groups.load()
    return groups, changes


def test_an_unknown_group_is_created_when_it_is_looked_up(tmp_path: Path) -> None:
    groups, changes = load(tmp_path)
    assert not groups.exists("g")
    assert groups.find("g") == SubscriptionGroupConfig(group_name="g")
    assert groups.exists("g")
    assert len(changes) == 1


@pytest.mark.parametrize("name", ["", "a b", "é", "g" * 121])
def test_a_group_with_a_bad_name_is_not_created(tmp_path: Path, name: str) -> None:
    groups, changes = load(tmp_path)
    assert groups.find(name) is None
    assert changes == []


def test_without_auto_creation_only_system_groups_appear(tmp_path: Path) -> None:
    groups, _ = load(tmp_path, auto_create=False)
    assert groups.find("g") is None
    assert groups.find("CID_RMQ_SYS_x") is not None
    assert groups.find("TOOLS_CONSUMER") is not None


def test_attributes_are_added_and_removed(tmp_path: Path) -> None:
    groups, _ = load(tmp_path)
    groups.update(
        SubscriptionGroupConfig(group_name="g", attributes={"+priority.factor": "1", "+lite.bind.topic": "T"})
    )
    groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=3, attributes={"-priority.factor": ""}))
    found = groups.find("g")
    assert found is not None
    assert (found.retry_max_times, found.attributes) == (3, {"lite.bind.topic": "T"})


@pytest.mark.parametrize(("name", "remark"), [("", "blank"), ("a b", "illegal"), ("g" * 121, "longer")])
def test_admins_cannot_create_bad_names(tmp_path: Path, name: str, remark: str) -> None:
    groups, _ = load(tmp_path)
    with pytest.raises(InvalidParameter, match=remark):
        groups.update(SubscriptionGroupConfig(group_name=name))


def test_the_table_survives_a_restart_and_a_deletion(tmp_path: Path) -> None:
    groups, _ = load(tmp_path)
    groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=2, consume_broadcast_enable=False))
    groups.find("h")
    groups.delete("h")
    groups.file.save(groups.encode())
    again, _ = load(tmp_path)
    assert again.table["g"] == groups.table["g"]
    assert "h" not in again.table
    assert again.data_version.counter == 3


def test_a_forbidden_topic_is_read_from_the_file(tmp_path: Path) -> None:
    JsonFile(tmp_path / "subscriptionGroup.json").save(b'{"forbiddenTable":{"g":{"T":4,"U":2}}}')
    groups, _ = load(tmp_path)
    assert groups.is_forbidden("g", "T")
    assert not groups.is_forbidden("g", "U")
    assert not groups.is_forbidden("h", "T")


def test_more_retry_queues_than_a_request_may_make_are_refused(tmp_path: Path) -> None:
    groups, changes = load(tmp_path)
    groups.update(SubscriptionGroupConfig(group_name="g", retry_queue_nums=4096))
    with pytest.raises(InvalidParameter, match=r"group\[g\] has 4000000000 queues"):
        groups.update(SubscriptionGroupConfig(group_name="g", retry_queue_nums=4_000_000_000))
    assert len(changes) == 1
