"""Topic and group names: what we refuse is what Java's client refuses."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcore.client.push import PushConsumer
from rocketcore.codes import RETRY_TOPIC_PREFIX
from rocketcore.errors import MessageIllegal
from rocketcore.naming import check_group, check_send_topic, check_topic
from tests.fixtures.vectors import family, name_of


@pytest.mark.parametrize("record", family("names.jsonl", "name/"), ids=name_of)
def test_names_are_refused_as_java_refuses_them(record: dict[str, Any]) -> None:
    name = record["input"]["name"] or ""
    for check, expected in ((check_topic, record["checkTopic"]), (check_group, record["checkGroup"])):
        if check is check_topic and name.startswith(("%RETRY%", "%DLQ%")):
            continue  # brokers make these from group names, and they may be longer
        refused = isinstance(expected, dict) and "error" in expected
        try:
            check(name)
        except MessageIllegal:
            assert refused, name
        else:
            assert not refused, name


@pytest.mark.parametrize("record", family("names.jsonl", "name/"), ids=name_of)
def test_topics_of_the_broker_itself_cannot_be_sent_to(record: dict[str, Any]) -> None:
    if record["notAllowedSendTopic"]:
        with pytest.raises(MessageIllegal):
            check_send_topic(record["input"]["name"])


@pytest.mark.parametrize("record", family("names.jsonl", "derived/"), ids=name_of)
def test_the_retry_topic_of_a_group(record: dict[str, Any]) -> None:
    group = record["input"]["group"]
    assert RETRY_TOPIC_PREFIX + group == record["retryTopic"]
    try:
        assert PushConsumer(group=group).retry_topic == record["retryTopic"]
    except MessageIllegal:
        with pytest.raises(MessageIllegal):
            check_group(group)
