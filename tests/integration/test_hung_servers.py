"""One broker of two hangs, or one name server of two: each call ends in its time, and does what the others can do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

import rocketcore as rmq
from rocketcore.admin.shapes import group_document
from rocketcore.client import offset_store, push, send_back, standing
from rocketcore.local import LocalCluster
from rocketcore.message import MessageQueue
from tests.fixtures.stalling import Stalling
from tests.fixtures.waiting import until

pytestmark = pytest.mark.timeout(120)

TIMEOUT = 2.0
"""Of every call."""
MARGIN = 10.0
"""What else a busy machine takes."""


@dataclass
class Scene:
    """A cluster whose second broker, or first name server, hangs when told to."""

    cluster: LocalCluster
    namesrv: str
    options: dict[str, Any]
    topic: str
    group: str
    ends: contextlib.ExitStack
    hang: Callable[[], None]

    def queue(self, index: int) -> MessageQueue:
        return MessageQueue(self.topic, self.cluster.broker_names[index], 0)

    def client(self, kind: type[Any], **more: Any) -> Any:
        """Open a client before anything hangs."""
        return self.ends.enter_context(kind(self.namesrv, timeout=TIMEOUT, **self.options, **more))


Call = Callable[[], object]
"""What is done when something hangs."""


def sends(scene: Scene) -> dict[str, Call]:
    options = {"group": scene.group, "checker": lambda half: rmq.TransactionState.COMMIT}
    producer = scene.client(rmq.Producer, **options)
    first = scene.client(rmq.Producer, **options)  # which has asked nobody before
    handles = [
        producer.send(scene.topic, b"later", queue=scene.queue(index), delay=3600).recall_handle for index in (0, 1)
    ]
    transactions = {
        (what, index): producer.transaction(rmq.Message(scene.topic, b"x"), queue=scene.queue(index))
        for what in ("commit", "rollback")
        for index in (0, 1)
    }
    for each in transactions.values():
        each.begin()

    def transaction() -> None:
        with first.transaction(rmq.Message(scene.topic, b"x")) as begun:
            assert begun.result is not None
        assert begun.told

    return {
        "request": lambda: first.request(scene.topic, b"ask", queue=scene.queue(0)),
        "request anywhere": lambda: first.request(scene.topic, b"ask"),
        "transaction": transaction,
        "recall 0": lambda: producer.recall(scene.topic, handles[0]),
        "recall 1": lambda: producer.recall(scene.topic, handles[1]),
        **{f"{what} {index}": getattr(each, what) for (what, index), each in transactions.items()},
    }


def pulls(scene: Scene) -> dict[str, Call]:
    def consumer(**more: Any) -> Any:
        made = scene.client(rmq.PullConsumer, group=f"{scene.group}-pull", start_from="first", **more)
        made.assign([scene.queue(0), scene.queue(1)])
        seen: set[str] = set()
        while len(seen) < 2:
            seen |= {message.queue.broker for message in made.poll(5.0)}
        return made

    made, other = consumer(), consumer()

    def polled() -> None:
        other.seek(scene.queue(0), "first")
        until(lambda: any(message.queue == scene.queue(0) for message in other.poll(0.5)), 5.0)

    return {
        **{f"watermarks {index}": lambda index=index: made.watermarks(scene.queue(index)) for index in (0, 1)},
        **{f"committed {index}": lambda index=index: made.committed(scene.queue(index)) for index in (0, 1)},
        "lag 1": made.lag,
        "seek and poll": polled,
        "commit 1": other.commit,
    }


def members(scene: Scene) -> dict[str, Call]:
    """Consumers that join when a broker hangs already, and one whose messages go back."""
    taken: list[rmq.ReceivedMessage] = []
    push_consumer = scene.client(rmq.PushConsumer, group=f"{scene.group}-push", start_from="first")
    push_consumer.subscribe(scene.topic)
    messages = iter(push_consumer)
    while len({message.queue.broker for message in taken}) < 2:
        taken.append(next(messages))

    def sent_back() -> None:
        for message in taken:
            message.retry(1)
        back: set[str] = set()
        while len(back) < len(taken):
            message = next(messages)
            message.ack()
            if message.reconsume_times:
                back.add(message.msg_id)

    def join(**more: Any) -> Call:
        def joined() -> None:
            group = f"G-{uuid4().hex[:12]}"
            options: dict[str, Any] = {"group": group, "start_from": "first", "close_timeout": 1.0, "timeout": TIMEOUT}
            with rmq.PushConsumer(scene.namesrv, **options, **scene.options, **more) as consumer:
                consumer.subscribe(scene.topic)
                for message in consumer:
                    message.ack()
                    if message.queue == scene.queue(0):
                        break

        return joined

    simple = scene.client(rmq.SimpleConsumer, group=f"{scene.group}-simple")
    simple.subscribe(scene.topic)
    simple.wait_ready(10)

    def received() -> None:
        def some() -> bool:
            found = simple.receive(16, 1.0)
            for message in found:
                message.ack()
            return any(message.queue.broker == scene.queue(0).broker for message in found)

        until(some, 5.0)

    return {
        "send back": sent_back,
        "join": join(),
        "join in order": join(ordered=True),
        "join with POP": join(pop=True),
        "receive and acknowledge": received,
    }


def administration(scene: Scene) -> dict[str, Call]:
    def admin(call: Callable[[rmq.Admin], object]) -> Call:
        made = scene.client(rmq.Admin)
        return lambda: call(made)

    first, second = scene.queue(0), scene.queue(1)
    new = f"T-{uuid4().hex[:12]}"
    names = scene.cluster.broker_names
    return {
        "topics": admin(lambda a: a.topics()),
        "topic_route": admin(lambda a: a.topic_route(scene.topic)),
        "topic_stats 1": admin(lambda a: a.topic_stats(scene.topic)),
        "create_topic": admin(lambda a: a.create_topic(new, 1, broker=names[0])),
        "create_topic 1": admin(lambda a: a.create_topic(f"{new}-all", 1)),
        "create_group 1": admin(lambda a: a.create_group(f"{scene.group}-new")),
        "describe_group": admin(lambda a: a.describe_group(f"{scene.group}-replies")),
        "group_lag": admin(lambda a: a.group_lag(f"{scene.group}-replies", scene.topic)),
        "offsets 1": admin(lambda a: a.offsets(f"{scene.group}-replies", scene.topic)),
        "max_offset 0": admin(lambda a: a.max_offset(first)),
        "max_offset 1": admin(lambda a: a.max_offset(second)),
        "min_offset 1": admin(lambda a: a.min_offset(second)),
        "search_offset 1": admin(lambda a: a.search_offset(second, 1)),
        "message_at 0": admin(lambda a: a.message_at(first, 0)),
        "message_at 1": admin(lambda a: a.message_at(second, 0)),
        "query_messages 1": admin(lambda a: a.query_messages(scene.topic, "nobody")),
        "broker_status": admin(lambda a: a.broker_status()),
    }


FAMILIES = (sends, pulls, members, administration)


@pytest.fixture
def scene(
    cluster: LocalCluster, make_topic: Callable[..., str], group: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Scene]]:
    for module in (offset_store, standing, push):
        monkeypatch.setattr(module, "OFFSET_TIMEOUT", TIMEOUT)
    monkeypatch.setattr(send_back, "SEND_BACK_TIMEOUT", TIMEOUT)
    with contextlib.ExitStack() as ends:
        topic = make_topic(queues=1)
        with rmq.Producer(cluster.namesrv, group=group) as producer:
            for name in cluster.broker_names:
                producer.send(topic, b"x", queue=MessageQueue(topic, name, 0))
        replier = ends.enter_context(rmq.PushConsumer(cluster.namesrv, group=f"{group}-replies"))
        replier.subscribe(topic, handler=lambda message: message.reply(b"answer") if message.body == b"ask" else None)  # type: ignore[arg-type, return-value]
        replier.wait_ready(10)

        def make(who: str) -> Scene:
            behind = cluster.namesrv if who == "name server" else cluster.broker_addresses[1]
            stalling = ends.enter_context(Stalling(behind))
            named = f"{stalling.address};{cluster.namesrv}" if who == "name server" else cluster.namesrv
            options = {} if who == "name server" else {"broker_address_map": {behind: stalling.address}}
            return Scene(cluster, named, options, topic, group, ends, stalling.hang)

        yield make


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("who", ["broker", "name server"])
def test_each_call_does_what_the_others_can_do(scene: Callable[[str], Scene], who: str, family: Any) -> None:
    """A call whose name ends in 1 asks the second broker, and says so where that hangs; the others succeed."""
    made = scene(who)
    calls: dict[str, Call] = family(made)
    made.hang()

    def outcome(call: Call) -> tuple[float, BaseException | None]:
        began = time.monotonic()
        try:
            call()
        except BaseException as error:
            return time.monotonic() - began, error
        return time.monotonic() - began, None

    with ThreadPoolExecutor(len(calls)) as threads:
        outcomes = dict(zip(calls, threads.map(outcome, calls.values()), strict=True))
    wrong = {}
    silent = made.cluster.broker_addresses[1], made.cluster.broker_names[1]
    for name, (_, error) in outcomes.items():
        if who == "broker" and name.endswith(" 1"):
            if not isinstance(error, rmq.RocketError) or not any(each in str(error) for each in silent):
                wrong[name] = error
        elif error is not None:
            wrong[name] = error
    assert not wrong
    assert {name: took for name, (took, _) in outcomes.items() if took > TIMEOUT + MARGIN} == {}


def test_what_one_broker_does_not_say_of_a_group_is_named(scene: Callable[[str], Scene]) -> None:
    made = scene("broker")
    first, second = made.cluster.broker_names
    with rmq.PullConsumer(made.cluster.namesrv, group=made.group, start_from="first") as consumer:
        consumer.subscribe(made.topic)
        consumer.wait_ready()
        consumer.commit()
    admin = made.client(rmq.Admin)
    assert not admin.describe_group(made.group).unanswered
    made.hang()
    described, lag = admin.describe_group(made.group), admin.group_lag(made.group, made.topic)
    document = group_document(described)
    for unanswered in (described.unanswered, lag.unanswered):
        assert list(unanswered) == [second]
        assert isinstance(unanswered[second], rmq.RequestTimeout)
    assert {row.queue.broker for row in lag} == {first}
    assert document["troubles"][0]["check"] == "unanswered"
