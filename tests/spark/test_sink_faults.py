"""The sink while brokers die, hang and change: every row arrives, keys keep their queue. Without Spark around it."""

from __future__ import annotations

import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.admin.client import Admin
from rocketcore.errors import ConfigError, MessageIllegal, RequestTimeout, RocketError, RouteNotFound
from rocketcore.spark.connection import connect
from rocketcore.spark.options import SinkOptions, parse_options
from rocketcore.spark.task_summary import TaskSummary
from tests.spark.halting import at_log, halting_broker
from tests.spark.rows import planned

MakeTopic = Callable[..., str]


def batch(begin: int, rows: int, keys: int = 0) -> pa.RecordBatch:
    numbers = range(begin, begin + rows)
    columns: dict[str, list[str]] = {"body": [f"{number}" for number in numbers]}
    if keys:
        columns["shardingKey"] = [f"key {number % keys}" for number in numbers]
    return pa.record_batch(columns)


def options_for(cluster: LocalCluster, topic: str, **options: str) -> SinkOptions:
    return parse_options(SinkOptions, {"nameServer": cluster.namesrv, "topic": topic, **options})


def stored(cluster: LocalCluster, topic: str) -> Counter[int]:
    return Counter(int(body) for body in rmq.read_arrow(cluster.namesrv, topic=topic)["body"].to_pylist())


@contextmanager
def silent_server() -> Iterator[str]:
    """A server that takes connections and requests and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    taken.append(server.accept()[0])
            except OSError:
                return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for connection in taken:
            connection.close()


def test_a_broker_that_hangs_is_left_alone(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """The rotation went back to the broker that had just failed, time and again, or failed there for good."""
    topic = make_topic(queues=4)
    with silent_server() as silent:
        address_map = f'{{"{cluster.broker_addresses[1]}": "{silent}"}}'
        options = options_for(cluster, topic, brokerAddressMap=address_map, batchBytes="4k", sendTimeoutMs="300")
        summary = planned(options).write(batch(number * 300, 300) for number in range(40))
    assert isinstance(summary, TaskSummary)
    assert summary.batches > 100
    # Each of the four requests under way may find out once that the broker does not answer.
    assert 0 < summary.retries <= 4
    assert stored(cluster, topic) == Counter(range(12_000))


def test_a_broker_that_stands_still_is_not_sent_the_same_rows_over_and_over(
    cluster: LocalCluster, make_topic: MakeTopic
) -> None:
    """Each attempt that had no answer put one more copy into its way: a row came as often as attempts had been made."""
    topic = make_topic(queues=1)
    place = {"brokerName": pa.array(["broker-a"] * 100), "queueId": pa.array([0] * 100)}
    with (
        halting_broker(cluster.broker_addresses[0]) as (address, moves),
        at_log("rocketcore.client.attempts", "asked again .* attempt=4 ", moves.set),
    ):

        def upstream() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"body": [f"{number}" for number in range(100)], **place})
            moves.clear()
            yield pa.record_batch({"body": [f"{number}" for number in range(100, 200)], **place})

        address_map = f'{{"{cluster.broker_addresses[0]}": "{address}"}}'
        planned(options_for(cluster, topic, brokerAddressMap=address_map, sendTimeoutMs="100")).write(upstream())
    found = stored(cluster, topic)
    assert set(found) == set(range(200))
    assert max(found.values()) <= 2


def test_what_was_not_sent_is_said_of_a_broker_that_stands_still(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    rows = pa.record_batch({"body": ["a"], "brokerName": ["broker-a"], "queueId": [0]})
    with halting_broker(cluster.broker_addresses[0]) as (address, moves):
        moves.clear()
        address_map = f'{{"{cluster.broker_addresses[0]}": "{address}"}}'
        times = {"sendTimeoutMs": "100", "deliveryTimeoutMs": "900"}
        writer = planned(options_for(cluster, topic, brokerAddressMap=address_map, **times))
        said = rf"send to topic '{topic}': broker-a does not answer: .* \(\d attempts within 0\.9 s\)"
        with pytest.raises(RequestTimeout, match=said):
            writer.write(iter([rows]))


def key_places(cluster: LocalCluster, topic: str) -> dict[str, set[tuple[str, int]]]:
    table = rmq.read_arrow(cluster.namesrv, topic=topic, columns=["brokerName", "queueId", "properties"])
    places = defaultdict(set)
    for row in table.to_pylist():
        places[dict(row["properties"])["__SHARDINGKEY"]].add((row["brokerName"], row["queueId"]))
    return places


def test_keys_keep_their_queue_when_the_topic_grows(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """Tasks that begin before and after a change of the route choose alike, and so does each task all the time."""
    topic = make_topic(queues=4)
    options = options_for(cluster, topic, queueSelector="hash")
    writer = planned(options)
    instance = connect(options).instance

    def upstream() -> Iterator[pa.RecordBatch]:
        yield batch(0, 200, keys=20)
        with Admin(cluster.namesrv) as admin:
            admin.update_topic(topic, queues=7)
        connect(options).run(instance.refresh_topic(topic))
        yield batch(200, 200, keys=20)

    writer.write(upstream())
    writer.write(iter([batch(400, 200, keys=20)]))
    assert sum(stored(cluster, topic).values()) == 600
    places = key_places(cluster, topic)
    assert len(places) == 20
    assert all(len(found) == 1 for found in places.values())


def test_keys_do_not_move_from_a_broker_that_stays_away(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, brokers=2, flush="async") as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=2)
        options = options_for(cluster, "T", queueSelector="hash", sendTimeoutMs="500", deliveryTimeoutMs="1000")

        def upstream() -> Iterator[pa.RecordBatch]:
            yield batch(0, 200, keys=20)
            yield batch(200, 200, keys=20)
            cluster.stop_broker(1)
            yield batch(400, 200, keys=20)

        with pytest.raises(RocketError):
            planned(options).write(upstream())
        cluster.start_broker(1)
        places = key_places(cluster, "T")
    assert len(places) == 20
    assert all(len(found) == 1 for found in places.values())


def test_a_write_whose_tasks_saw_other_queues_fails(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """Topics of a column are not known to the driver: the tasks' lists are compared at the end."""
    topic = make_topic(queues=2)
    writer = planned(parse_options(SinkOptions, {"nameServer": cluster.namesrv, "queueSelector": "hash"}))
    rows = batch(0, 50, keys=5).append_column("topic", pa.array([topic] * 50))
    first = writer.write(iter([rows]))
    assert isinstance(first, TaskSummary)
    assert len(first.queues[topic]) == 4
    writer.commit([first, first])
    with Admin(cluster.namesrv) as admin:
        admin.update_topic(topic, queues=3)
    second = writer.write(iter([rows]))
    with pytest.raises(RouteNotFound, match="changed during the write, 4 and 6"):
        writer.commit([first, second])


def test_topics_that_do_not_exist(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    with pytest.raises(ConfigError, match="option topic: no name server knows topic 'no-such'"):
        planned(options_for(cluster, "no-such"))
    with pytest.raises(ConfigError, match="with queueSelector=hash it has to exist"):
        planned(options_for(cluster, "no-such", createTopic="true", queueSelector="hash"))
    topic = make_topic()
    writer = planned(parse_options(SinkOptions, {"nameServer": cluster.namesrv}))
    rows = batch(0, 50).append_column("topic", pa.array([topic] * 30 + ["no-such"] * 20))
    with pytest.raises(MessageIllegal, match="partition 0, row 30: topic 'no-such' does not exist"):
        writer.write(iter([rows]))
    new = f"{topic}-new"
    planned(options_for(cluster, new, createTopic="true")).write(iter([batch(0, 10)]))
    assert stored(cluster, new) == Counter(range(10))


def test_a_write_is_planned_once_a_broker_is_back(tmp_path: Path) -> None:
    """The driver gave up at once, with advice about the topic, where a task would have waited."""
    with LocalCluster(tmp_path, flush="async") as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=1)
        cluster.stop_broker()
        start = threading.Thread(target=cluster.start_broker)
        with at_log("rocketcore.client.attempts", "no broker is registered", start.start):
            planned(options_for(cluster, "T")).write(iter([batch(0, 10)]))
        start.join(30)
        cluster.stop_broker()
        options = options_for(cluster, "T", deliveryTimeoutMs="300", requestTimeoutMs="1001")
        with pytest.raises(ConfigError, match="no broker is registered"):
            planned(options)


def test_queues_that_do_not_exist(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=2)
    writer = planned(options_for(cluster, topic))
    brokers = pa.array(["broker-a"] * 40 + ["broker-x"] * 10)
    rows = batch(0, 50).append_column("brokerName", brokers).append_column("queueId", pa.array([1] * 50))
    with pytest.raises(MessageIllegal, match=r"partition 0, row 40: .*'broker-x', queue_id=1.* not a writable queue"):
        writer.write(iter([rows]))


@pytest.mark.parametrize(
    ("broker", "queue_id", "reason"),
    [
        (None, 1, "brokerName is null, but queueId is not"),
        ("broker-a", None, "queueId is null, but brokerName is not"),
        ("broker-a", -1, "the queue id is negative"),
    ],
)
def test_half_a_queue(
    cluster: LocalCluster, make_topic: MakeTopic, broker: str | None, queue_id: int | None, reason: str
) -> None:
    """The row went to any queue, without a word."""
    rows = batch(0, 3)
    rows = rows.append_column("brokerName", pa.array(["broker-a", None, broker]))
    rows = rows.append_column("queueId", pa.array([0, None, queue_id]))
    with pytest.raises(MessageIllegal, match=f"partition 0, row 2: {reason}"):
        planned(options_for(cluster, make_topic(queues=2))).write(iter([rows]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":"b"}', "no entries of name, U"),
        ("DELAY\x015\x02", "property 'DELAY' is reserved"),
        ("a\x01b\x02TRAN_MSG\x01true\x02", "property 'TRAN_MSG' is reserved"),
        ("UNIQ_KEY\x01MYID\x02", "property 'UNIQ_KEY' is reserved"),
    ],
)
def test_property_texts_are_looked_at(cluster: LocalCluster, make_topic: MakeTopic, text: str, reason: str) -> None:
    """JSON was stored as no property at all, and reserved names went through."""
    topic = make_topic(queues=1)
    writer = planned(options_for(cluster, topic))
    writer.write(iter([pa.record_batch({"body": ["a", "b"], "properties": ["x\x01y\x02", None]})]))
    with pytest.raises(MessageIllegal, match=f"partition 0, row 1: .*{reason}"):
        writer.write(iter([pa.record_batch({"body": ["a", "b"], "properties": ["x\x01y\x02", text]})]))
    assert sum(stored_bodies(cluster, topic).values()) == 2


def stored_bodies(cluster: LocalCluster, topic: str) -> Counter[bytes]:
    return Counter(rmq.read_arrow(cluster.namesrv, topic=topic)["body"].to_pylist())


def test_a_whole_read_with_its_properties_is_copied(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """What RocketMQ itself puts among the properties of a message was refused, row by row."""
    one, two = make_topic(queues=1), make_topic(queues=1)
    rows = pa.record_batch(
        {
            "body": [b"a", b"b", b"c"],
            "tags": ["t", None, "u"],
            "keys": ["k", "l", None],
            "properties": pa.array([[("x", "1"), ("y", "2")], None, [("z", "3")]], pa.map_(pa.string(), pa.string())),
        }
    )
    planned(options_for(cluster, one)).write(iter([rows]))
    wanted = ["body", "tags", "keys", "properties"]
    whole = rmq.read_arrow(cluster.namesrv, topic=one, columns=wanted).combine_chunks().to_batches()
    sliced = [batch for part in whole for batch in (part.slice(0, 1), part.slice(1))]  # offsets that do not begin at 0
    planned(options_for(cluster, two, ignoreSystemColumns="true")).write(iter(sliced))
    planned(options_for(cluster, two, ignoreSystemColumns="true")).write(iter([rows.slice(1)]))  # with a null
    copied = rmq.read_arrow(cluster.namesrv, topic=two, columns=wanted).to_pylist()
    own = {
        row["body"]: {name: value for name, value in row["properties"] if len(name) == 1}
        | {"tags": row["tags"], "keys": row["keys"]}
        for row in copied
    }
    assert len(copied) == 5
    assert own == {
        b"a": {"x": "1", "y": "2", "tags": "t", "keys": "k"},
        b"b": {"tags": None, "keys": "l"},
        b"c": {"z": "3", "tags": "u", "keys": None},
    }
    ids = [[value for name, value in row["properties"] if name == "UNIQ_KEY"] for row in copied]
    assert all(len(values) == 1 for values in ids)


def test_large_strings(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """What Spark sends with spark.sql.execution.arrow.useLargeVarTypes=true."""
    topic = make_topic(queues=1)
    rows = pa.record_batch(
        {
            "body": pa.array([b"a", b"b"], pa.large_binary()),
            "keys": pa.array([["k", "l"], []], pa.list_(pa.large_string())),
            "properties": pa.array([[("x", "y")], None], pa.map_(pa.large_string(), pa.large_string())),
        }
    )
    planned(options_for(cluster, topic)).write(iter([rows]))
    table = rmq.read_arrow(cluster.namesrv, topic=topic, columns=["body", "keys", "properties"])
    found = {row["body"]: (row["keys"], dict(row["properties"]).get("x")) for row in table.to_pylist()}
    assert found == {b"a": ("k l", "y"), b"b": (None, None)}
