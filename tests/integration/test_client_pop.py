"""POP clients on our broker: what is acknowledged, what comes again, and a broker that goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(60)

MakeTopic = Callable[..., str]


def fill(cluster: LocalCluster, topic: str, count: int) -> set[bytes]:
    bodies = {b"%d" % i for i in range(count)}
    with rmq.Producer(cluster.namesrv, group="filling") as producer:
        for body in sorted(bodies):
            producer.send(topic, body)
    return bodies


def receive(consumer: rmq.SimpleConsumer, count: int, seconds: float = 20.0) -> list[rmq.ReceivedMessage]:
    until = time.monotonic() + seconds
    received: list[rmq.ReceivedMessage] = []
    while len(received) < count and time.monotonic() < until:
        received += consumer.receive(timeout=2.0)
    return received


def test_what_is_acknowledged_does_not_come_again(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(4)
    bodies = fill(cluster, topic, 100)
    with rmq.SimpleConsumer(cluster.namesrv, group=group, invisible=3.0, start_from="first") as consumer:
        consumer.subscribe(topic)
        first = receive(consumer, 100)
        assert {message.body for message in first} == bodies
        kept, longer = first[0], first[1]
        longer.change_invisible(30.0)
        for message in first[2:]:
            message.ack()
        consumer.flush()
        [again] = receive(consumer, 1)
        assert (again.body, again.reconsume_times) == (kept.body, 1)
        with pytest.raises(rmq.InvisibleTimeOver):
            kept.ack()
        again.ack()
        longer.ack()
        consumer.flush()
        assert consumer.receive(timeout=4.0) == []


def test_members_share_a_queue(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(1)
    with (
        rmq.SimpleConsumer(cluster.namesrv, group=group) as one,
        rmq.SimpleConsumer(cluster.namesrv, group=group) as other,
    ):
        one.subscribe(topic)
        other.subscribe(topic)
        fill(cluster, topic, 20)
        mine, yours = one.receive(10), other.receive(10)
        assert len(mine) == len(yours) == 10
        assert {message.body for message in mine}.isdisjoint(message.body for message in yours)
        for message in mine + yours:
            message.ack()


def test_who_waits_gets_a_message_when_it_comes(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(4)
    with rmq.SimpleConsumer(cluster.namesrv, group=group) as consumer:
        consumer.subscribe(topic)
        assert consumer.receive(timeout=0.2) == []
        timer = threading.Timer(0.5, fill, (cluster, topic, 1))
        timer.start()
        began = time.monotonic()
        [message] = consumer.receive(timeout=20.0)
        assert time.monotonic() - began < 5.0
        message.ack()
        timer.join()


def test_acknowledgements_wait_for_a_broker_that_is_away(tmp_path: Path, group: str) -> None:
    with LocalCluster(store=tmp_path, in_process=False) as cluster:
        with rmq.Admin(cluster.namesrv) as admin:
            admin.create_topic("work", queues=2)
        fill(cluster, "work", 10)
        with rmq.SimpleConsumer(cluster.namesrv, group=group, invisible=30.0, start_from="first") as consumer:
            consumer.subscribe("work")
            messages = receive(consumer, 10)
            cluster.stop_broker(kill=True)
            for message in messages:
                message.ack()
            cluster.start_broker()
            consumer.flush()
            fill(cluster, "work", 1)
            [message] = receive(consumer, 1)
            message.ack()
            consumer.flush()


def test_a_child_is_told_that_messages_are_the_parents(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(1)
    program = """
        import os, sys
        import rocketcore as rmq

        def refused(call):
            try:
                call()
            except rmq.ForkedClient:
                return True
            return False

        consumer = rmq.SimpleConsumer(sys.argv[1], group=sys.argv[3], start_from="first")
        consumer.subscribe(sys.argv[2])
        [message] = consumer.receive(timeout=20)
        pid = os.fork()
        if pid == 0:
            told = refused(message.ack) and refused(consumer.receive)
            consumer.close()
            with rmq.SimpleConsumer(sys.argv[1], group="of-child", start_from="first") as own:
                own.subscribe(sys.argv[2])
                for each in own.receive(timeout=20):
                    each.ack()
                    sys.exit(0 if told else 1)
            sys.exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        message.ack()
        consumer.flush()
        consumer.close()
    """
    fill(cluster, topic, 1)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), cluster.namesrv, topic, group],
        timeout=40,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_loses_no_message(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(1)
    with rmq.SimpleConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                consumer.receive(timeout=20.0)
            timer.join()
        finally:
            signal.signal(signal.SIGINT, before)
        fill(cluster, topic, 3)
        for message in receive(consumer, 3):
            message.ack()


def test_a_group_that_is_switched_pops(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(2)
    bodies = fill(cluster, topic, 20)
    switch_to_pop(cluster, topic, group)
    handled: list[rmq.ReceivedMessage] = []
    everything = threading.Event()
    consumer = rmq.PushConsumer(
        cluster.namesrv, group=group, start_from="first", pop=True, invisible=3.0, max_reconsume_times=1
    )

    @consumer.subscribe(topic)
    def handle(message: rmq.ReceivedMessage) -> None:
        handled.append(message)
        if {each.body for each in handled} == bodies and any(each.reconsume_times for each in handled):
            everything.set()
        if message.body == b"7":
            raise rmq.RetryLater(delay=1)

    with consumer:
        consumer.wait_ready(20.0)
        assert {queue.queue_id for queue in consumer.queues()} == {-1}
        assert everything.wait(30.0)
    assert Counter(message.body for message in handled) == {body: 2 if body == b"7" else 1 for body in bodies}
    with rmq.PullConsumer(cluster.namesrv, group=f"{group}-dead", start_from="first") as dead:
        dead.subscribe(f"%DLQ%{group}")
        [buried] = dead.poll(timeout=40.0)
        assert buried.body == b"7"


def switch_to_pop(cluster: LocalCluster, topic: str, group: str) -> None:
    with rmq.Admin(cluster.namesrv) as admin:
        assert set(admin.request_modes(group, topic).values()) == {"pull"}
        brokers = admin.set_request_mode(group, topic, "pop")
        assert brokers == ["broker-a", "broker-b"]
        assert admin.request_modes(group, topic) == dict.fromkeys(brokers, "pop")


def fill_in_order(cluster: LocalCluster, topic: str, count: int, queues: int = 1) -> None:
    with rmq.Producer(cluster.namesrv, group="filling") as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, queue=rmq.MessageQueue(topic, "broker-a", number % queues))


def test_in_order_nothing_more_comes_before_all_is_acknowledged(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(1)
    fill_in_order(cluster, topic, 6)
    with (
        rmq.SimpleConsumer(cluster.namesrv, group=group, ordered=True, invisible=2.0, start_from="first") as one,
        rmq.SimpleConsumer(cluster.namesrv, group=group, ordered=True, invisible=2.0, start_from="first") as other,
    ):
        one.subscribe(topic)
        other.subscribe(topic)
        first = one.receive(3)
        assert [message.body for message in first] == [b"0", b"1", b"2"]
        assert other.receive(timeout=0.5) == []
        first[0].ack()
        first[2].ack()
        one.flush()
        assert other.receive(timeout=0.3) == []
        [again] = other.receive(1, timeout=10.0)
        assert (again.body, again.reconsume_times) == (b"1", 1)
        waiting: list[rmq.ReceivedMessage] = []
        thread = threading.Thread(target=lambda: waiting.extend(one.receive(timeout=10.0)))
        thread.start()
        again.ack()
        other.flush()
        began = time.monotonic()
        thread.join()
        assert time.monotonic() - began < 3.0
        assert [message.body for message in waiting] == [b"3", b"4", b"5"]
        for message in waiting:
            message.ack()


def test_a_group_pops_in_order(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(2)
    switch_to_pop(cluster, topic, group)
    handled: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    failed: set[tuple[int, int]] = set()
    enough, lock = threading.Event(), threading.Lock()

    def handle(message: rmq.ReceivedMessage) -> None:
        place = message.queue.queue_id, message.offset
        with lock:
            handled[place[0]].append((message.offset, message.reconsume_times))
            if sum(len({offset for offset, _ in each}) for each in handled.values()) == 60:
                enough.set()
            fails = message.offset % 10 == 5 and place not in failed
            failed.add(place)
        if fails:
            raise rmq.RetryLater(delay=0.05)

    members = [
        rmq.PushConsumer(
            cluster.namesrv, group=group, start_from="first", pop=True, ordered=True, invisible=10.0, suspend_time=0.05
        )
        for _ in range(2)
    ]
    for member in members:
        member.subscribe(topic)(handle)
    with members[0], members[1]:
        for member in members:
            member.wait_ready(20.0)
            assert {queue.queue_id for queue in member.queues()} == {-1}
        fill_in_order(cluster, topic, 60, queues=2)
        assert enough.wait(30.0)
    for places in handled.values():
        assert [offset for offset, _ in places] == sorted(offset for offset, _ in places)
        assert [offset for offset, times in places if times == 0] == list(range(30))
        assert [offset for offset, times in places if times == 1] == [5, 15, 25]


def test_in_order_what_fails_too_often_is_a_dead_letter(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(1)
    fill_in_order(cluster, topic, 3)
    switch_to_pop(cluster, topic, group)
    handled: list[bytes] = []
    last = threading.Event()

    def handle(message: rmq.ReceivedMessage) -> None:
        handled.append(message.body)
        if message.body == b"1":
            raise ValueError("never")
        if message.body == b"2":
            last.set()

    consumer = rmq.PushConsumer(
        cluster.namesrv, group=group, start_from="first", pop=True, ordered=True, suspend_time=0.01,
        max_reconsume_times=2,
    )  # fmt: skip
    consumer.subscribe(topic)(handle)
    with consumer:
        assert last.wait(30.0)
    assert handled == [b"0", b"1", b"1", b"1", b"2"]
    with rmq.PullConsumer(cluster.namesrv, group=f"{group}-dead", start_from="first") as dead:
        dead.subscribe(f"%DLQ%{group}")
        [buried] = dead.poll(timeout=40.0)
        assert buried.body == b"1"
