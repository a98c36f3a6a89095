"""Where topics, queues, groups and clients are: 202, 208, 303, 308, 315, 317, 321, 328, 345.

Java: ``AdminBrokerProcessor`` (5.5.0).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from rocketcore._fast.consume_queue import UNIT_SIZE, unit
from rocketcore.broker.context import BrokerContext
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.bodies.base import Body
from rocketcore.protocol.bodies.client import ProducerInfo, ProducerTableInfo
from rocketcore.protocol.bodies.filter import ConsumerFilterData
from rocketcore.protocol.bodies.stats import (
    ConsumeQueueData,
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QuerySubscriptionResponseBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    QuerySubscriptionByConsumerRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

_MOST_UNITS: Final = 10_000
"""Units of a queue in one answer."""
_MOST_ROWS: Final = 100_000
"""Queues in one answer: some 12 MiB of the 16 that a frame may have."""
_ROWS_AT_ONCE: Final = 256
_NEVER: Final = (1 << 63) - 1


class StatisticsProcessor:
    """Answers what tools ask about progress and traffic."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def routes(self) -> Iterable[Route]:
        code, get, few = RequestCode, Right.GET, self._context.cooperative.one_of_few
        return (
            Route(code.GET_TOPIC_STATS_INFO, few(self.topic_stats), GetTopicStatsInfoRequestHeader, get),
            Route(code.GET_CONSUME_STATS, few(self.consume_stats), GetConsumeStatsRequestHeader, get),
            Route(code.QUERY_CONSUME_TIME_SPAN, few(self.time_span), QueryConsumeTimeSpanRequestHeader, get),
            Route(code.QUERY_CORRECTION_OFFSET, self.correction_offsets, QueryCorrectionOffsetHeader, get),
            Route(code.VIEW_BROKER_STATS_DATA, self.stats_data, ViewBrokerStatsDataRequestHeader, get),
            Route(code.GET_BROKER_CONSUME_STATS, few(self.all_consume_stats), GetConsumeStatsInBrokerHeader, get),
            Route(code.QUERY_CONSUME_QUEUE, self.queue_units, QueryConsumeQueueRequestHeader, get),
            Route(code.GET_ALL_PRODUCER_INFO, self.all_producers, None, get),
            Route(
                code.QUERY_SUBSCRIPTION_BY_CONSUMER, self.subscription, QuerySubscriptionByConsumerRequestHeader, get
            ),
        )

    async def topic_stats(
        self, channel: Channel, request: RemotingCommand, header: GetTopicStatsInfoRequestHeader
    ) -> RemotingCommand:
        context = self._context
        name = header.topic
        topic = context.topics.find(name)
        if topic is None:
            raise BrokerError.of(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        table = {}
        for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
            low, high = context.store.min_offset(name, queue_id), context.store.max_offset(name, queue_id)
            newest = await self._store_time(channel, name, queue_id, high - 1) if high > low else 0
            table[self._queue(name, queue_id)] = TopicOffset(low, high, max(newest, 0))
            await context.cooperative.step()
        body = await self._encoded(TopicStatsTable(table, context.stats.topic_put_rate(name)), len(table))
        return RemotingCommand.response(request, body=body)

    async def consume_stats(
        self, channel: Channel, request: RemotingCommand, header: GetConsumeStatsRequestHeader
    ) -> RemotingCommand:
        """Where a group is in every queue of the topics asked for, or of all it has offsets in."""
        context = self._context
        stats = ConsumeStats()
        for name in await self._consumed_topics(header):
            topic = context.topics.find(name)
            if topic is None:
                continue
            for queue_id in range(topic.read_queue_nums):
                progress = await self._progress(channel, header.consumer_group, name, queue_id)
                stats.offset_table[self._queue(name, queue_id)] = progress
                await context.cooperative.step()
            stats.consume_tps += context.stats.group_get_rate(header.consumer_group, name)
            _check_rows(len(stats.offset_table), "ask for some of its topics")
        return RemotingCommand.response(request, body=await self._encoded(stats, len(stats.offset_table)))

    async def _store_time(self, channel: Channel, topic: str, queue_id: int, queue_offset: int) -> int:
        store = self._context.store
        return await store.reads.read(channel, store.store_time, topic, queue_id, queue_offset)

    async def _consumed_topics(self, header: GetConsumeStatsRequestHeader) -> Iterable[str]:
        asked = dict.fromkeys(name for name in (header.topic_list or "").split(";") if name)
        if asked:
            return asked
        group = header.consumer_group
        names = [header.topic] if header.topic else (await self._topics_by_group(group)).get(group, ())
        connected = self._context.consumers.find(header.consumer_group)
        if connected is None or not connected.subscriptions:
            return names
        return [name for name in names if name in connected.subscriptions]

    async def _topics_by_group(self, *wanted: str) -> dict[str, list[str]]:
        """The topics that groups have offsets in, in order: of the groups named, or of all."""
        found: dict[str, list[str]] = {}
        async for topic, group in self._context.places():
            if not wanted or group in wanted:
                found.setdefault(group, []).append(topic)
        for topics in found.values():
            topics.sort()
        return found

    async def _progress(self, channel: Channel, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        context = self._context
        consumed = max(context.offsets.find(group, topic, queue_id) or 0, 0)
        newest = await self._store_time(channel, topic, queue_id, consumed - 1) if consumed else 0
        return OffsetWrapper(
            broker_offset=context.store.max_offset(topic, queue_id),
            consumer_offset=consumed,
            pull_offset=context.offsets.pull_offset(group, topic, queue_id),
            last_timestamp=max(newest, 0),
        )

    def stats_data(
        self, channel: Channel, request: RemotingCommand, header: ViewBrokerStatsDataRequestHeader
    ) -> RemotingCommand:
        """One counter over a minute, an hour and a day."""
        found = self._context.stats.data(header.stats_name, header.stats_key)
        if found is None:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        return RemotingCommand.response(request, body=found.encode())

    async def all_consume_stats(
        self, channel: Channel, request: RemotingCommand, header: GetConsumeStatsInBrokerHeader
    ) -> RemotingCommand:
        """Where every group is in every topic that it has offsets in."""
        context = self._context
        answer = ConsumeStatsList(broker_addr=context.address)
        topics, rows = await self._topics_by_group(), 0
        for group in list(context.groups.table):
            await context.cooperative.step()
            connected = context.consumers.find(group)
            several = []
            for name in topics.get(group, ()):
                topic = context.topics.find(name)
                if topic is None or (header.order and not topic.order):
                    continue
                if connected is not None and connected.subscriptions and name not in connected.subscriptions:
                    continue
                stats = ConsumeStats(consume_tps=context.stats.group_get_rate(group, name))
                for queue_id in range(topic.write_queue_nums):
                    progress = await self._progress(channel, group, name, queue_id)
                    stats.offset_table[self._queue(name, queue_id)] = progress
                    answer.total_inflight_diff += progress.pull_offset - progress.consumer_offset
                    await context.cooperative.step()
                rows += topic.write_queue_nums
                _check_rows(rows, "ask for one group after the other (208)")
                answer.total_diff += stats.total_diff
                several.append(stats)
            answer.consume_stats_list.append({group: several})
        return RemotingCommand.response(
            request, body=await self._encoded(answer, rows + len(answer.consume_stats_list))
        )

    async def time_span(
        self, channel: Channel, request: RemotingCommand, header: QueryConsumeTimeSpanRequestHeader
    ) -> RemotingCommand:
        """Store times of the first, the last and the next message of a group in each queue."""
        context, name = self._context, header.topic
        topic = context.topics.find(name)
        if topic is None:
            raise BrokerError.of(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        spans = []
        for queue_id in range(topic.write_queue_nums):
            end = context.store.max_offset(name, queue_id)
            consumed = context.offsets.find(header.group, name, queue_id) or 0
            first = await context.store.reads.read(channel, context.store.earliest_time, name, queue_id)
            span = QueueTimeSpan(
                message_queue=self._queue(name, queue_id),
                min_time_stamp=first,
                max_time_stamp=await self._store_time(channel, name, queue_id, end - 1),
                consume_time_stamp=(
                    await self._store_time(channel, name, queue_id, consumed - 1) if consumed > 0 else first
                ),
            )
            if consumed < end:
                waiting_since = await self._store_time(channel, name, queue_id, consumed)
                span.delay_time = context.clock.time_millis() - waiting_since
            spans.append(span)
            await context.cooperative.step()
        return RemotingCommand.response(request, body=await self._encoded(QueryConsumeTimeSpanBody(spans), len(spans)))

    async def correction_offsets(
        self, channel: Channel, request: RemotingCommand, header: QueryCorrectionOffsetHeader
    ) -> RemotingCommand:
        """How far the slowest of all groups is in each queue; no bound where the group compared is slower.

        RocketMQ takes the offsets of ``filterGroups`` out of its table for good; here they are left out of the answer.
        """
        context, topic = self._context, header.topic
        left_out = set((header.filter_groups or "").split(","))
        slowest: dict[int, int] = {}
        async for name, group in context.places():
            if name != topic or group in left_out:
                continue
            for queue_id, offset in context.offsets.queues(group, topic).items():
                if offset >= context.store.min_offset(topic, queue_id):
                    slowest[queue_id] = min(offset, slowest.get(queue_id, _NEVER))
        for queue_id, offset in context.offsets.queues(header.compare_group, topic).items():
            if slowest.get(queue_id, _NEVER) > offset:
                slowest[queue_id] = _NEVER
        return RemotingCommand.response(request, body=QueryCorrectionOffsetBody(slowest).encode())

    async def queue_units(
        self, channel: Channel, request: RemotingCommand, header: QueryConsumeQueueRequestHeader
    ) -> RemotingCommand:
        """Units of a consume queue, from an index on."""
        context = self._context
        store, topic, queue_id = context.store, header.topic or "", header.queue_id
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if high == 0:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        if not low <= header.index < high:
            return RemotingCommand.response(request, remark=f"Index {header.index} of {queue_id}@{topic} is not exist!")
        count = max(0, min(header.count, _MOST_UNITS, high - header.index))
        units = await store.reads.read(channel, store.units, topic, queue_id, header.index, count)
        body = QueryConsumeQueueResponseBody(
            queue_data=[ConsumeQueueData(*unit(units, index)) for index in range(len(units) // UNIT_SIZE)],
            max_queue_index=high,
            min_queue_index=low,
        )
        if header.consumer_group:
            group = context.consumers.find(header.consumer_group)
            body.subscription_data = None if group is None else group.subscriptions.get(topic)
            if body.subscription_data is None:
                body.filter_data = f"{header.consumer_group}@{topic} is not online!"
            else:
                body.filter_data = _shown(context.filters.find(header.consumer_group, topic))
        return RemotingCommand.response(request, body=body.encode())

    def all_producers(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """The connected producers by group."""
        clock = self._context.clock
        wall, now = clock.time_millis(), clock.monotonic()
        table = {
            group.name: [
                ProducerInfo(
                    client.client_id,
                    f"/{client.channel.remote_address}",  # as Java writes an address
                    client.language,
                    client.version,
                    wall - round((now - client.last_update) * 1000),
                )
                for client in group.clients.values()
            ]
            for group in self._context.producers.groups()
        }
        return RemotingCommand.response(request, body=ProducerTableInfo(table).encode())

    def subscription(
        self, channel: Channel, request: RemotingCommand, header: QuerySubscriptionByConsumerRequestHeader
    ) -> RemotingCommand:
        """What a connected group wants of a topic."""
        group, topic = self._context.consumers.find(header.group), header.topic
        if topic is None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, "topic is missing")
        found = None if group is None else group.subscriptions.get(topic)
        body = QuerySubscriptionResponseBody(found, header.group, topic)
        return RemotingCommand.response(request, body=body.encode())

    async def _encoded(self, body: Body, rows: int) -> bytes:
        """Return a body as it is sent; one of many rows is written beside the loop."""
        return body.encode() if rows <= _ROWS_AT_ONCE else await self._context.cooperative.beside(body.encode)

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._context.config.broker_name, queue_id)


def _shown(entry: ConsumerFilterData | None) -> str:
    """Return the expression of a group as RocketMQ shows it: JSON with a field a line."""
    if entry is None:
        return "null"
    text = json.dumps(entry.to_json() | {"dead": entry.is_dead}, indent="\t", separators=(",", ":"), sort_keys=True)
    return re.sub(r"\[\n[^\]]*\]", lambda numbers: re.sub(r"\s", "", numbers[0]), text)


def _check_rows(rows: int, advice: str) -> None:
    if rows > _MOST_ROWS:
        raise BrokerError.of(
            ResponseCode.SYSTEM_ERROR, f"the answer would have more than {_MOST_ROWS} queues: {advice}"
        )
