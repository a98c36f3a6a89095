"""The pytest plugin: a cluster for the session, topics and clients for each test.

Loaded by entry point when rocketcore is installed. Nothing is imported or started before a test asks for a fixture.

rocketmq_cluster  LocalCluster, one for the session
rocketmq          TestClients: topics of its own for each test, clients that are closed at its end
aio_rocketmq      AioTestClients: the same for ``async def`` tests, on the test's own loop

An ``async def`` test with ``aio_rocketmq`` is run by pytest-asyncio or anyio where one of them takes it, and by this
plugin, with ``asyncio.run()``, where none does: neither is needed, and no mark.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, overload

import pytest

if TYPE_CHECKING:
    import asyncio

    from rocketcore import aio
    from rocketcore.admin.client import Admin
    from rocketcore.client.handler import MessageHandler
    from rocketcore.client.sync import Producer, PullConsumer, PushConsumer
    from rocketcore.local import LocalCluster
    from rocketcore.message import ReceivedMessage

__all__ = [
    "AioSeen",
    "AioTestClients",
    "Seen",
    "TestClients",
    "aio_rocketmq",
    "pytest_pyfunc_call",
    "rocketmq",
    "rocketmq_cluster",
    "wait_until",
]

DRAIN_GROUP: Final = "TOOLS_CONSUMER"
"""The group that every broker has for tools; nothing is committed in it, so each drain sees all messages."""

_LOOK_AGAIN: Final = 0.005
_numbers: Final = itertools.count(1)


@pytest.fixture(scope="session")
def rocketmq_cluster() -> Iterator[LocalCluster]:
    """A name server and a broker in this process, on a temporary folder."""
    from rocketcore.local import LocalCluster

    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _rocketmq_admin(rocketmq_cluster: LocalCluster) -> Iterator[Admin]:
    from rocketcore.admin.client import Admin

    with Admin(rocketmq_cluster.namesrv) as admin:
        yield admin


@pytest.fixture
def rocketmq(rocketmq_cluster: LocalCluster, _rocketmq_admin: Admin) -> Iterator[TestClients]:
    """Topics and clients of one test."""
    with ExitStack() as stack:
        yield TestClients(rocketmq_cluster, _rocketmq_admin, stack)


@pytest.fixture
def aio_rocketmq(
    request: pytest.FixtureRequest, rocketmq_cluster: LocalCluster, _rocketmq_admin: Admin
) -> AioTestClients:
    """Topics and clients of one ``async def`` test; they are closed on its loop when it ends."""
    test = request.node.obj
    clients = AioTestClients(rocketmq_cluster, _rocketmq_admin)
    if not inspect.iscoroutinefunction(test):
        raise pytest.UsageError("aio_rocketmq is for tests that are coroutine functions; others have rocketmq")

    @functools.wraps(test)
    async def closing(*arguments: Any, **options: Any) -> None:
        async with clients:
            await test(*arguments, **options)

    request.node.obj = closing
    return clients


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an ``async def`` test with ``aio_rocketmq`` that no other plugin takes."""
    test = pyfuncitem.obj
    if "aio_rocketmq" not in pyfuncitem.fixturenames or not inspect.iscoroutinefunction(test):
        return None
    import asyncio

    names = inspect.signature(test).parameters
    asyncio.run(test(**{name: value for name, value in pyfuncitem.funcargs.items() if name in names}))
    return True


def wait_until(holds: Callable[[], object], timeout: float = 5.0, what: str = "") -> None:
    """Wait until a condition holds, for at most ``timeout`` seconds; raises AssertionError, which says ``what`` was
    waited for."""
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or 'the condition'} did not hold within {timeout:g} s")
        time.sleep(_LOOK_AGAIN)


class _Handled:
    """What a handler was given and is done with, and what it failed with; any thread."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self._topics = ", ".join(topics)
        self._lock = threading.Condition()  # guards the messages, and wakes who waits for them
        self._messages: list[ReceivedMessage] = []
        self._error: BaseException | None = None
        self._wake: Callable[[], object] = lambda: None

    @property
    def messages(self) -> list[ReceivedMessage]:
        """The messages that the handler is done with, in this order, without failed ones."""
        with self._lock:
            return list(self._messages)

    def _note(self, message: ReceivedMessage, error: BaseException | None) -> None:
        with self._lock:
            if error is None:
                self._messages.append(message)
            else:
                self._error = error
            self._lock.notify_all()
        self._wake()

    def _lacks(self, count: int, timeout: float) -> AssertionError:
        why = f"; its last failure: {self._error!r}" if self._error is not None else ""
        error = AssertionError(
            f"the handler of {self._topics} has handled {len(self.messages)} messages after {timeout:g} s, "
            f"{count} were expected{why}"
        )
        error.__cause__ = self._error
        return error

    def recording(self, handler: MessageHandler) -> MessageHandler:
        """Return a handler that does the same, and is noted."""

        async def finish(message: ReceivedMessage, result: Awaitable[Any]) -> Any:
            try:
                value = await result
            except BaseException as error:
                self._note(message, error)
                raise
            self._note(message, None)
            return value

        async def on_loop(message: ReceivedMessage) -> Any:
            return await finish(message, handler(message))  # type: ignore[arg-type]

        def on_thread(message: ReceivedMessage) -> Any:
            try:
                result = handler(message)
            except BaseException as error:
                self._note(message, error)
                raise
            if inspect.isawaitable(result):
                return finish(message, result)
            self._note(message, None)
            return result

        from rocketcore.client.runtime import returns_coroutine

        return on_loop if returns_coroutine(handler) else on_thread


class Seen(_Handled):
    """A running consumer with a handler, and the messages that this is done with."""

    consumer: PushConsumer

    def wait_for(self, count: int, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Wait until the handler is done with ``count`` messages; return all of them.

        raises  AssertionError after ``timeout`` seconds, which says how many there were and what the handler raised
        """
        with self._lock:
            if self._lock.wait_for(lambda: len(self._messages) >= count, timeout):
                return list(self._messages)
        raise self._lacks(count, timeout)


class AioSeen(_Handled):
    """As ``Seen``, for asyncio."""

    consumer: aio.PushConsumer
    _starting: Awaitable[None]

    async def wait_for(self, count: int, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Wait until the handler is done with ``count`` messages; return all of them.

        raises  AssertionError after ``timeout`` seconds, which says how many there were and what the handler raised;
                the error that the consumer started with
        """
        import asyncio

        news, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(news.set)
        try:
            async with asyncio.timeout(timeout):
                await self._starting
                while len(self.messages) < count:
                    news.clear()
                    if len(self.messages) < count:
                        await news.wait()
        except TimeoutError:
            raise self._lacks(count, timeout) from self._error
        return self.messages


class _Topics:
    """A cluster, and names and topics that no other test uses."""

    __test__ = False

    def __init__(self, cluster: LocalCluster, admin: Admin) -> None:
        self.cluster = cluster
        self._admin = admin

    @property
    def namesrv(self) -> str:
        """Address of the name server."""
        return self.cluster.namesrv

    def name(self, prefix: str = "test") -> str:
        """Return a name that is used once in this process and by no other process: for topics and groups."""
        return f"{prefix}-{os.getpid()}-{next(_numbers)}"

    def topic(self, queues: int = 4, *, name: str | None = None) -> str:
        """Create a topic and return its name.

        name    default: a name that no other test uses; an existing topic of this name stays as it is
        raises  TopicExists where that has another number of queues
        """
        from rocketcore.errors import TopicExists

        topic = name or self.name()
        made = self._admin.create_topic(topic, queues, exist_ok=True)
        if made.read_queues != queues:
            raise TopicExists(topic, made.brokers)
        return topic

    def _drained(self, topic: str, expect: int | None, timeout: float) -> list[ReceivedMessage]:
        from rocketcore.client.sync import PullConsumer

        deadline = time.monotonic() + timeout
        messages: list[ReceivedMessage] = []
        with PullConsumer(self.namesrv, group=DRAIN_GROUP, start_from="first") as consumer:
            consumer.assign(self._admin.queues(topic))
            while True:
                there = sum(bounds.max_offset - bounds.min_offset for bounds in self._admin.topic_stats(topic).values())
                wanted = max(there, expect or 0)
                left = deadline - time.monotonic()
                if len(messages) >= wanted or left <= 0:
                    break
                messages += consumer.poll(min(left, 0.25), max_messages=1024)
        if expect is not None and len(messages) < expect:
            raise AssertionError(f"{topic} has {len(messages)} messages after {timeout:g} s, {expect} were expected")
        return sorted(messages, key=lambda message: (message.store_timestamp, message.queue, message.offset))


class TestClients(_Topics):
    """The fixture of a test: topics that no other test uses, and clients of the session's cluster."""

    __test__ = False

    def __init__(self, cluster: LocalCluster, admin: Admin, stack: ExitStack) -> None:
        super().__init__(cluster, admin)
        self._stack = stack

    def producer(self, **options: Any) -> Producer:
        """Return a producer of a group of its own; it is closed at the end of the test."""
        from rocketcore.client.sync import Producer

        options.setdefault("group", self.name("producers"))
        return self._stack.enter_context(Producer(self.namesrv, **options))

    @overload
    def consumer(self, *topics: str, handler: MessageHandler, tag: str | None = None, **options: Any) -> Seen: ...

    @overload
    def consumer(self, *topics: str, handler: None = None, tag: str | None = None, **options: Any) -> PushConsumer: ...

    def consumer(
        self, *topics: str, handler: MessageHandler | None = None, tag: str | None = None, **options: Any
    ) -> PushConsumer | Seen:
        """Return a push consumer of a group of its own that begins with the first message; closed at the end.

        handler  the consumer runs at once, a topic that is missing is created, and what is returned has
                 ``wait_for(count)``, ``messages`` and the ``consumer``
        """
        from rocketcore.client.sync import PushConsumer

        options.setdefault("group", self.name("consumers"))
        options.setdefault("start_from", "first")
        consumer = PushConsumer(self.namesrv, **options)
        self._stack.callback(consumer.close)
        if handler is None:
            for topic in topics:
                consumer.subscribe(topic, tag=tag)
            return consumer
        seen = Seen(topics)
        seen.consumer = consumer
        for topic in topics:
            self._admin.create_topic(topic, exist_ok=True)
            consumer.subscribe(topic, tag=tag, handler=seen.recording(handler))
        consumer.start()
        return seen

    @staticmethod
    def wait_until(holds: Callable[[], object], timeout: float = 5.0, what: str = "") -> None:
        """Wait until a condition holds; raises AssertionError after ``timeout`` seconds."""
        wait_until(holds, timeout, what)

    def pull_consumer(self, *topics: str, tag: str | None = None, **options: Any) -> PullConsumer:
        """Return a pull consumer of a group of its own that begins with the first message; closed at the end."""
        from rocketcore.client.sync import PullConsumer

        options.setdefault("group", self.name("consumers"))
        options.setdefault("start_from", "first")
        consumer = self._stack.enter_context(PullConsumer(self.namesrv, **options))
        for topic in topics:
            consumer.subscribe(topic, tag=tag)
        return consumer

    def admin(self) -> Admin:
        """Return an administration client of the cluster; the session's, so leave it open."""
        return self._admin

    def drain(self, topic: str, expect: int | None = None, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Return all messages of a topic, oldest first, and leave every group's offsets alone.

        expect   wait until there are this many
        timeout  seconds to wait
        raises   AssertionError naming how many came, when fewer than ``expect`` did
        """
        return self._drained(topic, expect, timeout)


async def _await_task(task: asyncio.Task[None]) -> None:
    """Wait for the end of a task, whose error is for who waits for messages."""
    import asyncio

    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


class AioTestClients(_Topics):
    """The fixture of an ``async def`` test: as ``TestClients``, with the clients of ``rocketcore.aio``.

    They are made at once and start as they are used. Topics are created by calls that wait.
    """

    def __init__(self, cluster: LocalCluster, admin: Admin) -> None:
        super().__init__(cluster, admin)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def drain(self, topic: str, expect: int | None = None, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Return all messages of a topic, as ``TestClients.drain``."""
        import asyncio

        return await asyncio.to_thread(self._drained, topic, expect, timeout)

    def producer(self, **options: Any) -> aio.Producer:
        """Return a producer of a group of its own; it is closed at the end of the test."""
        from rocketcore import aio

        options.setdefault("group", self.name("producers"))
        producer = aio.Producer(self.namesrv, **options)
        self._stack.push_async_callback(producer.close)
        return producer

    @overload
    def consumer(self, *topics: str, handler: MessageHandler, tag: str | None = None, **options: Any) -> AioSeen: ...

    @overload
    def consumer(
        self, *topics: str, handler: None = None, tag: str | None = None, **options: Any
    ) -> aio.PushConsumer: ...

    def consumer(
        self, *topics: str, handler: MessageHandler | None = None, tag: str | None = None, **options: Any
    ) -> aio.PushConsumer | AioSeen:
        """Return a push consumer of a group of its own that begins with the first message; closed at the end.

        handler  as in ``TestClients.consumer``; the consumer starts by itself
        """
        import asyncio

        from rocketcore import aio

        options.setdefault("group", self.name("consumers"))
        options.setdefault("start_from", "first")
        consumer = aio.PushConsumer(self.namesrv, **options)
        self._stack.push_async_callback(consumer.close)
        if handler is None:
            for topic in topics:
                consumer.subscribe(topic, tag=tag)
            return consumer
        seen = AioSeen(topics)
        seen.consumer = consumer
        for topic in topics:
            self._admin.create_topic(topic, exist_ok=True)
            consumer.subscribe(topic, tag=tag, handler=seen.recording(handler))
        starting = asyncio.get_running_loop().create_task(consumer.start())
        seen._starting = asyncio.shield(starting)
        self._stack.push_async_callback(_await_task, starting)  # before the consumer is closed
        return seen

    def pull_consumer(self, *topics: str, tag: str | None = None, **options: Any) -> aio.PullConsumer:
        """Return a pull consumer of a group of its own that begins with the first message; closed at the end."""
        from rocketcore import aio

        options.setdefault("group", self.name("consumers"))
        options.setdefault("start_from", "first")
        consumer = aio.PullConsumer(self.namesrv, **options)
        self._stack.push_async_callback(consumer.close)
        for topic in topics:
            consumer.subscribe(topic, tag=tag)
        return consumer

    @staticmethod
    async def wait_until(holds: Callable[[], object], timeout: float = 5.0, what: str = "") -> None:
        """Wait until a condition holds; raises AssertionError after ``timeout`` seconds."""
        import asyncio

        deadline = time.monotonic() + timeout
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what or 'the condition'} did not hold within {timeout:g} s")
            await asyncio.sleep(_LOOK_AGAIN)
