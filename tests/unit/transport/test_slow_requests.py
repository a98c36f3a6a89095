"""Lines about requests that took too long: what they say, what is not slow, how often they come."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import Chunk
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Route
from tests.unit.transport.fakes import Peer, echo, run


def slow_peer(millis: int = 500) -> Peer:
    peer = Peer()
    peer.endpoint.slow.__init__(millis, peer.clock)  # type: ignore[misc]
    return peer


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().partition(" remote=")[0] + " " + record.getMessage().partition(" topic=")[2]
            for record in caplog.records if record.name == "rocketcore.slow"]  # fmt: skip


def pull(topic: str = "orders", code: int = 11) -> RemotingCommand:
    command = RemotingCommand.request(code)
    command.add_ext_field("topic", topic)
    command.add_ext_field("consumerGroup", "billing")
    return command


def test_a_slow_handler_and_who_waited_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        peer = slow_peer()

        def work(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            peer.clock.advance(0.3 if request.code == 100 else 0.25)
            return echo(channel, request)

        peer.serve(100, work)
        peer.serve(11, work)
        peer.receive(RemotingCommand.request(100), pull())
        assert peer.endpoint.slow.count == 1
        peer.receive(RemotingCommand.request(100))
        assert peer.endpoint.slow.count == 1, "each read begins anew"

    run(scenario)
    (line,) = lines(caplog)
    assert line == "slow request=PULL_MESSAGE orders group=billing requests=1 queued_ms=300 handling_ms=250 unsaid=0"


def test_an_answer_that_is_awaited(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        peer = slow_peer()

        async def later(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            peer.clock.advance(0.7)
            return echo(channel, request)

        waiting = RemotingCommand.request(200050)
        peer.serve(11, later)
        peer.endpoint.routes.add([Route(200050, later, waits=True)])
        peer.receive(pull())
        await asyncio.gather(*peer.endpoint.tasks)
        peer.receive(waiting)
        await asyncio.gather(*peer.endpoint.tasks)
        assert len(peer.transport.commands()) == 2

    run(scenario)
    (line,) = lines(caplog)
    assert line == "slow request=PULL_MESSAGE orders group=billing requests=1 queued_ms=0 handling_ms=700 unsaid=0"


def test_requests_that_are_served_together(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        peer = slow_peer(100)

        def served(channel: Channel, chunk: Chunk, first: int, last: int) -> bytes:
            peer.clock.advance(0.1)
            return b""

        peer.serve(11, run=served)
        peer.receive(pull("a"), pull("b"), pull("c"))
        assert peer.endpoint.slow.count == 3

    run(scenario)
    (line,) = lines(caplog)
    assert line == "slow request=PULL_MESSAGE a group=billing requests=3 queued_ms=0 handling_ms=100 unsaid=0"


def test_one_line_a_second_says_how_many_there_were(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        peer = slow_peer(100)

        def work(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            peer.clock.advance(0.2)
            return echo(channel, request)

        peer.serve(11, work)
        for _ in range(7):
            peer.receive(pull())
        assert peer.endpoint.slow.count == 7

    run(scenario)
    assert [line.rpartition(" ")[2] for line in lines(caplog)] == ["unsaid=0", "unsaid=4"]


@pytest.mark.parametrize("millis", [0, 201])
def test_what_is_fast_enough_is_silent(millis: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        peer = slow_peer(millis)

        def work(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            peer.clock.advance(0.2)
            return echo(channel, request)

        peer.serve(11, work)
        peer.receive(pull())
        assert peer.endpoint.slow.count == 0

    caplog.set_level(logging.DEBUG)
    run(scenario)
    assert not lines(caplog)
