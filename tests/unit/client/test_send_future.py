"""What becomes of the futures of ``send_nowait`` when something else fails: hooks, callbacks, threads, the process."""

from __future__ import annotations

import pytest

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.producer import ProducerLogic
from rocketcore.codes import RequestCode
from rocketcore.errors import ConnectError
from rocketcore.message import Message
from rocketcore.protocol.command import RemotingCommand
from tests.unit.client.fakes import Outcome
from tests.unit.client.test_accumulator import Gate, append, run, settled


class NoNewRoute(Gate):
    """Answers the first question for a route; a hook fails the others."""

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and self.route_requests:
            raise ValueError("a hook of the user's")
        return await super().invoke(address, command, timeout)


def test_a_failure_between_two_attempts_is_the_outcome() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        remoting.open.set()
        remoting.serve = no_connection
        future = await append(accumulator, logic, Message("T", b"x", message_group="g"))
        await settled(future)
        with pytest.raises(ValueError, match="a hook"):
            await future
        await accumulator.flush()
        assert not accumulator._lanes

    run(body, make=NoNewRoute)


def no_connection(address: str, request: RemotingCommand) -> Outcome:
    return ConnectError("refused")
