"""The live tail as a stream: the newest of what came, and a count of what was left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.console.language import Language
from rocketcore.console.tail import MOST_ROWS, MOST_TAILS, Tail, events
from rocketcore.local import LocalCluster
from tests.integration.console.conftest import Browser


def follow(namesrv: str, topic: str, steps: Callable[[], None], **given: str) -> tuple[Tail, list[str]]:
    """Look, do something, look again; return the tail and the bodies that it showed."""

    async def run() -> tuple[Tail, list[str]]:
        async with aio.Admin(namesrv) as admin:
            visit: Any = SimpleNamespace(admin=admin, given=lambda name: given.get(name, ""))
            tail = Tail(visit, topic)
            assert await tail.look() == []
            await asyncio.to_thread(steps)
            return tail, [message.text() for message in await tail.look()]

    return asyncio.run(run())


def test_it_shows_what_came_since_and_fits(cluster: LocalCluster, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1)
    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:
        producer.send(topic, b"before")

        def send() -> None:
            for body, tag in ((b"One", "a"), (b"two", "a"), (b"one more", "b")):
                producer.send(topic, body, tag=tag)

        tail, bodies = follow(cluster.namesrv, topic, send)
        assert (sorted(bodies), tail.seen, tail.dropped) == (["One", "one more", "two"], 3, 0)
        assert sorted(follow(cluster.namesrv, topic, send, text="ONE")[1]) == ["One", "one more"]
        assert follow(cluster.namesrv, topic, send, tag="a", text="one")[1] == ["One"]


def test_what_is_too_much_is_counted(cluster: LocalCluster, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1)
    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:

        def send() -> None:
            for number in range(200):
                producer.send(topic, str(number).encode())

        tail, bodies = follow(cluster.namesrv, topic, send)
    assert len(bodies) == MOST_ROWS
    assert {"198", "199"} <= set(bodies)  # of two brokers, whose clocks say the same millisecond
    assert (tail.seen, tail.dropped) == (200, 200 - MOST_ROWS)


def test_there_are_so_many_at_the_same_time(browser: Browser, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1)
    browser.client.app.state.console.tails = MOST_TAILS  # type: ignore[attr-defined]
    answer = browser.get(f"/topic/tail?name={topic}")
    assert answer.status_code == 503
    assert "close one" in answer.text


def test_those_that_begin_together_are_no_more(cluster: LocalCluster, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1)

    async def run() -> None:
        async with aio.Admin(cluster.namesrv) as admin:
            templates = SimpleNamespace(get_template=lambda name: None)
            console = SimpleNamespace(tails=0, leaving=asyncio.Event(), templates=templates)
            visit: Any = SimpleNamespace(
                admin=admin, console=console, given=lambda name: "", needed=lambda name: topic,
                language=Language("en"), text=lambda english: english,
            )  # fmt: skip
            answers: list[Any] = await asyncio.gather(*(events(visit) for _ in range(MOST_TAILS + 3)))
            begun = [await anext(answer.body_iterator) for answer in answers]
            assert [b"event: count" in first for first in begun] == [True] * MOST_TAILS + [False] * 3
            assert b"close one" in begun[-1]
            for answer in answers:
                await answer.body_iterator.aclose()
            assert console.tails == 0

    asyncio.run(run())


@pytest.mark.parametrize("address", ["/topic/tail?name=no-such-topic", "/topic/tail"])
def test_there_is_none_of_what_is_not_there(browser: Browser, address: str) -> None:
    assert browser.get(address).status_code in (400, 404)
