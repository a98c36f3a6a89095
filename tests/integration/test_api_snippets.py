"""The examples of the public interface, each as it is written there, against a cluster of ours, some on Apache's too.

Only the name server's address is another one, a hundred thousand sends are ten thousand, and what an example leaves to
its reader (``archive``) is given to it.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.local import LocalCluster
from tests.fixtures.waiting import until

pytestmark = pytest.mark.timeout(240)

APACHE = [pytest.param(version, marks=pytest.mark.interop) for version in ("4.9.7", "5.5.0")]


@pytest.fixture(scope="module")
def our_shop() -> Iterator[str]:
    """A fresh cluster whose topics have four queues, as every example expects to find it."""
    with LocalCluster(properties={"messageDelayLevel": "1s 1s 1s"}) as running:
        open_shop(running.namesrv)
        yield running.namesrv


@pytest.fixture(scope="module", params=["ours", *APACHE])
def shop(request: pytest.FixtureRequest) -> str:
    """The same on our servers and on Apache's."""
    if request.param == "ours":
        return str(request.getfixturevalue("our_shop"))
    namesrv: str = request.getfixturevalue("apache_clusters")(request.param).namesrv
    open_shop(namesrv)
    return namesrv


def open_shop(namesrv: str) -> None:
    with rmq.Admin(namesrv) as admin:
        for topic in ("orders", "metrics", "quotes", "order-events", "reminders"):
            admin.create_topic(topic, queues=4)


def source(text: str, namesrv: str) -> str:
    return textwrap.dedent(text).replace("127.0.0.1:9876", namesrv).replace("100_000", "10_000")


def ids(namesrv: str, topic: str) -> set[str]:
    """Return the ids of a topic's messages: one that was sent again, as on a busy machine, is there twice with one."""
    return set(rmq.read_arrow(namesrv, topic=topic, columns=["msgId"])["msgId"].to_pylist())


class Watched(io.StringIO):
    """Standard output that calls a function when it has so many lines."""

    def __init__(self, lines: int, then: Callable[[], object]) -> None:
        super().__init__()
        self._left = lines
        self._then = then

    def write(self, text: str) -> int:
        self._left -= text.count("\n")
        if "\n" in text and self._left <= 0:
            self._then()
        return super().write(text)


def close_later(names: dict[str, Any]) -> Callable[[], object]:
    """Close the example's consumer from another thread, as an application would that wants to end."""
    return lambda: threading.Timer(0.05, lambda: names["consumer"].close()).start()


def run(text: str, namesrv: str, lines: int = 1_000_000, **names: Any) -> list[str]:
    """Run an example; close its consumer after so many lines of output. Return the lines."""
    output = Watched(lines, close_later(names))
    with redirect_stdout(output):
        exec(compile(source(text, namesrv), "example", "exec"), names)
    return output.getvalue().splitlines()


def test_1_send_and_consume(shop: str) -> None:
    lines = run(
        """
        import rocketcore as rmq

        with rmq.Producer("127.0.0.1:9876", group="shop") as producer:
            result = producer.send("orders", b'{"id": 1}', tag="created", keys="order-1")
            print(result.status, result.msg_id, result.queue, result.offset)

        with rmq.PushConsumer("127.0.0.1:9876", group="billing", start_from="first") as consumer:
            consumer.subscribe("orders", tag="created || paid")
            for message in consumer:              # ends on close() or Ctrl-C
                print(message.tag, message.keys, message.json())
                message.ack()                     # not acked: redelivered
        """,
        shop,
        lines=2,
    )
    assert lines[0].startswith("SendStatus.SEND_OK ")
    assert lines[1] == "created ('order-1',) {'id': 1}"


def test_2_handlers(shop: str) -> None:
    names: dict[str, Any] = {}
    text = """
        import rocketcore as rmq

        consumer = rmq.PushConsumer("127.0.0.1:9876", group="billing", threads=16)

        @consumer.subscribe("orders", tag="created || paid")
        def on_order(message: rmq.ReceivedMessage) -> None:   # return: success
            if not message.body:
                raise rmq.RetryLater(delay=60)                # exception: retried, after 16 times to the DLQ
            handled(message)

        consumer.run()                                        # SIGINT/SIGTERM: drain, ack, leave the group
        """
    handled: list[rmq.ReceivedMessage] = []
    names["handled"] = handled.append
    runner = threading.Thread(target=lambda: exec(source(text, shop), names))
    runner.start()
    with rmq.Producer(shop, group="shop") as producer:
        producer.send("orders", b'{"id": 2}', tag="paid", keys="order-2")
        producer.send("orders", b'{"id": 3}', tag="cancelled")
    deadline = time.monotonic() + 20
    while not handled and time.monotonic() < deadline:
        time.sleep(0.01)
    names["consumer"].close()
    runner.join(10)
    assert not runner.is_alive()
    assert {message.tag for message in handled} == {"paid"}


def test_3_asyncio(shop: str) -> None:
    text = """
        from rocketcore import aio

        async with aio.Producer("127.0.0.1:9876", group="shop") as producer:
            async with asyncio.TaskGroup() as tasks:          # a thousand sends in flight
                for i in range(1000):
                    tasks.create_task(producer.send("orders", f"order {i}", keys=str(i)))

        async with aio.PushConsumer("127.0.0.1:9876", group="billing-3") as consumer:
            await consumer.subscribe("orders")
            async for message in consumer:
                async with message.process():                 # ack on exit, retry on exception
                    print(message.text())
                    seen(consumer, message)
        """
    wanted, texts = {f"order {i}" for i in range(1000)}, set[str]()
    ending: list[asyncio.Task[None]] = []

    def seen(consumer: Any, message: rmq.ReceivedMessage) -> None:
        texts.add(message.text())
        if not ending and wanted <= texts:
            ending.append(asyncio.get_running_loop().create_task(consumer.close()))

    names: dict[str, Any] = {"asyncio": asyncio, "seen": seen}
    body = textwrap.indent(source(text, shop), "    ")
    exec(f"async def main():\n{body}", names)
    with redirect_stdout(io.StringIO()):
        asyncio.run(asyncio.wait_for(names["main"](), 40))
    assert wanted <= texts


def test_4_throughput(shop: str) -> None:
    names: dict[str, Any] = {}
    text = """
        import rocketcore as rmq

        with rmq.Producer("127.0.0.1:9876", group="shop") as producer:
            futures = [producer.send_nowait(rmq.Message("metrics", f"cpu {i}")) for i in range(100_000)]
            producer.flush()                                  # auto-batched by queue; bounded memory, back-pressure
            producer.send_batch([rmq.Message("metrics", f"mem {i}") for i in range(500)])
            producer.send_oneway(rmq.Message("metrics", b"fire and forget"))
        """
    exec(source(text, shop), names)
    futures: list[rmq.SendFuture] = names["futures"]
    assert all(future.done() and future.result().status is rmq.SendStatus.SEND_OK for future in futures)
    places = {(result.queue, result.offset) for result in (future.result() for future in futures)}
    assert len(places) == 10_000
    until(lambda: len(ids(shop, "metrics")) == 10_501, 30)  # nobody answers for the last one
    assert {future.result().msg_id for future in futures} < ids(shop, "metrics")


def test_5_ordered_and_delayed(shop: str) -> None:
    text = """
        with rmq.Producer("127.0.0.1:9876", group="shop") as producer:
            for step in ("created", "paid", "shipped"):
                producer.send("order-events", step, message_group="order-42")      # one queue, in order
            producer.send("reminders", "soon", delay_level=3)                       # 4.9 and 5.x
        """
    exec(source(text, shop), {"rmq": rmq})
    read: dict[str, list[rmq.ReceivedMessage]] = {"order-events": [], "reminders": []}
    with rmq.PullConsumer(shop, group="audit-5", start_from="first") as consumer:
        for topic in read:
            consumer.subscribe(topic)
        while sum(map(len, read.values())) < 4 and (messages := consumer.poll(timeout=30.0)):
            for message in messages:
                read[message.topic].append(message)
    assert [message.text() for message in read["order-events"]] == ["created", "paid", "shipped"]
    assert len({message.queue for message in read["order-events"]}) == 1
    assert [message.text() for message in read["reminders"]] == ["soon"]


def test_5_request_and_reply(shop: str) -> None:
    names: dict[str, Any] = {"rmq": rmq}
    exec(
        compile(
            source(
                """
        consumer = rmq.PushConsumer("127.0.0.1:9876", group="prices", start_from="first")

        @consumer.subscribe("quotes")
        def on_quote(message: rmq.ReceivedMessage) -> None:
            message.reply(f"{message.text()}: 42.00")

        with consumer, rmq.Producer("127.0.0.1:9876", group="shop") as producer:
            answer = producer.request("quotes", b"AAPL", timeout=10.0)
        """,
                shop,
            ),
            "example",
            "exec",
        ),
        names,
    )
    assert names["answer"].text() == "AAPL: 42.00"


def test_6_transactions(shop: str) -> None:
    program = source(
        """
        def check(half: rmq.ReceivedMessage) -> rmq.TransactionState:   # asked when the broker did not hear the outcome
            return rmq.TransactionState.COMMIT if order_exists(half.keys[0]) else rmq.TransactionState.ROLLBACK

        with rmq.Producer("127.0.0.1:9876", group="shop-tx", checker=check) as producer:
            with producer.transaction(rmq.Message("orders", b"...", keys="o-1")):
                insert_order("o-1")              # normal exit commits, an exception rolls back
        """,
        shop,
    )

    def insert_order(key: str) -> None:
        if orders:
            raise ValueError("there is one already")
        orders.append(key)

    orders: list[str] = []
    names = {"rmq": rmq, "insert_order": insert_order, "order_exists": orders.__contains__}
    exec(program, names)
    with pytest.raises(ValueError, match="one already"):
        exec(program, names)
    with rmq.PullConsumer(shop, group="audit-tx", start_from="first") as consumer:
        consumer.subscribe("orders")
        read: list[rmq.ReceivedMessage] = []
        while messages := consumer.poll(timeout=1.0 if read else 10.0):  # the other examples send there too
            read += messages
    assert [message.body for message in read if message.properties.get("TRAN_MSG")] == [b"..."]


def test_11_pull_seek_commit(our_shop: str) -> None:
    archived: list[rmq.ReceivedMessage] = []
    with rmq.Producer(our_shop, group="shop") as producer:
        for i in range(50):
            producer.send("orders", f"audit {i}")
    names: dict[str, Any] = {"rmq": rmq, "MessageQueue": rmq.MessageQueue, "archive": archived.extend}
    text = """
        with rmq.PullConsumer("127.0.0.1:9876", group="audit", start_from="first") as consumer:
            consumer.subscribe("orders")  # or consumer.assign([MessageQueue("orders", "broker-a", 0)])
            while messages := consumer.poll(timeout=1.0):     # list[ReceivedMessage], at most max_messages=
                archive(messages)
                consumer.commit()
            consumer.seek(MessageQueue("orders", "broker-a", 0), 0)   # also a datetime, "first", "last"
        """
    exec(source(text, our_shop), names)
    assert {f"audit {i}" for i in range(50)} <= {message.text() for message in archived}
    assert len({(message.queue, message.offset) for message in archived}) == len(archived)
    queue = rmq.MessageQueue("orders", "broker-a", 0)
    with rmq.PullConsumer(our_shop, group="audit") as consumer:
        assert consumer.committed(queue) == 1 + max(message.offset for message in archived if message.queue == queue)


def test_11_receive_and_acknowledge(our_shop: str) -> None:
    ran: list[rmq.ReceivedMessage] = []
    with rmq.Admin(our_shop) as admin:
        admin.create_topic("work", queues=2)
    with rmq.Producer(our_shop, group="shop") as producer:
        producer.send("work", "big job", tag="big")
        producer.send("work", "small job", tag="small")
    text = """
        with rmq.SimpleConsumer("127.0.0.1:9876", group="jobs", invisible=30.0) as consumer:   # POP, 5.x and our broker
            consumer.subscribe("work", tag="small")
            for message in consumer.receive(max_messages=16, timeout=10.0):
                run(message)
                message.ack()                                 # or message.change_invisible(60.0)
        """
    exec(source(text, our_shop), {"rmq": rmq, "run": ran.append})
    assert [message.text() for message in ran] == ["small job"]
    with rmq.SimpleConsumer(our_shop, group="jobs") as consumer:
        consumer.subscribe("work", tag="small")
        assert consumer.receive(timeout=0.5) == []


def test_12_json_and_batches(our_shop: str) -> None:
    outbox_rows = [rmq.Message(topic, f"row {i}") for i in range(3) for topic in ("orders", "metrics")]
    names: dict[str, Any] = {"rmq": rmq, "outbox_rows": outbox_rows}
    text = """
        result = producer.send("orders", json={"id": 2}, keys=2)         # json= encodes and sets nothing else; keys takes what str() can
        batches = producer.send_batch(outbox_rows)                       # none is fine; several topics leave as several batches
        batches.msg_ids                                                  # a tuple; msg_id of a batch is its first
        none = producer.send_batch([])
        """  # noqa: E501 (as it is written there)
    with rmq.Producer(our_shop, group="shop") as names["producer"]:
        exec(source(text, our_shop), names)
    assert names["result"].msg_ids == (names["result"].msg_id,)
    assert (len(names["batches"]), len(names["batches"].msg_ids)) == (2, 6)
    assert names["batches"].msg_id == names["batches"].msg_ids[0]
    assert list(names["none"]) == []
    with rmq.Admin(our_shop) as admin:
        [found] = [
            message for message in admin.query_messages("orders", "2") if message.msg_id == names["result"].msg_id
        ]
    assert (found.json(), found.keys) == ({"id": 2}, ("2",))


def test_12_many_at_a_time(our_shop: str) -> None:
    inserted: list[Any] = []
    text = """
        @consumer.subscribe_batch("metrics-json", max_messages=1000, max_wait=0.2)
        def on_metrics(messages: Sequence[rmq.ReceivedMessage]) -> None:  # returns: all done; raises: all again; RetryLater(of=[…]): those
            insert_many([m.json() for m in messages])
        """  # noqa: E501 (as it is written there)
    with rmq.Admin(our_shop) as admin:
        admin.create_topic("metrics-json", queues=4)
    with rmq.Producer(our_shop, group="shop") as producer:
        producer.send_batch([rmq.Message("metrics-json", json={"cpu": i}) for i in range(100)])
    consumer = rmq.PushConsumer(our_shop, group="metrics", start_from="first")
    names = {"rmq": rmq, "Sequence": Sequence, "consumer": consumer, "insert_many": inserted.extend}
    exec(source(text, our_shop), names)
    with consumer:
        deadline = time.monotonic() + 20
        while len(inserted) < 100 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert sorted(row["cpu"] for row in inserted) == list(range(100))


def test_13_what_a_member_has(our_shop: str) -> None:
    with rmq.Producer(our_shop, group="shop") as producer:
        queue = producer.send("quotes", b"AAPL").queue
    text = """
        consumer = rmq.PullConsumer(..., on_assign=started, on_revoke=lambda queues: consumer.commit())   # before a queue goes
        consumer.subscribe("quotes")
        consumer.wait_ready()
        told = consumer.assignment(), consumer.paused(), consumer.lag(), consumer.watermarks(queue), consumer.committed(queue)   # None: never committed
        consumer.pause()            # all, also what comes; resume()
        paused = consumer.paused()
        consumer.resume()
        polled = consumer.poll(timeout=10.0, max_messages=1)
        consumer.drain(timeout=30)  # takes nothing new, finishes what it has, commits, leaves
        """.replace("...,", f"{our_shop!r}, group='members', start_from='first',")  # noqa: E501 (as it is written there)
    started: list[list[rmq.MessageQueue]] = []
    names: dict[str, Any] = {"rmq": rmq, "queue": queue, "started": started.append}
    exec(source(text, our_shop), names)
    assignment, paused, lag, watermarks, committed = names["told"]
    assert started == [assignment] == [names["paused"]] == [sorted(lag)]
    assert (paused, committed, watermarks.first) == ([], None, 0)
    [message] = names["polled"]
    with rmq.Admin(our_shop) as admin:
        assert admin.consumer_offset("members", message.queue) == message.offset + 1

    iterated = """
        async def iterate():
            async with aio.PullConsumer("127.0.0.1:9876", group="iterating", start_from="first") as pull_consumer:
                await pull_consumer.subscribe("quotes")
                async for message in pull_consumer: return message.text()
        """
    exec(source(iterated, our_shop), names := {"aio": aio})
    assert asyncio.run(asyncio.wait_for(names["iterate"](), 20)) == "AAPL"


def test_14_topics(our_shop: str) -> None:
    text = """
        admin.create_topic("stock", queues=4)  # TopicExists if it is there; exist_ok=True changes nothing
        before, after = admin.update_topic("stock", queues=8)  # only what is named; returns before and after
        """
    with rmq.Admin(our_shop) as admin:
        names: dict[str, Any] = {"admin": admin}
        exec(source(text, our_shop), names)
        assert {name: config.read_queue_nums for name, config in names["before"].items()} == {"broker-a": 4}
        assert {name: config.write_queue_nums for name, config in names["after"].items()} == {"broker-a": 8}
        with pytest.raises(rmq.TopicExists):
            exec(source(text, our_shop), names)
        assert not admin.create_topic("stock", queues=4, exist_ok=True).created


def test_7_everything_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = """
        from rocketcore import LocalCluster

        with LocalCluster(store="data") as cluster:           # NameServer and broker, free ports; store=None: a temporary folder
            with rmq.Admin(cluster.namesrv) as admin:
                admin.create_topic("orders", queues=4)
            with rmq.Producer(cluster.namesrv, group="shop") as producer:
                producer.send("orders", "hello")
        """  # noqa: E501 (as it is written there)
    exec(source(text, ""), {"rmq": rmq})
    with LocalCluster(store="data") as cluster, rmq.Admin(cluster.namesrv) as admin:
        assert sum(admin.max_offset(rmq.MessageQueue("orders", "broker-a", i)) for i in range(4)) == 1


def test_9_columns(our_shop: str) -> None:
    import pyarrow as pa

    with rmq.Admin(our_shop) as admin:
        before = sum(admin.max_offset(rmq.MessageQueue("orders", "broker-a", i)) for i in range(4))
    names: dict[str, Any] = {
        "rmq": rmq,
        "record_batch": pa.RecordBatch.from_pydict({"payload": [b"x", b"y"], "id": ["1", "2"], "kind": ["a", "b"]}),
    }
    text = """
        producer.send_arrow("orders", record_batch, body="payload", keys="id", tag="kind")    # no Python object per row
        table = rmq.read_arrow("127.0.0.1:9876", topic="orders", start="first", end="last")   # pyarrow.Table, one row a message
        """  # noqa: E501 (as it is written there)
    with rmq.Producer(our_shop, group="shop") as names["producer"]:
        exec(source(text, our_shop), names)
    table = names["table"]
    assert table.num_rows == before + 2
    rows = {row["body"]: (row["keys"], row["tags"]) for row in table.select(["body", "keys", "tags"]).to_pylist()}
    assert rows[b"x"] == ("1", "a")
    assert rows[b"y"] == ("2", "b")


def test_8_and_15_pytest_plugin(pytester_file: Callable[[str], str]) -> None:
    said = pytester_file(
        """
        def test_order_is_published(rocketmq):    # plugin by entry point, no conftest needed; up in under 100 ms
            topic = rocketmq.topic(queues=2)
            with rocketmq.producer() as producer:
                producer.send(topic, b"hello", tag="created")
            [message] = rocketmq.drain(topic, expect=1, timeout=2)
            assert (message.tag, message.body) == ("created", b"hello")

        def on_order(message): ...

        async def test_orders(aio_rocketmq):                    # the same fixture for asyncio
            seen = aio_rocketmq.consumer("orders", handler=on_order)
            await aio_rocketmq.producer().send("orders", b"x")
            await seen.wait_for(1, timeout=2)
        """
    )
    assert "2 passed" in said, said


@pytest.fixture
def pytester_file(tmp_path: Path) -> Callable[[str], str]:
    """Run a test file in a pytest of its own, where the plugin comes by its entry point."""

    def run_file(text: str) -> str:
        path = tmp_path / "test_example.py"
        path.write_text(textwrap.dedent(text))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
            cwd=tmp_path,
            timeout=50,
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        return done.stdout + done.stderr

    return run_file
