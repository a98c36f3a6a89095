"""The unmodified Go client on our NameServer and broker: sends of every kind, consumers of every kind, transactions."""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from tests.fixtures.tls import client_tls, tls_servers
from tests.fixtures.topics import await_messages, new_group, new_topic
from tests.peers import PeerError
from tests.peers.go_client import GoClient, build, go_client

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

COUNT = 9
BODIES = sorted(str(number) for number in range(COUNT))
Go = Callable[..., AbstractContextManager[GoClient]]


@pytest.fixture(scope="module")
def program() -> Path:
    if shutil.which("go") is None:
        pytest.skip("no go: Apache's Go client cannot be built")
    try:
        return build()
    except PeerError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    properties = {
        "enablePropertyFilter": "true",
        "messageDelayLevel": "1s 1s 1s 1s",
        "traceTopicEnable": "true",
        "transactionCheckInterval": "500",
        "transactionTimeOut": "500",
    }
    with LocalCluster(properties=properties) as running:
        yield running


@pytest.fixture
def go(program: Path, cluster: LocalCluster) -> Go:
    return partial(go_client, program, cluster.namesrv)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return new_topic(cluster.namesrv)


def received(cluster: LocalCluster, topic: str, count: int) -> list[rmq.ReceivedMessage]:
    """Consume so many messages of a topic with our client."""
    got: list[rmq.ReceivedMessage] = []
    with rmq.PushConsumer(cluster.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic)
        for message in consumer:
            got.append(message)
            message.ack()
            if len(got) == count:
                return got
    raise AssertionError(f"{len(got)} of {count} messages came")


def send(cluster: LocalCluster, topic: str) -> None:
    """Send ``COUNT`` messages with our client, as the Go client does: with tags, keys and a property."""
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        for number in range(COUNT):
            tag = ("even", "odd")[number % 2]
            producer.send(topic, str(number), tag=tag, keys=[f"key-{number}"], properties={"n": str(number)})


@pytest.mark.parametrize("how", ["sync", "async", "oneway", "batch", "ordered", "compressed", "level", "at"])
def test_it_sends(go: Go, cluster: LocalCluster, topic: str, how: str) -> None:
    with go("send", topic=topic, group=new_group(), how=how, count=COUNT) as client:
        told = client.rest()
    assert len(told) == {"oneway": 0, "batch": 1}.get(how, COUNT)
    assert all(each["status"] == 0 for each in told)
    got = received(cluster, topic, COUNT)
    texts = [message.text() for message in got]
    assert sorted(texts) == (BODIES if how != "compressed" else [body * 20_000 for body in BODIES])
    assert {key for message in got for key in message.keys} == {f"key-{number}" for number in range(COUNT)}
    if how == "ordered":
        places = {text: message.queue.queue_id for text, message in zip(texts, got, strict=True)}
        assert all(places[str(number)] == places[str(number % 3)] for number in range(COUNT))


def test_it_sends_large_bodies(go: Go, cluster: LocalCluster, topic: str) -> None:
    with go("send", topic=topic, group=new_group(), how="large", count=2) as client:
        assert [each["status"] for each in client.rest()] == [0, 0]
    for message in received(cluster, topic, 2):
        assert len(message.body) == 3_000_000
        assert message.properties["crc"] == str(zlib.crc32(message.body))


def test_over_tls(program: Path, tmp_path: Path) -> None:
    """All of its traffic, to servers that serve nobody else."""
    with tls_servers(tmp_path, "enforcing") as namesrv:
        options = {"topic": new_topic(namesrv, tls=client_tls()), "count": COUNT, "tls": "true"}
        with go_client(program, namesrv, "send", group=new_group(), how="sync", **options) as client:
            assert [each["status"] for each in client.rest()] == [0] * COUNT
        with go_client(program, namesrv, "consume", group=new_group(), filter="*", **options) as client:
            assert sorted(each["body"] for each in client.rest()[1:]) == BODIES


def test_its_traces_are_read(go: Go, cluster: LocalCluster, topic: str) -> None:
    with go("send", topic=topic, group=new_group(), how="traced", count=1) as client:
        [told] = client.rest()
    await_messages(cluster.namesrv, "RMQ_SYS_TRACE_TOPIC", 1)
    with rmq.Admin(cluster.namesrv) as admin:
        traces = admin.message_traces(told["id"])
    assert traces


@pytest.mark.parametrize("how", ["concurrent", "orderly", "broadcast"])
def test_it_consumes(go: Go, cluster: LocalCluster, topic: str, how: str) -> None:
    send(cluster, topic)
    with go("consume", topic=topic, group=new_group(), how=how, count=COUNT, filter="*") as client:
        got = client.rest()[1:]
    assert sorted(each["body"] for each in got) == BODIES
    for queue in {each["queue"] for each in got}:
        offsets = [each["offset"] for each in got if each["queue"] == queue]
        assert how != "orderly" or offsets == sorted(offsets)


@pytest.mark.parametrize(("expression", "wanted"), [("odd", "1357"), ("sql:n > 6", "78")])
def test_it_filters(go: Go, cluster: LocalCluster, topic: str, expression: str, wanted: str) -> None:
    send(cluster, topic)
    with go("consume", topic=topic, group=new_group(), count=len(wanted), filter=expression) as client:
        assert sorted(each["body"] for each in client.rest()[1:]) == list(wanted)


def test_it_tries_again(go: Go, cluster: LocalCluster, topic: str) -> None:
    send(cluster, topic)
    with go("consume", topic=topic, group=new_group(), how="retry", count=COUNT, filter="*", wait="60s") as client:
        got = client.rest()[1:]
    assert sorted(each["body"] for each in got) == BODIES
    assert {each["again"] for each in got} == {1}


@pytest.mark.parametrize("how", ["pull", "poll"])
def test_it_pulls(go: Go, cluster: LocalCluster, topic: str, how: str) -> None:
    send(cluster, topic)
    with go(how, topic=topic, group=new_group(), filter="*", count=COUNT) as client:
        got = client.rest()
    assert sorted(each["body"] for each in got) == BODIES


def test_its_transactions(go: Go, cluster: LocalCluster, topic: str) -> None:
    """The first of three is committed, the second rolled back, the third committed when it is asked for."""
    with go("transact", topic=topic, group=new_group(), count=COUNT) as client:
        told = client.rest()
    assert sorted(each["asked"] for each in told if "asked" in each) == ["2", "5", "8"]
    got = received(cluster, topic, COUNT * 2 // 3)
    assert sorted(message.text() for message in got) == [str(number) for number in range(COUNT) if number % 3 != 1]


def test_it_asks_and_we_reply(go: Go, cluster: LocalCluster, topic: str) -> None:
    with (
        rmq.PushConsumer(cluster.namesrv, group=new_group(), start_from="first") as consumer,
        go("request", topic=topic, group=new_group(), count=2, filter="*") as client,
    ):
        consumer.subscribe(topic)
        left = 2
        for message in consumer:
            message.reply(b"re: " + message.body).result(30)
            message.ack()
            left -= 1
            if not left:
                break
        assert [each["reply"] for each in client.rest()] == ["re: 0", "re: 1"]


def test_we_ask_and_it_replies(go: Go, cluster: LocalCluster, topic: str) -> None:
    with (
        go("consume", topic=topic, group=new_group(), how="reply", count=1, filter="*") as client,
        rmq.Producer(cluster.namesrv, group=new_group()) as producer,
    ):
        assert client.next() == {"started": True}
        assert producer.request(topic, b"what", timeout=30).body == b"re: what"
        client.rest()


def test_it_and_we_share_a_group(go: Go, cluster: LocalCluster, topic: str) -> None:
    """Two members, one of each, have two of four queues each, and each message comes to one of them."""
    group = new_group()
    with rmq.PullConsumer(cluster.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        with go("consume", topic=topic, group=group, count=1000, filter="*") as client:
            assert client.next() == {"started": True}
            until = time.monotonic() + 20
            while len(consumer.assignment()) != 2 and time.monotonic() < until:
                assert consumer.poll(timeout=0.1) == []
            queues = {queue.queue_id for queue in consumer.assignment()}
            assert len(queues) == 2
            send(cluster, topic)
            ours: list[rmq.ReceivedMessage] = []
            while batch := consumer.poll(timeout=2.0):
                ours += batch
            theirs = [client.next() for _ in range(COUNT - len(ours))]
    assert sorted([message.text() for message in ours] + [each["body"] for each in theirs]) == BODIES
    assert {message.queue.queue_id for message in ours} <= queues
    assert not {each["queue"] for each in theirs} & queues
    assert theirs
