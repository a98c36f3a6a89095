"""POP clients on our broker: what is acknowledged, what comes again, and a broker that goes away."""

from __future__ import annotations

import asyncio
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
from rocketcore.codes import RequestCode
from rocketcore.local import LocalCluster
from rocketcore.protocol.bodies.pop import MessageRequestMode, SetMessageRequestModeRequestBody
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.client import RemotingClient

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
    """Have a group's members pop a topic, as ``mqadmin setConsumeMode`` does."""
    body = SetMessageRequestModeRequestBody(topic=topic, consumer_group=group, mode=MessageRequestMode.POP)

    async def ask() -> None:
        client = RemotingClient()
        for address in cluster.broker_addresses:
            request = RemotingCommand.request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.encode())
            (await client.invoke(address, request, 10.0)).raise_for_code(address, "request mode")
        await client.close()

    asyncio.run(ask())
