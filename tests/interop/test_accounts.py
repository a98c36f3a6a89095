"""Our clients with an account, on brokers of Apache RocketMQ with access control: ACL 1 (4.9.7) and 2 (5.5.0)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from tests.fixtures.apache import require_java
from tests.fixtures.topics import new_group
from tests.peers import ApacheCluster
from tests.peers.apache import Account

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

ACCOUNT = Account("rocketadmin", "s3cret-key-1")
KEYS: dict[str, Any] = {"access_key": ACCOUNT.access_key, "secret_key": ACCOUNT.secret_key}


@pytest.fixture(scope="module", params=["4.9.7", "5.5.0"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """A cluster whose broker serves accounts only."""
    require_java()
    folder: Path = tmp_path_factory.mktemp("guarded")
    with ApacheCluster(request.param, folder, acl=ACCOUNT) as cluster:
        yield cluster


@pytest.fixture
def topic(guarded: ApacheCluster) -> str:
    name = f"T{new_group()[6:]}"
    with rmq.Admin(guarded.namesrv, **KEYS) as admin:
        admin.create_topic(name, queues=2)
    return name


def test_an_account_sends_and_consumes(guarded: ApacheCluster, topic: str) -> None:
    with rmq.Producer(guarded.namesrv, group=new_group(), trace=False, **KEYS) as producer:
        result = producer.send(topic, "größer".encode(), keys="k", properties={"ü": "ö"})
        producer.send_batch([rmq.Message(topic, b"%d" % i) for i in range(3)])
        futures = [producer.send_nowait(rmq.Message(topic, b"nowait")) for _ in range(10)]
        producer.flush()
        assert all(future.result(10) for future in futures)
        producer.send_oneway(topic, b"one way")
    group = new_group()
    bodies = []
    with rmq.PushConsumer(guarded.namesrv, group=group, start_from="first", **KEYS) as consumer:
        consumer.subscribe(topic)
        for message in consumer:
            if not message.reconsume_times and not bodies:
                message.retry(delay=1)  # a request of its own
            else:
                message.ack()
            bodies.append(message.body)
            if len(bodies) == 16:
                break
    assert len(set(bodies)) == 6
    with rmq.Admin(guarded.namesrv, **KEYS) as admin:
        assert admin.view_message(topic, result.msg_id).text() == "größer"


def test_a_push_consumer_in_order_locks_with_its_account(guarded: ApacheCluster, topic: str) -> None:
    with rmq.Producer(guarded.namesrv, group=new_group(), **KEYS) as producer:
        producer.send(topic, b"x", message_group="g")
    with rmq.PushConsumer(guarded.namesrv, group=new_group(), start_from="first", ordered=True, **KEYS) as consumer:
        consumer.subscribe(topic)
        for message in consumer:
            assert message.body == b"x"
            message.ack()
            break


def test_messages_are_popped_with_an_account(guarded: ApacheCluster, topic: str) -> None:
    if guarded.version != "5.5.0":
        pytest.skip("4.9 has no POP")
    with rmq.Producer(guarded.namesrv, group=new_group(), **KEYS) as producer:
        producer.send(topic, b"x")
    with rmq.SimpleConsumer(guarded.namesrv, group=new_group(), start_from="first", **KEYS) as consumer:
        consumer.subscribe(topic)
        [message] = consumer.receive(timeout=20.0)
        message.ack()
        consumer.flush()


@pytest.mark.parametrize("keys", [{}, KEYS | {"secret_key": "not-the-secret"}, KEYS | {"access_key": "nobody-known"}])
def test_who_has_none_is_refused(guarded: ApacheCluster, topic: str, keys: dict[str, Any]) -> None:
    with (
        rmq.Producer(guarded.namesrv, group=new_group(), retries=0, **keys) as producer,
        pytest.raises(rmq.BrokerError) as refusal,
    ):
        producer.send(topic, b"x")
    code = 1 if guarded.version == "4.9.7" else 16
    assert refusal.value.code == code
    assert topic in str(refusal.value)
