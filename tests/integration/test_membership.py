"""What a member of a group has: its queues as they come and go, where it stands, pause and drain."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import aio
from tests.fixtures.waiting import until as wait_until
from tests.integration.group_members import QUICK, fill, stored

pytestmark = pytest.mark.timeout(120)


# Pause


@pytest.mark.parametrize("kind", ["push", "ordered", "pull", "pop"])
def test_a_pause_of_all_holds_for_queues_that_come(
    namesrv: str, make_topic: Callable[..., str], group: str, kind: str
) -> None:
    topic = make_topic()
    with rmq.Admin(namesrv) as admin:
        admin.create_group(group, exist_ok=True)
        if kind == "pop":
            admin.set_request_mode(group, topic, "pop")
    got: list[str] = []
    consumer: rmq.PushConsumer | rmq.PullConsumer
    if kind == "pull":
        consumer = rmq.PullConsumer(namesrv, group=group, **QUICK)
        consumer.subscribe(topic)
    else:
        consumer = rmq.PushConsumer(namesrv, group=group, ordered=kind == "ordered", pop=kind == "pop", **QUICK)
        consumer.subscribe(topic, handler=lambda message: got.append(message.text()))

    def receive() -> None:
        if isinstance(consumer, rmq.PullConsumer):
            got.extend(message.text() for message in consumer.poll(0.3))

    with consumer:
        consumer.pause()
        consumer.wait_ready()
        with rmq.Admin(namesrv) as admin:
            admin.update_topic(topic, 3)
        wait_until(lambda: kind == "pop" or len(consumer.assignment()) == 6, 20)
        queues = fill(namesrv, topic, 2)
        if kind != "pop":
            assert consumer.paused() == consumer.assignment()
        receive()
        threading.Event().wait(0.5)  # nothing may come in this time
        assert got == []
        if kind == "pull":
            [first] = consumer.assignment()[:1]
            consumer.resume([first])
            wait_until(lambda: (receive(), len(got))[1] == 2, 20)
            assert first not in consumer.paused()
        consumer.resume()
        assert consumer.paused() == []
        wait_until(lambda: (receive(), len(got))[1] >= 2 * len(queues), 30)


# Listeners


def test_a_queue_is_committed_before_it_goes(namesrv: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    queues = fill(namesrv, topic, 3)
    told: list[tuple[str, list[rmq.MessageQueue]]] = []
    committed: list[int | None] = []

    def on_revoke(gone: list[rmq.MessageQueue]) -> None:
        first.commit()
        committed.extend(stored(namesrv, group, queue) for queue in gone)
        told.append(("revoke", gone))

    first = rmq.PullConsumer(
        namesrv, group=group, on_assign=lambda new: told.append(("assign", new)), on_revoke=on_revoke, **QUICK
    )
    with first:
        first.subscribe(topic)
        first.wait_ready()
        read = 0
        while read < 12:
            read += len(first.poll(5.0))
        assert told == [("assign", queues)]
        with rmq.PullConsumer(namesrv, group=group, **QUICK) as second:
            second.subscribe(topic)
            second.wait_ready()
            wait_until(lambda: len(second.assignment()) == 2 and len(told) >= 2, 30)
            kind, gone = told[1]
            assert (kind, gone) == ("revoke", second.assignment())
            assert committed[:2] == [3, 3]
    assert told[-1][0] == "revoke", "on close too"
    assert [stored(namesrv, group, queue) for queue in queues] == [3] * 4


@pytest.mark.parametrize("listener", ["plain", "coroutine", "lambda of a coroutine"])
def test_listeners_of_asyncio(namesrv: str, make_topic: Callable[..., str], group: str, listener: str) -> None:
    topic = make_topic()
    queues = fill(namesrv, topic, 2)

    async def main() -> None:
        seen: list[str] = []

        async def sought(new: list[rmq.MessageQueue]) -> None:
            for queue in new:
                await consumer.seek(queue, 1)

        async def commit(gone: list[rmq.MessageQueue]) -> None:
            await consumer.commit()

        on_revoke: Any = {
            "plain": lambda gone: seen.append("plain"),
            "coroutine": commit,
            "lambda of a coroutine": lambda gone: consumer.commit(),
        }[listener]
        consumer = aio.PullConsumer(namesrv, group=group, on_assign=sought, on_revoke=on_revoke, **QUICK)
        async with consumer:
            await consumer.subscribe(topic)
            texts: list[str] = []
            while len(texts) < 4:
                texts += [message.text() for message in await consumer.poll(5.0)]
            assert texts == ["m1"] * 4
        assert seen == (["plain"] if listener == "plain" else [])

    asyncio.run(main())
    expected = None if listener == "plain" else 2
    assert [stored(namesrv, group, queue) for queue in queues] == [expected] * 4


@pytest.mark.parametrize("way", ["raises", "hangs", "exits"])
def test_a_listener_that_fails_stops_nothing(
    namesrv: str, make_topic: Callable[..., str], group: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic()
    fill(namesrv, topic, 1)
    release = threading.Event()

    def listener(queues: list[rmq.MessageQueue]) -> None:
        if way == "raises":
            raise ValueError("no")
        if way == "exits":
            raise SystemExit
        release.wait(60)

    consumer = rmq.PullConsumer(
        namesrv, group=group, on_assign=listener, on_revoke=listener, close_timeout=0.2, **QUICK
    )
    try:
        with consumer:
            consumer.subscribe(topic)
            assert len(consumer.poll(10.0)) >= 1
    finally:
        release.set()
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith(("on_assign", "on_rev"))]
    assert [text.split()[0] for text in said] == ["on_assign", "on_revoke"]
    assert all(("has not returned" if way == "hangs" else "failed") in text for text in said)


@pytest.mark.parametrize("kind", ["push", "ordered", "broadcast"])
def test_push_consumers_tell_of_their_queues(
    namesrv: str, make_topic: Callable[..., str], group: str, kind: str, tmp_path: Any
) -> None:
    topic = make_topic()
    told: list[tuple[str, int]] = []
    consumer = rmq.PushConsumer(
        namesrv,
        group=group,
        ordered=kind == "ordered",
        broadcast=kind == "broadcast",
        offset_store_path=str(tmp_path),
        on_assign=lambda queues: told.append(("assign", len(queues))),
        on_revoke=lambda queues: told.append(("revoke", len(queues))),
        **QUICK,
    )
    consumer.subscribe(topic, handler=lambda message: None)
    with consumer:
        consumer.wait_ready()
        wait_until(lambda: told == [("assign", 4)], 10)
        consumer.unsubscribe(topic)
        assert told == [("assign", 4), ("revoke", 4)]
    assert told == [("assign", 4), ("revoke", 4)], "nothing was left to go"


CALLS: dict[str, Callable[[Any, str, rmq.MessageQueue], Any]] = {
    "seek": lambda consumer, topic, queue: consumer.seek(queue, "first"),
    "subscribe": lambda consumer, topic, queue: consumer.subscribe(topic, tag="b"),
    "unsubscribe": lambda consumer, topic, queue: consumer.unsubscribe(topic),
    "assign": lambda consumer, topic, queue: consumer.assign([queue]),
    "wait_ready": lambda consumer, topic, queue: consumer.wait_ready(60.0),
    "drain": lambda consumer, topic, queue: consumer.drain(60.0),
    "start": lambda consumer, topic, queue: consumer.start(),
    "close": lambda consumer, topic, queue: consumer.close(),
    "run": lambda consumer, topic, queue: consumer.run(),
    "commit": lambda consumer, topic, queue: consumer.commit(),
    "poll": lambda consumer, topic, queue: consumer.poll(0.01),
    "position": lambda consumer, topic, queue: consumer.position(queue),
    "committed": lambda consumer, topic, queue: consumer.committed(queue),
    "watermarks": lambda consumer, topic, queue: consumer.watermarks(queue),
    "lag": lambda consumer, topic, queue: consumer.lag(),
    "pause": lambda consumer, topic, queue: consumer.pause([queue]),
    "resume": lambda consumer, topic, queue: consumer.resume(),
    "paused": lambda consumer, topic, queue: consumer.paused(),
    "assignment": lambda consumer, topic, queue: consumer.assignment(),
}
REFUSED = {
    "on_assign": {"wait_ready", "drain", "run"},
    "on_revoke": {"wait_ready", "drain", "run", "seek", "subscribe", "unsubscribe", "assign"},
}


@pytest.mark.parametrize("what", ["on_assign", "on_revoke"])
@pytest.mark.parametrize("kind", ["PullConsumer", "PushConsumer"])
@pytest.mark.parametrize("way", ["blocking", "coroutine"])
def test_what_a_listener_calls_returns_or_is_refused_at_once(
    namesrv: str, make_topic: Callable[..., str], group: str, what: str, kind: str, way: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Each call in one listener, those that change something last; a queue goes where its consumer closes."""
    topic = make_topic()
    queues = fill(namesrv, topic, 1)
    outcomes: dict[str, str] = {}
    order = [name for name in CALLS if name in REFUSED[what]] + [
        name for name in CALLS if name not in REFUSED[what] | {"seek", "subscribe", "unsubscribe", "assign", "close"}
    ]

    def note(name: str, error: Exception | None) -> None:
        outcomes[name] = "returned" if error is None else f"{type(error).__name__}: {error}"

    def plain(told: list[rmq.MessageQueue]) -> None:
        for name in order:
            if not hasattr(consumer, name):
                continue
            try:
                CALLS[name](consumer, topic, queues[0])
            except Exception as error:
                note(name, error)
            else:
                note(name, None)

    async def coroutine(told: list[rmq.MessageQueue]) -> None:
        for name in [*order, "close"]:
            if not hasattr(consumer, name):
                continue
            try:
                result = CALLS[name](consumer, topic, queues[0])
                if inspect.isawaitable(result):
                    await result
            except Exception as error:
                note(name, error)
            else:
                note(name, None)
        told_all.set()

    async def main() -> None:
        async with consumer:
            subscription = consumer.subscribe(topic)
            if kind == "PushConsumer":
                subscription(lambda message: None)
            await subscription
            await consumer.wait_ready(30.0)
            async with asyncio.timeout(30):
                await told_all.wait() if what == "on_assign" else None

    told_all = asyncio.Event()
    options: Any = QUICK | {"close_timeout": 60.0}
    consumer: Any
    if way == "blocking":
        consumer = getattr(rmq, kind)(namesrv, group=group, **{what: plain}, **options)
        with consumer:
            subscription = consumer.subscribe(topic)
            if kind == "PushConsumer":
                subscription(lambda message: None)
            consumer.wait_ready(30.0)
            wait_until(lambda: what == "on_revoke" or "assignment" in outcomes, 30)
    else:
        consumer = getattr(aio, kind)(namesrv, group=group, **{what: coroutine}, **options)
        asyncio.run(main())
    refused = {name for name, outcome in outcomes.items() if outcome.startswith(f"ConfigError: {name}() in {what} ")}
    expected = {name for name in REFUSED[what] if hasattr(consumer, name)}
    if way == "coroutine" and what == "on_assign":
        expected.add("close")
    assert refused == expected, "\n".join(map(str, outcomes.items()))
    assert "has not returned" not in caplog.text


@pytest.mark.parametrize("name", ["on_assign", "on_revoke"])
def test_a_listener_is_a_function(name: str) -> None:
    with pytest.raises(rmq.ConfigError, match=f"{name} must be a function or a coroutine function, got str"):
        rmq.PullConsumer(group="g", **{name: "started"})  # type: ignore[arg-type]


# Where it stands


@pytest.mark.parametrize("kind", ["push", "pull", "simple"])
def test_every_consumer_says_where_it_stands(
    namesrv: str, make_topic: Callable[..., str], group: str, kind: str
) -> None:
    topic = make_topic()
    queues = fill(namesrv, topic, 5)
    hold = threading.Event()
    consumer: Any
    if kind == "push":
        consumer = rmq.PushConsumer(namesrv, group=group, **QUICK)
        consumer.subscribe(topic, tag="a || b", handler=lambda message: hold.wait(30))
    else:
        made = rmq.PullConsumer if kind == "pull" else rmq.SimpleConsumer
        consumer = made(namesrv, group=group, start_from="first")
    with consumer:
        if kind != "push":
            consumer.subscribe(topic, tag="a || b")
        consumer.wait_ready()
        assert consumer.subscription() == {topic: "a || b"}
        assert consumer.watermarks(queues[0]) == (0, 5)
        assert consumer.watermarks(queues[0]).end == 5
        assert consumer.committed(queues[0]) is None, "never committed"
        if kind != "simple":
            assert consumer.assignment() == queues
            assert consumer.paused() == []
        lag = consumer.lag()
        assert sorted(lag) == queues
        assert all(0 <= count <= 5 for count in lag.values())
        hold.set()


def test_a_lag_is_what_this_member_is_not_done_with(namesrv: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    queues = fill(namesrv, topic, 5)
    with rmq.PullConsumer(namesrv, group=group, **QUICK) as consumer:
        consumer.subscribe(topic)
        consumer.wait_ready()
        assert consumer.lag() == dict.fromkeys(queues, 5)
        read = 0
        while read < 20:
            read += len(consumer.poll(5.0))
        assert consumer.lag() == dict.fromkeys(queues, 0)
        assert consumer.committed(queues[0]) is None
        consumer.commit()
        assert consumer.committed(queues[0]) == 5


# Drain


@pytest.mark.parametrize("kind", ["plain", "coroutine", "ordered", "iterated"])
def test_a_drained_consumer_has_finished_what_it_read(
    namesrv: str, make_topic: Callable[..., str], group: str, kind: str
) -> None:
    topic = make_topic()
    queues = fill(namesrv, topic, 50)
    done: list[tuple[rmq.MessageQueue, int]] = []
    begun = threading.Event()

    def note(message: rmq.ReceivedMessage) -> None:
        begun.set()
        done.append((message.queue, message.offset))

    async def note_later(message: rmq.ReceivedMessage) -> None:
        await asyncio.sleep(0.001)
        note(message)

    consumer = rmq.PushConsumer(namesrv, group=group, threads=2, ordered=kind == "ordered", **QUICK)
    consumer.subscribe(topic, handler=None if kind == "iterated" else note_later if kind == "coroutine" else note)
    consumer.start()
    reader = threading.Thread(target=lambda: [(note(message), message.ack()) for message in consumer])
    if kind == "iterated":
        reader.start()
    assert begun.wait(20)
    assert consumer.drain(timeout=30)
    assert consumer.drain()
    if kind == "iterated":
        reader.join(20)
    assert len(done) == len(set(done))
    for queue in queues:
        own = [offset for each, offset in done if each == queue]
        assert (stored(namesrv, group, queue) or 0) == len(own) == len(set(own))
    with rmq.PullConsumer(namesrv, group=group, **QUICK) as rest:
        rest.subscribe(topic)
        left = 0
        while messages := rest.poll(0.5 if left + len(done) >= 200 else 5.0):
            left += len(messages)
    assert left + len(done) == 200


def test_a_drain_has_an_end(namesrv: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    fill(namesrv, topic, 1)
    begun, hold = threading.Event(), threading.Event()

    def handle(message: rmq.ReceivedMessage) -> None:
        begun.set()
        hold.wait(60)

    consumer = rmq.PushConsumer(namesrv, group=group, close_timeout=0.2, **QUICK)
    consumer.subscribe(topic, handler=handle)
    consumer.start()
    assert begun.wait(20)
    try:
        assert not consumer.drain(timeout=0.2)
    finally:
        hold.set()


def test_a_drained_pull_consumer_has_committed_what_it_polled(
    namesrv: str, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic()
    queues = fill(namesrv, topic, 3)

    async def main() -> int:
        async with aio.PullConsumer(namesrv, group=group, **QUICK) as consumer:
            await consumer.subscribe(topic)
            count = len(await consumer.poll(5.0, max_messages=2))
            assert await consumer.drain(timeout=10)
            return count

    polled = asyncio.run(main())
    assert polled > 0
    assert sum(stored(namesrv, group, queue) or 0 for queue in queues) == polled


# Iteration of pull consumers


def test_iteration_over_a_pull_consumer_commits_what_it_has_come_to(
    namesrv: str, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic()
    queues = fill(namesrv, topic, 5)

    async def by_asyncio() -> None:
        async with aio.PullConsumer(namesrv, group=group, **QUICK) as consumer:
            await consumer.subscribe(topic)
            count = 0
            async for _ in consumer:
                count += 1
                if count == 7:
                    await consumer.commit()
                    break

    asyncio.run(by_asyncio())
    assert sum(stored(namesrv, group, queue) or 0 for queue in queues) == 7
    count = 0
    with rmq.PullConsumer(namesrv, group=group, **QUICK) as consumer:
        consumer.subscribe(topic)
        for _ in consumer:
            count += 1
            if count == 13:
                consumer.commit()
                consumer.close()
    assert count == 13
    assert [stored(namesrv, group, queue) for queue in queues] == [5] * 4
