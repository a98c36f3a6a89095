"""What may be wrong with a topic, each in a sentence with what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rocketcore.admin.group_troubles import Trouble
from rocketcore.codes import Permission

__all__ = ["QueueCounts", "topic_troubles"]


class QueueCounts(Protocol):
    """How many queues of a topic consumers may read at a broker, and producers write (``TopicConfig``)."""

    @property
    def read_queue_nums(self) -> int: ...

    @property
    def write_queue_nums(self) -> int: ...

    @property
    def perm(self) -> int: ...


def topic_troubles(topic: str, counts: Mapping[str, QueueCounts]) -> list[Trouble]:
    """Return what is wrong with a topic; ``counts`` by the names of its brokers."""
    both = Permission.READ | Permission.WRITE
    unread = {
        broker: each
        for broker, each in sorted(counts.items())
        if each.perm & both == both and each.write_queue_nums > each.read_queue_nums
    }
    if not unread:
        return []
    where = ", ".join(f"{each.write_queue_nums} on {broker}" for broker, each in unread.items())
    reads = ", ".join(f"{each.read_queue_nums} on {broker}" for broker, each in unread.items())
    most = max(each.write_queue_nums for each in unread.values())
    named = f" -- {topic}" if topic.startswith("-") else f" {topic}"
    return [
        Trouble(
            "unread queues", "warn",
            f"producers write to more queues than consumers read ({where}; read: {reads}): nobody gets the messages"
            " of the rest",
            f"rocket topic update --read-queues {most}{named}",
        )
    ]  # fmt: skip
