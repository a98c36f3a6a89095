"""Surveys: everything of a kind at once, in a bounded number of requests a broker, however many there are.

One that does not answer leaves its part out and is named with its error: a cluster that is half dead can be looked at.
RocketMQ 5.5.0: ``MQAdminExt.fetchConsumeStatsInBroker``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rocketcore.admin.cluster import Clusters
from rocketcore.admin.groups import STORED_OFFSETS, Groups, waiting_count
from rocketcore.admin.messages import messages_from
from rocketcore.admin.requests import BROKER_RUNTIME_INFO, CLUSTER_INFO, Request, topic_stats
from rocketcore.admin.servers import Part
from rocketcore.client import api
from rocketcore.codes import MASTER_ID, Permission, RequestCode
from rocketcore.errors import DecodeError, RocketError
from rocketcore.message import MessageQueue
from rocketcore.protocol.headers.admin import GetConsumeStatsInBrokerHeader

if TYPE_CHECKING:
    from rocketcore.message import ReceivedMessage
    from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
    from rocketcore.protocol.bodies.stats import TopicOffset
    from rocketcore.protocol.bodies.topic import TopicConfig
    from rocketcore.protocol.command import RemotingCommand

__all__ = ["GroupProgress", "GroupSurvey", "NewestMessages", "Surveys", "TopicSurvey"]

MOST_QUEUES: Final = 24
"""Queues that one look at the newest messages of a topic reads from."""
_MOST_AT_ONCE: Final = 32


@dataclass(slots=True)
class TopicSurvey:
    """Every topic.

    configs   settings by topic, then by broker
    groups    the groups that have offsets in a topic, by topic
    offsets   their offsets by topic, then by group
    own       names of clusters and brokers, which are topics too
    failed    why a broker's part is missing, by its name
    """

    configs: dict[str, dict[str, TopicConfig]] = field(default_factory=dict)
    groups: dict[str, set[str]] = field(default_factory=dict)
    offsets: dict[str, dict[str, dict[MessageQueue, int]]] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    failed: dict[str, RocketError] = field(default_factory=dict)


@dataclass(slots=True)
class GroupProgress:
    """How far one group is, in one topic or in all.

    lag          messages that are not consumed
    consumed_at  when the message that was consumed last was stored, epoch milliseconds; None where unknown
    rate         messages a second
    end          the offsets of the next messages, of all queues together
    """

    lag: int = 0
    consumed_at: int | None = None
    rate: float = 0.0
    end: int = 0

    def add(self, other: GroupProgress) -> None:
        self.lag += other.lag
        self.rate += other.rate
        self.end += other.end
        if other.consumed_at is not None:
            self.consumed_at = max(other.consumed_at, self.consumed_at or 0)


@dataclass(slots=True)
class GroupSurvey:
    """Every group.

    configs  settings by group, those of the first broker that has it
    traffic  by group, then by topic; a topic in which a group has no offset is not there
    ends     by topic, then by broker: the offsets of the next messages there, of all queues together
    failed   why a broker's part is missing, by its name
    """

    configs: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    traffic: dict[str, dict[str, GroupProgress]] = field(default_factory=dict)
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: dict[str, RocketError] = field(default_factory=dict)

    def total(self, group: str) -> GroupProgress | None:
        """Return the progress of a group in all topics; None where it has none, or a broker did not say."""
        topics = self.traffic.get(group)
        if not topics or self.failed:
            return None
        whole = GroupProgress()
        for each in topics.values():
            whole.add(each)
        return whole


@dataclass(frozen=True, slots=True)
class NewestMessages:
    """The newest messages of a topic, newest first.

    bounds  every queue of the topic
    looked  in how many of them was looked
    """

    messages: tuple[ReceivedMessage, ...]
    bounds: Mapping[MessageQueue, TopicOffset]
    looked: int


_QUEUE_KEY: Final = re.compile(rb'\{"brokerName":"[^"\\]*","queueId":(\d{1,9}),"topic":("[^"\\]*")\}:')
_OFFSETS: Final = re.compile(rb'"offsetTable":\{\{"brokerName":"[^"\\]*","queueId":\d{1,9},"topic":("[^"\\]*")\}:')


def _progress_in(answer: RemotingCommand) -> dict[str, dict[str, GroupProgress]]:
    """Read the progress of all groups: by their keys cut down to numbers, which takes a tenth, or as it is."""
    from rocketcore.protocol import fastjson

    body = bytes(answer.body)
    try:
        table = fastjson.loads(_QUEUE_KEY.sub(rb'"\1":', _OFFSETS.sub(rb'"topic":\1,\g<0>', body)))
        return _summed(table["consumeStatsList"])
    except (AttributeError, DecodeError, KeyError, TypeError, ValueError):
        return _read_whole(body)


def _summed(groups: list[dict[str, list[dict[str, Any]]]]) -> dict[str, dict[str, GroupProgress]]:
    found: dict[str, dict[str, GroupProgress]] = {}
    for one in groups:
        for group, several in one.items():
            for stats in several:
                if stats["offsetTable"]:
                    progress = found.setdefault(group, {}).setdefault(stats["topic"], GroupProgress())
                    progress.rate += float(stats["consumeTps"])
                    for each in stats["offsetTable"].values():
                        _count(progress, each["brokerOffset"], each["consumerOffset"], each["lastTimestamp"])
    return found


def _read_whole(body: bytes) -> dict[str, dict[str, GroupProgress]]:
    from rocketcore.protocol.bodies.stats import ConsumeStatsList

    found: dict[str, dict[str, GroupProgress]] = {}
    for one in ConsumeStatsList.decode(body).consume_stats_list:
        for group, several in one.items():
            for stats in several:
                for number, (queue, each) in enumerate(stats.offset_table.items()):
                    progress = found.setdefault(group, {}).setdefault(queue.topic, GroupProgress())
                    progress.rate += 0.0 if number else stats.consume_tps
                    _count(progress, each.broker_offset, each.consumer_offset, each.last_timestamp)
    return found


def _count(progress: GroupProgress, broker_offset: int, consumer_offset: int, last_timestamp: int) -> None:
    progress.lag += waiting_count(broker_offset, consumer_offset)
    progress.end += broker_offset
    if last_timestamp > 0:
        progress.consumed_at = max(last_timestamp, progress.consumed_at or 0)


_PROGRESS: Final = Request(
    RequestCode.GET_BROKER_CONSUME_STATS,
    "progress of all groups",
    _progress_in,
    GetConsumeStatsInBrokerHeader(order=False),
)


class Surveys(Part):
    """The part of ``AsyncAdmin`` that looks at all there is."""

    async def survey_topics(self) -> TopicSurvey:
        """Return every topic with its settings and groups: two requests a master, a page of topics more for each 2000.

        raises  where no name server answers, NoBrokerRegistered
        """
        deadline = self._servers.deadline()
        view = await self._servers.ask(CLUSTER_INFO, deadline)
        masters = await self._servers.masters(deadline)
        survey = TopicSurvey(own={*view.cluster_addr_table, *view.broker_addr_table})
        names = list(masters)
        answers = await self._servers.at_once(
            [partial(Clusters(self._servers).topics_at, masters[name], deadline) for name in names]
        )
        for name, table in zip(names, answers, strict=True):
            if isinstance(table, RocketError):
                survey.failed[name] = table
                continue
            for topic, config in table.items():
                survey.configs.setdefault(topic, {})[name] = config
        answering = [name for name in names if name not in survey.failed]
        stored = await self._servers.each([masters[name] for name in answering], STORED_OFFSETS, deadline)
        for name in answering:
            tables = stored[masters[name]]
            for place, offsets in () if isinstance(tables, RocketError) else tables.items():
                topic, _, group = place.partition("@")
                survey.groups.setdefault(topic, set()).add(group)
                known = survey.offsets.setdefault(topic, {}).setdefault(group, {})
                known.update({MessageQueue(topic, name, number): offset for number, offset in offsets.items()})
        survey.configs = dict(sorted(survey.configs.items()))
        return survey

    async def survey_groups(self) -> GroupSurvey:
        """Return every group and how far it is: two requests a master, a page of groups more for each 2000.

        raises  where no name server answers, NoBrokerRegistered
        """
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        survey = GroupSurvey()
        names = list(masters)
        tables = await self._servers.at_once(
            [partial(Groups(self._servers).groups_at, masters[name], deadline) for name in names]
        )
        for name, table in zip(names, tables, strict=True):
            if isinstance(table, RocketError):
                survey.failed[name] = table
                continue
            for group, config in table.items():
                survey.configs.setdefault(group, config)
        answering = {masters[name]: name for name in names if name not in survey.failed}
        for address, traffic in (await self._servers.each(answering, _PROGRESS, deadline)).items():
            if isinstance(traffic, RocketError):
                survey.failed[answering[address]] = traffic
                continue
            for group, topics in traffic.items():
                known = survey.traffic.setdefault(group, {})
                for topic, each in topics.items():
                    known.setdefault(topic, GroupProgress()).add(each)
                    ends = survey.ends.setdefault(topic, {})
                    ends[answering[address]] = max(each.end, ends.get(answering[address], 0))
        survey.configs = dict(sorted(survey.configs.items()))
        return survey

    async def broker_runtimes(self) -> dict[str, dict[str, str] | RocketError]:
        """Return the counters and state of every master by its address; for a server without an answer, its error."""
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        return await self._servers.each(masters.values(), BROKER_RUNTIME_INFO, deadline)

    async def newest_messages(self, topic: str, count: int = 20) -> NewestMessages:
        """Return the newest messages of a topic, at most ``count``, from the 24 queues written last.

        raises  TopicNotExist; the error of a broker that does not answer
        """
        deadline = self._servers.deadline()
        route = await self._servers.route(topic, deadline)
        readable = {each.broker_name for each in route.queue_datas if each.perm & Permission.READ}
        addresses = {
            data.broker_name: data.broker_addrs[MASTER_ID]
            for data in route.broker_datas
            if MASTER_ID in data.broker_addrs and data.broker_name in readable
        }
        bounds: dict[MessageQueue, TopicOffset] = {}
        for table in await self._servers.all(addresses.values(), topic_stats(topic), deadline):
            bounds.update(table)
        filled = [queue for queue, each in bounds.items() if each.max_offset > each.min_offset]
        filled.sort(key=lambda queue: -bounds[queue].last_update_timestamp)
        looked = filled[:MOST_QUEUES]

        async def read(queue: MessageQueue) -> list[ReceivedMessage]:
            start = max(bounds[queue].min_offset, bounds[queue].max_offset - min(count, _MOST_AT_ONCE))
            ask = messages_from(queue, start, _MOST_AT_ONCE)
            return await self._servers.ask_one(ask, addresses[queue.broker], deadline.remaining())

        pages = await self._servers.results([partial(read, queue) for queue in looked])
        found = [message for page in pages for message in page]
        found.sort(key=lambda each: (-each.store_timestamp, each.queue.broker, -each.physical_offset))
        return NewestMessages(tuple(found[:count]), dict(sorted(bounds.items())), len(looked))

    async def earliest_store_times(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int | None]:
        """Return when the first message of some queues of one topic was stored, epoch milliseconds; one request each.

        None where a queue has no message, or its broker does not say.
        """
        if not queues:
            return {}
        deadline = self._servers.deadline()
        masters = await self._servers.masters_of(queues[0].topic, deadline)

        async def ask(queue: MessageQueue) -> int:
            address = masters[queue.broker]
            return await api.earliest_store_time(self._servers.connections(), address, queue, deadline.remaining())

        asked = [queue for queue in queues if queue.broker in masters]
        answers = await self._servers.at_once([partial(ask, queue) for queue in asked])
        known = dict(zip(asked, answers, strict=True))
        return {
            queue: None if isinstance(answer := known.get(queue, -1), RocketError) or answer < 0 else answer
            for queue in queues
        }

    async def messages_from(
        self, queue: MessageQueue, offset: int, count: int = _MOST_AT_ONCE
    ) -> list[ReceivedMessage]:
        """Return messages of a queue from an offset on, as many as its broker gives at once; none at the end."""
        deadline = self._servers.deadline()
        address = await self._servers.master_of(queue, deadline)
        return await self._servers.ask_one(messages_from(queue, offset, count), address, deadline.remaining())

    async def group_offsets(self, topic: str) -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets that groups have stored in a topic, by group; one request a master.

        A broker that does not say is left out.
        """
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        found: dict[str, dict[MessageQueue, int]] = {}
        stored = await self._servers.each(masters.values(), STORED_OFFSETS, deadline)
        for name, address in masters.items():
            table = stored[address]
            for place, offsets in () if isinstance(table, RocketError) else table.items():
                of, _, group = place.partition("@")
                if of == topic:
                    known = found.setdefault(group, {})
                    known.update({MessageQueue(topic, name, number): offset for number, offset in offsets.items()})
        return dict(sorted(found.items()))
