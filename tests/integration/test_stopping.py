"""SIGTERM and Ctrl-C: a consumer finishes, stores its offsets and leaves; a producer sends what it was given."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(60)

MakeTopic = Callable[..., str]
WAIT = 30.0
COUNT = 60

PROGRAM = """
    import asyncio, signal, sys, threading
    import rocketcore as rmq
    from rocketcore import aio

    how, namesrv, topic, group = sys.argv[1:5]
    options = dict(group=group, start_from="first", persist_interval=3600.0)
    seen = 0

    def note(message):
        global seen
        seen += 1
        if seen == COUNT:
            print("all", flush=True)

    def run():
        consumer = rmq.PushConsumer(namesrv, **options)
        consumer.subscribe(topic, handler=note)
        consumer.run()
        return consumer

    def iterate():
        with rmq.PushConsumer(namesrv, **options) as consumer:
            consumer.subscribe(topic)
            for message in consumer:
                message.ack()
                note(message)
            print("behind", flush=True)
        return consumer

    def stay():
        with rmq.PushConsumer(namesrv, **options) as consumer:
            consumer.subscribe(topic, handler=note)
            threading.Event().wait()

    async def aio_run():
        consumer = aio.PushConsumer(namesrv, **options)
        consumer.subscribe(topic, handler=note)
        await consumer.run()
        return consumer

    async def aio_iterate():
        async with aio.PushConsumer(namesrv, **options) as consumer:
            await consumer.subscribe(topic)
            async for message in consumer:
                message.ack()
                note(message)
            print("behind", flush=True)
        return consumer

    async def aio_stay():
        async with aio.PushConsumer(namesrv, **options) as consumer:
            await consumer.subscribe(topic, handler=note)
            await asyncio.Event().wait()

    def iterate_in_an_iteration():
        inner = rmq.PushConsumer(namesrv, group=group + "-inner", start_from="first")
        with inner, rmq.PushConsumer(namesrv, **options) as consumer:
            inner.subscribe(topic)
            consumer.subscribe(topic)
            for count, message in enumerate(consumer, 1):
                message.ack()
                if count == COUNT:
                    for of_inner in inner:
                        of_inner.ack()
                        note(of_inner)
            print("behind", flush=True)
        assert inner.stopped_by == consumer.stopped_by
        return consumer

    def pull(**more):
        consumer = rmq.PullConsumer(namesrv, **options, **more)
        consumer.subscribe(topic)
        for message in consumer:
            note(message)
            if not more:
                consumer.commit(message)
        print("behind", flush=True)
        consumer.close()
        return consumer

    def pull_auto_commit():
        return pull(auto_commit=True)

    async def aio_pull(**more):
        consumer = aio.PullConsumer(namesrv, **options, **more)
        consumer.subscribe(topic)
        async for message in consumer:
            note(message)
            if not more:
                await consumer.commit(message)
        print("behind", flush=True)
        await consumer.close()
        return consumer

    async def aio_pull_auto_commit():
        return await aio_pull(auto_commit=True)

    async def aio_together(work):
        async with aio.PushConsumer(namesrv, group=group + "-other") as other:
            other.subscribe(topic, handler=lambda message: True)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(other.run())
                done = tasks.create_task(work())
            assert other.stopped_by == done.result().stopped_by
            return done.result()

    async def aio_run_together():
        return await aio_together(aio_run)

    async def aio_iterate_together():
        return await aio_together(aio_iterate)

    def send():
        with rmq.Producer(namesrv, group=group, linger=3600.0) as producer:
            for number in range(COUNT):
                producer.send_nowait(topic, b"waits")
            print("all", flush=True)
            while not threading.Event().wait(0.05):
                pass  # a signal that comes just before a wait does not end it

    async def aio_send():
        async with aio.Producer(namesrv, group=group, linger=3600.0) as producer:
            for number in range(COUNT):
                await producer.send_nowait(topic, b"waits")
            print("all", flush=True)
            await asyncio.Event().wait()

    def send_and_stay():
        with rmq.PushConsumer(namesrv, **options) as consumer:
            consumer.subscribe(topic)
            send()

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        done = globals()[how]()
        if how.startswith("aio"):
            done = asyncio.run(done)
        print(done.stopped_by.name)
    finally:
        assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
"""


class Program:
    """A consumer in a process of its own, which has handled all there is."""

    def __init__(self, how: str, namesrv: str, topic: str, group: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM).replace("COUNT", str(COUNT)), how, namesrv, topic, group],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "all\n"

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=WAIT)
        assert "AssertionError" not in errors
        return self.process.returncode, out


@pytest.fixture
def topic(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> str:
    name = make_topic(queues=2)
    with rmq.Producer(cluster.namesrv, group=group) as producer:
        for number in range(COUNT // 20):
            producer.send_batch([rmq.Message(name, f"{number} {index}") for index in range(20)])
    return name


def lag(namesrv: str, group: str, topic: str) -> int:
    with rmq.Admin(namesrv) as admin:
        return sum(progress.lag or 0 for progress in admin.group_lag(group, topic))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "how",
    [
        *("run", "iterate", "aio_run", "aio_iterate"),
        *("pull", "pull_auto_commit", "aio_pull", "aio_pull_auto_commit"),
        *("iterate_in_an_iteration", "aio_run_together", "aio_iterate_together"),
    ],
)
def test_a_signal_ends_the_work_and_the_program_goes_on(
    cluster: LocalCluster, topic: str, group: str, how: str, number: signal.Signals
) -> None:
    code, out = Program(how, cluster.namesrv, topic, group).end(number)
    assert (code, out.split()) == (0, [*(["behind"] if "run" not in how else []), number.name])
    assert lag(cluster.namesrv, group, topic) == 0
    with rmq.Admin(cluster.namesrv) as admin:
        assert not admin.describe_group(group).members


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGTERM, {143}), (signal.SIGINT, {130, -signal.SIGINT})])
@pytest.mark.parametrize("how", ["stay", "aio_stay"])
def test_a_signal_leaves_the_with_block(
    cluster: LocalCluster, topic: str, group: str, how: str, number: signal.Signals, codes: set[int]
) -> None:
    code, _ = Program(how, cluster.namesrv, topic, group).end(number)
    assert code in codes
    assert lag(cluster.namesrv, group, topic) == 0
    with rmq.Admin(cluster.namesrv) as admin:
        assert not admin.describe_group(group).members


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGTERM, {143}), (signal.SIGINT, {130, -signal.SIGINT})])
@pytest.mark.parametrize("how", ["send", "aio_send", "send_and_stay"])
def test_a_signal_has_a_producer_send_what_waits(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, how: str, number: signal.Signals, codes: set[int]
) -> None:
    topic = make_topic(queues=2)
    code, _ = Program(how, cluster.namesrv, topic, group).end(number)
    assert code in codes
    with rmq.Admin(cluster.namesrv) as admin:
        assert sum(each.max_offset - each.min_offset for each in admin.topic_stats(topic).values()) == COUNT


def test_a_handler_of_the_application_is_left_to_a_producer_too(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    told: list[int] = []

    def mine(number: int, frame: object) -> None:
        told.append(number)

    async def by_aio() -> None:
        async with aio.Producer(cluster.namesrv, group=group) as producer:
            assert signal.getsignal(signal.SIGTERM) is mine
            os.kill(os.getpid(), signal.SIGTERM)
            await producer.send(topic, b"1")  # type: ignore[call-overload]

    topic = make_topic(queues=1)
    before = signal.signal(signal.SIGTERM, mine)
    try:
        with rmq.Producer(cluster.namesrv, group=group) as producer:
            assert signal.getsignal(signal.SIGTERM) is mine
            os.kill(os.getpid(), signal.SIGTERM)
            producer.send(topic, b"1")
        asyncio.run(by_aio())
        assert told == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_was_acknowledged_is_stored_soon(cluster: LocalCluster, topic: str, group: str) -> None:
    program = Program("iterate", cluster.namesrv, topic, group)
    try:
        end = time.monotonic() + WAIT
        while lag(cluster.namesrv, group, topic):
            assert time.monotonic() < end
            threading.Event().wait(0.02)
    finally:
        code, _ = program.end(signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert lag(cluster.namesrv, group, topic) == 0


def test_an_auto_commit_is_stored_soon(cluster: LocalCluster, topic: str, group: str) -> None:
    options = {"group": group, "start_from": "first", "persist_interval": 3600.0, "auto_commit": True}
    with rmq.PullConsumer(cluster.namesrv, **options) as consumer:  # type: ignore[arg-type]
        consumer.subscribe(topic)
        polled = 0
        while polled < COUNT:
            polled += len(consumer.poll(5.0))
        consumer.poll(0.0)
        end = time.monotonic() + WAIT
        while lag(cluster.namesrv, group, topic):
            assert time.monotonic() < end
            threading.Event().wait(0.02)


def test_handlers_of_the_application_are_its_own(cluster: LocalCluster, topic: str, group: str) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    try:
        with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
            consumer.subscribe(topic)
            for count, message in enumerate(consumer, 1):
                message.ack()
                assert signal.getsignal(signal.SIGTERM) is mine
                if count == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                if count == COUNT:
                    break
        assert told == [signal.SIGTERM]
        assert consumer.stopped_by is None
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_ctrl_c_raises(cluster: LocalCluster, topic: str, group: str) -> None:
    def twice(consumer: rmq.PushConsumer) -> None:
        for message in consumer:
            message.ack()
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
            consumer.subscribe(topic)
            with pytest.raises(KeyboardInterrupt):
                twice(consumer)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_are_for_the_main_thread(cluster: LocalCluster, topic: str, group: str) -> None:
    """In other threads a consumer runs, is iterated and is left without any handler."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    during: list[object] = []

    def work() -> None:
        with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
            consumer.subscribe(topic)
            for message in consumer:
                during.extend(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))
                message.ack()
                break

    async def iterate() -> None:
        async with aio.PushConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
            await consumer.subscribe(topic)
            async for message in consumer:
                during.extend(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))
                message.ack()
                break

    for target in (work, lambda: asyncio.run(iterate())):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join(WAIT)
        assert during == before
        during.clear()
