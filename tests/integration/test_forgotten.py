"""Consumers that nobody refers to any more: complained of, closed, and not before they are done."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable

import pytest

import rocketcore as rmq
from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(60)

WAIT = 30.0


@pytest.mark.parametrize("kind", [rmq.PushConsumer, rmq.PullConsumer])
def test_a_forgotten_consumer_leaves_its_group_and_ends(
    kind: type[rmq.PushConsumer | rmq.PullConsumer], cluster: LocalCluster, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic()
    consumer = kind(cluster.namesrv, group=group)
    consumer.subscribe(topic)
    consumer.start()
    with rmq.Admin(cluster.namesrv) as admin:
        assert len(admin.consumer_connections(group)) == 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del consumer
            gc.collect()
        assert [str(each.message) for each in caught if f"unclosed consumer of group {group}" in str(each.message)]
        for thread in threading.enumerate():
            if thread.name.startswith(f"close consumer of group {group}"):
                thread.join(WAIT)
        assert f"consumer-{group}" not in {thread.name for thread in threading.enumerate()}


def test_a_handler_that_refers_to_its_consumer_keeps_it(
    cluster: LocalCluster, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic()
    seen = threading.Event()

    def begin() -> None:
        consumer = rmq.PushConsumer(cluster.namesrv, group=group, start_from="first")

        @consumer.subscribe(topic)
        def handle(message: rmq.ReceivedMessage) -> None:
            consumer.close()
            seen.set()

        consumer.start()

    begin()
    gc.collect()
    with rmq.Producer(cluster.namesrv, group=group) as producer:
        producer.send(topic, b"x")
    assert seen.wait(WAIT)
