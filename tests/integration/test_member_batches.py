"""Handlers of several messages: their batches, what becomes of each message, and how long a batch waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore.client import receipts
from tests.fixtures.waiting import until as wait_until
from tests.integration.group_members import QUICK, fill

pytestmark = pytest.mark.timeout(120)


def handler_of(kind: str, handle: Callable[[Sequence[rmq.ReceivedMessage]], None]) -> Any:
    async def later(messages: Sequence[rmq.ReceivedMessage]) -> None:
        await asyncio.sleep(0)
        handle(messages)

    return later if kind == "coroutine" else handle


MODES: dict[str, dict[str, Any]] = {
    "concurrent": {},
    "ordered": {"ordered": True, "suspend_time": 0.01},
    "pop": {"pop": True},
    "broadcast": {"broadcast": True},
}


@pytest.mark.parametrize("mode", MODES)
def test_batches(
    namesrv: str, make_topic: Callable[..., str], group: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each outcome with each kind of handler, side by side in groups of their own: they wait more than they do."""
    # How long a failure waits at first is in tests/unit/client/test_pop_mode.py: ten seconds, here one.
    monkeypatch.setattr(receipts, "_RETRY_SECONDS", (1,))
    cases = [
        (outcome, handler, make_topic(), f"{group}-{outcome}-{handler}")
        for outcome, handler in product(["returns", "raises", "some"], ["plain", "coroutine"])
    ]
    with ThreadPoolExecutor(len(cases)) as threads:
        running = {
            f"{outcome} {handler}": threads.submit(
                check_batches, namesrv, topic, own, mode, handler, outcome, tmp_path / own
            )
            for outcome, handler, topic, own in cases
        }
    assert {name: done.exception() for name, done in running.items() if done.exception()} == {}


def check_batches(namesrv: str, topic: str, group: str, mode: str, handler: str, outcome: str, folder: Path) -> None:
    if mode == "pop":
        with rmq.Admin(namesrv) as admin:
            admin.create_group(group, exist_ok=True)
            admin.set_request_mode(group, topic, "pop")
    fill(namesrv, topic, 10)
    handled: list[list[str]] = []
    places: list[tuple[str, int, str]] = []
    failed: set[str] = set()
    lock = threading.Lock()

    def handle(messages: Sequence[rmq.ReceivedMessage]) -> None:
        with lock:
            handled.append([f"{message.msg_id}" for message in messages])
            places.extend((message.queue.broker, message.queue.queue_id, message.text()) for message in messages)
            assert len({message.queue for message in messages}) == 1
            again = [message for message in messages if message.msg_id not in failed]
            if outcome == "some":
                again = [message for message in again if message.text() in ("m1", "m3")]
            failed.update(message.msg_id for message in again)
        if outcome == "raises" and again:
            raise ValueError("all again")
        if outcome == "some" and again:
            raise rmq.RetryLater(delay=1, of=again)

    consumer = rmq.PushConsumer(
        namesrv, group=group, offset_store_path=str(folder), invisible=20.0, **MODES[mode], **QUICK
    )
    consumer.subscribe_batch(topic, max_messages=4, max_wait=0.1)(handler_of(handler, handle))
    more = 0 if mode == "broadcast" or outcome == "returns" else 40 if outcome == "raises" else 8
    with consumer:
        wait_until(lambda: sum(map(len, handled)) >= 40 + more, 60)
        threading.Event().wait(0.3)  # no more may come in this time
    times: dict[str, int] = {}
    for batch in handled:
        assert 1 <= len(batch) <= 4
        for msg_id in batch:
            times[msg_id] = times.get(msg_id, 0) + 1
    assert len(times) == 40
    assert sum(times.values()) == 40 + more
    if mode == "ordered" and outcome == "raises":
        for place in {(broker, queue) for broker, queue, _ in places}:
            own = [text for broker, queue, text in places if (broker, queue) == place]
            assert list(dict.fromkeys(own)) == [f"m{i}" for i in range(10)], "first seen in order"


def test_a_batch_waits_for_more_and_then_no_longer(namesrv: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic(1)
    sizes: list[int] = []
    consumer = rmq.PushConsumer(namesrv, group=group, **QUICK)

    @consumer.subscribe_batch(topic, max_messages=100, max_wait=0.3)
    def on_batch(messages: Sequence[rmq.ReceivedMessage]) -> None:
        sizes.append(len(messages))

    with consumer, rmq.Producer(namesrv, group="p") as producer:
        consumer.wait_ready()
        queue = consumer.assignment()[0]
        for i in range(10):
            producer.send(topic, f"{i}", queue=queue)
        wait_until(lambda: sum(sizes) == 10, 20)
    assert len(sizes) < 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_messages": 0}, "max_messages must be a whole number of at least 1"),
        ({"max_wait": "1"}, "max_wait must be a number of seconds"),
        ({"handler": 5}, "the handler of topic 'T' must be a function"),
    ],
)
def test_wrong_settings_of_batches(options: dict[str, Any], said: str) -> None:
    with pytest.raises(rmq.ConfigError, match=said):
        rmq.PushConsumer(group="g").subscribe_batch("T", **options)
