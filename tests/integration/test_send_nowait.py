"""``send_nowait``: callbacks that use their producer, brokers that fail, what a forgotten producer leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import queue
import socket
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.codes import RequestCode
from rocketcore.local import LocalCluster
from rocketcore.protocol.command import RemotingCommand

pytestmark = pytest.mark.timeout(60)

MakeTopic = Callable[..., str]
WAIT = 30.0


def called_back(producer: rmq.Producer, topic: str, call: Callable[[], Any]) -> Any:
    """Return what a function that a callback calls returns or raises."""
    outcome: list[Any] = []
    done = threading.Event()

    def callback(_: rmq.SendFuture) -> None:
        try:
            outcome.append(call())
        except rmq.RocketError as error:
            outcome.append(error)
        done.set()

    producer.send_nowait(topic, b"x").add_done_callback(callback)
    assert done.wait(WAIT), "the callback did not return"
    return outcome[0]


def test_a_callback_may_use_its_producer(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic, other = make_topic(), make_topic()
    with rmq.Producer(cluster.namesrv, group=group) as producer:
        for call in (producer.flush, producer.close):
            assert isinstance(called_back(producer, topic, call), rmq.ConfigError)
        for new in (lambda: producer.send_nowait(other, b"y"), lambda: producer.send_nowait(f"New-{group}", b"y")):
            assert called_back(producer, topic, new).result(WAIT)
        grouped = called_back(producer, topic, lambda: producer.send_nowait(make_topic(), b"y", message_group="g"))
        assert grouped.result(WAIT)
        assert called_back(producer, topic, lambda: producer.send(other, b"z"))
        producer.flush()


def test_a_callback_may_send_when_the_buffer_is_full(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic()
    with rmq.Producer(cluster.namesrv, group=group, buffer_bytes=4096, batch_bytes=1024) as producer:
        again: list[rmq.SendFuture] = []

        def resend(future: rmq.SendFuture) -> None:
            again.append(producer.send_nowait(topic, b"z" * 300))

        for _ in range(200):
            producer.send_nowait(topic, b"y" * 300).add_done_callback(resend)
        producer.flush()
        producer.flush()
        assert len(again) == 200
        assert all(future.result(WAIT) for future in again)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *arguments],
        timeout=50,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )


def test_the_interpreter_ends_though_callbacks_wait(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    program = """
        import sys
        import rocketcore as rmq

        producer = rmq.Producer(sys.argv[1], group=sys.argv[3])
        for call in (producer.flush, producer.close, lambda: sys.exit(3)):
            producer.send_nowait(sys.argv[2], b"x").add_done_callback(lambda done, call=call: call())
        producer.send_nowait(sys.argv[2], b"x" * 100_000)
    """
    done = run(program, cluster.namesrv, make_topic(), group)
    assert done.returncode == 0
    assert done.stderr.count("callback failed") == 3  # two of one kind: the second is counted at the end
    assert "1 more like: callback failed" in done.stderr


def test_what_waits_at_the_end_of_the_interpreter_is_sent(cluster: LocalCluster, group: str) -> None:
    """Also a new topic, and a body that is compressed elsewhere: the interpreter starts no thread any more then."""
    program = """
        import atexit, sys
        import rocketcore as rmq

        futures = []
        atexit.register(lambda: print([future.exception(10) for future in futures]))  # runs after the producer's end
        producer = rmq.Producer(sys.argv[1], group=sys.argv[2])
        producer.start()
        futures += [producer.send_nowait(f"New-{sys.argv[2]}", b"x" * 100_000) for _ in range(3)]
        futures.append(producer.send_nowait(f"Other-{sys.argv[2]}", b"x"))
    """
    done = run(program, cluster.namesrv, group)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[None, None, None, None]\n")


def test_one_producer_has_one_identity(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic()
    asked: list[tuple[int, str]] = []

    class Hook:
        def before_request(self, address: str, command: RemotingCommand) -> None:
            asked.append((command.code, threading.current_thread().name))

        def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
            pass

    with rmq.Producer(cluster.namesrv, group=group, hooks=[Hook()], heartbeat_interval=0.05) as producer:
        producer.send_nowait(topic, b"x").result(WAIT)
        producer.send(topic, b"x")
    codes = [code for code, _ in asked]
    assert codes.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 1
    assert codes.count(RequestCode.UNREGISTER_CLIENT) == 2  # of two brokers
    assert {name for code, name in asked if name == "producer-nowait"} == {"producer-nowait"}
    assert not [code for code, name in asked if name == "producer-nowait" and code == RequestCode.HEART_BEAT]


def test_what_is_lost_at_the_end_of_the_interpreter_is_told_on_its_standard_error(group: str) -> None:
    program = """
        import sys
        import rocketcore as rmq

        producer = rmq.Producer("127.0.0.1:1", group=sys.argv[1], delivery_timeout=0.3, timeout=0.3)
        for _ in range(3):
            producer.send_nowait("T", b"x")
    """
    done = run(program, group)
    assert done.returncode == 0
    told = done.stderr.splitlines()
    assert [line.split(" topic=")[0].split(" client=")[0] for line in told] == [
        "messages of send_nowait not sent",
        "not closed cleanly",
    ], told
    assert all("3" in line and "127.0.0.1:1" in line for line in told)


def test_a_time_that_is_none_closes_nothing(group: str) -> None:
    producer = rmq.Producer("127.0.0.1:1", group=group)
    with pytest.raises(rmq.ConfigError, match="close: timeout must be a number of seconds, got '3'"):
        producer.close("3")  # type: ignore[arg-type]
    producer.start()
    producer.close()

    async def main() -> None:
        another = aio.Producer("127.0.0.1:1", group=group)
        with pytest.raises(rmq.ConfigError, match="close: timeout"):
            await another.close("3")  # type: ignore[arg-type]
        await another.start()
        await another.close()

    asyncio.run(main())


@pytest.mark.parametrize("given", [{"message_group": "g"}, {"queue": rmq.MessageQueue("T", "a", 0)}], ids=str)
def test_a_queue_is_not_waited_for_where_no_name_server_answers(given: dict[str, Any], group: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        namesrv = f"127.0.0.1:{silent.getsockname()[1]}"
        settings: dict[str, Any] = {"group": group, "timeout": 5.0, "delivery_timeout": 5.0}
        producer = rmq.Producer(namesrv, **settings)
        future = producer.send_nowait("T", b"x", **given)
        assert not future.done()
        with pytest.raises(rmq.SendsFailed):
            producer.close(0.0)
        assert isinstance(future.exception(), rmq.ClientClosed)

        async def main() -> None:
            another = aio.Producer(namesrv, **settings)
            async with asyncio.timeout(2.0):
                future = await another.send_nowait("T", b"x", **given)
            with pytest.raises(rmq.SendsFailed):
                await another.close(0.0)
            assert isinstance(future.exception(), rmq.ClientClosed)

        asyncio.run(main())


def test_a_broker_that_is_away_loses_nothing(make_topic: MakeTopic, group: str) -> None:
    with LocalCluster() as own, rmq.Producer(own.namesrv, group=group) as producer:
        producer.send("T", "first")
        own.stop_broker(0)
        futures = [producer.send_nowait("T", f"{i}") for i in range(100)]
        assert not any(future.done() for future in futures)
        own.start_broker(0)
        producer.flush()
        assert all(future.result() for future in futures)


def test_what_is_not_sent_is_told(make_topic: MakeTopic, group: str) -> None:
    with LocalCluster() as own:
        producer = rmq.Producer(own.namesrv, group=group, delivery_timeout=0.5, timeout=0.5)
        producer.send("T", "first")
        own.stop_broker(0)
        with pytest.raises(rmq.TransportError, match=r"'T': \d+ attempts?: broker-a \(127\.0\.0\.1:\d+\) "):
            producer.send("T", "x")
        for _ in range(3):
            producer.send_nowait("T", "x")
        with pytest.raises(rmq.SendsFailed, match=r"3 messages .* 'T'.*broker-a \(127\.0\.0\.1:\d+\)"):
            producer.flush()
        producer.send_nowait("T", "x")
        with pytest.raises(rmq.SendsFailed):
            producer.close()
        producer.close()
        with (
            contextlib.suppress(ZeroDivisionError),
            rmq.Producer(own.namesrv, group=group, delivery_timeout=0.5) as another,
        ):
            future = another.send_nowait("T", "x")
            raise ZeroDivisionError  # and not SendsFailed: what ended the block says more
        assert future.exception() is not None


def test_asyncio_tells_what_is_not_sent(group: str) -> None:
    async def main() -> None:
        producer = aio.Producer("127.0.0.1:1", group=group, delivery_timeout=1.0, timeout=0.3)
        futures = [await producer.send_nowait("T", "x") for _ in range(3)]
        with pytest.raises(rmq.TransportError, match=r"topic 'T'.*no name server answers \(127\.0\.0\.1:1\)"):
            await futures[0]
        with pytest.raises(rmq.SendsFailed, match="2 messages"):
            await producer.flush()
        await producer.close(timeout=1.0)

    asyncio.run(main())


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("producer")}


def test_a_forgotten_producer_is_complained_of_sends_and_ends(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    producer = rmq.Producer(cluster.namesrv, group=group)
    producer.send(make_topic(), b"x")
    future = producer.send_nowait(make_topic(), b"x")
    assert threads() >= {"producer-housekeeping", "producer-nowait"}
    name = producer.client_id
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del producer
        gc.collect()
    assert [str(each.message) for each in caught if f"unclosed producer {name}" in str(each.message)]
    assert future.result(WAIT)
    for thread in threading.enumerate():
        if thread.name.startswith("close producer"):
            thread.join(WAIT)
    assert not threads()


def test_who_closes_or_never_starts_is_not_complained_of(group: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rmq.Producer("127.0.0.1:1", group=group)
        with rmq.Producer("127.0.0.1:1", group=group):
            pass
        gc.collect()


def test_a_forgotten_asyncio_producer_ends(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic()

    async def main() -> None:
        before = asyncio.all_tasks()
        producer = aio.Producer(cluster.namesrv, group=group)
        await producer.send(topic, b"x")
        await (await producer.send_nowait(topic, b"x"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del producer
            gc.collect()
        assert [str(each.message) for each in caught if group in str(each.message)]
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - before
        if left:
            await asyncio.wait(left, timeout=WAIT)
        assert asyncio.all_tasks() == before

    asyncio.run(main())


def test_producers_share_one_loop_and_one_sends_first_in_anothers_callback(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic()
    before = {thread for thread in threading.enumerate() if thread.name == "producer-nowait"}
    first, *others = [rmq.Producer(cluster.namesrv, group=group) for _ in range(5)]
    sent: queue.SimpleQueue[rmq.SendFuture] = queue.SimpleQueue()

    def send_others(_: object) -> None:
        for other in others:
            sent.put(other.send_nowait(topic, b"x"))

    first.send_nowait(topic, b"x").add_done_callback(send_others)
    for _ in others:
        assert sent.get(timeout=WAIT).result(WAIT)
    shared = {thread for thread in threading.enumerate() if thread.name == "producer-nowait"} - before
    assert len(shared) <= 1  # none: a producer of another test has it
    first.close()
    assert others[0].send_nowait(topic, b"x").result(WAIT)
    for other in others:
        other.close()
    assert not shared & set(threading.enumerate())


@pytest.mark.parametrize("call", ["flush", "close"])
def test_a_callback_that_does_not_return_is_named_and_stops_no_other_producer(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketcore.client.nowait.STANDS_SECONDS", 0.3)
    topic, hangs, free = make_topic(), threading.Event(), threading.Event()

    def never_returns(_: rmq.SendFuture) -> None:
        hangs.set()
        free.wait()

    hung = rmq.Producer(cluster.namesrv, group=group, delivery_timeout=1.0)
    beside = rmq.Producer(cluster.namesrv, group=group, delivery_timeout=1.0)
    try:
        beside.send_nowait(topic, b"x").result(WAIT)
        hung.send_nowait(topic, b"x").add_done_callback(never_returns)
        assert hangs.wait(WAIT)
        beside.send_nowait(topic, b"x")
        with pytest.raises(rmq.RequestTimeout, match=r"never_returns\(\) at .*test_send_nowait.py:\d+"):
            getattr(beside, call)()
        with rmq.Producer(cluster.namesrv, group=group) as other:
            assert other.send_nowait(topic, b"x").result(WAIT).offset >= 0
    finally:
        free.set()
        for producer in (hung, beside):
            producer.close()
    del hung, beside, producer
    gc.collect()  # a connection that only the collector closes fails this test, not a later one


def test_futures_behind_a_callback_that_does_not_return_end_with_their_producer(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketcore.client.nowait.STANDS_SECONDS", 0.3)
    topic, hangs, free = make_topic(), threading.Event(), threading.Event()
    told: queue.Queue[str] = queue.Queue()
    waiting, outcomes = threading.Semaphore(0), queue.Queue[BaseException | None]()

    def never_returns(_: rmq.SendFuture) -> None:
        hangs.set()
        free.wait()

    def waits(future: rmq.SendFuture) -> None:
        waiting.release()
        outcomes.put(future.exception(WAIT))

    async def awaits(future: rmq.SendFuture) -> None:
        waiting.release()
        try:
            await future
        except rmq.RocketError as error:
            outcomes.put(error)

    producer = rmq.Producer(cluster.namesrv, group=group, delivery_timeout=1.0)
    try:
        producer.send_nowait(topic, b"x").add_done_callback(never_returns)
        assert hangs.wait(WAIT)
        loops = [thread for thread in threading.enumerate() if thread.name == "producer-nowait"]
        futures = [producer.send_nowait(topic, f"{number}".encode()) for number in range(5)]
        threads = [threading.Thread(target=waits, args=(futures[0],)),
                   threading.Thread(target=asyncio.run, args=(awaits(futures[1]),))]  # fmt: skip
        for thread in threads:
            thread.start()
        for _ in threads:
            assert waiting.acquire(timeout=WAIT)
        futures[2].add_done_callback(lambda _: free.wait())
        futures[2].add_done_callback(lambda _: told.put("after the one that hangs, too"))
        passed_on = futures[3].to_future()
        with pytest.raises(rmq.RequestTimeout, match="never_returns"):
            producer.close()
        assert all(future.done() for future in futures)
        for thread in threads:
            thread.join(WAIT)
        errors = [outcomes.get(timeout=WAIT) for _ in threads]
        errors += [passed_on.exception(WAIT), *(future.exception(0) for future in futures)]
        assert all(isinstance(error, rmq.ClientClosed) for error in errors), errors
        assert "did not return; the message may be stored or not: never_returns() at" in str(errors[-1])
    finally:
        free.set()
        producer.close()
    assert told.get(timeout=WAIT)
    for loop in loops:
        loop.join(WAIT)
    del producer
    gc.collect()  # a connection that only the collector closes fails this test, not a later one


def test_what_ended_a_block_is_raised_though_a_callback_does_not_return(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketcore.client.nowait.STANDS_SECONDS", 0.3)
    free = threading.Event()

    def program() -> None:
        with rmq.Producer(cluster.namesrv, group=group, delivery_timeout=0.5) as producer:
            producer.send_nowait(make_topic(), b"x").add_done_callback(lambda _: free.wait())
            raise KeyboardInterrupt("mine")

    try:
        with pytest.raises(KeyboardInterrupt, match="mine") as ended:
            program()
    finally:
        free.set()
    assert "a callback of send_nowait does not return" in ended.value.__notes__[0]


def test_the_interpreter_ends_though_a_callback_does_not_return(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    program = """
        import sys, threading
        import rocketcore as rmq
        from rocketcore.client import nowait
        nowait.STANDS_SECONDS = 0.3
        hangs = threading.Event()
        def never_returns(future):
            hangs.set()
            threading.Event().wait()
        producers = [rmq.Producer(sys.argv[1], group=sys.argv[3], delivery_timeout=1.0) for _ in range(3)]
        for producer in producers:
            producer.send_nowait(sys.argv[2], b"x").result(30)
        producers[0].send_nowait(sys.argv[2], b"x").add_done_callback(never_returns)
        hangs.wait()
    """
    ended = run(program, cluster.namesrv, make_topic(), group)
    assert ended.returncode == 0
    assert ended.stderr.count("never_returns() at") == 3
