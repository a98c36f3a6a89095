"""Which producers and consumers are connected (Java: ``ProducerManager``, ``ConsumerManager``, 5.5.0).

A client is known from its heartbeat on, until it unregisters, its connection closes, or no heartbeat came for two
minutes. A group's subscriptions belong to the group: the newest heartbeat wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rocketcore.codes import LanguageCode
from rocketcore.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.channel import Channel


@dataclass(slots=True)
class ClientChannel:
    """One client of a group: its connection and when it was last heard of."""

    channel: Channel
    client_id: str
    language: LanguageCode | None
    version: int
    last_update: float
    last_update_millis: int


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group with at least one connected client, or that had one a moment ago."""

    name: str
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    clients: dict[Channel, ClientChannel] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    @property
    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(client.client_id for client in self.clients.values()))

    def find_client(self, client_id: str) -> ClientChannel | None:
        return next((client for client in self.clients.values() if client.client_id == client_id), None)


class ConsumerTable:
    """Consumer groups by name; ``on_change(group)`` is called when its clients or its topics change."""

    def __init__(
        self, on_change: Callable[[ConsumerGroup], None], *, expire_after: float = 120.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._on_change = on_change
        self._expire_after = expire_after
        self._clock = clock
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of_channel: dict[Channel, set[str]] = {}

    def find(self, group: str) -> ConsumerGroup | None:
        """Return a group that has connected clients, or None."""
        return self._groups.get(group)

    def groups(self) -> list[ConsumerGroup]:
        return list(self._groups.values())

    def find_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

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
        """
        group = self._groups.get(data.group_name)
        if group is None:
            group = ConsumerGroup(data.group_name)
            self._groups[data.group_name] = group
        group.consume_type = data.consume_type or group.consume_type
        group.message_model = data.message_model or group.message_model
        group.consume_from_where = data.consume_from_where or group.consume_from_where
        known = group.clients.get(channel)
        changed = known is None or known.client_id != client_id
        group.clients[channel] = ClientChannel(
            channel, client_id, language, version, self._clock.monotonic(), self._clock.time_millis()
        )
        self._groups_of_channel.setdefault(channel, set()).add(group.name)
        if not keep_subscriptions:
            changed |= _adopt(group.subscriptions, data.subscription_data_set)
        if changed:
            self._on_change(group)
        return changed

    def unregister(self, channel: Channel, client_id: str, group_name: str) -> None:
        """Take a client out of a group that it leaves."""
        group = self._groups.get(group_name)
        if group is None:
            return
        client = group.clients.get(channel)
        if client is not None and client.client_id == client_id:
            self._remove(group, [channel])

    def channel_closed(self, channel: Channel) -> None:
        """Take everything out that came over a connection."""
        for name in list(self._groups_of_channel.get(channel, ())):
            self._remove(self._groups[name], [channel])

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

    def _remove(self, group: ConsumerGroup, channels: Iterable[Channel]) -> None:
        for channel in channels:
            del group.clients[channel]
            names = self._groups_of_channel[channel]
            names.discard(group.name)
            if not names:
                del self._groups_of_channel[channel]
        if not group.clients:
            del self._groups[group.name]
        self._on_change(group)


class ProducerTable:
    """Producer groups by name."""

    def __init__(self, *, expire_after: float = 120.0, clock: Clock = SYSTEM_CLOCK) -> None:
        self._expire_after = expire_after
        self._clock = clock
        self._groups: dict[str, dict[Channel, ClientChannel]] = {}
        self._groups_of_channel: dict[Channel, set[str]] = {}

    def find(self, group: str) -> list[ClientChannel]:
        """The connected clients of a group."""
        return list(self._groups.get(group, {}).values())

    def groups(self) -> dict[str, list[ClientChannel]]:
        return {name: list(clients.values()) for name, clients in self._groups.items()}

    def register(
        self, channel: Channel, client_id: str, language: LanguageCode | None, version: int, group: str
    ) -> None:
        """Take in one group of a heartbeat."""
        self._groups_of_channel.setdefault(channel, set()).add(group)
        self._groups.setdefault(group, {})[channel] = ClientChannel(
            channel, client_id, language, version, self._clock.monotonic(), self._clock.time_millis()
        )

    def unregister(self, channel: Channel, client_id: str, group: str) -> None:
        """Take a client out of a group that it leaves."""
        client = self._groups.get(group, {}).get(channel)
        if client is not None and client.client_id == client_id:
            self._remove(group, channel)

    def channel_closed(self, channel: Channel) -> None:
        """Take everything out that came over a connection."""
        for group in list(self._groups_of_channel.get(channel, ())):
            self._remove(group, channel)

    def expire(self) -> list[Channel]:
        """Take out clients without heartbeat; returns their connections, to be closed by the caller."""
        limit = self._clock.monotonic() - self._expire_after
        expired = []
        for group, clients in list(self._groups.items()):
            for channel in [channel for channel, client in clients.items() if client.last_update < limit]:
                self._remove(group, channel)
                expired.append(channel)
        return expired

    def _remove(self, group: str, channel: Channel) -> None:
        clients = self._groups[group]
        del clients[channel]
        if not clients:
            del self._groups[group]
        names = self._groups_of_channel[channel]
        names.discard(group)
        if not names:
            del self._groups_of_channel[channel]


def _adopt(current: dict[str, SubscriptionData], offered: Iterable[SubscriptionData]) -> bool:
    """Bring a group's subscriptions up to a heartbeat's; True if a topic came or went."""
    changed = False
    topics = set()
    for subscription in offered:
        topics.add(subscription.topic)
        known = current.get(subscription.topic)
        if known is None:
            current[subscription.topic] = subscription
            changed = True
        elif subscription.sub_version > known.sub_version:
            current[subscription.topic] = subscription
    for topic in [topic for topic in current if topic not in topics]:
        del current[topic]
        changed = True
    return changed
