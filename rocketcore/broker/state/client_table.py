"""Which producers and consumers are connected (Java: ``ProducerManager``, ``ConsumerManager``, 5.5.0).

A client is known from its heartbeat on, until it unregisters, its connection closes, or no heartbeat came for two
minutes. A group's subscriptions belong to the group: the newest heartbeat wins. Their versions are times of clients'
clocks, so a change of a client counts by that client's own versions, whatever those of the others are.

Bounds  ``PER_CONNECTION`` groups of producers, and as many of consumers, on one connection; ``MOST_TEXT`` characters of
        subscriptions in all, beyond which a group has ``SHORT_TEXT`` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from rocketcore.broker.state.discord import Discord, wants_of
from rocketcore.codes import LanguageCode, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.channel import Channel

__all__ = [
    "LONGEST_NAME",
    "MOST_TEXT",
    "PER_CONNECTION",
    "SHORT_TEXT",
    "ClientChannel",
    "ClientGroup",
    "ConsumerGroup",
    "ConsumerTable",
    "ProducerTable",
]

PER_CONNECTION: Final = 1024
MOST_TEXT: Final = 64 << 20
SHORT_TEXT: Final = 4 << 10
LONGEST_NAME: Final = 1024
"""Characters of a client's id and of a group."""


@dataclass(slots=True)
class ClientChannel:
    """One client of a group: its connection and when it was last heard of."""

    channel: Channel
    client_id: str
    language: LanguageCode | None
    version: int
    last_update: float
    versions: dict[str, int] = field(default_factory=dict)
    """Topic → version of its subscription, of a consumer."""
    wants: frozenset[tuple[str, str]] = frozenset()
    """Topics and expressions that a consumer subscribes to."""


@dataclass(slots=True)
class ClientGroup:
    """A group with at least one connected client, or that had one a moment ago."""

    name: str
    clients: dict[Channel, ClientChannel] = field(default_factory=dict)

    def find_client(self, client_id: str) -> ClientChannel | None:
        """Return a client by its id, None where it is not connected."""
        return next((client for client in self.clients.values() if client.client_id == client_id), None)


@dataclass(slots=True)
class ConsumerGroup(ClientGroup):
    """A consumer group, with what its newest heartbeat said."""

    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Topic → id of the client whose subscription it is."""
    text: int = 0
    """About how many characters the subscriptions have."""

    @property
    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(client.client_id for client in self.clients.values()))


GroupT = TypeVar("GroupT", bound=ClientGroup)


class _GroupTable(Generic[GroupT]):
    """Groups by name, and by the connections that their clients have."""

    def __init__(
        self,
        make: Callable[[str], GroupT],
        on_change: Callable[[GroupT], object],
        *,
        expire_after: float = 120.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._make = make
        self._on_change = on_change
        self._expire_after = expire_after
        self._clock = clock
        self._groups: dict[str, GroupT] = {}
        self._groups_of_channel: dict[Channel, set[str]] = {}

    def groups(self) -> list[GroupT]:
        return list(self._groups.values())

    def _heard(
        self, channel: Channel, client_id: str, language: LanguageCode | None, version: int, name: str
    ) -> tuple[GroupT, bool]:
        """Take in a client's heartbeat; returns the group, and whether the client is new in it."""
        if max(len(client_id), len(name)) > LONGEST_NAME:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, f"ids of clients and groups have at most {LONGEST_NAME} characters"
            )
        names = self._groups_of_channel.get(channel, ())
        if len(names) >= PER_CONNECTION and name not in names:
            raise BrokerError.of(
                ResponseCode.SYSTEM_BUSY, f"client {client_id} has {PER_CONNECTION} groups on a connection, no more fit"
            )
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._make(name)
        known = group.clients.get(channel)
        client = ClientChannel(channel, client_id, language, version, self._clock.monotonic())
        group.clients[channel] = client
        self._groups_of_channel.setdefault(channel, set()).add(name)
        is_new = known is None or known.client_id != client_id
        if known is not None and not is_new:
            client.versions, client.wants = known.versions, known.wants
        return group, is_new

    def unregister(self, channel: Channel, client_id: str, group_name: str) -> None:
        """Take a client out of a group that it leaves."""
        group = self._groups.get(group_name)
        if group is None:
            return
        client = group.clients.get(channel)
        if client is not None and client.client_id == client_id:
            self._remove(group, [channel])

    def channel_closed(self, channel: Channel) -> list[tuple[str, str]]:
        """Take everything out that came over a connection.

        returns  groups, each with the id of the client that has no other connection in it
        """
        gone = []
        for name in list(self._groups_of_channel.get(channel, ())):
            group = self._groups[name]
            client_id = group.clients[channel].client_id
            self._remove(group, [channel])
            if group.find_client(client_id) is None:
                gone.append((name, client_id))
        return gone

    def expire(self) -> list[Channel]:
        """Take out clients without heartbeat; returns their connections, to be closed by the caller."""
        limit = self._clock.monotonic() - self._expire_after
        expired = []
        for group in self.groups():
            dead = [channel for channel, client in group.clients.items() if client.last_update < limit]
            if dead:
                self._remove(group, dead)
                expired += dead
        return expired

    def _remove(self, group: GroupT, channels: Iterable[Channel]) -> None:
        for channel in channels:
            del group.clients[channel]
            names = self._groups_of_channel[channel]
            names.discard(group.name)
            if not names:
                del self._groups_of_channel[channel]
        if not group.clients:
            del self._groups[group.name]
        self._on_change(group)


class ConsumerTable(_GroupTable[ConsumerGroup]):
    """Consumer groups by name; ``on_change(group)`` is called when its clients or its topics change."""

    def __init__(
        self, on_change: Callable[[ConsumerGroup], None], *, expire_after: float = 120.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(ConsumerGroup, on_change, expire_after=expire_after, clock=clock)
        self._text = 0
        self.discord = Discord()
        """Groups whose members do not agree."""

    def find(self, group: str) -> ConsumerGroup | None:
        """Return a group that has connected clients, or None."""
        return self._groups.get(group)

    def groups_of(self, topic: str) -> list[str]:
        """The connected groups that subscribe to a topic."""
        return [group.name for group in self._groups.values() if topic in group.subscriptions]

    def register(
        self,
        channel: Channel,
        client_id: str,
        language: LanguageCode | None,
        version: int,
        data: ConsumerData,
        *,
        keep_subscriptions: bool = False,
    ) -> bool:
        """Take in one group of a heartbeat; returns whether the group changed.

        keep_subscriptions  the heartbeat carries none on purpose (``withoutSub``)
        raises              BrokerError beyond the bounds
        """
        known = self._groups.get(data.group_name)
        before = 0 if known is None else known.text
        text = before if keep_subscriptions else sum(map(_length, data.subscription_data_set))
        if text > max(before, SHORT_TEXT) and self._text - before + text > MOST_TEXT:
            raise BrokerError.of(
                ResponseCode.SYSTEM_BUSY,
                f"the subscriptions of group {data.group_name} have {text} characters, of all groups {self._text}: "
                f"at most {MOST_TEXT}, and then {SHORT_TEXT} for a group",
            )
        group, changed = self._heard(channel, client_id, language, version, data.group_name)
        group.consume_type = data.consume_type or group.consume_type
        group.message_model = data.message_model or group.message_model
        group.consume_from_where = data.consume_from_where or group.consume_from_where
        looks = changed
        if not keep_subscriptions:
            client = group.clients[channel]
            wants = wants_of(data.subscription_data_set)
            looks |= wants != client.wants
            client.wants = wants
            changed |= _adopt(group, client, data.subscription_data_set)
            self._text += text - before
            group.text = text
        if looks and (len(group.clients) > 1 or group.name in self.discord.unlike):
            self.discord.look(group.name, group.clients.values())
        if changed:
            self._on_change(group)
        return changed

    def _remove(self, group: ConsumerGroup, channels: Iterable[Channel]) -> None:
        super()._remove(group, channels)
        if group.name in self.discord.unlike or group.name in self.discord.shared:
            self.discord.look(group.name, group.clients.values())
        if not group.clients:
            self._text -= group.text
            group.subscriptions.clear()  # a group of this name that comes has its own: nobody goes by these any more


class ProducerTable(_GroupTable[ClientGroup]):
    """Producer groups by name."""

    def __init__(self, *, expire_after: float = 120.0, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(ClientGroup, lambda group: None, expire_after=expire_after, clock=clock)
        self._places: dict[str, dict[tuple[str, Channel], None]] = {}
        """Client id → the groups and connections that it is known in, the newest last."""

    def channel_of(self, client_id: str) -> Channel | None:
        """Return the connection of a client, the newest where it has several; None for one that is not connected."""
        places = self._places.get(client_id)
        return None if places is None else next(reversed(places))[1]

    def find(self, group: str) -> list[ClientChannel]:
        """The connected clients of a group."""
        found = self._groups.get(group)
        return [] if found is None else list(found.clients.values())

    def register(
        self, channel: Channel, client_id: str, language: LanguageCode | None, version: int, group: str
    ) -> None:
        """Take in one group of a heartbeat."""
        known = self._groups.get(group)
        before = None if known is None else known.clients.get(channel)
        self._heard(channel, client_id, language, version, group)
        if before is not None and before.client_id != client_id:
            self._forget_place(before.client_id, group, channel)
        self._places.setdefault(client_id, {})[group, channel] = None

    def _remove(self, group: ClientGroup, channels: Iterable[Channel]) -> None:
        channels = list(channels)
        for channel in channels:
            self._forget_place(group.clients[channel].client_id, group.name, channel)
        super()._remove(group, channels)

    def _forget_place(self, client_id: str, group: str, channel: Channel) -> None:
        places = self._places[client_id]
        del places[group, channel]
        if not places:
            del self._places[client_id]


def _length(subscription: SubscriptionData) -> int:
    tags = sum(map(len, subscription.tags_set)) + 16 * len(subscription.code_set)
    return len(subscription.topic) + len(subscription.sub_string) + tags


def _adopt(group: ConsumerGroup, client: ClientChannel, offered: Sequence[SubscriptionData]) -> bool:
    """Bring a group's subscriptions up to a client's heartbeat; True if a topic came or went."""
    current, changed = group.subscriptions, False
    for subscription in offered:
        topic, version = subscription.topic, subscription.sub_version
        known = current.get(topic)
        if known is None or version > known.sub_version:
            changed |= known is None
            current[topic], group.sources[topic] = subscription, client.client_id
        elif _counts(group, client, subscription, known):
            # Pulls of clients whose clocks are ahead name their versions: this one is the newest all the same.
            current[topic] = replace(subscription, sub_version=known.sub_version + 1)
            group.sources[topic] = client.client_id
    client.versions = {subscription.topic: subscription.sub_version for subscription in offered}
    for topic in [topic for topic in current if topic not in client.versions]:
        del current[topic], group.sources[topic]
        changed = True
    return changed


def _counts(group: ConsumerGroup, client: ClientChannel, offered: SubscriptionData, known: SubscriptionData) -> bool:
    """Say whether a subscription replaces a newer version: its client changed it, or nobody has the newer any more."""
    if (offered.sub_string, offered.expression_type) == (known.sub_string, known.expression_type):
        return False
    topic = offered.topic
    last = client.versions.get(topic)
    if last is not None:
        return offered.sub_version > last
    others = [each for each in group.clients.values() if each is not client]
    return all(
        each.client_id != group.sources[topic] and each.versions.get(topic, -1) < offered.sub_version for each in others
    )
