"""Topics and their queues on brokers, where topics with equal queues share one state.

Most topics of a cluster have the same queues on the same brokers. So a topic refers to a ``TopicQueues`` that is never
changed in place: 10,000 topics × 10 brokers are 10,000 references, and moving all of them from one state to the next
works out one new object. RocketMQ: ``RouteInfoManager.topicQueueTable``.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping
from typing import Final

from rocketcore._fast.registration import move
from rocketcore.nameserver.registration import KnownTopics, QueueNumbers

__all__ = ["TopicQueues", "TopicTable"]

SHARED_MIN: Final = 1024
"""States that are kept whether a topic is in them or not."""

Queues = Mapping[str, QueueNumbers]


class TopicQueues:
    """The queues of a topic, of all topics like it: broker name → numbers, in the order of the names.

    answer  the encoded route, good while ``age`` is that of the table's owner
    """

    __slots__ = ("age", "answer", "queues")

    def __init__(self, queues: dict[str, QueueNumbers]) -> None:
        self.queues = queues
        self.answer = b""
        self.age = -1


class TopicTable:
    """Topic → its queues; ``changed`` hears the names of the topics that ``put`` or ``remove`` moves."""

    def __init__(self, changed: Callable[[Iterable[str]], None]) -> None:
        self._changed = changed
        self._topics: dict[str, TopicQueues] = {}
        self._shared: dict[tuple[tuple[str, QueueNumbers], ...], TopicQueues] = {}
        self._shared_limit = SHARED_MIN

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def get(self, topic: str) -> TopicQueues | None:
        return self._topics.get(topic)

    def items(self) -> ItemsView[str, TopicQueues]:
        return self._topics.items()

    def known(self, broker: str) -> KnownTopics:
        """Return the table as the reader of a broker's registration compares with it."""
        return KnownTopics(self._topics, lambda topic, numbers: topic.queues.get(broker) == numbers)

    def put(self, broker: str, topics: dict[str, QueueNumbers], *, only_missing: bool = False) -> None:
        """Give topics their queues on a broker; ``only_missing``: only those that have none there.

        Topics share few states, so that the new state is worked out once for each old one and numbers. A registration
        that changes nothing, as most do, ends after a pass without Python code for a topic.
        """
        moved = move(self._topics, topics, lambda old, numbers: self._with_queues(broker, old, numbers, only_missing))
        if moved:
            self._changed(moved)
            self._drop_unused()

    def remove(self, topic: str, broker: str) -> bool:
        """Take a topic's queues on a broker away, the topic with its last; return whether there were any."""
        known = self._topics.get(topic)
        if known is None or broker not in known.queues:
            return False
        queues = {name: numbers for name, numbers in known.queues.items() if name != broker}
        if queues:
            self._topics[topic] = self._share(queues)
        else:
            del self._topics[topic]
        self._changed((topic,))
        self._drop_unused()
        return True

    def replace(self, change: Callable[[Queues], Queues]) -> None:
        """Give every topic the queues that ``change`` makes of its own; none: the topic goes. ``changed`` is not told.

        change  called once for each state; returns its argument where nothing changes
        """
        target = {old: self._moved(old, change(old.queues)) for old in set(self._topics.values())}
        gone = {old for old, new in target.items() if new is None}
        if gone:
            self._topics = {topic: old for topic, old in self._topics.items() if old not in gone}
        for topic, old in self._topics.items():
            new = target[old]
            if new is not None and new is not old:
                self._topics[topic] = new
        self._drop_unused()

    def _moved(self, old: TopicQueues, queues: Queues) -> TopicQueues | None:
        if queues is old.queues:
            return old
        return self._share(queues) if queues else None

    def _with_queues(
        self, broker: str, known: TopicQueues | None, numbers: QueueNumbers, only_missing: bool
    ) -> TopicQueues:
        queues = {} if known is None else known.queues
        before = queues.get(broker)
        if known is not None and (before == numbers or (only_missing and before is not None)):
            return known
        return self._share({**queues, broker: numbers})

    def _share(self, queues: Queues) -> TopicQueues:
        key = tuple(sorted(queues.items()))
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = TopicQueues(dict(key))
        return shared

    def _drop_unused(self) -> None:
        """Forget the states that no topic is in any more, once there may be as many of them as of the others."""
        if len(self._shared) > min(self._shared_limit, SHARED_MIN + 2 * len(self._topics)):
            used = set(self._topics.values())
            self._shared = {key: shared for key, shared in self._shared.items() if shared in used}
            self._shared_limit = max(SHARED_MIN, 2 * len(self._shared))
