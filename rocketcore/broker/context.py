"""What the processors and services of one broker share: settings, state, store, clock."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.cooperative import CooperativeWork
from rocketcore.broker.state.client_table import ConsumerGroup, ConsumerTable, ProducerTable
from rocketcore.broker.state.consumer_filter import ConsumerFilters
from rocketcore.broker.state.consumer_offset import ConsumerOffsets
from rocketcore.broker.state.json_file import StateWriter
from rocketcore.broker.state.queue_locks import QueueLocks
from rocketcore.broker.state.subscription_group import SubscriptionGroups
from rocketcore.broker.state.topic_config import TopicConfigs
from rocketcore.broker.stats import BrokerStats
from rocketcore.codes import RETRY_TOPIC_PREFIX, Permission, RequestCode
from rocketcore.errors import TransportError
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.heartbeat import MessageModel
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import NotifyConsumerIdsChangedRequestHeader
from rocketcore.service import Clock
from rocketcore.transport.slow_requests import SlowRequests

if TYPE_CHECKING:
    from rocketcore.broker.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_READ = int(Permission.READ)
_WRITE = int(Permission.WRITE)

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


@dataclass(slots=True)
class BrokerContext:
    """One broker's parts. ``config`` is replaced as a whole when a live setting changes, so read it at each use.

    on_settings  is called after such a change
    rival        returns what a name server said of another broker of this one's name and id, "" where there is none
    """

    config: BrokerConfig
    clock: Clock
    writer: StateWriter
    topics: TopicConfigs
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    filters: ConsumerFilters
    consumers: ConsumerTable
    producers: ProducerTable
    locks: QueueLocks
    stats: BrokerStats
    store: MessageStore
    address: str
    started_millis: int
    slow: SlowRequests = field(default_factory=SlowRequests)
    rng: random.Random = field(default_factory=random.Random)
    on_settings: Callable[[], None] = lambda: None
    rival: Callable[[], str] = lambda: ""
    cooperative: CooperativeWork = field(init=False)

    def __post_init__(self) -> None:
        self.cooperative = CooperativeWork(self.clock)

    def change_settings(self, config: BrokerConfig) -> None:
        """Go by another configuration from now on."""
        self.config = config
        self.slow.set_millis(config.slow_request_millis)
        self.on_settings()

    @property
    def is_readable(self) -> bool:
        return bool(self.config.broker_permission & _READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.config.broker_permission & _WRITE)

    async def places(self) -> AsyncIterator[tuple[str, str]]:
        """Return topic and group of every pair that has offsets, in slices: there may be a million."""
        for place in self.offsets.places():
            yield place
            await self.cooperative.step()

    def ensure_retry_topic(self, group: SubscriptionGroupConfig, *, order: bool = False) -> TopicConfig:
        """Return the topic of a group's failed messages; create it where it is missing."""
        topic = RETRY_TOPIC_PREFIX + group.group_name
        return self.topics.ensure(topic, group.retry_queue_nums, order=order)

    def notify_group(self, group: ConsumerGroup) -> None:
        """Tell a group's clients that its members or topics changed, so that they rebalance at once."""
        # A connection that ends makes no group again that was deleted.
        settings = self.groups.find(group.name) if self.groups.exists(group.name) else None
        if not self.config.notify_consumer_ids_changed_enable or group.message_model is MessageModel.BROADCASTING:
            return
        if settings is not None and not settings.notify_consumer_ids_changed_enable:
            return
        header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group.name)
        for client in list(group.clients.values()):
            request = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True)
            try:
                client.channel.invoke_oneway(request)
            except TransportError as error:
                logger.debug("member not told group=%s client_id=%s error=%s", group.name, client.client_id, error)
