"""What is named create changes nothing that is there; what is named update changes what is named."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.admin.client import CreatedGroup, CreatedTopic
from rocketcore.local import LocalCluster
from tests.fixtures.commands import rocket_command

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[rmq.Admin]:
    with rmq.Admin(cluster.namesrv) as running:
        yield running


def by_aio(cluster: LocalCluster, name: str) -> Callable[..., object]:
    """The method of the asyncio ``Admin``, as a plain function."""

    def call(*arguments: object, **options: object) -> object:
        async def run() -> object:
            async with aio.Admin(cluster.namesrv) as running:
                result: object = await getattr(running, name)(*arguments, **options)
                return result

        return asyncio.run(run())

    return call


@pytest.mark.parametrize("kind", ["blocking", "aio"])
def test_a_topic_that_is_there_is_not_changed(cluster: LocalCluster, admin: rmq.Admin, kind: str) -> None:
    create = admin.create_topic if kind == "blocking" else by_aio(cluster, "create_topic")
    topic = f"T-{uuid4().hex[:12]}"
    assert create(topic, queues=8) == CreatedTopic(topic, 8, 8, ("broker-a", "broker-b"))
    with rmq.Producer(cluster.namesrv, group="p") as producer:
        for _ in range(16):
            producer.send(topic, b"x")
    before = admin.topic_configs(topic)
    with pytest.raises(rmq.TopicExists, match="is on broker-a, broker-b: nothing was changed") as raised:
        create(topic, queues=2)
    assert (raised.value.topic, raised.value.brokers) == (topic, ("broker-a", "broker-b"))
    found = create(topic, queues=2, exist_ok=True)
    assert found == CreatedTopic(topic, 8, 8, ("broker-a", "broker-b"), created=False)
    assert admin.topic_configs(topic) == before
    assert sum(each.max_offset for each in admin.topic_stats(topic).values()) == 16


def test_a_topic_of_one_broker_is_created_on_another_by_name_alone(admin: rmq.Admin) -> None:
    topic = f"T-{uuid4().hex[:12]}"
    admin.create_topic(topic, 3, broker="broker-b")
    with pytest.raises(rmq.TopicExists) as raised:
        admin.create_topic(topic, 5)
    assert raised.value.brokers == ("broker-b",)
    assert admin.create_topic(topic, 5, broker="broker-a").brokers == ("broker-a",)
    counts = {name: config.read_queue_nums for name, config in admin.topic_configs(topic).items()}
    assert counts == {"broker-a": 5, "broker-b": 3}


def test_a_topic_that_its_first_message_made_is_there(cluster: LocalCluster, admin: rmq.Admin) -> None:
    topic = f"T-{uuid4().hex[:12]}"
    with rmq.Producer(cluster.namesrv, group="p") as producer:
        made_by = producer.send(topic, b"x").queue.broker
    with pytest.raises(rmq.TopicExists) as raised:
        admin.create_topic(topic)
    assert made_by in raised.value.brokers


@pytest.mark.parametrize("what", ["topic", "group"])
def test_of_several_creators_at_once_one_creates(cluster: LocalCluster, admin: rmq.Admin, what: str) -> None:
    name = f"N-{uuid4().hex[:12]}"
    created: list[tuple[int, tuple[str, ...]]] = []
    refused: list[Exception] = []
    together = threading.Barrier(6)

    def create(count: int) -> None:
        with rmq.Admin(cluster.namesrv) as own:
            own.cluster_info()
            together.wait(30)
            try:
                done = (
                    own.create_topic(name, count) if what == "topic" else own.create_group(name, retry_max_times=count)
                )
            except (rmq.TopicExists, rmq.GroupExists) as error:
                refused.append(error)
            else:
                created.append((count, done.brokers))

    threads = [threading.Thread(target=create, args=(count,)) for count in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    [(count, brokers)] = created
    assert len(refused) == 5
    assert brokers == ("broker-a", "broker-b")
    if what == "topic":
        assert {config.read_queue_nums for config in admin.topic_configs(name).values()} == {count}
    else:
        assert {config.retry_max_times for config in admin.group_configs(name).values()} == {count}


@pytest.mark.parametrize("kind", ["blocking", "aio"])
@pytest.mark.parametrize(
    ("named", "changed"),
    [
        ({"queues": 8}, {"read_queue_nums": 8, "write_queue_nums": 8}),
        ({"read_queues": 6}, {"read_queue_nums": 6}),
        ({"write_queues": 2}, {"write_queue_nums": 2}),
        ({"perm": 4}, {"perm": 4}),
        ({"order": True}, {"order": True}),
        ({"queues": 5, "broker": "broker-b"}, {"read_queue_nums": 5, "write_queue_nums": 5}),
    ],
)
def test_an_update_changes_what_is_named(
    cluster: LocalCluster, admin: rmq.Admin, kind: str, named: dict[str, object], changed: dict[str, object]
) -> None:
    topic = f"T-{uuid4().hex[:12]}"
    admin.create_topic(topic, 4, attributes={"message.type": "FIFO"})
    update = admin.update_topic if kind == "blocking" else by_aio(cluster, "update_topic")
    was = admin.topic_configs(topic)
    before, after = update(topic, **named)  # type: ignore[arg-type, misc]
    concerned = {str(named["broker"])} if "broker" in named else {"broker-a", "broker-b"}
    assert before == {name: config for name, config in was.items() if name in concerned}
    now = admin.topic_configs(topic)
    assert after == {name: config for name, config in now.items() if name in concerned}
    for name, config in now.items():
        differing = {
            field: getattr(config, field)
            for field in ("read_queue_nums", "write_queue_nums", "perm", "order", "attributes")
            if getattr(config, field) != getattr(was[name], field)
        }
        assert differing == (changed if name in concerned else {})


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda admin: admin.update_topic("N-none", queues=3), "not on broker-a, broker-b"),
        (lambda admin: admin.update_topic("orders"), "names nothing to change"),
        (lambda admin: admin.update_topic("orders", queues=0), "at least 1 queue"),
        (lambda admin: admin.create_topic("orders", read_queues=0), "at least 1 queue"),
        (lambda admin: admin.update_group("N-none", consume=False), "N-none"),
        (lambda admin: admin.update_group("billing"), "names nothing to change"),
    ],
)
def test_changes_of_what_is_not_there_and_of_nothing(
    admin: rmq.Admin, call: Callable[[rmq.Admin], object], error: str
) -> None:
    with pytest.raises(rmq.RocketError, match=error):
        call(admin)


@pytest.mark.parametrize("kind", ["blocking", "aio"])
def test_a_group_that_is_there_is_not_changed(cluster: LocalCluster, admin: rmq.Admin, group: str, kind: str) -> None:
    create = admin.create_group if kind == "blocking" else by_aio(cluster, "create_group")
    assert create(group, retry_max_times=3, broadcast=False) == CreatedGroup(group, ("broker-a", "broker-b"))
    before = admin.group_configs(group)
    with pytest.raises(rmq.GroupExists, match="nothing was changed"):
        create(group)
    assert create(group, exist_ok=True) == CreatedGroup(group, ("broker-a", "broker-b"), created=False)
    assert admin.group_configs(group) == before
    was, now = admin.update_group(group, retry_max_times=5, broker="broker-b")
    assert (was["broker-b"].retry_max_times, now["broker-b"].retry_max_times) == (3, 5)
    assert list(now) == ["broker-b"]
    assert admin.group_configs(group) == before | now
    assert not now["broker-b"].consume_broadcast_enable, "what is not named stays"


def test_the_command_line_uses_the_same(
    cluster: LocalCluster,
    admin: rmq.Admin,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = f"T-{uuid4().hex[:12]}"
    rocket = rocket_command(cluster.namesrv, monkeypatch, capsys)
    assert rocket("topic", "create", topic, "--queues", "4")[0] == 0
    assert rocket("topic", "create", topic, "--queues", "2")[0] == 1
    code, shown, _ = rocket("-o", "json", "topic", "create", topic, "--queues", "2", "--if-not-exists")
    assert code == 0
    found = json.loads(shown)
    assert (found["read_queues"], found["perm"]) == (4, "rw")
    code, shown, _ = rocket("-o", "json", "topic", "update", topic, "--write-queues", "6")
    assert code == 0
    assert [(row["read_queues"], row["write_queues"]) for row in json.loads(shown)] == [
        ({"before": 4, "after": 4}, {"before": 4, "after": 6})
    ] * 2
    assert rocket("group", "create", group, "--max-retries", "3")[0] == 0
    assert rocket("group", "create", group)[0] == 1
    assert rocket("group", "update", group, "--retry-queues", "2")[0] == 0
    assert {(c.retry_max_times, c.retry_queue_nums) for c in admin.group_configs(group).values()} == {(3, 2)}


def test_topics_are_created_where_registrations_delete_what_they_leave_out() -> None:
    """A broker registers a new topic alone: that is no reason to forget its others."""
    with LocalCluster() as own, rmq.Admin(own.namesrv) as running, rmq.Producer(own.namesrv) as producer:
        running.create_topic("before", 1)
        running.update_namesrv_config({"deleteTopicWithBrokerRegistration": "true"})
        for topic in ("after", "auto"):
            if topic == "after":
                running.create_topic(topic, 1)
            assert producer.send(topic, b"x").queue.topic == topic
        assert {"before", "after", "auto"} <= set(running.topics())
        assert producer.send("before", b"x").queue.topic == "before"
