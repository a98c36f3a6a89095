"""What tests of members have in common: quick settings, messages in each queue, and what the broker has stored."""

from __future__ import annotations

from typing import Any

import rocketcore as rmq

QUICK: dict[str, Any] = {"start_from": "first", "rebalance_interval": 0.2, "persist_interval": 0.2}


def fill(namesrv: str, topic: str, count: int, body: str = "m") -> list[rmq.MessageQueue]:
    """Put so many messages into each queue of a topic."""
    with rmq.Admin(namesrv) as admin, rmq.Producer(namesrv, group="p") as producer:
        queues = admin.queues(topic)
        for queue in queues:
            producer.send_batch([rmq.Message(topic, f"{body}{i}") for i in range(count)], queue=queue)
    return queues


def stored(namesrv: str, group: str, queue: rmq.MessageQueue) -> int | None:
    with rmq.Admin(namesrv) as admin:
        return admin.consumer_offset(group, queue)
