"""A broker that takes heartbeats and answers none keeps no other broker from its own."""

from __future__ import annotations

import asyncio

import pytest

from rocketcore.client.config import ProducerConfig
from rocketcore.client.instance import HEARTBEAT_TIMEOUT, PROBE_TIMEOUT, ClientInstance
from rocketcore.client.runtime import ASYNCIO
from rocketcore.codes import RequestCode
from rocketcore.errors import ConnectError, NoPermission, RequestTimeout, TransportError
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock
from rocketcore.transport.blocking.client import run_sync
from tests.unit.client.fakes import FakeRemoting, ManualRuntime, route

BROKERS = ("a", "b", "c", "d")


class Hanging(FakeRemoting):
    """Brokers of which some take all the time that they are given; ``told`` says when each answered."""

    def __init__(self, hung: str, *, after: float = float("inf"), outcome: type[TransportError]) -> None:
        super().__init__({"T": route(*BROKERS)})
        self.hung = hung
        self.after = after
        self.outcome = outcome
        self.told: dict[str, float] = {}

    def answer(self, address: str, command: RemotingCommand) -> RemotingCommand:
        self.told[address[0]] = self.clock.monotonic()
        return RemotingCommand.response(command)

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code != RequestCode.HEART_BEAT:
            return await super().invoke(address, command, timeout)
        self.timeouts.append(timeout)
        if address[0] in self.hung:
            self.clock.advance(min(timeout, self.after))
            if timeout < self.after:
                raise self.outcome("hangs")
        return self.answer(address, command)


def instance(remoting: FakeRemoting, clock: ManualClock) -> ClientInstance:
    made = ClientInstance(ProducerConfig(), remoting, ManualRuntime(clock), clock=clock)
    made.register_producer("G")
    run_sync(made.route("T"))
    return made


@pytest.mark.parametrize("outcome", [RequestTimeout, ConnectError])
@pytest.mark.parametrize("hung", ["a", "c", "abc"])
def test_threads_tell_those_that_answer_in_a_moment(hung: str, outcome: type[TransportError]) -> None:
    remoting = Hanging(hung, outcome=outcome)
    client = instance(remoting, remoting.clock)
    run_sync(client.heartbeat())
    assert set(remoting.told) == set(BROKERS) - set(hung)
    assert max(remoting.told.values()) <= PROBE_TIMEOUT * len(hung)
    assert remoting.clock.monotonic() <= HEARTBEAT_TIMEOUT + PROBE_TIMEOUT * (len(hung) - 1)
    for _ in range(3):
        began = remoting.clock.monotonic()
        run_sync(client.heartbeat())
        assert {remoting.told[name] - began for name in remoting.told} == {0.0}, "who hung is asked behind the others"


def test_threads_wait_for_a_slow_broker_behind_the_others() -> None:
    remoting = Hanging("b", after=1.5, outcome=RequestTimeout)
    client = instance(remoting, remoting.clock)
    run_sync(client.heartbeat())
    assert remoting.told == {"a": 0.0, "b": PROBE_TIMEOUT + 1.5, "c": PROBE_TIMEOUT, "d": PROBE_TIMEOUT}
    assert set(client.broker_versions) == {f"{name}:1" for name in BROKERS}


def test_a_loop_tells_all_at_once() -> None:
    async def scenario() -> None:
        last_told, released = asyncio.Event(), asyncio.Event()

        class Waiting(Hanging):
            async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
                if address[0] == "d":
                    last_told.set()
                if command.code == RequestCode.HEART_BEAT and address[0] in self.hung:
                    await released.wait()
                    raise RequestTimeout("hangs")
                return await super().invoke(address, command, timeout)

        remoting = Waiting("abc", outcome=RequestTimeout)
        client = ClientInstance(ProducerConfig(), remoting, ASYNCIO, clock=remoting.clock)
        client.register_producer("G")
        await client.route("T")
        beating = asyncio.create_task(client.heartbeat())
        async with asyncio.timeout(10):
            await last_told.wait()
        assert not beating.done()
        beating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beating
        released.set()
        await client.heartbeat()
        assert set(client.broker_versions) == {"d:1"}

    asyncio.run(scenario())


@pytest.mark.parametrize("hung", ["", "a", "abc", "abcd"])
def test_another_broker_is_asked_where_one_hangs(hung: str) -> None:
    remoting = Hanging(hung, outcome=RequestTimeout)
    client = instance(remoting, remoting.clock)
    asked: list[str] = []

    async def ask(address: str, timeout: float) -> int:
        asked.append(address[0])
        if address[0] in hung:
            remoting.clock.advance(timeout)
            raise RequestTimeout(f"{address} hangs")
        return 7

    for _ in range(10):
        asked.clear()
        began = remoting.clock.monotonic()
        if hung == "abcd":
            with pytest.raises(RequestTimeout, match=":1 hangs"):
                run_sync(client.ask_any_broker("T", ask, 4.0))
        else:
            address, answer = run_sync(client.ask_any_broker("T", ask, 4.0))
            assert (address[0] in hung, answer) == (False, 7)
        assert len(set(asked)) == len(asked)
        assert remoting.clock.monotonic() - began <= 4.001
    run_sync(client.heartbeat())
    assert {name for name in BROKERS if client.is_silent(name)} == set(hung)
    asked.clear()
    if hung != "abcd":
        run_sync(client.ask_any_broker("T", ask, 4.0))
        assert len(asked) == 1, "those that did not answer the heartbeat are asked last"


def test_a_refusal_of_one_broker_is_an_answer() -> None:
    remoting = Hanging("", outcome=RequestTimeout)
    client = instance(remoting, remoting.clock)
    asked: list[str] = []

    async def refuse(address: str, timeout: float) -> None:
        asked.append(address)
        raise NoPermission(NoPermission.response_code, "no")

    with pytest.raises(NoPermission):
        run_sync(client.ask_any_broker("T", refuse, 4.0))
    assert len(asked) == 1
