"""The push consumers against our servers: verdicts, retries, order, sharing, offsets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(60)

MakeTopic = Callable[..., str]


class Inbox:
    """What handlers got; ``wait`` for a number of messages."""

    def __init__(self) -> None:
        self.messages: list[rmq.ReceivedMessage] = []
        self._changed = threading.Condition()

    def add(self, message: rmq.ReceivedMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def wait(self, count: int, timeout: float = 20.0) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.messages) >= count, timeout), self.texts()
        return self.texts()

    def texts(self) -> list[str]:
        return [message.text() for message in self.messages]


@pytest.fixture
def producer(cluster: LocalCluster, group: str) -> Iterator[rmq.Producer]:
    with rmq.Producer(cluster.namesrv, group=f"P-{group}") as running:
        yield running


def test_a_handler_gets_the_tags_it_asked_for(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic, inbox = make_topic(), Inbox()
    for i in range(30):
        producer.send(topic, f"{i}", tag=("red", "green", "blue")[i % 3])
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic, tag="red || blue", handler=inbox.add)
        inbox.wait(20)
        producer.send(topic, "late", tag="red")
        assert inbox.wait(21)[-1] == "late"
    assert {message.tag for message in inbox.messages} == {"red", "blue"}


def test_offsets_survive_the_consumer(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic, first, second = make_topic(), Inbox(), Inbox()
    for i in range(20):
        producer.send(topic, f"first {i}")
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)(first.add)
        first.wait(20)
    for i in range(5):
        producer.send(topic, f"second {i}")
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)(second.add)
        assert sorted(second.wait(5)) == [f"second {i}" for i in range(5)]


def test_a_failed_message_comes_again_with_its_topic_and_then_is_dead(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic, inbox = make_topic(), Inbox()

    def fail(message: rmq.ReceivedMessage) -> None:
        inbox.add(message)
        raise rmq.RetryLater(delay=1)

    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first", max_reconsume_times=2) as consumer:
        consumer.subscribe(topic, handler=fail)
        result = producer.send(topic, "bad", keys="k", tag="t")
        inbox.wait(3)
    assert [message.reconsume_times for message in inbox.messages] == [0, 1, 2]
    assert {message.topic for message in inbox.messages} == {topic}
    assert [message.queue.topic for message in inbox.messages] == [topic, f"%RETRY%{group}", f"%RETRY%{group}"]
    assert {message.msg_id for message in inbox.messages} == {result.msg_id}
    with rmq.PullConsumer(cluster.namesrv, group=f"dlq-{group}", start_from="first") as dead:
        dead.subscribe(f"%DLQ%{group}")
        [message] = dead.poll(timeout=10.0)
    assert (message.text(), message.keys) == ("bad", ("k",))


def test_a_body_that_does_not_decompress_keeps_nothing_behind_it_from_being_read(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes as it is stored, to be judged by the handler like any other."""
    topic, inbox = make_topic(queues=1), Inbox()
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    producer.send(topic, "before", queue=queue)
    with monkeypatch.context() as patch:
        patch.setattr("rocketcore.client.sender.compress", lambda *arguments: b"no stream of zlib")
        producer.send(topic, bytes(10_000), queue=queue)
    producer.send(topic, "after", queue=queue)
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first", ordered=True) as consumer:
        consumer.subscribe(topic, handler=inbox.add)
        assert inbox.wait(3) == ["before", "no stream of zlib", "after"]


def test_iteration_acknowledges_retries_and_leaves_alone(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic = make_topic(queues=1)
    for text in ("done", "again", "forgotten"):
        producer.send(topic, text)
    seen = []
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        for message in consumer:
            seen.append((message.text(), message.reconsume_times))
            if message.text() == "done" or message.reconsume_times:
                message.ack()
                message.ack()
            elif message.text() == "again":
                message.retry()
            if ("again", 1) in seen and len(seen) == 4:
                break
    assert sorted(seen) == [("again", 0), ("again", 1), ("done", 0), ("forgotten", 0)]
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        assert next(iter(consumer)).text() == "forgotten"


def test_who_stops_iterating_gets_the_rest_the_next_time(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic = make_topic(queues=1)
    for i in range(10):
        producer.send(topic, f"{i}", queue=rmq.MessageQueue(topic, "broker-a", 0))
    seen: list[str] = []
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        while len(seen) < 10:
            for message in consumer:
                seen.append(message.text())
                message.ack()
                break
    assert seen == [f"{i}" for i in range(10)]


def test_close_ends_an_iteration(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    consumer = rmq.PushConsumer(cluster.namesrv, group=group)
    consumer.subscribe(make_topic())
    consumer.start()
    closing = threading.Timer(0.1, consumer.close)
    closing.start()
    assert list(consumer) == []
    closing.join()
    with pytest.raises(rmq.ClientClosed):
        consumer.subscribe("T")


def test_a_handler_may_close_its_consumer(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic = make_topic()
    consumer = rmq.PushConsumer(cluster.namesrv, group=group, start_from="first")
    consumer.subscribe(topic, handler=lambda message: consumer.close())
    producer.send(topic, "stop")
    began = time.monotonic()
    consumer.run()
    assert time.monotonic() - began < 5


def test_run_hears_of_a_handlers_close_when_there_is_a_thread_to_wait_for(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, told_before = make_topic(), list[bool]()
    consumer = rmq.PushConsumer(cluster.namesrv, group=group, start_from="first")
    consumer.subscribe(topic, handler=lambda message: consumer.close())
    start = threading.Thread.start

    def observed(thread: threading.Thread) -> None:
        if thread.name == "consumer-close":
            told_before.append(consumer._ended.is_set())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", observed)
    producer.send(topic, "stop")
    consumer.run()
    assert told_before == [False]


def test_a_coroutine_handler_may_close_its_blocking_consumer(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic, second = make_topic(), Inbox()
    consumer = rmq.PushConsumer(cluster.namesrv, group=group, start_from="first")
    refused: list[BaseException] = []

    @consumer.subscribe(topic)
    async def handle(message: rmq.ReceivedMessage) -> None:
        try:
            consumer.close()
        except rmq.RocketError as error:
            refused.append(error)

    producer.send(topic, "first")
    consumer.run()
    assert not refused
    assert "consumer-close" not in {thread.name for thread in threading.enumerate()}
    producer.send(topic, "second")
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as another:
        another.subscribe(topic, handler=second.add)
        assert second.wait(1) == ["second"]


@pytest.mark.parametrize("kind", ["awaited", "decorated", "both"])
def test_a_topic_is_joined_once(cluster: LocalCluster, make_topic: MakeTopic, group: str, kind: str) -> None:
    topic = make_topic()
    joins: list[None] = []

    async def main() -> None:
        async with aio.PushConsumer(cluster.namesrv, group=group) as consumer:
            await consumer.subscribe(make_topic(), handler=print)
            join = consumer._logic._join

            async def counted() -> None:
                joins.append(None)
                await join()

            consumer._logic._join = counted  # type: ignore[method-assign]
            subscription = consumer.subscribe(topic, handler=print if kind != "decorated" else None)
            if kind != "awaited":
                subscription(print)
            if kind != "decorated":
                await subscription
            await consumer.wait_ready()
            assert {queue.topic for queue in consumer.queues()} >= {topic}
            while consumer._logic._joins:
                await asyncio.wait(consumer._logic._joins)

    asyncio.run(main())
    assert len(joins) == 1


def test_a_handler_may_close_its_consumer_before_run_waits(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = rmq.PushConsumer(cluster.namesrv, group=group)
    consumer.subscribe(make_topic(), handler=lambda message: None)
    start = consumer.start

    def start_and_close() -> None:
        start()
        consumer.close()
        start()

    monkeypatch.setattr(consumer, "start", start_and_close)
    consumer.run()
    with pytest.raises(rmq.ClientClosed):
        consumer.run()


def test_close_waits_for_handlers_and_keeps_their_verdict(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic, started, inbox = make_topic(queues=1), threading.Event(), Inbox()

    def slow(message: rmq.ReceivedMessage) -> None:
        started.set()
        time.sleep(0.3)
        inbox.add(message)

    producer.send(topic, "slow", queue=rmq.MessageQueue(topic, "broker-a", 0))
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic, handler=slow)
        assert started.wait(10)
    assert inbox.texts() == ["slow"]
    with rmq.PullConsumer(cluster.namesrv, group=group) as reader:
        reader.assign([rmq.MessageQueue(topic, "broker-a", 0)])
        assert reader.committed(rmq.MessageQueue(topic, "broker-a", 0)) == 1


def test_handlers_run_side_by_side_up_to_the_number_of_threads(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic, inbox = make_topic(queues=1), Inbox()
    running, most, lock = 0, 0, threading.Lock()

    def handle(message: rmq.ReceivedMessage) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        inbox.add(message)

    producer.send_batch([rmq.Message(topic, f"{i}") for i in range(40)])
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first", threads=4) as consumer:
        consumer.subscribe(topic, handler=handle)
        inbox.wait(40)
    assert most == 4


def test_two_members_share_the_queues_and_one_takes_over(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic, inboxes = make_topic(queues=4), (Inbox(), Inbox())
    first = rmq.PushConsumer(cluster.namesrv, group=group, rebalance_interval=0.5)
    second = rmq.PushConsumer(cluster.namesrv, group=group, rebalance_interval=0.5)
    with first:
        first.subscribe(topic, handler=inboxes[0].add)
        with second:
            second.subscribe(topic, handler=inboxes[1].add)
            deadline = time.monotonic() + 20
            sent = 0
            while not all(inbox.messages for inbox in inboxes) and time.monotonic() < deadline:
                producer.send(topic, f"{sent}")
                sent += 1
                time.sleep(0.01)
            assert all(inbox.messages for inbox in inboxes)
        for _ in range(16):
            producer.send(topic, f"{sent}")
            sent += 1
        while len({*inboxes[0].texts(), *inboxes[1].texts()}) < sent and time.monotonic() < deadline:
            time.sleep(0.01)
    assert {*inboxes[0].texts(), *inboxes[1].texts()} == {str(number) for number in range(sent)}


def test_ordered_keeps_the_order_of_each_queue_through_failures(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic, done, failed = make_topic(queues=2), Inbox(), set()
    for i in range(60):
        producer.send(topic, f"{i:03}", message_group=f"g{i % 6}")

    def handle(message: rmq.ReceivedMessage) -> None:
        if message.text().endswith("7") and message.text() not in failed:
            failed.add(message.text())
            raise ValueError("the first time it fails")
        done.add(message)

    with rmq.PushConsumer(
        cluster.namesrv, group=group, start_from="first", ordered=True, suspend_time=0.05
    ) as consumer:
        consumer.subscribe(topic, handler=handle)
        done.wait(60)
    assert len(failed) == 6
    for number in range(6):
        texts = [message.text() for message in done.messages if message.message_group == f"g{number}"]
        assert texts == sorted(texts)
        assert len(texts) == 10


def test_ordered_gives_up_after_max_reconsume_times(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic, inbox = make_topic(queues=1), Inbox()
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    for text in ("bad", "good"):
        producer.send(topic, text, queue=queue)

    def handle(message: rmq.ReceivedMessage) -> None:
        inbox.add(message)
        if message.text() == "bad":
            raise ValueError("always")

    with rmq.PushConsumer(
        cluster.namesrv, group=group, start_from="first", ordered=True, suspend_time=0.02, max_reconsume_times=2
    ) as consumer:
        consumer.subscribe(topic, handler=handle)
        assert inbox.wait(4) == ["bad", "bad", "bad", "good"]


def test_an_ordered_queue_is_never_worked_on_by_two(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic, inbox = make_topic(queues=2), Inbox()
    working: set[rmq.MessageQueue] = set()
    collisions: list[rmq.MessageQueue] = []
    lock = threading.Lock()

    def handle(message: rmq.ReceivedMessage) -> None:
        with lock:
            if message.queue in working:
                collisions.append(message.queue)
            working.add(message.queue)
        time.sleep(0.005)
        with lock:
            working.discard(message.queue)
        inbox.add(message)

    options = {"group": group, "start_from": "first", "ordered": True, "rebalance_interval": 0.2}
    for i in range(120):
        producer.send(topic, f"{i}")
    with rmq.PushConsumer(cluster.namesrv, **options) as first:  # type: ignore[arg-type]
        first.subscribe(topic, handler=handle)
        inbox.wait(10)
        with rmq.PushConsumer(cluster.namesrv, **options) as second:  # type: ignore[arg-type]
            second.subscribe(topic, handler=handle)
            inbox.wait(120)
    assert not collisions
    assert set(inbox.texts()) == {str(i) for i in range(120)}


def test_broadcasting_gives_every_member_everything_and_keeps_offsets_in_a_file(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer, tmp_path: Path
) -> None:
    topic, inboxes = make_topic(), [Inbox(), Inbox()]
    for i in range(10):
        producer.send(topic, f"{i}")
    for index, inbox in enumerate(inboxes):
        with rmq.PushConsumer(
            cluster.namesrv,
            group=group,
            start_from="first",
            broadcast=True,
            instance_name=f"member-{index}",
            offset_store_path=str(tmp_path),
        ) as consumer:
            consumer.subscribe(topic, handler=inbox.add)
            inbox.wait(10)
    assert len(list(tmp_path.rglob("offsets.json"))) == 2
    again = Inbox()
    with rmq.PushConsumer(
        cluster.namesrv,
        group=group,
        start_from="first",
        broadcast=True,
        instance_name="member-0",
        offset_store_path=str(tmp_path),
    ) as consumer:
        consumer.subscribe(topic, handler=again.add)
        producer.send(topic, "new")
        assert again.wait(1) == ["new"]


def test_flow_control_bounds_what_is_in_memory(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic = make_topic(queues=1)
    producer.send_batch([rmq.Message(topic, f"{i}") for i in range(500)])

    async def main() -> None:
        async with aio.PushConsumer(
            cluster.namesrv, group=group, start_from="first", pull_threshold_for_queue=40
        ) as consumer:
            await consumer.subscribe(topic)
            seen = 0
            async for message in consumer:
                assert max(len(process_queue) for process_queue in consumer._logic.process_queues()) < 40 + 32
                message.ack()
                seen += 1
                if seen == 500:
                    break

    asyncio.run(asyncio.wait_for(main(), 30))


def test_coroutine_handlers_run_on_the_loop(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic = make_topic()
    for i in range(50):
        producer.send(topic, f"{i}")

    async def main() -> list[str]:
        seen: list[str] = []
        done = asyncio.Event()
        consumer = aio.PushConsumer(cluster.namesrv, group=group, start_from="first", threads=5)

        @consumer.subscribe(topic)
        async def handle(message: rmq.ReceivedMessage) -> None:
            await asyncio.sleep(0.001)
            if message.text() == "7" and not message.reconsume_times:
                raise rmq.RetryLater(delay=1)
            seen.append(message.text())
            if len(seen) == 50:
                done.set()

        async with consumer, asyncio.timeout(30):
            await done.wait()
        return seen

    assert sorted(asyncio.run(main()), key=int) == [str(i) for i in range(50)]


def test_a_message_that_is_never_settled_comes_again(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    topic = make_topic()
    producer.send(topic, "held")
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first", consume_timeout=0.3) as consumer:
        consumer.subscribe(topic)
        messages = iter(consumer)
        assert next(messages).reconsume_times == 0
        again = next(messages)
        assert (again.text(), again.reconsume_times) == ("held", 1)
        again.ack()


def test_pause_and_resume(cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer) -> None:
    topic, inbox = make_topic(), Inbox()
    with rmq.PushConsumer(cluster.namesrv, group=group, pull_timeout=0.2) as consumer:
        consumer.subscribe(topic, handler=inbox.add)
        consumer.pause()
        time.sleep(0.4)  # a pull that was under way ends with its time
        producer.send(topic, "x")
        time.sleep(0.2)
        assert not inbox.messages
        consumer.resume()
        assert inbox.wait(1) == ["x"]


def test_a_topic_that_comes_later_is_found(cluster: LocalCluster, group: str, producer: rmq.Producer) -> None:
    topic, inbox = f"Later-{group}", Inbox()
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first", rebalance_interval=1.0) as consumer:
        consumer.subscribe(topic, handler=inbox.add)
        producer.send(topic, "at last")
        assert inbox.wait(1) == ["at last"]


def test_unsubscribe_gives_the_queues_up(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, producer: rmq.Producer
) -> None:
    kept, left, inbox = make_topic(), make_topic(), Inbox()
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(kept, handler=inbox.add)
        consumer.subscribe(left, handler=inbox.add)
        consumer.unsubscribe(left)
        producer.send(left, "left")
        producer.send(kept, "kept")
        assert inbox.wait(1) == ["kept"]
        assert {queue.topic for queue in consumer.queues()} == {kept}
        assert {queue.topic for queue in consumer.queues(include_retry=True)} == {kept, f"%RETRY%{group}"}
