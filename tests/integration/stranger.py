"""A program without any logging set up: ``stranger.py NAMESRV FACE CASE:TOPIC…`` has each of its cases fail.

FACE is ``blocking`` or ``asyncio``. A line ``== CASE`` on stderr stands before what a case says.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import rocketcore as rmq
from rocketcore import aio

MESSAGES = 300
"""How many messages fail in a case of a broadcast consumer: none of them is sent back."""


def broken(message: rmq.ReceivedMessage) -> None:
    raise ValueError("typo")


def later(message: rmq.ReceivedMessage) -> None:
    try:
        broken(message)
    except ValueError as error:
        raise rmq.RetryLater(delay=1) from error


def true(message: rmq.ReceivedMessage) -> Any:
    return True


def false(message: rmq.ReceivedMessage) -> Any:
    return False


class Hook:
    def before_consume(self, context: object) -> None:
        raise ValueError("typo")

    def after_consume(self, context: object) -> None: ...


HANDLERS: dict[str, tuple[Callable[[rmq.ReceivedMessage], Any], dict[str, Any]]] = {
    "handler": (broken, {"broadcast": True}),
    "ordered": (broken, {"ordered": True, "suspend_time": 0.01}),
    "later": (later, {"broadcast": True}),
    "true": (true, {"broadcast": True}),
    "false": (false, {"broadcast": True}),
    "dead": (broken, {"max_reconsume_times": 0}),
    "hook": (lambda message: None, {"broadcast": True, "hooks": [Hook()]}),
}


class Count:
    """Counts calls of a handler, and says when there were enough."""

    def __init__(self, handler: Callable[[rmq.ReceivedMessage], Any], enough: Callable[[], object]) -> None:
        self.handler = handler
        self.enough = enough
        self.calls = 0
        self.wanted = MESSAGES

    def __call__(self, message: rmq.ReceivedMessage) -> Any:
        self.calls += 1
        if self.calls == self.wanted:
            self.enough()
        return self.handler(message)


def callback(future: object) -> None:
    raise ValueError("typo")


def blocking(namesrv: str, case: str, topic: str, group: str) -> None:
    options: dict[str, Any] = {"group": group, "start_from": "first"}
    if case in HANDLERS:
        handler, more = HANDLERS[case]
        done = threading.Event()
        count = Count(handler, done.set)
        with rmq.PushConsumer(namesrv, threads=1, **options | more) as consumer:
            consumer.subscribe(topic, handler=count)
            done.wait()
    elif case == "process":
        with rmq.PushConsumer(namesrv, broadcast=True, **options) as consumer:
            consumer.subscribe(topic)
            for number, message in enumerate(consumer, 1):
                with message.process():
                    broken(message)
                if number == MESSAGES:
                    break
    elif case == "callback":
        with rmq.Producer(namesrv, group=group) as producer:
            for _ in range(MESSAGES):
                producer.send_nowait(rmq.Message(topic, b"x")).add_done_callback(callback)


async def on_asyncio(namesrv: str, case: str, topic: str, group: str) -> None:
    options: dict[str, Any] = {"group": group, "start_from": "first"}
    if case in HANDLERS:
        handler, more = HANDLERS[case]
        done = asyncio.Event()
        count = Count(handler, done.set)

        async def handle(message: rmq.ReceivedMessage) -> Any:
            return count(message)

        async with aio.PushConsumer(namesrv, **options | more) as consumer:
            await consumer.subscribe(topic, handler=handle)
            await done.wait()
    elif case == "process":
        async with aio.PushConsumer(namesrv, broadcast=True, **options) as consumer:
            await consumer.subscribe(topic)
            number = 0
            async for message in consumer:
                async with message.process():
                    broken(message)
                number += 1
                if number == MESSAGES:
                    break
    elif case == "callback":
        async with aio.Producer(namesrv, group=group) as producer:
            for _ in range(MESSAGES):
                (await producer.send_nowait(rmq.Message(topic, b"x"))).add_done_callback(callback)


def main() -> None:
    namesrv, face, *cases = sys.argv[1:]
    for each in cases:
        case, topic = each.split(":")
        print(f"== {case}", file=sys.stderr)
        group = f"{topic}-{face}-{case}"
        if face == "blocking":
            blocking(namesrv, case, topic, group)
        else:
            asyncio.run(on_asyncio(namesrv, case, topic, group))
    print("== end", file=sys.stderr)


if __name__ == "__main__":
    main()
