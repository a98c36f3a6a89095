"""Topics as Arrow tables: what is sent as columns comes back as columns, and as messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import rocketcore as rmq
from rocketcore import LocalCluster, aio
from rocketcore.client.arrow_batches import COLUMNS, DEFAULT_COLUMNS
from rocketcore.client.hooks import SendContext
from rocketcore.errors import ConfigError, MessageIllegal, RouteNotFound

MakeTopic = Callable[..., str]


def rows(count: int) -> pa.RecordBatch:
    """``count`` rows: ids, a kind that is sometimes null, payloads with zero bytes, a group of seven."""
    numbers = range(count)
    return pa.record_batch(
        {
            "id": [f"key-{number}" for number in numbers],
            "kind": ["even" if number % 2 == 0 else None for number in numbers],
            "payload": pa.array([b"\x00payload %d" % number for number in numbers], pa.binary()),
            "group": [f"group {number % 7}" for number in numbers],
            "extra": pa.array([[("number", str(number))] for number in numbers], pa.map_(pa.string(), pa.string())),
        }
    )


def read(cluster: LocalCluster, topic: str, **options: object) -> pa.Table:
    table = rmq.read_arrow(cluster.namesrv, topic=topic, **options)  # type: ignore[arg-type]
    table.validate(full=True)
    return table


def test_columns_there_and_back(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic, batch = make_topic(queues=2), rows(5000)
    with rmq.Producer(cluster.namesrv, group="arrow") as producer:
        summary = producer.send_arrow(topic, batch, body="payload", keys="id", tag="kind")
    assert (summary.rows, summary.retries, summary.not_safe) == (5000, 0, 0)
    table = read(cluster, topic)
    assert table.schema.equals(pa.schema([(name, COLUMNS[name]) for name in DEFAULT_COLUMNS]))
    assert set(table["topic"].to_pylist()) == {topic}
    by_key = {row["keys"]: row for row in table.to_pylist()}
    assert len(by_key) == table.num_rows == 5000
    for row in batch.to_pylist():
        received = by_key[row["id"]]
        assert (received["body"], received["tags"]) == (row["payload"], row["kind"])
    assert len(set(table["msgId"].to_pylist())) == 5000
    now = datetime.now(UTC)
    assert all(abs(now - stored) < timedelta(minutes=5) for stored in table["storeTimestamp"].to_pylist())


class Sends:
    """A hook that keeps the ids of what was sent."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def before_send(self, context: SendContext) -> None:
        """See nothing yet."""

    def after_send(self, context: SendContext) -> None:
        assert context.batch
        assert context.result is not None
        self.ids += context.msg_id.split(",")


def test_hooks_and_traces_see_the_ids_of_rows(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic, sends = make_topic(queues=2), Sends()
    with rmq.Producer(cluster.namesrv, group="arrow", hooks=[sends]) as producer:
        producer.send_arrow(topic, rows(300), body="payload", keys="id", properties="extra")
    assert sorted(sends.ids) == sorted(read(cluster, topic)["msgId"].to_pylist())


def test_the_rows_are_ordinary_messages(cluster: LocalCluster, make_topic: MakeTopic, group: str) -> None:
    topic = make_topic(queues=1)
    with rmq.Producer(cluster.namesrv, group="arrow") as producer:
        producer.send_arrow(topic, rows(3), body="payload", keys="id", tag="kind", properties="extra")
    received: dict[str, rmq.ReceivedMessage] = {}
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        while len(received) < 3:
            batch = consumer.poll(timeout=10.0)
            assert batch
            received |= {message.keys[0]: message for message in batch}
    messages = [received[f"key-{number}"] for number in range(3)]
    assert [message.body for message in messages] == [b"\x00payload %d" % number for number in range(3)]
    assert [message.tag for message in messages] == ["even", None, "even"]
    assert [message.properties["number"] for message in messages] == ["0", "1", "2"]


def test_messages_of_any_producer_come_as_columns(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """Compressed bodies are unpacked, and absent properties are null."""
    topic, large = make_topic(queues=1), b"0123456789" * 5000
    with rmq.Producer(cluster.namesrv, group="arrow") as producer:
        producer.send(topic, b"plain", flag=7)
        producer.send(topic, large, tag="large", keys=["a", "b"], properties={"x": "y"})
    columns = ["keys", "tags", "body", "flag", "sysFlag", "properties", "bornHost", "storeSize", "brokerName"]
    found = {row["body"]: row for row in read(cluster, topic, columns=columns).to_pylist()}
    assert set(found) == {b"plain", large}
    assert (found[b"plain"]["keys"], found[b"plain"]["tags"], found[b"plain"]["flag"]) == (None, None, 7)
    assert (found[large]["keys"], found[large]["tags"]) == ("a b", "large")
    assert dict(found[large]["properties"])["x"] == "y"
    assert found[large]["sysFlag"] & 1
    assert found[large]["storeSize"] < len(large)
    assert found[large]["bornHost"].startswith("127.0.0.1:")
    assert found[large]["brokerName"] in ("broker-a", "broker-b")


def test_one_group_is_one_queue_in_order(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=4)
    with rmq.Producer(cluster.namesrv, group="arrow") as producer:
        producer.send_arrow(topic, rows(2000), body="payload", keys="id", message_group="group")
        single = producer.send(topic, b"one by one", message_group="group 3")
    table = read(cluster, topic, columns=["brokerName", "queueId", "queueOffset", "keys", "properties"])
    groups: dict[str, list[tuple[str, int, int, int]]] = {}
    for row in table.to_pylist():
        if row["keys"] is None:
            continue
        name = dict(row["properties"])["__SHARDINGKEY"]
        place = (row["brokerName"], row["queueId"], row["queueOffset"], int(row["keys"].removeprefix("key-")))
        groups.setdefault(name, []).append(place)
    assert len(groups) == 7
    for places in groups.values():
        assert len({place[:2] for place in places}) == 1
        in_queue = sorted(places, key=lambda place: place[2])
        assert [place[3] for place in in_queue] == sorted(place[3] for place in places)
    assert groups["group 3"][0][:2] == (single.queue.broker, single.queue.queue_id)


def test_asyncio_producer(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic, table = make_topic(queues=2), pa.Table.from_batches([rows(3000)] * 2)

    async def send() -> int:
        async with aio.Producer(cluster.namesrv, group="arrow") as producer:
            return (await producer.send_arrow(topic, table, body="payload", keys="id")).rows

    assert asyncio.run(send()) == 6000
    assert read(cluster, topic, columns=["keys"]).num_rows == 6000


def test_tags_and_times_choose_the_rows(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    with rmq.Producer(cluster.namesrv, group="arrow") as producer:
        producer.send_arrow(topic, rows(100), body="payload", keys="id", tag="kind")
    assert read(cluster, topic, tag="even || other", columns=["keys"]).num_rows == 50
    assert read(cluster, topic, tag="other").num_rows == 0
    assert read(cluster, topic, start="last").num_rows == 0
    future = datetime.now(UTC) + timedelta(hours=1)
    assert read(cluster, topic, start=future).num_rows == 0
    assert read(cluster, topic, end=future).num_rows == 100


def test_tags_of_one_hash_are_told_apart(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """The Java hashes of "Aa" and "BB" are equal: the broker cannot tell them apart."""
    topic = make_topic(queues=1)
    batch = pa.record_batch({"body": ["1", "2", "3"], "kind": ["Aa", "BB", "Aa"]})
    with rmq.Producer(cluster.namesrv, group="arrow") as producer:
        producer.send_arrow(topic, batch, body="body", tag="kind")
    assert sorted(read(cluster, topic, tag="Aa", columns=["body"])["body"].to_pylist()) == [b"1", b"3"]


def test_slices_large_types_and_dictionaries(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    whole = pa.record_batch(
        {
            "body": pa.array([f"body {number}" for number in range(50)], pa.large_string()),
            "keys": pa.array([[f"a{number}", f"b{number}"] for number in range(50)]),
            "tag": pa.array(["x", "y"] * 25).dictionary_encode(),
        }
    )
    with rmq.Producer(cluster.namesrv, group="arrow") as producer:
        producer.send_arrow(topic, whole.slice(11, 20), body="body", keys="keys", tag="tag")
    table = read(cluster, topic, columns=["body", "keys", "tags"])
    received = sorted(zip(*(table[name].to_pylist() for name in ("body", "keys", "tags")), strict=True))
    expected = [(b"body %d" % n, f"a{n} b{n}", "xy"[n % 2]) for n in range(11, 31)]
    assert received == sorted(expected)


def test_a_large_topic_takes_several_requests(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=2)
    payload = numpy.random.default_rng(1).bytes(100_000)
    bodies = [payload[number:] for number in range(40)]
    with rmq.Producer(cluster.namesrv, group="arrow") as producer:
        summary = producer.send_arrow(topic, pa.record_batch({"body": pa.array(bodies)}), body="body")
    assert summary.batches >= 4
    table = read(cluster, topic, columns=["body"])
    assert sorted(table["body"].to_pylist()) == sorted(bodies)
    assert pc.sum(pc.binary_length(table["body"])).as_py() == sum(map(len, bodies))


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        ({"body": ["a", None]}, {}, "row 1: the body is null"),
        ({"body": ["a", ""]}, {}, "row 1: the body is empty"),
        ({"body": ["a", "b"], "keys": [["c"], ["d", None]]}, {"keys": "keys"}, "row 1: a key is null"),
        ({"body": ["a", "b"], "keys": [["c", "d"], ["e", ""]]}, {"keys": "keys"}, "row 1: a key is empty"),
        ({"body": ["a", "b"], "keys": [["c", "d e"], []]}, {"keys": "keys"}, "row 0: a key is empty, or holds white"),
        ({"body": ["a", "b"], "tag": ["x", "\x01"]}, {"tag": "tag"}, "row 1: "),
        ({"body": ["a", "b"], "group": ["x", "\x02"]}, {"message_group": "group"}, "row 1: the sharding key"),
        ({"body": ["a", "b" * (5 << 20)]}, {}, "row 1: "),
        ({"body": ["a"], "more": [[("KEYS", "c")]]}, {"properties": "more"}, "row 0: property 'KEYS' is reserved"),
    ],
)
def test_a_row_that_no_broker_takes_is_named(
    cluster: LocalCluster, make_topic: MakeTopic, columns: dict[str, list[object]], options: dict[str, str], reason: str
) -> None:
    kinds = {"more": pa.map_(pa.string(), pa.string())}
    arrays = {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    with (
        rmq.Producer(cluster.namesrv, group="arrow") as producer,
        pytest.raises(MessageIllegal) as refused,
    ):
        producer.send_arrow(make_topic(), pa.record_batch(arrays), body="body", **options)
    assert str(refused.value).startswith(reason)


def test_a_row_beyond_the_limit_of_its_producer_is_named(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    with rmq.Producer(cluster.namesrv, group="arrow", max_message_bytes=1000, batch_bytes=1000) as producer:
        batch = pa.record_batch({"body": ["x" * 500, "y" * 700, "z" * 1000]})
        with pytest.raises(MessageIllegal, match=r"row 2: the message takes \d+ bytes in a request, 1000 are"):
            producer.send_arrow(topic, batch, body="body")
        assert producer.send_arrow(topic, batch.slice(0, 2), body="body").batches == 2


def test_wrong_columns_are_refused(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    with rmq.Producer(cluster.namesrv, group="arrow") as producer:
        with pytest.raises(ConfigError, match="no column 'nothing'; the columns are id, "):
            producer.send_arrow(make_topic(), rows(1), body="nothing")
        with pytest.raises(ConfigError, match="column body is map"):
            producer.send_arrow(make_topic(), rows(1), body="extra")
    late, early = datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)
    with pytest.raises(ConfigError, match="start lies behind end: 2024-01-02"):
        rmq.read_arrow(cluster.namesrv, topic="T", start=late, end=early)
    with pytest.raises(ConfigError, match="messages have no column 'value'"):
        read(cluster, make_topic(), columns=["value"])
    with pytest.raises(RouteNotFound):
        read(cluster, "no-such-topic")
