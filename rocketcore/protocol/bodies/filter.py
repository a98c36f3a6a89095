"""What a broker keeps of the expressions of consumer groups, as consumerFilter.json has it."""

from __future__ import annotations

from dataclasses import field

from rocketcore.protocol.bodies.base import Body, body

__all__ = ["BloomFilterData", "ConsumerFilterData", "ConsumerFilterWrapper", "FilterDataMapByTopic"]


@body
class BloomFilterData(Body):
    """The bits of a group and topic in Apache's bit maps of messages."""

    bit_pos: list[int] = field(default_factory=list)
    bit_num: int = 0


@body
class ConsumerFilterData(Body):
    """The expression of a group for a topic; ``client_version`` is the version of the subscription.

    born_time, dead_time  epoch milliseconds; the group has no client while ``dead_time`` is not before ``born_time``
    """

    consumer_group: str = ""
    topic: str = ""
    expression: str | None = None
    expression_type: str | None = None
    born_time: int = 0
    dead_time: int = 0
    bloom_filter_data: BloomFilterData | None = None
    client_version: int = 0

    @property
    def is_dead(self) -> bool:
        return self.dead_time >= self.born_time


@body
class FilterDataMapByTopic(Body):
    """The expressions for one topic, by group."""

    topic: str = ""
    group_filter_data: dict[str, ConsumerFilterData] = field(default_factory=dict)


@body
class ConsumerFilterWrapper(Body):
    """consumerFilter.json: the expressions by topic (Java: ``ConsumerFilterManager``)."""

    filter_data_by_topic: dict[str, FilterDataMapByTopic] = field(default_factory=dict)
