"""Automatic batches: failures, refusals, and brokers that are silent, away, or not known yet."""

from __future__ import annotations

import asyncio

import pytest

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.future import SendFuture
from rocketcore.client.sender import Sender
from rocketcore.codes import RequestCode
from rocketcore.errors import (
    MessageRefused,
    RequestTimeout,
    RouteNotFound,
    SendsFailed,
)
from rocketcore.message import Message, MessageQueue
from rocketcore.protocol.command import RemotingCommand
from tests.unit.client.batches import Gate, append, refused, run, settled
from tests.unit.client.fakes import FakeRemoting, Outcome, route, stored


def test_a_refusal_reaches_every_future_of_the_batch() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.serve = lambda address, request: RemotingCommand.response(request, 13, "illegal")
        remoting.open.set()
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(2)]
        for future in futures:
            with pytest.raises(MessageRefused):
                await future
            assert isinstance(future.exception(), MessageRefused)

    run(body)


class Silent(Gate):
    """Two brokers, of which ``a`` does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.routes["T"] = route("a", "b")

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if address != "a:1":
            return await FakeRemoting.invoke(self, address, command, timeout)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            async with asyncio.timeout(timeout):
                await self.open.wait()
        except TimeoutError:
            raise RequestTimeout(f"SEND_MESSAGE_V2 at {address}: no answer within {timeout:g} s") from None
        finally:
            self.under_way -= 1
        return await FakeRemoting.invoke(self, address, command, timeout)


class SilentAlone(Silent):
    """One broker, which does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.routes["T"] = route("a", queues=1)


def test_a_failure_of_any_kind_is_the_outcome() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        def broken(*_: object, **__: object) -> bytes:
            raise OverflowError("too large")

        remoting.open.set()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rocketcore.client.delivery.encode_batch", broken)
            futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(3)]
            with pytest.raises(OverflowError):
                await futures[0]
        assert [type(future.exception()) for future in futures] == [OverflowError] * 3
        assert "failed" in repr(futures[0])
        assert not remoting.asked

    run(body)


@pytest.mark.parametrize("stop", [SystemExit(3), KeyboardInterrupt()])
def test_a_hook_or_selector_that_ends_the_program_ends_no_other_send(stop: BaseException) -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        outcomes: list[BaseException | None] = [stop, None]

        def serve(address: str, request: RemotingCommand) -> Outcome:
            failure = outcomes.pop(0)
            if failure is not None:
                raise failure
            return stored(request)

        remoting.serve = serve
        first = await append(accumulator, logic, Message("T", b"x"))
        await settled(first)
        assert type(first.exception()) is type(stop)
        assert (await (await append(accumulator, logic, Message("T", b"y")))).offset == 7

    run(body)


def test_a_broker_that_is_silent_holds_up_no_other() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        await logic.publisher("T")
        to_silent, to_other = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
        stuck = []
        for number in range(40):
            future = accumulator.append(Message("T", b"x"), MessageQueue("T", "a", number % 2))
            assert future is not None
            stuck.append(future)
            await asyncio.sleep(0)
        future = accumulator.append(Message("T", b"x"), to_other)
        assert future is not None
        assert (await future).queue == to_other
        for _ in range(20):  # those whose queues take turns go where there is room
            assert (await (await append(accumulator, logic, Message("T", b"y", delay_level=1)))).queue.broker
            if remoting.under_way == 8:
                break
        assert remoting.under_way <= 8
        assert not any(future.done() for future in stuck)
        remoting.open.set()
        assert {(await future).queue.broker for future in stuck} == {to_silent.broker}

    run(body, make=Silent, batch_count=1, timeout=0.2)


def test_a_message_whose_broker_is_silent_is_sent_to_another() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(4)]
        assert {(await future).queue.broker for future in futures} == {"b"}

    run(body, make=Silent, timeout=0.05, batch_count=1)


def test_a_broker_that_comes_back_in_time_gets_what_was_sent_meanwhile() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        attempts = 0

        def serve(address: str, request: RemotingCommand) -> Outcome:
            nonlocal attempts
            attempts += 1
            return refused(address, request) if attempts <= 6 else stored(request)

        remoting.serve = serve
        await logic.publisher("T")
        futures = [await append(accumulator, logic, Message("T", f"{i}", message_group="g")) for i in range(3)]
        await accumulator.flush()
        assert [(await future).queue for future in futures] == [futures[0].result().queue] * 3
        assert attempts == 7

    run(body)


def test_time_is_counted_from_the_append() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        await logic.publisher("T")
        messages = [Message("T", f"{i}", message_group="g") for i in range(20)]
        futures = [await append(accumulator, logic, message) for message in messages]
        with pytest.raises(SendsFailed, match="20 messages"):
            await accumulator.flush()
        assert all(isinstance(future.exception(), RequestTimeout) for future in futures)
        assert "what was sent before has not been answered" in str(futures[-1].exception())
        assert remoting.most_under_way == 1  # it is not answered: the others never have their turn
        assert len(accumulator._pending) == accumulator._bytes == 0

    run(body, make=SilentAlone, batch_count=1, delivery_timeout=0.1)


def test_a_topic_without_a_route_fails_in_time() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        with pytest.raises(RouteNotFound, match="'Nowhere'"):
            await (await append(accumulator, logic, Message("Nowhere", b"x")))
        with pytest.raises(RouteNotFound, match="'Nowhere'"):
            await (await append(accumulator, logic, Message("Nowhere", b"x", message_group="g")))
        assert accumulator._unrouted == set()
        assert accumulator._backlogs == {}

    run(body)


def test_messages_keep_their_order_while_their_queue_is_not_known() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        futures = [await append(accumulator, logic, Message("T", f"{i:02}", message_group="g")) for i in range(3)]
        await asyncio.sleep(0)
        futures += [await append(accumulator, logic, Message("T", f"{i:02}", message_group="g")) for i in range(3, 6)]
        await accumulator.flush()
        assert len({future.result().queue for future in futures}) == 1
        sent = b"".join(request.body for _, request in remoting.asked)
        positions = [sent.index(f"{i:02}".encode()) for i in range(6)]
        assert positions == sorted(positions)
        with pytest.raises(RouteNotFound, match="queue_id=9"):
            accumulator.append(Message("T", b"x"), MessageQueue("T", "a", 9))

    run(body)


def test_a_queue_that_is_away_for_a_while_gets_its_messages() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        remoting.routes["T"] = route("a", "b")
        await logic.publisher("T")
        queue = MessageQueue("T", "b", 1)
        future = accumulator.append(Message("T", b"x"), queue)
        assert future is not None
        logic.instance.routes.update("T", route("a"))
        assert (await future).queue == queue

    run(body)


class Turns(Gate):
    """One broker with nine queues; each send is answered when it has its turn."""

    def __init__(self) -> None:
        super().__init__(queues=9)
        self.turns = asyncio.Semaphore(0)

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            await self.turns.acquire()
        return await FakeRemoting.invoke(self, address, command, timeout)


def test_a_queue_that_gave_up_once_has_its_turn_again() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        assert isinstance(remoting, Turns)
        await logic.publisher("T")

        def send(number: int) -> SendFuture:
            future = accumulator.append(Message("T", b"x"), MessageQueue("T", "a", number))
            assert future is not None
            return future

        stuck = [send(number) for number in range(8)]  # all that the broker may have under way
        late = send(8)
        await settled(late)
        again, behind = send(8), send(8)
        remoting.turns.release()
        await settled(behind)
        for _ in range(8):
            remoting.turns.release()
        assert {(await future).queue.broker for future in (*stuck, again)} == {"a"}
        assert {type(future.exception()) for future in (late, behind)} == {RequestTimeout}
        await accumulator.flush()
        assert accumulator._backlogs == {}

    run(body, make=Turns, batch_count=1, delivery_timeout=0.1)


def test_a_silent_broker_does_not_take_the_whole_buffer() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        await logic.publisher("T")
        to_silent, to_other = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
        stuck = []
        while (future := accumulator.append(Message("T", b"x" * 300), to_silent)) is not None:
            stuck.append(future)
        assert len(stuck) > 20
        for _ in range(20):  # one after the other, also where it takes several turns
            future = accumulator.append(Message("T", b"y" * 300), to_other)
            assert future is not None
            assert (await future).queue == to_other
        assert not any(future.done() for future in stuck)
        remoting.open.set()
        assert {(await future).queue for future in stuck} == {to_silent}
        assert accumulator._bytes == accumulator._coming_bytes == 0
        assert accumulator._taken == {}

    run(body, make=Silent, buffer_bytes=16 * 1024, batch_bytes=1024)


def test_a_topic_whose_broker_is_silent_leaves_room_for_others() -> None:
    class OneSilent(Silent):
        def __init__(self) -> None:
            super().__init__()
            self.routes = {"T": route("a"), "U": route("a"), "V": route("b")}

    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        for topic in ("T", "U"):
            while accumulator.append(Message(topic, b"x" * 300)) is not None:
                pass
        for _ in range(20):
            future = accumulator.append(Message("V", b"y" * 300))
            assert future is not None
            assert (await future).queue.topic == "V"
        with pytest.raises(SendsFailed):
            await accumulator.close(0.0)

    run(body, make=OneSilent, buffer_bytes=16 * 1024, batch_bytes=1024)
