"""Verification of the files of a broker's configuration."""

from __future__ import annotations

from pathlib import Path

from rocketcore.broker.verify import repair_broker, verify_broker
from tests.fixtures.verified_store import (
    only,
    store_config,
)


def configured(root: Path, name: str, text: bytes) -> Path:
    path = root / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text)
    return path


def test_settings_that_are_damaged_are_named_in_each_generation(root: Path) -> None:
    configured(root, "topics.json", b'{"topicConfigTable":{}}')
    assert verify_broker(store_config(root)).is_whole
    bad = configured(root, "topics.json.bak", b'{"topicConfigTable":{}')
    assert only(verify_broker(store_config(root))).path == bad
    (root / "config" / "topics.json").rename(root / "config" / "topics.json.bak")
    assert "it is missing" in only(verify_broker(store_config(root))).what
    (root / "config" / "topics.json.bak").unlink()
    assert only(verify_broker(store_config(root))).what == "it is missing: no topic has settings"
    configured(root, "topics.json", b'{"topicConfigTable":{},"crc32":5}')
    assert only(verify_broker(store_config(root))).what == "the checksum does not fit"


def test_offsets_that_lead_behind_a_queue_are_named(root: Path) -> None:
    configured(root, "topics.json", b'{"topicConfigTable":{}}')
    configured(root, "consumerOffset.json", b'{"offsetTable":{"T@g":{0:20,1:140},"Other@g":{0:9}}}')
    assert verify_broker(store_config(root)).is_whole
    path = configured(root, "consumerOffset.json", b'{"offsetTable":{"T@g":{0:21,1:0}}}')
    report = verify_broker(store_config(root))
    damage = only(report)
    assert (damage.kind, damage.path, damage.what) == ("offset", path, "group g is at 21 of T/0, which ends at 20")
    assert repair_broker(store_config(root), report) is report, "nothing of it follows from the log"
