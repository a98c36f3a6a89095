"""What ``rocket doctor`` says of topics: those with queues that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocketcore.admin.shapes import topic_kind
from rocketcore.admin.topic_troubles import topic_troubles
from rocketcore.cli.cluster.finding import Finding
from rocketcore.codes import MASTER_ID
from rocketcore.errors import RocketError

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin
    from rocketcore.admin.cluster import BrokerStatus
    from rocketcore.protocol.bodies.topic import TopicConfig

__all__ = ["look_at_topics"]


def look_at_topics(admin: Admin, brokers: list[BrokerStatus]) -> Iterator[Finding]:
    """Yield what is wrong with topics, or that nothing is."""
    found: dict[str, dict[str, TopicConfig]] = {}
    own = {name for each in brokers for name in (each.broker, each.cluster)}
    for each in brokers:
        if each.broker_id != MASTER_ID or not each.alive:
            continue
        try:
            topics = admin.broker_topics(each.address)
        except RocketError as error:
            yield Finding("topics", each.broker, "unknown", str(error))
            continue
        for topic, config in topics.items():
            if topic_kind(topic, own) == "normal":
                found.setdefault(topic, {})[each.broker] = config
    count = 0
    for topic, configs in sorted(found.items()):
        for trouble in topic_troubles(topic, configs):
            count += 1
            yield Finding(trouble.check, topic, trouble.state, trouble.detail, trouble.hint)
    if not count:
        yield Finding("topics", "cluster", "ok", f"{len(found)} topics, nothing stands out")
