"""Settings of topics and groups as a file: what is written is read, and what cannot be is named with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rocketcore.admin.metadata import ClusterMetadata, metadata_document, plan_of, read_metadata
from rocketcore.admin.transfer import _cluster_of
from rocketcore.errors import ConfigError, NoBrokerRegistered
from rocketcore.protocol.bodies.group import (
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    GroupRetryPolicyType,
    SimpleSubscriptionData,
    SubscriptionGroupConfig,
)
from rocketcore.protocol.bodies.route import ClusterInfo
from rocketcore.protocol.bodies.topic import TopicConfig, TopicFilterType

EVERYTHING = ClusterMetadata(
    "c",
    {
        "a.b": {"y": TopicConfig("a.b", 1, 2, 4), "x": TopicConfig("a.b", 3, 4, 13)},
        "T": {"x": TopicConfig("T", 1, 1, 0, TopicFilterType.MULTI_TAG, 1, True, {"message.type": "FIFO"})},
    },
    {
        "g": {
            "x": SubscriptionGroupConfig(
                "g",
                retry_max_times=-1,
                broker_id=1 << 40,
                group_retry_policy=GroupRetryPolicy(GroupRetryPolicyType.EXPONENTIAL, ExponentialRetryPolicy(1 << 40)),
                subscription_data_set=[SimpleSubscriptionData("T", version=1 << 40)],
                attributes={"priority.factor": "1"},
            )
        }
    },
)


def test_what_is_written_is_read() -> None:
    document = metadata_document(EVERYTHING)
    assert read_metadata(json.dumps(document)) == EVERYTHING
    assert read_metadata(b"\xef\xbb\xbf" + json.dumps(document).encode()) == EVERYTHING
    assert list(document["topics"]) == ["T", "a.b"]
    assert list(document["topics"]["a.b"]) == ["x", "y"]
    assert [each["perm"] for each in document["topics"]["a.b"].values()] == [13, "r"]
    assert document["topics"]["T"]["x"]["perm"] == "none"


def file(**parts: Any) -> str:
    return json.dumps({"format": 1, "cluster": "c", **parts})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (file(format=2), "format: 2 is not known"),
        (file(format=True), "format: it is the number"),
        (file(cluster=7), "cluster: it is the name"),
        (file(more=1), "more: unknown key"),
        (file(topics=[]), r"topics: \[\] is not an object"),
        (file(topics={"t": {}}), "topics.t: it names no broker"),
        (file(topics={"t": {"b": 7}}), "topics.t.b: 7 is not an object"),
        (file(topics={"%RETRY%g": {"b": {}}}), "topics.%RETRY%g: brokers make it"),
        (file(groups={"CID_RMQ_SYS_x": {"b": {}}}), "groups.CID_RMQ_SYS_x: brokers make it"),
        (file(topics={"t": {"b": {"topic_name": "u"}}}), "topics.t.b.topic_name: unknown setting"),
        (file(topics={"t": {"b": {"read_queues": "8"}}}), 'topics.t.b.read_queues: "8" is not a number'),
        (file(topics={"t": {"b": {"read_queues": True}}}), "topics.t.b.read_queues: true is not a number"),
        (file(topics={"t": {"b": {"read_queues": 1.5}}}), "topics.t.b.read_queues: 1.5 is not a number"),
        (file(topics={"t": {"b": {"read_queues": -1}}}), "topics.t.b.read_queues: -1 is less than 0"),
        (file(topics={"t": {"b": {"read_queues": 1 << 31}}}), "topics.t.b.read_queues: 2147483648 does not fit"),
        (file(topics={"t": {"b": {"perm": "rwx"}}}), 'topics.t.b.perm: "rwx" is not a number'),
        (file(topics={"t": {"b": {"perm": []}}}), r"topics.t.b.perm: \[\] is not a number"),
        (file(topics={"t": {"b": {"order": 1}}}), "topics.t.b.order: 1 is not true or false"),
        (file(topics={"t": {"b": {"topic_filter_type": "x"}}}), "topic_filter_type: .x. is not one of SINGLE_TAG"),
        (file(topics={"t": {"b": {"topic_filter_type": None}}}), "topic_filter_type: null is not one of"),
        (file(topics={"t": {"b": {"attributes": {"k": 1}}}}), "topics.t.b.attributes.k: 1 is not text"),
        (
            file(groups={"g": {"b": {"subscription_data_set": [{"topic": 1}]}}}),
            r"groups.g.b.subscription_data_set\[0\].topic: 1 is not text",
        ),
        (
            file(groups={"g": {"b": {"group_retry_policy": {"x": 1}}}}),
            "groups.g.b.group_retry_policy.x: unknown setting",
        ),
        ('{"format": 1, "format": 1}', "format: it is there twice"),
        ("[" * 100_000, "nested too deeply"),
        ("", "line 1, column 1"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_metadata(text)


def test_what_names_brokers_that_are_not_there_goes_to_all() -> None:
    nothing = ClusterMetadata("d", {}, {})
    same = ClusterMetadata("c", {"t": {"x": TopicConfig("t"), "y": TopicConfig("t")}}, {})
    plan = plan_of(same, nothing, ["y", "z"])
    assert [(row.broker, row.action) for row in plan.rows] == [("y", "create"), ("z", "create")]
    assert [row.broker for row in plan_of(same, nothing, ["w", "x", "y"]).rows] == ["x", "y"]
    other = ClusterMetadata(
        "c", {}, {"g": {"x": SubscriptionGroupConfig("g"), "y": SubscriptionGroupConfig("g", False)}}
    )
    with pytest.raises(ConfigError, match="group 'g' has other settings on each of x, y, and cluster 'd' has no x"):
        plan_of(other, nothing, ["y", "z"])
    assert plan_of(other, other, ["x", "y", "z"]).changes == ()


def test_which_cluster_is_meant() -> None:
    one, two = ClusterInfo(cluster_addr_table={"a": ["x"]}), ClusterInfo(cluster_addr_table={"b": ["y"]})
    assert _cluster_of([one, one], None) == "a"
    assert _cluster_of([one, two], None, "b") == "b"
    assert _cluster_of([one, two], "c", "b") == "c"
    with pytest.raises(ConfigError, match="there are the clusters a, b: name one"):
        _cluster_of([one, two], None, "other")
    with pytest.raises(NoBrokerRegistered):
        _cluster_of([ClusterInfo()], None)
