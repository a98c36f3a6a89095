"""Every public call of every class, in one odd situation: ``python -m tests.integration.calls_family SITUATION``.

The calls are found by looking at the classes, their arguments by the names and types of the parameters: a method that
comes takes part by itself, and fails where ``recipe`` does not know a parameter of it. Each call gives its result, or
one RocketError, within a bound; what does anything else is printed, as JSON.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import rocketcore as rmq
from rocketcore import aio
from rocketcore.admin.accounts import Policy
from rocketcore.local import LocalCluster
from rocketcore.protocol.bodies.route import QueueData

TOPIC = "family"
BOUND = 20.0
CLASSES: dict[str, list[type[Any]]] = {
    "blocking": [rmq.Producer, rmq.PushConsumer, rmq.PullConsumer, rmq.SimpleConsumer, rmq.Admin, LocalCluster],
    "aio": [aio.Producer, aio.PushConsumer, aio.PullConsumer, aio.SimpleConsumer, aio.Admin],
}
LAST = ("unsubscribe", "stop", "run", "drain", "close")
"""Calls behind which a client is not what it was."""

FORKED = (rmq.ForkedClient, rmq.ConfigError)
"""What a child may get: arguments are looked at first."""

Outcomes = dict[str, str]


class World:
    """A cluster with a topic, and what arguments need of it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.namesrv = cluster.namesrv
        with rmq.Admin(self.namesrv) as admin:
            admin.create_topic(TOPIC, 2)
            admin.create_group("family")
            self.queue = admin.queues(TOPIC)[0]
            self.metadata = admin.export_metadata()
            self.plans = {
                "ResetPlan": admin.plan_reset("family", TOPIC, "latest"),
                "MetadataPlan": admin.plan_import(self.metadata),
            }
        with rmq.Producer(self.namesrv, group="family") as producer:
            for _ in range(4):
                self.sent = producer.send(TOPIC, b"x", queue=self.queue)
        self.received = rmq.ReceivedMessage(TOPIC, b"x", self.queue, 0, self.sent.msg_id, self.sent.offset_msg_id)
        self.count = 0

    def mend(self) -> None:
        """Undo what administration did to the topic, and have a message in it."""
        with rmq.Admin(self.namesrv) as admin:
            admin.add_write_permission("broker-a")
            admin.create_topic(TOPIC, 2, exist_ok=True)
        with rmq.Producer(self.namesrv, group="family") as producer:
            producer.send(TOPIC, b"x")

    def client(self, kind: type[Any]) -> Any:
        if kind is LocalCluster:
            return self.cluster
        if "Admin" in kind.__name__:
            return kind(self.namesrv, timeout=2.0)
        self.count += 1
        options: dict[str, Any] = {"group": f"family-{self.count}", "timeout": 2.0}
        if kind.__name__ == "PushConsumer":
            options["start_from"] = "first"
        if kind.__name__ == "Producer":
            options["checker"] = lambda message: rmq.TransactionState.COMMIT
        return kind(self.namesrv, **options)

    def value(self, name: str, annotation: str) -> Any:
        """Return what a parameter takes; raises LookupError."""
        if annotation in self.plans:
            return self.plans[annotation]
        by_type: dict[tuple[str, str], Any] = {
            ("message", "Message"): rmq.Message(TOPIC, b"x"),
            ("message", "ReceivedMessage"): self.received,
            ("messages", "Iterable[Message]"): [rmq.Message(TOPIC, b"x")] * 2,
            ("messages", "Sequence[ReceivedMessage]"): [self.received],
            ("queues", "Sequence[QueueData]"): [QueueData("broker-a", 1, 1, 6)],
        }
        by_name: dict[str, Any] = {
            "address": self.cluster.broker_addresses[0] if self.cluster._host else "127.0.0.1:1",
            "broker": "broker-a",
            "client_id": "nobody",
            "cluster": "DefaultCluster",
            "group": "family",
            "handle": "handle",
            "key": "key",
            "members": [],
            "message_id": self.sent.msg_id,
            "metadata": self.metadata,
            "mode": "pull",
            "namespace": "family",
            "offset": 0,
            "policy": Policy("User:nobody", "Topic:*", ("PUB",)),
            "properties": {"key": "value"},
            "queue": self.queue,
            "queues": [self.queue],
            "subject": "User:nobody",
            "time": datetime(2020, 1, 1, tzinfo=UTC),
            "timestamp": 0,
            "to": "latest",
            "topic": TOPIC,
            "body": b"x",
            "timeout": 0.3,
            "white_addresses": ["127.0.0.1"],
            **dict.fromkeys(("access_key", "secret_key", "password", "username", "value"), "somebody12"),
        }
        return by_type[name, annotation] if (name, annotation) in by_type else by_name[name]

    def arguments(self, kind: type[Any], name: str) -> dict[str, Any]:
        if name == "send_arrow":
            import pyarrow

            return {"topic": TOPIC, "record_batch": pyarrow.table({"payload": [b"x"]}), "body": "payload"}
        found = {}
        for parameter in list(inspect.signature(getattr(kind, name)).parameters.values())[1:]:
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            if parameter.default is parameter.empty or parameter.name in ("timeout", "body"):
                try:
                    found[parameter.name] = self.value(parameter.name, str(parameter.annotation))
                except LookupError:
                    raise AssertionError(
                        f"calls_family.py: no recipe for {parameter.name}: {parameter.annotation} of "
                        f"{kind.__name__}.{name}"
                    ) from None
        return found


def calls(kind: type[Any]) -> list[str]:
    """Return the public names of a class, those that end a client last."""
    return sorted((name for name in dir(kind) if not name.startswith("_")), key=lambda n: (n in LAST, n))


def judged(began: float, error: BaseException | None) -> str:
    """Return what an outcome is worth: empty, or what is wrong."""
    if time.monotonic() - began > BOUND:
        return f"took {time.monotonic() - began:.1f} s"
    if error is None or isinstance(error, rmq.RocketError):
        return ""
    return f"{type(error).__name__}: {error}"


def bound(world: World, kind: type[Any], client: Any, name: str) -> Callable[[], Any]:
    """Return a call with its arguments; of an attribute, what reads it."""
    if not callable(getattr(kind, name)):
        return lambda: getattr(client, name)
    arguments = world.arguments(kind, name)
    return lambda: getattr(client, name)(**arguments)


def call_all(world: World, kind: type[Any], client: Any, where: str) -> Outcomes:
    outcomes = {}
    for name in calls(kind):
        began, failure = time.monotonic(), None
        try:
            bound(world, kind, client, name)()
        except BaseException as error:
            failure = error
        outcomes[f"{where} {kind.__name__}.{name}"] = judged(began, failure)
    return outcomes


async def await_all(
    world: World, kind: type[Any], client: Any, where: str, *, only: tuple[type[rmq.RocketError], ...] = ()
) -> Outcomes:
    """As ``call_all``; ``only``: any other outcome is wrong where the call would wait."""
    outcomes = {}
    for name in calls(kind):
        began, failure, waits = time.monotonic(), None, False
        try:
            result = bound(world, kind, client, name)()
            waits = inspect.isawaitable(result)
            if waits:
                await result
        except BaseException as error:
            failure = error
        wrong = judged(began, failure)
        if only and waits and not isinstance(failure, only):
            wrong = wrong or f"another outcome: {failure!r}"
        outcomes[f"{where} {kind.__name__}.{name}"] = wrong
    return outcomes


def start(kind: type[Any], client: Any) -> None:
    """Have a client start whatever it has."""
    if kind is rmq.Producer:
        client.send_nowait(TOPIC, b"x").result(BOUND)
    elif kind is rmq.Admin:
        client.topics()
    elif kind is not LocalCluster:
        client.subscribe(TOPIC)
        client.start()


async def start_aio(client: Any) -> None:
    if isinstance(client, aio.Producer):
        await (await client.send_nowait(TOPIC, b"x"))
    elif isinstance(client, aio.Admin):
        await client.topics()
    else:
        await client.subscribe(TOPIC)
        await client.start()


# Blocking


def closed(world: World) -> Iterator[Outcomes]:
    for kind in CLASSES["blocking"]:
        client = world.client(kind)
        start(kind, client)
        client.stop() if kind is LocalCluster else client.close()
        yield call_all(world, kind, client, "closed")
        world.cluster.start()
        world.namesrv = world.cluster.namesrv


def forked(world: World) -> Iterator[Outcomes]:
    for kind in CLASSES["blocking"]:
        client = world.client(kind)
        start(kind, client)
        yield of_child(lambda kind=kind, client=client: call_all(world, kind, client, "child"))  # type: ignore[misc]
        if kind is not LocalCluster:
            client.close()


def of_child(work: Callable[[], Outcomes]) -> Outcomes:
    """Return what a forked child finds."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            faulthandler.register(signal.SIGALRM, chain=True)  # its watchdog's thread is the parent's
            signal.alarm(int(2 * BOUND))
            with os.fdopen(writing, "w") as pipe:
                json.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    status = os.waitpid(pid, 0)[1]
    return json.loads(text) if text and status == 0 else {"a child": f"status {status}"}


def in_callback(world: World) -> Iterator[Outcomes]:
    """In a callback of ``send_nowait``, which runs on the loop that sends: calls of that client, and of others."""
    for kind in CLASSES["blocking"][:-1]:
        client = world.client(kind)
        start(kind, client)
        producer = client if kind is rmq.Producer else world.client(rmq.Producer)
        found: list[Outcomes] = []
        done = threading.Event()

        def called(_: object, kind: type[Any] = kind, client: Any = client) -> None:
            try:
                found.append(call_all(world, kind, client, "callback"))  # noqa: B023
            finally:
                done.set()  # noqa: B023

        producer.send_nowait(TOPIC, b"x").add_done_callback(called)
        done.wait()
        client.close()
        producer.close()
        yield from found


def in_handler(world: World) -> Iterator[Outcomes]:
    """In a handler, on a thread and on the consumer's loop: calls of that client, and of others."""
    for coroutine in (False, True):
        world.mend()
        for kind in CLASSES["blocking"][:-1]:
            client = world.client(kind)
            consumer = client if kind is rmq.PushConsumer else world.client(rmq.PushConsumer)
            if client is not consumer:
                start(kind, client)
            found: list[Outcomes] = []
            done = threading.Event()

            def handle(message: rmq.ReceivedMessage, kind: type[Any] = kind, client: Any = client) -> None:
                if not done.is_set():  # noqa: B023
                    try:
                        found.append(call_all(world, kind, client, "handler"))  # noqa: B023
                    finally:
                        done.set()  # noqa: B023

            async def handle_on_loop(message: rmq.ReceivedMessage, handle: Any = handle) -> None:
                handle(message)

            consumer.subscribe(TOPIC, handler=handle_on_loop if coroutine else handle)
            consumer.start()
            done.wait()
            consumer.close()
            client.close()
            yield from found


def in_signal(world: World) -> Iterator[Outcomes]:
    """In a signal's handler that comes in while the main thread waits in a call of the same client."""
    for kind in CLASSES["blocking"]:
        client = world.client(kind)
        start(kind, client)
        found: list[Outcomes] = []

        def caught(number: int, frame: object, kind: type[Any] = kind, client: Any = client) -> None:
            found.append(call_all(world, kind, client, "signal"))  # noqa: B023

        before = signal.signal(signal.SIGALRM, caught)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        busy = {
            "Producer": lambda client=client: client.send(TOPIC, b"x"),
            "PushConsumer": lambda client=client: client.wait_ready(BOUND),
            "PullConsumer": lambda client=client: client.poll(1.0),
            "SimpleConsumer": lambda client=client: client.receive(1, 1.0),
            "Admin": lambda client=client: client.topics(),
            "LocalCluster": lambda client=client: client.check(),
        }[kind.__name__]
        failure, began = None, time.monotonic()
        while not found:
            try:
                busy()
            except rmq.RocketError:
                pass  # of a client that the handler has closed
            except BaseException as error:
                failure = error
                break
        signal.signal(signal.SIGALRM, before)
        yield {f"behind a signal {kind.__name__}": judged(time.monotonic() if found else began, failure)}
        yield from found
        world.cluster.start()
        world.namesrv = world.cluster.namesrv
        if kind is not LocalCluster:
            client.close()


# asyncio


def aio_closed(world: World) -> Iterator[Outcomes]:
    for kind in CLASSES["aio"]:

        async def main(kind: type[Any] = kind) -> Outcomes:
            client = world.client(kind)
            await start_aio(client)
            await client.close()
            return await await_all(world, kind, client, "closed")

        yield asyncio.run(main())


def aio_loop_closed(world: World) -> Iterator[Outcomes]:
    for kind in CLASSES["aio"]:
        client = world.client(kind)
        asyncio.run(start_aio(client))
        yield asyncio.run(await_all(world, kind, client, "loop closed", only=(rmq.ConfigError,)))


def aio_second_loop(world: World) -> Iterator[Outcomes]:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    for kind in CLASSES["aio"]:
        client = world.client(kind)
        asyncio.run_coroutine_threadsafe(start_aio(client), loop).result(BOUND)
        yield asyncio.run(await_all(world, kind, client, "second loop", only=(rmq.ConfigError,)))
        yield call_outside(world, kind, client)
        asyncio.run_coroutine_threadsafe(client.close(), loop).result(BOUND)


def call_outside(world: World, kind: type[Any], client: Any) -> Outcomes:
    """Make the calls that do not wait in a thread without a loop; coroutines are made, and not run."""
    outcomes = {}
    for name in calls(kind):
        began, failure = time.monotonic(), None
        try:
            result = bound(world, kind, client, name)()
            if inspect.iscoroutine(result) or hasattr(result, "close"):
                result.close()
        except BaseException as error:
            failure = error
        outcomes[f"no loop {kind.__name__}.{name}"] = judged(began, failure)
    return outcomes


def aio_forked(world: World) -> Iterator[Outcomes]:
    for kind in CLASSES["aio"]:

        async def main(kind: type[Any] = kind) -> Outcomes:
            client = world.client(kind)
            await start_aio(client)
            try:
                return of_child(lambda: asyncio.run(await_all(world, kind, client, "child", only=FORKED)))
            finally:
                await client.close()

        yield asyncio.run(main())


def aio_handler(world: World) -> Iterator[Outcomes]:
    """In a handler on the loop, and in one on a thread, where ``asyncio.run`` makes another loop."""
    for coroutine in (True, False):
        world.mend()
        for kind in CLASSES["aio"]:

            async def main(kind: type[Any] = kind, coroutine: bool = coroutine) -> Outcomes:
                client = world.client(kind)
                consumer = client if kind is aio.PushConsumer else world.client(aio.PushConsumer)
                if client is not consumer:
                    await start_aio(client)
                loop = asyncio.get_running_loop()
                found: asyncio.Future[Outcomes] = loop.create_future()

                async def on_loop(message: rmq.ReceivedMessage) -> None:
                    if not found.done():
                        outcomes = await await_all(world, kind, client, "handler")
                        if not found.done():
                            found.set_result(outcomes)

                def on_thread(message: rmq.ReceivedMessage) -> None:
                    outcomes = asyncio.run(await_all(world, kind, client, "handler", only=(rmq.ConfigError,)))
                    loop.call_soon_threadsafe(lambda: found.done() or found.set_result(outcomes))

                await consumer.subscribe(TOPIC, handler=on_loop if coroutine else on_thread)
                await consumer.start()
                try:
                    return await found
                finally:
                    await consumer.close()
                    await client.close()

            yield asyncio.run(main())


SITUATIONS: dict[str, Callable[[World], Iterator[Outcomes]]] = {
    each.__name__: each
    for each in (
        closed,
        forked,
        in_callback,
        in_handler,
        in_signal,
        aio_closed,
        aio_loop_closed,
        aio_second_loop,
        aio_forked,
        aio_handler,
    )
}


def main(situation: str) -> None:
    faulthandler.dump_traceback_later(5 * BOUND, exit=True)
    outcomes: Outcomes = {}
    with LocalCluster() as cluster:
        for found in SITUATIONS[situation](World(cluster)):
            outcomes |= found
    print(json.dumps(outcomes))
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
