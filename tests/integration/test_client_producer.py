"""The producers against our servers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(60)

MakeTopic = Callable[..., str]


def drain(namesrv: str, topic: str, expect: int) -> list[rmq.ReceivedMessage]:
    received: list[rmq.ReceivedMessage] = []
    with rmq.PullConsumer(namesrv, group=f"drain-{topic}", start_from="first") as consumer:
        consumer.subscribe(topic)
        while len(received) < expect and (batch := consumer.poll(timeout=10.0)):
            received += batch
    return received


def test_every_way_to_send_arrives(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic()
    with rmq.Producer(cluster.namesrv, group=group) as producer:
        result = producer.send(topic, b"\x00\xff", tag="a", keys=["k1", "k2"], properties={"colour": "blau"})
        producer.send(topic, b"large " * 2000)
        producer.send_batch([rmq.Message(topic, b"batch %d" % i) for i in range(5)])
        futures = [producer.send_nowait(rmq.Message(topic, b"nowait %d" % i)) for i in range(300)]
        producer.send_oneway(topic, b"one way")
        producer.flush()
        assert all(future.done() and future.result() for future in futures)
    expected = [b"\x00\xff", b"large " * 2000, b"one way"]
    expected += [b"batch %d" % i for i in range(5)] + [b"nowait %d" % i for i in range(300)]
    received = drain(cluster.namesrv, topic, len(expected))
    assert sorted(message.body for message in received) == sorted(expected)
    by_id = {message.msg_id: message for message in received}
    first = by_id[result.msg_id]
    assert (first.tag, first.keys, first.properties["colour"]) == ("a", ("k1", "k2"), "blau")
    assert (first.queue, first.offset, first.offset_msg_id) == (result.queue, result.offset, result.offset_msg_id)
    for future in futures:
        assert by_id[future.msg_id].offset == future.result().offset
        assert by_id[future.msg_id].offset_msg_id == future.result().offset_msg_id


def test_a_message_group_arrives_in_order(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(queues=4)
    with rmq.Producer(cluster.namesrv, group=group, batch_count=7) as producer:
        for i in range(20):
            producer.send(topic, f"send {i:03}", message_group="order-42")
        for i in range(200):
            producer.send_nowait(rmq.Message(topic, f"nowait {i:03}", message_group="order-43"))
    received = drain(cluster.namesrv, topic, 220)
    for name, number in (("order-42", 20), ("order-43", 200)):
        texts = [message.text() for message in received if message.message_group == name]
        assert len(texts) == number
        assert texts == sorted(texts)
    assert len({message.queue for message in received if message.message_group == "order-43"}) == 1


def test_a_new_topic_is_created_by_the_first_send(cluster: LocalCluster, group: str) -> None:
    topic = f"Auto-{group}"
    with rmq.Producer(cluster.namesrv, group=group) as producer:
        assert producer.send(topic, "hello").status is rmq.SendStatus.SEND_OK
    assert [message.text() for message in drain(cluster.namesrv, topic, 1)] == ["hello"]


def test_threads_share_a_producer(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic()
    results: list[rmq.SendResult] = []
    with rmq.Producer(cluster.namesrv, group=group) as producer:

        def work(number: int) -> None:
            results.extend(producer.send(topic, f"{number}-{i}") for i in range(50))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({result.msg_id for result in results}) == 400
    assert len(drain(cluster.namesrv, topic, 400)) == 400


def test_a_thousand_sends_in_flight(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic()

    async def main() -> list[rmq.SendResult]:
        async with aio.Producer(cluster.namesrv, group=group, timeout=30.0) as producer, asyncio.timeout(30):
            return await asyncio.gather(*(producer.send(topic, f"order {i}", keys=str(i)) for i in range(1000)))

    results = asyncio.run(main())
    assert len({(result.queue, result.offset) for result in results}) == 1000


def test_asyncio_send_nowait(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic()

    async def main() -> None:
        async with aio.Producer(cluster.namesrv, group=group, buffer_bytes=200_000) as producer, asyncio.timeout(30):
            futures = [await producer.send_nowait(rmq.Message(topic, f"m{i}" * 20)) for i in range(3000)]
            assert (await futures[0]).status is rmq.SendStatus.SEND_OK
            await producer.flush()
            assert all(future.done() for future in futures)

    asyncio.run(main())
    assert len(drain(cluster.namesrv, topic, 3000)) == 3000


def test_closed_clients_refuse(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    producer = rmq.Producer(cluster.namesrv, group=group)
    producer.send(make_topic(), "x")
    producer.close()
    producer.close()
    with pytest.raises(rmq.ClientClosed):
        producer.send("T", "x")
    with pytest.raises(rmq.ClientClosed):
        producer.send_nowait(rmq.Message("T", "x"))
    with pytest.raises(rmq.ClientClosed), producer:
        pass


def test_no_name_server_is_an_error_within_the_timeout(group: str) -> None:
    with (
        rmq.Producer("127.0.0.1:1", group=group, timeout=1.0) as producer,
        pytest.raises(rmq.TransportError, match=r"127\.0\.0\.1:1"),
    ):
        producer.send("T", "x")


def test_an_advertised_address_can_be_mapped(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic()
    wrong = dict.fromkeys(cluster.broker_addresses, "127.0.0.1:1")
    with (
        rmq.Producer(cluster.namesrv, group=group, broker_address_map=wrong, timeout=1.0) as producer,
        pytest.raises(rmq.TransportError),
    ):
        producer.send(topic, "x")


def test_a_broker_that_restarts_is_found_again(make_topic: MakeTopic, group: str) -> None:
    with LocalCluster(brokers=2) as own, rmq.Producer(own.namesrv, group=group, timeout=5.0) as producer:
        first = {producer.send("T", f"{i}").queue.broker for i in range(16)}
        assert first <= {"broker-a", "broker-b"}
        own.stop_broker(0)
        assert {producer.send("T", f"{i}").queue.broker for i in range(16)} <= {"broker-b"}


def test_what_can_work_on_in_a_forked_child_does(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic()
    program = """
        import os, sys
        import rocketcore as rmq

        producer = rmq.Producer(sys.argv[1], group=sys.argv[3])
        producer.send(sys.argv[2], "parent before")
        producer.send_nowait(rmq.Message(sys.argv[2], "parent nowait")).result(10)
        consumer = rmq.PushConsumer(sys.argv[1], group=sys.argv[3])
        consumer.subscribe(sys.argv[2], tag="none")
        consumer.start()
        declared = rmq.PushConsumer(sys.argv[1], group="D-" + sys.argv[3], start_from="first")
        seen = []

        @declared.subscribe(sys.argv[2])
        def handle(message):
            seen.append(message.text())
            if len(seen) >= 5:
                declared.close()

        pid = os.fork()
        if pid == 0:
            producer.send(sys.argv[2], "child")
            producer.send_nowait(rmq.Message(sys.argv[2], "child nowait")).result(10)
            try:
                consumer.pause()
            except rmq.ForkedClient:
                producer.send(sys.argv[2], "child refused")
            declared.run()
            assert len(set(seen)) == 5
            producer.close()
            consumer.close()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        producer.send(sys.argv[2], "parent after")
        consumer.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), cluster.namesrv, topic, group],
        timeout=40,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert (done.returncode, done.stderr) == (0, "")
    texts = ["parent before", "parent nowait", "child", "child nowait", "child refused", "parent after"]
    assert sorted(message.text() for message in drain(cluster.namesrv, topic, 6)) == sorted(texts)


def test_a_forgotten_client_is_closed_at_exit(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic()
    program = """
        import sys
        import rocketcore as rmq

        producer = rmq.Producer(sys.argv[1], group=sys.argv[3], linger=60.0)
        for i in range(10):
            producer.send_nowait(rmq.Message(sys.argv[2], f"{i}"))
        consumer = rmq.PushConsumer(sys.argv[1], group=sys.argv[3], start_from="first")
        consumer.subscribe(sys.argv[2], handler=lambda message: None)
        consumer.start()
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), cluster.namesrv, topic, group],
        timeout=40,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(drain(cluster.namesrv, topic, 10)) == 10


def test_arrow_rows_are_messages(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    pa = pytest.importorskip("pyarrow")
    topic = make_topic()
    table = pa.table(
        {"id": [f"k{i}" for i in range(500)], "kind": ["a", "b"] * 250, "payload": [b"x%d" % i for i in range(500)]}
    )

    async def main() -> int:
        async with aio.Producer(cluster.namesrv, group=group) as producer:
            return (await producer.send_arrow(topic, table, body="payload", keys="id", tag="kind")).rows

    with rmq.Producer(cluster.namesrv, group=group) as producer:
        assert producer.send_arrow(topic, table, body="payload", keys="id", tag="kind").rows == 500
    assert asyncio.run(main()) == 500
    read = rmq.read_arrow(cluster.namesrv, topic=topic, start="first", end="last")
    assert sorted(read["body"].to_pylist()) == sorted(table["payload"].to_pylist() * 2)
    assert set(read["tags"].to_pylist()) == {"a", "b"}


def test_an_asyncio_producer_without_traces_has_no_threads(
    cluster: LocalCluster, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic()

    async def main() -> None:
        before = set(threading.enumerate())
        async with aio.Producer(cluster.namesrv, group=group) as producer:
            await producer.send(topic, b"x")
        assert set(threading.enumerate()) <= before

    asyncio.run(main())
