"""Telling the members of a group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.context import BrokerContext
from rocketcore.broker.state.client_table import ConsumerGroup, ConsumerTable
from rocketcore.errors import ConnectionLost
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.heartbeat import ConsumerData, MessageModel
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock
from rocketcore.transport.channel import Channel
from tests.unit.broker.fakes import FakeChannel


class Groups:
    """Settings of one group."""

    def __init__(self, settings: SubscriptionGroupConfig | None) -> None:
        self.settings = settings

    def exists(self, name: str) -> bool:
        return True

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        return self.settings


class BrokenChannel(FakeChannel):
    def invoke_oneway(self, command: RemotingCommand) -> None:
        raise ConnectionLost("gone")


def told(
    channels: list[FakeChannel],
    *,
    config: BrokerConfig | None = None,
    settings: SubscriptionGroupConfig | None = None,
    model: MessageModel = MessageModel.CLUSTERING,
) -> list[int]:
    """Register the channels as members, tell the group once more, and return how often each was told then."""
    consumers = ConsumerTable(lambda group: None, clock=ManualClock())
    for number, channel in enumerate(channels):
        consumers.register(cast(Channel, channel), f"c{number}", None, 1, ConsumerData("g", message_model=model))
    parts: dict[str, Any] = dict.fromkeys(
        ["writer", "topics", "offsets", "filters", "producers", "locks", "stats", "store"]
    )
    context = BrokerContext(
        clock=ManualClock(),
        config=config or BrokerConfig(broker_name="b"),
        groups=cast(Any, Groups(settings)),
        consumers=consumers,
        address="",
        started_millis=0,
        **parts,
    )
    group = consumers.find("g")
    assert isinstance(group, ConsumerGroup)
    context.notify_group(group)
    return [len(channel.sent) for channel in channels]


def test_every_member_is_told() -> None:
    channels = [FakeChannel(), FakeChannel()]
    assert told(channels) == [1, 1]
    [command] = channels[0].sent
    assert (command.code, command.is_oneway, command.ext_fields) == (40, True, {"consumerGroup": "g"})


def test_a_member_that_is_gone_does_not_keep_the_news_from_others() -> None:
    assert told([BrokenChannel(), FakeChannel()]) == [0, 1]


@pytest.mark.parametrize("case", ["broker", "group", "broadcasting"])
def test_who_is_not_told(case: str) -> None:
    config = BrokerConfig(broker_name="b")
    silent = SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False)
    counts = told(
        [FakeChannel()],
        config=replace(config, notify_consumer_ids_changed_enable=case != "broker"),
        settings=silent if case == "group" else None,
        model=MessageModel.BROADCASTING if case == "broadcasting" else MessageModel.CLUSTERING,
    )
    assert counts == [0]
