"""Heartbeats: what a client tells its brokers of its producers and consumers."""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum

from rocketcore._fast.properties import java_hash
from rocketcore.filter import SUBSCRIBE_ALL, parse_tags
from rocketcore.protocol.bodies.base import Body, body, wire


class ConsumeType(Enum):
    """How a consumer gets its messages."""

    CONSUME_ACTIVELY = "PULL"
    CONSUME_PASSIVELY = "PUSH"
    CONSUME_POP = "POP"


class MessageModel(Enum):
    """Whether each consumer of a group gets every message, or one of them each; the third is for lite topics [5.5]."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"
    LITE_SELECTIVE = "LITE_SELECTIVE"


class ConsumeFromWhere(Enum):
    """Where a new group begins; the second to fourth are deprecated and mean LAST_OFFSET."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


@body
class SubscriptionData(Body):
    """A topic and the expression by which its messages are chosen.

    ``code_set`` holds the Java hash of each tag: brokers compare those, clients the tags themselves. ``sub_version`` is
    the time of the subscription in epoch milliseconds.
    """

    topic: str = ""
    sub_string: str = SUBSCRIBE_ALL
    tags_set: set[str] = field(default_factory=set)
    code_set: set[int] = field(default_factory=set)
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False

    @classmethod
    def build(
        cls, topic: str, expression: str | None = None, expression_type: str | None = None, sub_version: int = 0
    ) -> SubscriptionData:
        """Make the subscription of an expression (Java: ``FilterAPI.build``).

        raises  ConfigError for a tag expression without a tag
        """
        if expression_type and expression_type != "TAG":
            return cls(topic, expression or "", sub_version=sub_version, expression_type=expression_type)
        tags = parse_tags(expression)
        return cls(topic, tags.expression, set(tags.tags), set(tags.codes), sub_version)

    @property
    def takes_all(self) -> bool:
        return self.expression_type == "TAG" and self.sub_string == SUBSCRIBE_ALL


@body
class ConsumerData(Body):
    """One consumer of a client."""

    group_name: str = ""
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


@body
class ProducerData(Body):
    """One producer of a client."""

    group_name: str = ""


@body
class HeartbeatData(Body):
    """Body of HEART_BEAT (34)."""

    client_id: str = field(default="", metadata=wire("clientID"))
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: int = 0
    without_sub: bool = False

    def fingerprint(self) -> int:
        """Return the fingerprint of heartbeat V2: the Java hash of this heartbeat without what changes by itself."""
        consumers = [
            replace(
                consumer,
                subscription_data_set=[replace(each, sub_version=0) for each in consumer.subscription_data_set],
            )
            for consumer in self.consumer_data_set
        ]
        stable = replace(self, client_id="", consumer_data_set=consumers, heartbeat_fingerprint=0, without_sub=False)
        return java_hash(stable.encode().decode())


@body
class CheckClientRequestBody(Body):
    """Body of CHECK_CLIENT_CONFIG (46)."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None
