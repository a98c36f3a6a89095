"""Client tables: heartbeats, sign-offs, closed connections, silence."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from rocketcore.broker.state.client_table import MOST_TEXT, PER_CONNECTION, ConsumerGroup, ConsumerTable, ProducerTable
from rocketcore.codes import TOOLS_GROUP, LanguageCode, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.protocol.bodies.heartbeat import ConsumerData, ConsumeType, MessageModel, SubscriptionData
from rocketcore.service import ManualClock
from rocketcore.transport.channel import Channel
from tests.unit.broker.fakes import FakeChannel


def channel() -> Channel:
    return cast(Channel, FakeChannel())


def data(*topics: str, version: int = 1, expression: str = "*") -> ConsumerData:
    return ConsumerData(
        "g",
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        subscription_data_set=[SubscriptionData.build(topic, expression, sub_version=version) for topic in topics],
    )


class Table:
    """A consumer table and the groups that it reported as changed."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.changes: list[list[str]] = []
        self.consumers = ConsumerTable(self._changed, clock=self.clock)

    def _changed(self, group: ConsumerGroup) -> None:
        self.changes.append(group.client_ids)

    def beat(self, channel: Channel, client_id: str, consumer: ConsumerData, *, keep: bool = False) -> bool:
        return self.consumers.register(channel, client_id, LanguageCode.JAVA, 479, consumer, keep_subscriptions=keep)


@pytest.fixture
def table() -> Table:
    return Table()


def test_members_come_and_go(table: Table) -> None:
    first, second = channel(), channel()
    table.beat(first, "c1", data("T"))
    table.beat(second, "c2", data("T"))
    table.beat(second, "c2", data("T"))
    table.consumers.unregister(first, "c1", "g")
    table.consumers.channel_closed(second)
    assert table.changes == [["c1"], ["c1", "c2"], ["c2"], []]
    assert table.consumers.find("g") is None


def test_a_stranger_cannot_sign_a_member_off(table: Table) -> None:
    member = channel()
    table.beat(member, "c1", data("T"))
    table.consumers.unregister(member, "c9", "g")
    table.consumers.unregister(channel(), "c1", "g")
    assert table.consumers.find("g") is not None


def test_the_newest_heartbeat_decides_the_topics(table: Table) -> None:
    member = channel()
    table.beat(member, "c1", data("T", "U"))
    assert table.beat(member, "c1", data("U", "V"))
    group = table.consumers.find("g")
    assert group is not None
    assert sorted(group.subscriptions) == ["U", "V"]
    assert table.consumers.groups_of("V") == ["g"]
    assert table.consumers.groups_of("T") == []


def test_a_newer_version_replaces_a_subscription_without_being_a_change(table: Table) -> None:
    member = channel()
    table.beat(member, "c1", data("T", version=5))
    assert not table.beat(member, "c1", data("T", version=6, expression="a"))
    assert not table.beat(member, "c1", data("T", version=4, expression="b"))
    group = table.consumers.find("g")
    assert group is not None
    assert group.subscriptions["T"].sub_string == "a"


def test_who_is_gone_with_a_connection_has_no_other(table: Table) -> None:
    first, second = channel(), channel()
    table.beat(first, "c1", data("T"))
    table.beat(second, "c1", data("T"))
    assert table.consumers.channel_closed(first) == []
    assert table.consumers.channel_closed(second) == [("g", "c1")]
    assert table.consumers.channel_closed(second) == []


ROUNDS: dict[str, list[tuple[str, int, str, str]]] = {
    # client, version, expression; the expression of the group after it
    "a client whose clock went back": [("c1", 5, "a", "a"), ("c1", 6, "b", "b"), ("c1", 4, "c", "b")],
    "a change of one whose clock is behind": [("c1", 50, "a", "a"), ("c2", 3, "a", "a"), ("c2", 4, "b", "b")],
    "which is not undone by the others": [
        *[("c1", 50, "a", "a"), ("c2", 3, "a", "a"), ("c2", 4, "b", "b")],
        *[("c1", 50, "a", "b"), ("c2", 4, "b", "b"), ("c1", 51, "c", "c"), ("c2", 4, "b", "c")],
    ],
    "all are back, the newest last": [("c1", 3, "a", "a"), ("c2", 5, "b", "b"), ("c1", 3, "a", "b")],
    "all are back, the newest first": [("c2", 5, "b", "b"), ("c1", 3, "a", "b"), ("c2", 5, "b", "b")],
    "one with an older clock is started anew": [("c1", 50, "a", "a"), ("-c1", 0, "", ""), ("c3", 3, "b", "b")],
    "and another has that which is replaced": [
        *[("c1", 50, "a", "a"), ("c2", 40, "a", "a"), ("-c1", 0, "", "a"), ("c3", 3, "b", "a"), ("c3", 4, "c", "c")],
    ],
    "and another has an older one": [
        *[("c2", 2, "x", "x"), ("c1", 50, "a", "a"), ("-c1", 0, "", "a"), ("c3", 3, "b", "b"), ("c2", 2, "x", "b")],
    ],
}


@pytest.mark.parametrize("name", ROUNDS)
def test_the_newest_subscription_counts_whatever_the_clocks_say(table: Table, name: str) -> None:
    channels: dict[str, Channel] = {}
    for client_id, version, expression, expected in ROUNDS[name]:
        if client_id.startswith("-"):
            table.consumers.channel_closed(channels.pop(client_id[1:]))
        else:
            member = channels.setdefault(client_id, channel())
            table.beat(member, client_id, data("T", version=version, expression=expression))
        group = table.consumers.find("g")
        assert (group.subscriptions["T"].sub_string if group is not None else "") == expected, (client_id, version)
        newest = 0 if group is None else max(client.versions["T"] for client in group.clients.values())
        assert group is None or group.subscriptions["T"].sub_version >= newest, "pulls name the versions of clients"


def test_a_heartbeat_without_subscriptions_keeps_them(table: Table) -> None:
    member = channel()
    table.beat(member, "c1", data("T"))
    assert not table.beat(member, "c1", data(), keep=True)
    group = table.consumers.find("g")
    assert group is not None
    assert list(group.subscriptions) == ["T"]


def test_silent_clients_are_given_up(table: Table) -> None:
    silent, lively = channel(), channel()
    table.beat(silent, "c1", data("T"))
    table.clock.advance(100)
    table.beat(lively, "c2", data("T"))
    table.clock.advance(21)
    assert table.consumers.expire() == [silent]
    assert table.changes[-1] == ["c2"]
    assert table.consumers.expire() == []


def test_producers_come_and_go() -> None:
    clock = ManualClock()
    producers = ProducerTable(clock=clock)
    first, second, third = channel(), channel(), channel()
    for number, each in enumerate((first, second, third)):
        producers.register(each, f"c{number}", LanguageCode.JAVA, 479, "p")
    producers.unregister(first, "c9", "p")
    producers.unregister(first, "c0", "p")
    producers.channel_closed(second)
    assert [client.client_id for client in producers.find("p")] == ["c2"]
    clock.advance(121)
    assert producers.expire() == [third]
    assert producers.find("p") == []
    assert producers.groups() == []


def test_a_producer_is_found_by_its_client_id() -> None:
    producers = ProducerTable()
    old, new = channel(), channel()
    producers.register(old, "c1", LanguageCode.JAVA, 479, "g1")
    producers.register(old, "c1", LanguageCode.JAVA, 479, "g2")
    producers.register(new, "c1", LanguageCode.JAVA, 479, "g1")
    assert producers.channel_of("c1") is new
    producers.channel_closed(new)
    assert producers.channel_of("c1") is old
    producers.unregister(old, "c1", "g1")
    assert producers.channel_of("c1") is old
    producers.register(old, "c2", LanguageCode.JAVA, 479, "g2")
    assert (producers.channel_of("c1"), producers.channel_of("c2")) == (None, old)
    producers.channel_closed(old)
    assert producers.channel_of("c2") is None


def test_a_connection_speaks_for_so_many_groups(table: Table) -> None:
    greedy, other, producers = channel(), channel(), ProducerTable(clock=table.clock)
    for number in range(PER_CONNECTION):
        table.beat(greedy, "c", replace(data("T"), group_name=f"g{number}"))
        producers.register(greedy, "c", None, 0, f"g{number}")
    for register in (
        lambda: table.beat(greedy, "c", replace(data("T"), group_name="one more")),
        lambda: producers.register(greedy, "c", None, 0, "one more"),
    ):
        with pytest.raises(BrokerError, match="no more fit") as refused:
            register()
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert table.consumers.find("one more") is None
    table.beat(greedy, "c", replace(data("T"), group_name="g7"))
    table.beat(other, "d", replace(data("T"), group_name="one more"))
    producers.register(other, "d", None, 0, "one more")


def test_subscriptions_are_bounded_and_short_ones_always_fit(table: Table) -> None:
    long, connections = "x" * (1 << 20), [channel() for _ in range(100)]

    def beat(number: int, expression: str) -> None:
        table.beat(connections[number], "c", replace(data("T", expression=expression), group_name=f"g{number}"))

    beat(0, long)
    fitting = MOST_TEXT // table.consumers._text
    for number in range(1, fitting):
        beat(number, long)
    with pytest.raises(BrokerError, match="at most"):
        beat(fitting, long)
    assert MOST_TEXT // 4 < fitting * len(long) <= MOST_TEXT
    assert table.consumers.find(f"g{fitting}") is None
    beat(fitting, "a || b")
    beat(0, long)
    table.consumers.channel_closed(connections[0])
    beat(fitting, long)
    for each in connections:
        table.consumers.channel_closed(each)
    assert table.consumers._text == 0


def test_members_that_subscribe_to_different_things_are_told_of_once(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = channel(), channel()
    table.beat(first, "c1", data("T1", "%RETRY%g"))
    table.beat(second, "c2", data("T1"))  # the retry topic is not the members' affair
    assert table.consumers.discord.unlike == {}
    table.beat(second, "c2", data("T2", version=2, expression="a"))
    for _ in range(3):
        table.beat(first, "c1", data("T1"))
        table.beat(second, "c2", data("T2", version=2, expression="a"))
    said = "c1 wants T1[*]; c2 wants T2[a]"
    assert table.consumers.discord.unlike == {"g": said}
    assert [record.getMessage() for record in caplog.records] == [
        f"members of a group subscribe to different things group=g {said}"
    ]
    table.beat(second, "c2", data("T1", version=3))
    assert table.consumers.discord.unlike == {}


@pytest.mark.parametrize("expressions", [("a", "b"), ("*", "a || b")])
def test_other_expressions_are_other_subscriptions(table: Table, expressions: tuple[str, str]) -> None:
    for number, expression in enumerate(expressions):
        table.beat(channel(), f"c{number}", data("T", expression=expression))
    assert list(table.consumers.discord.unlike) == ["g"]


def test_tools_may_want_different_things(table: Table) -> None:
    for number in range(2):
        table.beat(channel(), f"c{number}", replace(data(f"T{number}"), group_name=TOOLS_GROUP))
    assert table.consumers.discord.unlike == {}


@pytest.mark.parametrize("end", ["close", "unregister", "expire"])
def test_two_members_of_one_client_id_are_told_of_until_one_goes(
    table: Table, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = channel(), channel()
    table.beat(first, "app", data("T"))
    table.clock.advance(100.0)
    for _ in range(3):
        table.beat(second, "app", data("T"))
    assert list(table.consumers.discord.shared) == ["g"]
    [text] = [record.getMessage() for record in caplog.records]
    assert text.startswith("one client id has two connections in a group group=g app at ")
    if end == "close":
        table.consumers.channel_closed(first)
    elif end == "unregister":
        table.consumers.unregister(first, "app", "g")
    else:
        table.clock.advance(100.0)
        table.consumers.expire()
    assert table.consumers.discord.shared == {}
