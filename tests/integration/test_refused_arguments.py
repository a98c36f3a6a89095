"""Arguments of consumers that are refused where they are given, and a subscription that is awaited twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(60)

MakeTopic = Callable[..., str]


def test_what_is_no_queue_and_an_offset_beyond_the_end(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(queues=1)
    with rmq.Producer(cluster.namesrv, group=group) as producer:
        for _ in range(3):
            producer.send(topic, b"x")
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        for wrong in (1, None, "queue"):
            for call in (consumer.watermarks, consumer.committed):
                with pytest.raises(rmq.ConfigError, match="a queue must be a MessageQueue"):
                    call(wrong)  # type: ignore[arg-type]
        queue = consumer.poll(30.0)[0].queue
        end = consumer.watermarks(queue)[1]
        with pytest.raises(rmq.ConfigError, match=f"ends at offset {end}, asked to commit {end + 1}"):
            consumer.commit({queue: end + 1})
        consumer.commit({queue: end})
        assert consumer.committed(queue) == end


@pytest.mark.parametrize("kind", [rmq.PushConsumer, aio.PushConsumer])
def test_a_wait_below_0_is_refused(kind: type[rmq.PushConsumer], group: str) -> None:
    with pytest.raises(rmq.ConfigError, match="max_wait must be a number of seconds, at least 0"):
        kind("127.0.0.1:9", group=group).subscribe_batch("T", max_wait=-1)


def test_a_subscription_is_awaited_twice(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    async def main() -> None:
        async with aio.PullConsumer(cluster.namesrv, group=group) as consumer:
            subscription = consumer.subscribe(topic)
            await subscription
            await subscription

    topic = make_topic()
    asyncio.run(main())
