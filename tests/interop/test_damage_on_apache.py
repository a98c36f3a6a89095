"""A bit of a stored body that flips at Apache's broker, which compares no checksum, costs that message alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore.errors import DecodeError
from tests.fixtures.topics import await_messages, new_group, new_topic
from tests.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

COUNT, DAMAGED = 20, 5
BODIES = [b"body-%04d-whole" % number for number in range(COUNT)]
STORED = [b"body-0005-wholg" if number == DAMAGED else body for number, body in enumerate(BODIES)]


def damaged_topic(cluster: ApacheCluster) -> str:
    """Make a topic of one queue with a damaged message among others."""
    name = new_topic(cluster.namesrv, queues=1)
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        for body in BODIES:
            producer.send(name, body)
    await_messages(cluster.namesrv, name, COUNT)
    flipped = 0
    for log in cluster.commit_log().glob("[0-9]" * 20):
        with log.open("r+b") as file:
            stored = file.read()
            for found in re.finditer(re.escape(BODIES[DAMAGED]) + rb"." + re.escape(name.encode()), stored, re.DOTALL):
                file.seek(found.start() + len(BODIES[DAMAGED]) - 1)
                file.write(b"g")
                flipped += 1
    assert flipped == 1
    return name


@pytest.fixture
def topic(apache_line: ApacheCluster) -> str:
    return damaged_topic(apache_line)


def test_pull_and_push_hand_it_out_as_it_is_stored(
    apache_line: ApacheCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    pulled: list[rmq.ReceivedMessage] = []
    with rmq.PullConsumer(apache_line.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic)
        while len(pulled) < COUNT:
            pulled += consumer.poll(10.0)
    assert [message.body for message in pulled] == STORED
    pushed: list[bytes] = []
    with rmq.PushConsumer(apache_line.namesrv, group=new_group(), start_from="first") as pushing:
        pushing.subscribe(topic)
        for message in pushing:
            pushed.append(message.body)
            message.ack()
            if len(pushed) == COUNT:
                break
    assert sorted(pushed) == sorted(STORED)
    place = f"queue={rmq.MessageQueue(topic, 'broker-a', 0)} offset={DAMAGED} "
    assert sum(place in record.getMessage() for record in caplog.records) == 2


def test_pop_hands_it_out_as_it_is_stored(apache: ApacheCluster, caplog: pytest.LogCaptureFixture) -> None:
    popped: set[bytes] = set()
    name = damaged_topic(apache)
    with rmq.SimpleConsumer(apache.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(name)
        while len(popped) < COUNT:
            for message in consumer.receive(timeout=10.0):
                popped.add(message.body)
                message.ack()
        consumer.flush()
    assert popped == set(STORED)
    assert f"offset={DAMAGED} " in caplog.text


def test_a_table_names_it_or_leaves_it_out(apache_line: ApacheCluster, topic: str) -> None:
    options: dict[str, Any] = {"namesrv": apache_line.namesrv, "topic": topic}
    place = re.escape(str(rmq.MessageQueue(topic, "broker-a", 0))) + f": the message at offset {DAMAGED} is damaged"
    with pytest.raises(DecodeError, match=f"{place}.*on_damage='skip'"):
        rmq.read_arrow(**options)
    table = rmq.read_arrow(**options, on_damage="skip")
    assert table["body"].to_pylist() == [body for body in BODIES if body != BODIES[DAMAGED]]
    assert DAMAGED not in table["queueOffset"].to_pylist()


@pytest.mark.spark
def test_a_task_of_spark_goes_by_fail_on_data_loss(apache_line: ApacheCluster, topic: str) -> None:
    from rocketcore.spark.options import SourceOptions, parse_options
    from rocketcore.spark.range_task import Projection
    from rocketcore.spark.reader import RocketMQReader

    def bodies(**more: str) -> list[bytes]:
        options = parse_options(SourceOptions, {"nameServer": apache_line.namesrv, "topic": topic, **more})
        source = RocketMQReader(options, Projection(("body",)))
        return [
            body for part in source.partitions() for batch in source.read(part) for body in batch["body"].to_pylist()
        ]

    with pytest.raises(DecodeError, match=f"at offset {DAMAGED} is damaged.*failOnDataLoss=false reads what is there"):
        bodies()
    assert bodies(failOnDataLoss="false") == [body for body in BODIES if body != BODIES[DAMAGED]]
