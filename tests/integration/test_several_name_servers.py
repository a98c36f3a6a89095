"""Several name servers: each may be dead, hang, or come back empty, and no one else notices for long."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketcore import aio
from rocketcore.admin.client import AsyncAdmin
from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.client.api import topic_route
from rocketcore.codes import RequestCode
from rocketcore.errors import ConnectError, TopicNotExist, TransportError
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.bodies.route import TopicRouteData
from rocketcore.protocol.bodies.topic import KVTable, RegisterBrokerBody
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.nameserver import GetRouteInfoRequestHeader
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.server.server import RemotingServer
from tests.integration.broker_client import running_broker, store_config
from tests.integration.remoting_server import add_handler
from tests.soak.cluster import free_ports

TOPIC = "BenchmarkTest"
"""A topic that every broker has."""


def play(scenario: Callable[[], Awaitable[None]], seconds: float = 30.0) -> None:
    async def run() -> None:
        async with asyncio.timeout(seconds):
            await scenario()

    asyncio.run(run())


class Restartable:
    """A name server on a port that it keeps: stopped, its routes are gone."""

    def __init__(self, folder: Path) -> None:
        [self.port] = free_ports(1)
        self._folder = folder / f"namesrv-{self.port}"
        self.server: NameServer | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.server = NameServer(NameServerConfig(listen_port=self.port, rocketmq_home=self._folder))
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()
            self.server = None

    def brokers(self, topic: str = TOPIC) -> set[str]:
        """Return the brokers in the route of a topic, as the tables have it."""
        assert self.server is not None
        route = self.server.routes.route(topic)
        return set() if route is None else {broker.broker_name for broker in route.broker_datas}


@asynccontextmanager
async def name_servers(folder: Path, count: int = 2) -> AsyncIterator[list[Restartable]]:
    servers = [Restartable(folder) for _ in range(count)]
    async with contextlib.AsyncExitStack() as stack:
        for server in servers:
            stack.push_async_callback(server.stop)
            await server.start()
        yield servers


@asynccontextmanager
async def mute_server() -> AsyncIterator[str]:
    """A server that accepts connections and never answers; yields its address."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(1 << 16):
                pass
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


class Recorder:
    """A name server that notes registrations and does with their connections what a test wants."""

    def __init__(self, after: Callable[[Channel, int], bool] = lambda channel, count: True) -> None:
        self.topics: list[int] = []
        self.arrived = asyncio.Event()
        self._after = after
        self._server = RemotingServer("127.0.0.1", 0, name="recorder")
        add_handler(self._server, RequestCode.REGISTER_BROKER, self._register)
        add_handler(self._server, RequestCode.UNREGISTER_BROKER, self._unregister)
        self.unregistered = 0

    async def __aenter__(self) -> Recorder:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    @property
    def address(self) -> str:
        return self._server.address

    async def _register(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.topics.append(
            len(RegisterBrokerBody.decode(request.body).topic_config_serialize_wrapper.topic_config_table)
        )
        self.arrived.set()
        response = RemotingCommand.response(request)
        if not self._after(channel, len(self.topics)):
            raise TopicNotExist(17, "refused")
        return response

    async def _unregister(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.unregistered += 1
        return RemotingCommand.response(request)

    async def registrations(self, count: int) -> None:
        while len(self.topics) < count:
            self.arrived.clear()
            await self.arrived.wait()


async def eventually(condition: Callable[[], bool], timeout: float) -> float:
    """Wait for a condition; return how long it took, or fail."""
    started = time.monotonic()
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - tables tell no one that they changed
            await asyncio.sleep(0.005)
    return time.monotonic() - started


# Brokers


@pytest.mark.parametrize("state", ["dead", "hanging"])
def test_a_name_server_that_is_no_use_delays_no_other(tmp_path: Path, state: str) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            [good] = await stack.enter_async_context(name_servers(tmp_path, 1))
            bad = f"127.0.0.1:{free_ports(1)[0]}" if state == "dead" else await stack.enter_async_context(mute_server())
            started = time.monotonic()
            namesrv = f"{bad};{good.address}"
            broker = await stack.enter_async_context(running_broker(tmp_path, namesrv=namesrv))
            assert time.monotonic() - started < 3.0
            assert good.brokers() == {"broker-a"}
            await broker.send("Fresh")
            assert await eventually(lambda: good.brokers("Fresh") == {"broker-a"}, 5.0) < 1.0
            stopping = asyncio.create_task(broker.broker.stop())
            assert await eventually(lambda: not good.brokers(), 5.0) < 1.0
            await stopping

    play(scenario)


def test_all_name_servers_are_told_when_a_broker_stops(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Recorder() as one, Recorder() as other:
            async with running_broker(tmp_path, namesrv=f"{one.address};{other.address}"):
                assert len(one.topics) == len(other.topics) == 1
            assert one.unregistered == other.unregistered == 1

    play(scenario)


def test_a_name_server_that_comes_back_empty_is_filled_within_a_second(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            name_servers(tmp_path) as (one, other),
            running_broker(tmp_path, namesrv=f"{one.address};{other.address}") as broker,
        ):
            for pause in (0.0, 0.3, 1.5):
                await one.stop()
                await asyncio.sleep(pause)
                assert other.brokers() == {"broker-a"}
                await one.start()
                assert await eventually(lambda: one.brokers() == {"broker-a"}, 5.0) < 1.0
            # The name server forgot everything, so a change alone would not do.
            await broker.send("Fresh")
            await eventually(lambda: one.brokers("Fresh") == other.brokers("Fresh") == {"broker-a"}, 5.0)

    play(scenario)


def test_both_name_servers_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            name_servers(tmp_path) as servers,
            running_broker(tmp_path, namesrv=";".join(server.address for server in servers)),
        ):
            for server in servers:
                await server.stop()
            await asyncio.sleep(0.2)
            for server in servers:
                await server.start()
            assert await eventually(lambda: all(server.brokers() for server in servers), 5.0) < 1.0

    play(scenario)


def test_after_a_lost_connection_everything_is_registered_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels: list[Channel] = []

        def note(channel: Channel, count: int) -> bool:
            channels.append(channel)
            return True

        async with Recorder(note) as recorder, running_broker(tmp_path, namesrv=recorder.address) as broker:
            await broker.send("Fresh")
            await recorder.registrations(2)
            full, change = recorder.topics
            assert change == 1
            started = time.monotonic()
            channels[-1].close()
            await recorder.registrations(3)
            assert time.monotonic() - started < 1.0
            assert recorder.topics[2] == full + 1

    play(scenario)


def test_a_connection_that_closes_with_the_answer_counts_as_lost(tmp_path: Path) -> None:
    """The answer and the end of the connection arrive together: the name server has forgotten the broker again."""

    async def scenario() -> None:
        def close_first(channel: Channel, count: int) -> bool:
            if count == 1:
                asyncio.get_running_loop().call_soon(channel.close)
            return True

        async with Recorder(close_first) as recorder, running_broker(tmp_path, namesrv=recorder.address):
            await recorder.registrations(2)
            assert recorder.topics[0] == recorder.topics[1] > 1

    play(scenario)


def test_a_name_server_that_keeps_closing_is_not_hammered(tmp_path: Path) -> None:
    async def scenario() -> None:
        def close(channel: Channel, count: int) -> bool:
            asyncio.get_running_loop().call_later(0.005, channel.close)
            return True

        async with Recorder(close) as recorder, running_broker(tmp_path, namesrv=recorder.address):
            await asyncio.sleep(1.5)
            assert 3 <= len(recorder.topics) <= 15

    play(scenario)


def test_name_servers_that_disagree_on_ordered_topics_are_not_hammered(tmp_path: Path) -> None:
    class Ordering(Recorder):
        def __init__(self, topic: str) -> None:
            super().__init__()
            self._answer = KVTable(table={topic: "broker-a:1"}).encode()

        async def _register(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
            response = await super()._register(channel, request)
            response.body = self._answer
            return response

    async def scenario() -> None:
        async with (
            Ordering(TOPIC) as one,
            Ordering("SELF_TEST_TOPIC") as other,
            running_broker(tmp_path, namesrv=f"{one.address};{other.address}") as broker,
        ):
            await broker.send("Fresh")
            await other.registrations(2)
            await asyncio.sleep(0.2)
            assert (len(one.topics), len(other.topics)) == (2, 2)

    play(scenario)


def test_a_refused_change_is_followed_by_everything(tmp_path: Path) -> None:
    """A name server that does not know the broker refuses a registration of one topic (rule 7 of registrations)."""

    async def scenario() -> None:
        async with (
            Recorder(lambda channel, count: count != 2) as recorder,
            running_broker(tmp_path, namesrv=recorder.address) as broker,
        ):
            await broker.send("Fresh")
            await recorder.registrations(3)
            full, change, again = recorder.topics
            assert (change, again) == (1, full + 1)

    play(scenario)


def test_a_registration_without_an_answer_is_repeated_over_a_new_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        connections = 0
        second = asyncio.Event()

        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            if connections == 2:
                second.set()
            while await reader.read(1 << 16):
                pass
            writer.close()

        server = await asyncio.start_server(swallow, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            async with running_broker(tmp_path, namesrv=address, register_broker_timeout_mills=200):
                await second.wait()
        finally:
            server.close()

    play(scenario)


# Clients


@asynccontextmanager
async def three_brokers(folder: Path, namesrv: str) -> AsyncIterator[list[Broker]]:
    async with contextlib.AsyncExitStack() as stack:
        brokers = []
        for name in ("broker-a", "broker-b", "broker-c"):
            config = BrokerConfig(broker_name=name, listen_port=0, namesrv_addr=namesrv, default_topic_queue_nums=2)
            broker = await stack.enter_async_context(Broker(config, store_config(folder / name)))
            brokers.append(broker)
        yield brokers


async def consumed(consumer: aio.PushConsumer, count: int) -> set[bytes]:
    """Take messages until there are so many different ones."""
    bodies: set[bytes] = set()
    async for message in consumer:
        message.ack()
        bodies.add(message.body)
        if len(bodies) == count:
            break
    return bodies


async def create_topic(namesrv: str, topic: str) -> None:
    async with AsyncAdmin(namesrv) as admin:
        assert len((await admin.create_topic(topic, 2)).brokers) == 3


def test_sending_and_consuming_go_on_without_any_name_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with name_servers(tmp_path) as servers:
            namesrv = ";".join(server.address for server in servers)
            async with (
                three_brokers(tmp_path, namesrv),
                aio.Producer(namesrv, group="p", route_interval=0.05, retries=0) as producer,
                aio.PushConsumer(namesrv, group="g", start_from="first", route_interval=0.05) as consumer,
            ):
                await create_topic(namesrv, "T")
                await consumer.subscribe("T")
                for number in range(12):
                    await producer.send("T", f"before {number}")
                await consumed(consumer, 12)
                owned = consumer.queues()
                for server in servers:
                    await server.stop()
                for number in range(30):
                    await producer.send("T", f"while dead {number}")
                await consumed(consumer, 30)
                # Back, and empty: an answer that the topic does not exist, then one with fewer brokers.
                for server in servers:
                    await server.start()
                for number in range(30):
                    await producer.send("T", f"when back {number}")
                    await asyncio.sleep(0.01)
                await consumed(consumer, 30)
                assert consumer.queues() == owned

    play(scenario)


def test_a_partial_route_moves_no_queue(tmp_path: Path) -> None:
    """One name server has heard of one broker only; clients that ask it go on with all three."""

    async def scenario() -> None:
        async with (
            name_servers(tmp_path, 1) as [server],
            three_brokers(tmp_path, server.address),
            aio.Producer(server.address, group="p", route_interval=3600) as producer,
            aio.PushConsumer(server.address, group="g", start_from="first", route_interval=3600) as consumer,
            RemotingClient() as client,
        ):
            await create_topic(server.address, "T")
            await consumer.subscribe("T")
            for number in range(12):
                await producer.send("T", f"before {number}")
            await consumed(consumer, 12)
            owned = consumer.queues()
            whole = await topic_route(client, server.address, "T", 1.0)
            partial = TopicRouteData(
                [data for data in whole.queue_datas if data.broker_name == "broker-b"],
                [data for data in whole.broker_datas if data.broker_name == "broker-b"],
            )
            await server.stop()
            async with fake_routes(server.port, partial):
                assert await producer._logic.instance.refresh() is not None
                assert await consumer._logic.instance.refresh() is not None
                sent = {(await producer.send("T", f"partial {number}")).queue.broker for number in range(12)}
                assert sent == {"broker-a", "broker-b", "broker-c"}
                await consumed(consumer, 12)
                assert consumer.queues() == owned

    play(scenario)


@asynccontextmanager
async def fake_routes(port: int, answer: TopicRouteData) -> AsyncIterator[None]:
    """A name server that has one answer to questions for a route, and takes registrations in vain."""
    server = RemotingServer("127.0.0.1", port, name="fake")

    async def route(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        if request.header(GetRouteInfoRequestHeader).topic != "T":
            raise TopicNotExist(17, "no route")
        return RemotingCommand.response(request, body=answer.encode_standard())

    async def register(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request)

    add_handler(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
    add_handler(server, RequestCode.REGISTER_BROKER, register)
    add_handler(server, RequestCode.UNREGISTER_BROKER, register)
    await server.start()
    try:
        yield
    finally:
        await server.stop()


@pytest.mark.parametrize("state", ["dead", "hanging"])
def test_a_first_send_finds_the_name_server_that_works(tmp_path: Path, state: str) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            [good] = await stack.enter_async_context(name_servers(tmp_path, 1))
            bad = f"127.0.0.1:{free_ports(1)[0]}" if state == "dead" else await stack.enter_async_context(mute_server())
            await stack.enter_async_context(running_broker(tmp_path, namesrv=good.address))
            for number in range(4):  # the order is random
                async with aio.Producer(f"{bad};{good.address}", group=f"p{number}", timeout=2.0) as producer:
                    started = time.monotonic()
                    await producer.send("T", "x")
                    assert time.monotonic() - started < 2.0
                    started = time.monotonic()
                    await producer.send("U", "x")
                    assert time.monotonic() - started < 0.5, "the name server that works is asked first from then on"

    play(scenario)


def test_a_send_waits_for_name_servers_that_start_and_no_longer_than_it_may(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Restartable(tmp_path)
        async with (
            running_broker(tmp_path, namesrv=server.address),
            aio.Producer(server.address, group="p") as producer,
        ):
            started = time.monotonic()
            with pytest.raises(ConnectError):
                await producer.send("T", "too early", timeout=0.5)
            assert time.monotonic() - started < 1.0
            sending = asyncio.create_task(producer.send("T", "just in time", timeout=10.0))
            await asyncio.sleep(0.3)
            await server.start()
            try:
                assert (await sending).queue.broker == "broker-a"
            finally:
                await server.stop()

    play(scenario)


def test_many_who_wait_for_a_hanging_name_server_wait_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mute_server() as address, aio.Producer(address, group="p", timeout=0.5) as producer:
            started = time.monotonic()
            outcomes = await asyncio.gather(*(producer.send("T", "x") for _ in range(20)), return_exceptions=True)
            assert all(isinstance(outcome, TransportError) for outcome in outcomes), outcomes
            assert time.monotonic() - started < 2.0

    play(scenario)


def others() -> set[asyncio.Task[object]]:
    """Return the tasks that run beside this one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


def test_a_consumer_does_not_wait_for_a_hanging_name_server_once_a_topic() -> None:
    async def scenario() -> None:
        async with mute_server() as address:
            consumer = aio.PushConsumer(address, group="g", timeout=0.5)
            for number in range(6):
                consumer.subscribe(f"T{number}")
            started = time.monotonic()
            async with consumer:
                assert time.monotonic() - started < 2.0

    play(scenario)


def test_a_consumer_whose_start_is_cancelled_goes_on_or_ends_with_its_block(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Restartable(tmp_path)
        async with mute_server() as mute, running_broker(tmp_path, namesrv=server.address) as broker:
            consumer = aio.PushConsumer(f"{mute};{server.address}", group="g", start_from="first", timeout=1.0)
            consumer.subscribe(TOPIC)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await consumer.start()
            await server.start()
            try:
                await broker.send(TOPIC)
                await consumer.start()
                assert len(await consumed(consumer, 1)) == 1
            finally:
                await consumer.close()
                await server.stop()
            before = others()
            consumer = aio.PushConsumer(mute, group="g")
            consumer.subscribe(TOPIC)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2), consumer:
                    raise AssertionError("it cannot have started")
            assert "client-sweep" not in {task.get_name() for task in others() - before}

    play(scenario)


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_a_close_that_is_cancelled_leaves_nothing_running(tmp_path: Path, seconds: float) -> None:
    """At its first step, and while it waits for the handler."""

    async def scenario() -> None:
        async with name_servers(tmp_path, 1) as [server], running_broker(tmp_path, namesrv=server.address) as broker:
            await broker.send(TOPIC)
            before = others()
            busy = asyncio.Event()

            async def handle(message: object) -> None:
                busy.set()
                await asyncio.Event().wait()

            consumer = aio.PushConsumer(server.address, group="g", start_from="first")
            consumer.subscribe(TOPIC, handler=handle)
            await consumer.start()
            await busy.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await consumer.close()
            await consumer.close()
            names = {task.get_name() for task in others() - before}
            assert not any(name.startswith(("consumer", "client", "Task")) for name in names), names

    play(scenario)
