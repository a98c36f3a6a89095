"""What becomes of the futures of ``send_nowait`` when something else fails: hooks, callbacks, threads, the process."""

from __future__ import annotations

import asyncio

import pytest

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.config import ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.sender import Sender
from rocketcore.codes import RequestCode
from rocketcore.errors import ClientClosed, ConnectError, ForkedClient, RequestTimeout, SendsFailed
from rocketcore.message import Message
from rocketcore.protocol.command import RemotingCommand
from tests.unit.client.batches import Gate, append, run, settled
from tests.unit.client.fakes import Outcome


class NoNewRoute(Gate):
    """Answers the first question for a route; a hook fails the others."""

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and self.route_requests:
            raise ValueError("a hook of the user's")
        return await super().invoke(address, command, timeout)


def test_a_failure_between_two_attempts_is_the_outcome() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        remoting.serve = no_connection
        future = await append(accumulator, logic, Message("T", b"x", message_group="g"))
        await settled(future)
        with pytest.raises(ValueError, match="a hook"):
            await future
        await accumulator.flush()
        assert not accumulator._backlogs

    run(body, make=NoNewRoute)


def no_connection(address: str, request: RemotingCommand) -> Outcome:
    return ConnectError("refused")


def test_a_batch_that_is_nowhere_fails_in_time() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        lost = await append(accumulator, logic, Message("T", b"x"))
        accumulator._take_in()
        accumulator._open.clear()
        with pytest.raises(RequestTimeout, match="not sent within"):
            await lost
        assert not accumulator._pending

    run(body, delivery_timeout=0.1)


def test_what_a_broker_may_have_is_not_said_to_be_unsent() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        futures = [await append(accumulator, logic, Message("T", b"x", message_group="g")) for _ in range(2)]
        await remoting.begun.wait()
        with pytest.raises(SendsFailed):
            await accumulator.close(0.01)
        first, second = (str(future.exception()) for future in futures)
        assert "may be stored or not" in first
        assert "before the message was sent" in second

    run(body, batch_count=1)


def test_a_failed_future_keeps_no_body() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        def broken(*_: object, **__: object) -> bytes:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise OverflowError("outer") from error

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rocketcore.client.delivery.encode_batch", broken)
            futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(2)]
            await settled(futures[0])
        for error in (futures[0]._batch.error, futures[1].exception()):
            while error is not None:
                assert error.__traceback__ is None
                error = error.__cause__

    run(body)


def test_a_waiter_whose_loop_has_ended_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        future = await append(accumulator, logic, Message("T", b"x"))

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(future, 0.01)

        await asyncio.to_thread(lambda: asyncio.run(give_up()))
        remoting.open.set()
        assert (await future).offset == 7
        assert "callback failed" not in caplog.text

    run(body)


@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt])
def test_a_callback_ends_the_thread_that_it_is_called_on(stop: type[BaseException]) -> None:
    def end(_: object) -> None:
        raise stop

    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        future = await append(accumulator, logic, Message("T", b"x"))
        await future
        future.add_done_callback(end)  # on the loop: it goes on
        ended: list[bool] = []

        def add() -> None:
            try:
                future.add_done_callback(end)
            except stop:
                ended.append(True)

        await asyncio.to_thread(add)
        assert ended == [True]

    run(body)


def test_a_child_is_told_that_its_parent_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        future = await append(accumulator, logic, Message("T", b"x"))
        with monkeypatch.context() as patch:
            patch.setattr("os.getpid", lambda: -1)
            for ask in (future.result, future.exception):
                with pytest.raises(ForkedClient, match="parent"):
                    ask(0.01)
            with pytest.raises(ForkedClient):
                async with asyncio.timeout(0.01):
                    await future
        remoting.open.set()
        await future
        with monkeypatch.context() as patch:
            patch.setattr("os.getpid", lambda: -1)
            assert future.result().offset == 7

    run(body)


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, ValueError])
def test_a_selector_that_exits_ends_no_other_send(end: type[BaseException]) -> None:
    def select(group: str, count: int) -> int:
        if group == "bad":
            raise end
        return 0

    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        bad = await append(accumulator, logic, Message("T", b"x", message_group="bad"))  # the route is not known yet
        good = await append(accumulator, logic, Message("T", b"x", message_group="good"))
        assert (await good).offset == 7
        assert isinstance(bad.exception(), end)
        with pytest.raises(end):
            accumulator.append(Message("T", b"x", message_group="bad"))
        assert (await (await append(accumulator, logic, Message("T", b"x")))).offset == 7

    run(body, selector=select)


def test_a_queue_of_a_wrong_type_is_refused_at_once() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        with pytest.raises(TypeError, match="queue must be a MessageQueue, got str"):
            accumulator.append(Message("T", b"x"), "T")  # type: ignore[arg-type]
        await accumulator.flush()

    run(body)


def test_a_loop_that_has_ended_is_told_as_such() -> None:
    async def make() -> Accumulator:
        config = ProducerConfig()
        return Accumulator(Sender(config, ClientInstance(config, Gate(), ASYNCIO)), config)

    accumulator = asyncio.run(make())
    for _ in range(2):
        with pytest.raises(ClientClosed, match="its loop has ended"):
            accumulator.append(Message("T", b"x"))
