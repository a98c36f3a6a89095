"""Producers and consumers of all kinds, at a steady pace, writing to one ledger."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar, Unpack

import rocketcore
from rocketcore import aio
from rocketcore.client.config import ConsumerOptions
from rocketcore.client.handler import MessageHandler
from rocketcore.errors import RocketError
from rocketcore.message import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from tests.soak.ledger import Key, Ledger, make_body

BATCH = 4
MESSAGE_GROUPS = 10

Push = TypeVar("Push", aio.PushConsumer, rocketcore.PushConsumer)


def _route_interval(number: int) -> float:
    """Some clients ask for routes far more often than by default, to meet the name servers in every state."""
    return (5.0, 30.0, 0.1, 0.5)[number % 4]


def _message_group(rng: random.Random) -> str:
    return str(rng.randrange(MESSAGE_GROUPS))


class Pace:
    """When a producer sends next, and when it ends."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.ended = threading.Event()


class _Numbered:
    """The messages of one producer, and what is noted of them."""

    def __init__(self, ledger: Ledger, name: str, topics: list[str]) -> None:
        self.name = name
        self._ledger = ledger
        self._numbers = itertools.count()
        self._topics = itertools.cycle(topics)

    def next(self) -> tuple[Key, str, bytes]:
        key = (self.name, next(self._numbers))
        self._ledger.send(key)
        return key, next(self._topics), make_body(key)

    def note(self, key: Key, outcome: SendResult | BaseException) -> None:
        if isinstance(outcome, SendResult) and outcome.status is SendStatus.SEND_OK:
            self._ledger.acknowledge(key)
        else:
            self._ledger.fail(key, outcome)


BlockingSend = Callable[[rocketcore.Producer, _Numbered, random.Random], None]


def _send_one(producer: rocketcore.Producer, messages: _Numbered, message_group: str | None) -> None:
    key, topic, body = messages.next()
    try:
        messages.note(key, producer.send(topic, body, message_group=message_group))
    except RocketError as error:
        messages.note(key, error)


def _send_plain(producer: rocketcore.Producer, messages: _Numbered, rng: random.Random) -> None:
    _send_one(producer, messages, None)


def _send_grouped(producer: rocketcore.Producer, messages: _Numbered, rng: random.Random) -> None:
    _send_one(producer, messages, _message_group(rng))


def _send_batch(producer: rocketcore.Producer, messages: _Numbered, rng: random.Random) -> None:
    (first, topic, body), *others = [messages.next() for _ in range(BATCH)]
    keys = [first, *(key for key, _, _ in others)]
    outcome: SendResult | BaseException
    try:
        [outcome] = producer.send_batch([Message(topic, body), *(Message(topic, more) for _, _, more in others)])
    except RocketError as error:
        outcome = error
    for key in keys:
        messages.note(key, outcome)


BLOCKING_SENDS: tuple[BlockingSend, ...] = (_send_plain, _send_grouped, _send_batch)


@contextlib.contextmanager
def blocking_producer(
    namesrv: str, ledger: Ledger, name: str, topics: list[str], pace: Pace, number: int
) -> Iterator[threading.Thread]:
    """A blocking producer on a thread of its own."""
    send = BLOCKING_SENDS[number % len(BLOCKING_SENDS)]
    messages = _Numbered(ledger, name, topics)
    rng = random.Random(number)
    ended = threading.Event()

    def run() -> None:
        interval = _route_interval(number)
        with rocketcore.Producer(namesrv, group=name, route_interval=interval) as producer:
            while not (pace.ended.is_set() or ended.is_set()):
                send(producer, messages, rng)
                pace.ended.wait(pace.interval)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    try:
        yield thread
    finally:
        ended.set()
        thread.join()


async def produce(
    namesrv: str, ledger: Ledger, name: str, topics: list[str], pace: Pace, number: int, queues: list[MessageQueue]
) -> None:
    """An asyncio producer until the pace ends: its own choice of queue, message groups, or queues that we choose."""
    messages = _Numbered(ledger, name, topics)
    rng = random.Random(number)
    interval = _route_interval(number)
    async with aio.Producer(namesrv, group=name, route_interval=interval) as producer:
        while not pace.ended.is_set():
            key, topic, body = messages.next()
            try:
                match number % 3:
                    case 0:
                        result = await producer.send(topic, body)
                    case 1:
                        message = Message(topic, body, message_group=_message_group(rng))
                        result = await (await producer.send_nowait(message))
                    case _:
                        queue = rng.choice([queue for queue in queues if queue.topic == topic])
                        result = await producer.send(topic, body, queue=queue)
                messages.note(key, result)
            except RocketError as error:
                messages.note(key, error)
            await asyncio.sleep(pace.interval)


def _push(  # type: ignore[misc]
    kind: type[Push],
    namesrv: str,
    group: str,
    topics: list[str],
    number: int,
    handle: MessageHandler,
    **options: Unpack[ConsumerOptions],
) -> Push:
    interval = _route_interval(number)
    consumer = kind(namesrv, group=group, start_from="first", route_interval=interval, **options)
    for topic in topics:
        consumer.subscribe(topic, handler=handle)
    return consumer


def aio_push_consumer(
    namesrv: str, ledger: Ledger, group: str, name: str, topics: list[str], number: int, held: asyncio.Event | None
) -> aio.PushConsumer:
    """A push consumer for this loop; while ``held`` is given and not set, its handlers do not end."""

    async def handle(message: ReceivedMessage) -> None:
        if held is not None:
            await held.wait()
        ledger.consume(group, name, message)

    return _push(aio.PushConsumer, namesrv, group, topics, number, handle)


def push_consumer(
    namesrv: str, ledger: Ledger, group: str, name: str, topics: list[str], number: int, *, ordered: bool = False
) -> rocketcore.PushConsumer:
    """A blocking push consumer; its handlers run on threads."""

    def handle(message: ReceivedMessage) -> None:
        ledger.consume(group, name, message)

    return _push(rocketcore.PushConsumer, namesrv, group, topics, number, handle, threads=2, ordered=ordered)


@contextlib.contextmanager
def polling_consumer(
    namesrv: str, ledger: Ledger, group: str, name: str, topics: list[str], number: int
) -> Iterator[rocketcore.PullConsumer]:
    """A blocking pull consumer that a thread polls, committing after each poll."""
    interval = _route_interval(number)
    ended = threading.Event()
    with rocketcore.PullConsumer(namesrv, group=group, start_from="first", route_interval=interval) as consumer:
        for topic in topics:
            consumer.subscribe(topic)

        def run() -> None:
            while not ended.is_set():
                for message in consumer.poll(0.2):
                    ledger.consume(group, name, message)
                consumer.commit()

        thread = threading.Thread(target=run, name=name)
        thread.start()
        try:
            yield consumer
        finally:
            ended.set()
            thread.join()


async def until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait until a condition holds; return whether it does in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True
