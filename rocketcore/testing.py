"""The pytest plugin: a cluster for the session, topics and clients for each test.

Loaded by entry point when rocketcore is installed. Nothing is imported or started before a test asks for a fixture.

rocketmq_cluster  LocalCluster, one for the session
rocketmq          TestClients: topics of its own for each test, clients that are closed at its end
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin
    from rocketcore.client.sync import Producer, PullConsumer, PushConsumer
    from rocketcore.local import LocalCluster
    from rocketcore.message import ReceivedMessage

__all__ = ["TestClients", "rocketmq", "rocketmq_cluster"]

DRAIN_GROUP: Final = "TOOLS_CONSUMER"
"""The group that every broker has for tools; nothing is committed in it, so each drain sees all messages."""

_numbers: Final = itertools.count(1)


@pytest.fixture(scope="session")
def rocketmq_cluster() -> Iterator[LocalCluster]:
    """A name server and a broker in this process, on a temporary folder."""
    from rocketcore.local import LocalCluster

    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _rocketmq_admin(rocketmq_cluster: LocalCluster) -> Iterator[Admin]:
    from rocketcore.admin.client import Admin

    with Admin(rocketmq_cluster.namesrv) as admin:
        yield admin


@pytest.fixture
def rocketmq(rocketmq_cluster: LocalCluster, _rocketmq_admin: Admin) -> Iterator[TestClients]:
    """Topics and clients of one test."""
    with ExitStack() as stack:
        yield TestClients(rocketmq_cluster, _rocketmq_admin, stack)


class TestClients:
    """What a test gets: topics that no other test uses, and clients of the session's cluster."""

    __test__ = False

    def __init__(self, cluster: LocalCluster, admin: Admin, stack: ExitStack) -> None:
        self.cluster = cluster
        self._admin = admin
        self._stack = stack

    @property
    def namesrv(self) -> str:
        """Address of the name server."""
        return self.cluster.namesrv

    def name(self, prefix: str = "test") -> str:
        """Return a name that is used once in this process and by no other process: for topics and groups."""
        return f"{prefix}-{os.getpid()}-{next(_numbers)}"

    def topic(self, queues: int = 4, *, name: str | None = None) -> str:
        """Create a topic and return its name.

        name    default: one that no other test uses; a topic of this name that is there stays as it is
        raises  TopicExists where that has another number of queues
        """
        from rocketcore.errors import TopicExists

        topic = name or self.name()
        made = self._admin.create_topic(topic, queues, exist_ok=True)
        if made.read_queues != queues:
            raise TopicExists(topic, made.brokers)
        return topic

    def producer(self, **options: Any) -> Producer:
        """Return a producer of a group of its own; it is closed at the end of the test."""
        from rocketcore.client.sync import Producer

        options.setdefault("group", self.name("producers"))
        return self._stack.enter_context(Producer(self.namesrv, **options))

    def consumer(self, *topics: str, tag: str | None = None, **options: Any) -> PushConsumer:
        """Return a push consumer of a group of its own that begins with the first message; closed at the end."""
        from rocketcore.client.sync import PushConsumer

        options.setdefault("group", self.name("consumers"))
        options.setdefault("start_from", "first")
        consumer = PushConsumer(self.namesrv, **options)
        for topic in topics:
            consumer.subscribe(topic, tag=tag)
        self._stack.callback(consumer.close)
        return consumer

    def pull_consumer(self, *topics: str, tag: str | None = None, **options: Any) -> PullConsumer:
        """Return a pull consumer of a group of its own that begins with the first message; closed at the end."""
        from rocketcore.client.sync import PullConsumer

        options.setdefault("group", self.name("consumers"))
        options.setdefault("start_from", "first")
        consumer = self._stack.enter_context(PullConsumer(self.namesrv, **options))
        for topic in topics:
            consumer.subscribe(topic, tag=tag)
        return consumer

    def admin(self) -> Admin:
        """Return an administration client of the cluster; the session's, so leave it open."""
        return self._admin

    def drain(self, topic: str, expect: int | None = None, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Return all messages of a topic, oldest first, and leave every group's offsets alone.

        expect   wait until there are so many
        timeout  seconds to wait
        raises   AssertionError naming how many came, when fewer than ``expect`` did
        """
        from rocketcore.client.sync import PullConsumer

        deadline = time.monotonic() + timeout
        messages: list[ReceivedMessage] = []
        with PullConsumer(self.namesrv, group=DRAIN_GROUP, start_from="first") as consumer:
            consumer.assign(self._admin.queues(topic))
            while True:
                there = sum(bounds.max_offset - bounds.min_offset for bounds in self._admin.topic_stats(topic).values())
                wanted = max(there, expect or 0)
                left = deadline - time.monotonic()
                if len(messages) >= wanted or left <= 0:
                    break
                messages += consumer.poll(min(left, 0.25), max_messages=1024)
        if expect is not None and len(messages) < expect:
            raise AssertionError(f"{topic} has {len(messages)} messages after {timeout:g} s, {expect} were expected")
        return sorted(messages, key=lambda message: (message.store_timestamp, message.queue, message.offset))
