"""Expressions of heartbeats: which are kept, for how long, and what Apache's brokers read and write of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketcore.broker.state import consumer_filter
from rocketcore.broker.state.consumer_filter import KEPT_MILLIS, ConsumerFilters
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.protocol.bodies.heartbeat import SubscriptionData
from rocketcore.service import ManualClock

APACHES = """{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitNum":112,"bitPos":[1,2,3]},
"bornTime":1000,"clientVersion":7,"consumerGroup":"g","dead":false,"deadTime":0,"expression":"a > 1",
"expressionType":"SQL92","topic":"T"},"bad":{"bornTime":1,"clientVersion":7,"consumerGroup":"bad","deadTime":0,
"expression":"a >","expressionType":"SQL92","topic":"T"}},"topic":"T"}}}"""


def subscription(
    expression: str = "a > 1", *, topic: str = "T", version: int = 7, kind: str = "SQL92"
) -> SubscriptionData:
    return SubscriptionData.build(topic, expression, kind, sub_version=version)


def filters(folder: Path, clock: ManualClock | None = None) -> ConsumerFilters:
    return ConsumerFilters(JsonFile(folder / "consumerFilter.json"), clock or ManualClock(100_000))


def test_newer_versions_replace_older_ones(tmp_path: Path) -> None:
    ours = filters(tmp_path)
    ours.register("g", [subscription(), subscription("x", topic="U", kind="TAG")])
    assert ours.expressions("g") == {"T": "a > 1"}
    assert ours.take_changes()
    assert not ours.take_changes()
    for expression, version, expected in [("a > 2", 6, "a > 1"), ("a > 3", 7, "a > 1"), ("a > 4", 8, "a > 4")]:
        ours.register("g", [subscription(expression, version=version)])
        assert ours.expressions("g") == {"T": expected}
    ours.register("g", [subscription("a > 4", version=9)])
    kept = ours.find("g", "T")
    assert kept is not None
    assert (kept.client_version, kept.is_dead) == (9, False)
    ours.register("g", [subscription("a >", version=10)])
    assert ours.expressions("g") == {}


def test_what_is_dead_is_kept_for_a_day(tmp_path: Path) -> None:
    clock = ManualClock(100_000)
    ours = filters(tmp_path, clock)
    ours.register("g", [subscription(), subscription(topic="U")])
    ours.register("g", [subscription()])
    ours.register("other", [subscription()])
    ours.unregister("other")
    kept = [ours.find("g", "T"), ours.find("g", "U"), ours.find("other", "T")]
    assert [one is not None and one.is_dead for one in kept] == [False, True, True]
    ours.register("other", [subscription()])
    assert not ours.find("other", "T").is_dead  # type: ignore[union-attr]
    clock.set_wall(100_000 + KEPT_MILLIS)
    ours.encode()
    assert (ours.expressions("g"), ours.expressions("other")) == ({"T": "a > 1"}, {"T": "a > 1"})


def test_survives_a_restart(tmp_path: Path) -> None:
    ours = filters(tmp_path)
    ours.register("g1", [subscription(topic="TopicTest")])
    text = ours.encode()
    [(topic, of_topic)] = json.loads(text)["filterDataByTopic"].items()
    assert (topic, of_topic["topic"]) == ("TopicTest", "TopicTest")
    assert of_topic["groupFilterData"]["g1"] == {
        "bloomFilterData": {"bitNum": 112, "bitPos": [71, 62, 52]},
        "bornTime": 100_000, "clientVersion": 7, "consumerGroup": "g1", "deadTime": 0, "expression": "a > 1",
        "expressionType": "SQL92", "topic": "TopicTest",
    }  # fmt: skip
    ours.file.save(text)
    again = filters(tmp_path, ManualClock(500_000))
    again.load()
    kept = again.find("g1", "TopicTest")
    assert kept is not None
    assert (kept.expression, kept.born_time, kept.dead_time) == ("a > 1", 100_000, 470_000)
    assert not again.take_changes()


def test_reads_what_apache_writes(tmp_path: Path) -> None:
    (tmp_path / "consumerFilter.json").write_text(APACHES)
    ours = filters(tmp_path)
    ours.load()
    assert (ours.expressions("g"), ours.expressions("bad")) == ({"T": "a > 1"}, {})
    kept = ours.find("g", "T")
    assert kept is not None
    assert (kept.client_version, kept.is_dead) == (7, True)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("g1#TopicTest", [71, 62, 52]),
        ("a-group-of-more-than-sixteen-bytes#Orders", [31, 52, 70]),
        ("é#中", [81, 11, 53]),
    ],
)
def test_bits_are_those_of_java(text: str, bits: list[int]) -> None:
    """As guava 32.0.1 has them, which Apache's BloomFilter asks."""
    assert consumer_filter._bloom_bits(text) == bits


def test_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(consumer_filter, "MAX_BYTES", 20)
    clock = ManualClock(100_000)
    ours = filters(tmp_path, clock)
    for group in ("g1", "g2", "g3"):
        ours.register(group, [subscription()])
    assert [bool(ours.expressions(group)) for group in ("g1", "g2", "g3")] == [True, True, False]
    assert "expression not kept group=g3 topic=T bytes=8" in caplog.text
    ours.unregister("g1")
    clock.set_wall(100_000 + KEPT_MILLIS)
    ours.register("g3", [subscription()])
    assert [bool(ours.expressions(group)) for group in ("g1", "g2", "g3")] == [False, True, True]
