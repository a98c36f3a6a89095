"""Constants and names against those of the Java releases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rocketcore import codes
from rocketcore.codes import Version, release_of
from rocketcore.errors import MessageIllegal
from rocketcore.naming import check_group, check_topic
from rocketcore.protocol.bodies.client import CMResult
from rocketcore.protocol.bodies.group import GroupRetryPolicyType
from rocketcore.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel
from rocketcore.protocol.bodies.pop import MessageRequestMode
from rocketcore.protocol.bodies.topic import TopicFilterType
from tests.fixtures.vectors import FOLDER, family, name_of

RELEASES: dict[str, Any] = json.loads((FOLDER / "codes.json").read_text(encoding="ascii"))
JAVA = RELEASES["5.5.0"]

OTHER_MEANING_IN_4_9 = {209, 210, 211}
"""Response codes of the ACL of 4.9 that 5.x gave away again."""


@pytest.mark.parametrize("release", RELEASES)
def test_request_codes(release: str) -> None:
    java = RELEASES[release]["constants"]["RequestCode"]
    ours = {code.name: int(code) for code in codes.RequestCode}
    numbers = set(ours.values())
    for name, number in java.items():
        assert number in numbers, f"{name} ({number}) is missing"
    if release == "5.5.0":
        assert {name: number for name, number in java.items() if ours.get(name) != number} == {}


@pytest.mark.parametrize("release", RELEASES)
def test_response_codes(release: str) -> None:
    constants = RELEASES[release]["constants"]
    java = {**constants["ResponseCode"], **constants["RemotingSysResponseCode"]}
    numbers = {int(code) for code in codes.ResponseCode}
    for name, number in java.items():
        assert number in numbers, f"{name} ({number}) is missing"


def test_response_code_names() -> None:
    java = {**JAVA["constants"]["ResponseCode"], **JAVA["constants"]["RemotingSysResponseCode"]}
    ours = {code.name: int(code) for code in codes.ResponseCode}
    assert {name for name, number in java.items() if ours.get(name, number) != number} == set()


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("LanguageCode", codes.LanguageCode),
        ("ConsumeType", ConsumeType),
        ("MessageModel", MessageModel),
        ("ConsumeFromWhere", ConsumeFromWhere),
        ("CMResult", CMResult),
        ("BoundaryType", codes.BoundaryType),
        ("MessageRequestMode", MessageRequestMode),
        ("TopicFilterType", TopicFilterType),
        ("GroupRetryPolicyType", GroupRetryPolicyType),
    ],
)
def test_enumerations_have_the_names_and_order_of_java(name: str, cls: Any) -> None:
    assert [member.name for member in cls] == [member["name"] for member in JAVA["enums"][name]]


def test_versions() -> None:
    ordinals = JAVA["MQVersion"]["ordinals"]
    assert {version.name: int(version) for version in codes.Version} == {
        version.name: ordinals[version.name] for version in codes.Version
    }


def test_name_sets() -> None:
    assert sorted(codes.RESERVED_PROPERTIES) == JAVA["sets"]["MessageConst.STRING_HASH_SET"]


NAMES = [record for record in family("names.jsonl", "name/") if record["input"]["name"] is not None]


def accepted(check: Any, name: str) -> bool:
    try:
        check(name)
    except MessageIllegal:
        return False
    return True


@pytest.mark.parametrize("record", NAMES, ids=name_of)
def test_topic_and_group_names(record: dict[str, Any]) -> None:
    name = record["input"]["name"]
    topic = record["validateTopic"] == "ok" if name.startswith(("%RETRY%", "%DLQ%")) else record["checkTopic"] == "ok"
    assert accepted(check_topic, name) == topic
    assert accepted(check_group, name) == (record["checkGroup"] == "ok")
    assert (name in codes.SYSTEM_TOPICS or name.startswith(codes.SYSTEM_TOPIC_PREFIX)) == record["systemTopic"]
    assert (name in codes.SEND_FORBIDDEN_TOPICS) == record["notAllowedSendTopic"]
    assert name.startswith(codes.SYSTEM_GROUP_PREFIX) == record["sysConsumerGroup"]


def test_an_ordinal_stands_for_a_release() -> None:
    named = {Version.V4_9_7: "4.9.7", Version.V5_3_3: "5.3.3", Version.V5_5_0: "5.5.0", Version.V4_9_4: "4.9.4"}
    assert {version: release_of(version) for version in named} == named
    assert release_of(Version.V4_1_0_SNAPSHOT) == "4.1.0-SNAPSHOT"
    assert [release_of(version) for version in (0, 231, 612, 1 << 31)] == [None] * 4
