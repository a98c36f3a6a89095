"""Offsets and statistics of topics, groups and brokers. Times are epoch milliseconds."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Final

from rocketcore.errors import DecodeError
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol import fastjson
from rocketcore.protocol.bodies.base import Body, body
from rocketcore.protocol.bodies.heartbeat import SubscriptionData
from rocketcore.protocol.bodies.topic import DataVersion


@body
class OffsetWrapper(Body):
    """Where a group is in one queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0


@body
class ConsumeStats(Body):
    """Answer to GET_CONSUME_STATS (208)."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0

    @property
    def total_diff(self) -> int:
        """Messages that the group has not consumed yet."""
        return sum(each.broker_offset - each.consumer_offset for each in self.offset_table.values())


@body
class ConsumeStatsList(Body):
    """Answer to GET_BROKER_CONSUME_STATS (317)."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int = 0


@body
class TopicOffset(Body):
    """The bounds of one queue."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@body
class TopicStatsTable(Body):
    """Answer to GET_TOPIC_STATS_INFO (202)."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


_QUEUE_KEY: Final = re.compile(rb'\{"brokerName":"[^"\\]*","queueId":(\d{1,9}),"topic":"[^"\\]*"\}:')


def check_bounds(low: int, high: int, whose: object) -> None:
    """Raise DecodeError unless a queue can hold messages from offset ``low`` up to, not including, ``high``."""
    if not 0 <= low <= high < 1 << 63:
        raise DecodeError(f"{whose} holds messages from {low} up to {high}: these are not offsets")


def read_bounds(data: bytes) -> dict[int, tuple[int, int]]:
    """Return queue id → minimum and maximum offset of a ``TopicStatsTable``, all of whose queues are one broker's.

    For those who ask again and again: with its keys cut down to numbers the body is standard JSON, of which 1,000
    queues take 1 ms and not 23.

    raises  DecodeError, as ``TopicStatsTable.decode``, which reads whatever is unusual, and for what is no offset
    """
    try:
        table = fastjson.loads(_QUEUE_KEY.sub(rb'"\1":', data))["offsetTable"]
        bounds = {int(key): (offsets["minOffset"], offsets["maxOffset"]) for key, offsets in table.items()}
        if all(type(low) is type(high) is int and 0 <= low <= high < 1 << 63 for low, high in bounds.values()):
            return bounds
    except (AttributeError, DecodeError, KeyError, TypeError, ValueError):
        pass
    offset_table = TopicStatsTable.decode(data).offset_table
    for queue, offsets in offset_table.items():
        check_bounds(offsets.min_offset, offsets.max_offset, queue)
    return {queue.queue_id: (offsets.min_offset, offsets.max_offset) for queue, offsets in offset_table.items()}


@body
class BrokerStatsItem(Body):
    """One counter over one span."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@body
class BrokerStatsData(Body):
    """Answer to VIEW_BROKER_STATS_DATA (315)."""

    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


@body
class QueueTimeSpan(Body):
    """Store times of the first, the last and the next message of a group in one queue."""

    message_queue: MessageQueue | None = None
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


@body
class QueryConsumeTimeSpanBody(Body):
    """Answer to QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


@body
class ConsumeQueueData(Body):
    """One unit of a consume queue, and whether the group's filter takes it."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    eval: bool = False
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


@body
class QueryConsumeQueueResponseBody(Body):
    """Answer to QUERY_CONSUME_QUEUE (321)."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    max_queue_index: int = 0
    min_queue_index: int = 0


@body
class QueryCorrectionOffsetBody(Body):
    """Answer to QUERY_CORRECTION_OFFSET (308): offset by queue id."""

    correction_offsets: dict[int, int] = field(default_factory=dict)


@body
class QuerySubscriptionResponseBody(Body):
    """Answer to QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    subscription_data: SubscriptionData | None = None
    group: str = ""
    topic: str = ""


@body
class ConsumerOffsetSerializeWrapper(Body):
    """Answer to GET_ALL_CONSUMER_OFFSET (43), also consumerOffset.json: ``topic@group`` to offset by queue id."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@body
class DelayOffsetSerializeWrapper(Body):
    """Answer to GET_ALL_DELAY_OFFSET (45), also delayOffset.json: offset by delay level."""

    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
