"""A channel over a transport that is only a list: requests of its own, their answers, deadlines and ends."""

from __future__ import annotations

import asyncio

import pytest

from rocketcore.codes import RequestCode
from rocketcore.errors import ConnectionLost, RequestTimeout
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.channel import Channel
from tests.unit.transport.fakes import Peer, echo, run


def test_requests_of_one_turn_leave_in_one_write() -> None:
    async def scenario() -> None:
        peer = Peer(server=False)
        futures = [peer.channel.invoke_nowait(RemotingCommand.request(100), 5) for _ in range(50)]
        assert len(peer.channel._outstanding) == 50
        await asyncio.sleep(0)
        assert len(peer.transport.writes) == 1
        sent = peer.transport.commands()
        # Answers come back in any order.
        peer.receive(*(RemotingCommand.response(command, remark=str(command.opaque)) for command in reversed(sent)))
        for future, command in zip(futures, sent, strict=True):
            assert (await future).remark == str(command.opaque)
        assert len(peer.channel._outstanding) == 0

    run(scenario)


def test_opaque_spaces_of_the_directions_are_independent() -> None:
    async def scenario() -> None:
        peer = Peer(server=False)
        peer.serve(40, echo)
        mine = RemotingCommand.request(100)
        future = peer.channel.invoke_nowait(mine, 5)
        theirs = RemotingCommand.request(40, body=b"server asks")
        theirs.opaque = mine.opaque
        peer.receive(theirs)
        assert not future.done()
        peer.receive(RemotingCommand.response(mine, remark="mine"))
        assert (await future).remark == "mine"

    run(scenario)


def test_a_second_request_with_an_opaque_in_use_gets_another() -> None:
    async def scenario() -> None:
        peer = Peer(server=False)
        command = RemotingCommand.request(100)
        first = peer.channel.invoke_nowait(command, 5)
        second = peer.channel.invoke_nowait(command, 5)
        await asyncio.sleep(0)
        sent = peer.transport.commands()
        assert sent[0].opaque != sent[1].opaque
        peer.receive(*(RemotingCommand.response(each) for each in sent))
        await asyncio.gather(first, second)

    run(scenario)


def test_deadline_and_late_answer() -> None:
    async def scenario() -> None:
        peer = Peer(server=False)
        request = RemotingCommand.request(RequestCode.GET_MAX_OFFSET)
        with pytest.raises(RequestTimeout, match=r"GET_MAX_OFFSET at 10\.0\.0\.9:50000: no answer within 0\.01 s"):
            await peer.channel.invoke(request, 0.01)
        assert len(peer.channel._outstanding) == 0
        peer.receive(RemotingCommand.response(request))
        assert not peer.channel.closed

    run(scenario)


def test_a_silent_peer_is_given_up_at_the_deadline() -> None:
    async def scenario() -> None:
        peer = Peer(server=False, silent_timeout=3.0)
        peer.clock.advance(1)
        future = peer.channel.invoke_nowait(RemotingCommand.request(100), 0.01)
        peer.clock.advance(5)
        with pytest.raises(RequestTimeout):
            await future
        assert peer.transport.ended == "aborted"

    run(scenario)


def test_a_caller_that_leaves_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        peer = Peer(server=False, max_in_flight=1)
        for _ in range(3):
            request = RemotingCommand.request(100)
            asking = asyncio.create_task(peer.channel.invoke(request, 5))
            await asyncio.sleep(0)
            assert len(peer.channel._outstanding) == 1
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert len(peer.channel._outstanding) == 0
            peer.receive(RemotingCommand.response(request))
        assert not peer.channel.closed

    run(scenario)


def test_a_silent_peer_is_given_up_though_its_callers_left() -> None:
    async def scenario() -> None:
        peer = Peer(server=False, silent_timeout=3.0)
        peer.clock.advance(1)
        asking = asyncio.create_task(peer.channel.invoke(RemotingCommand.request(100), 0.2))
        await asyncio.sleep(0)
        asking.cancel()
        peer.clock.advance(5)
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert peer.transport.ended == ""
        await peer.transport.aborted.wait()
        assert peer.transport.ended == "aborted"

    run(scenario)


def test_a_lost_connection_ends_what_is_outstanding() -> None:
    async def scenario() -> None:
        peer = Peer(server=False)
        closed: list[Channel] = []

        def fails(channel: Channel) -> None:
            raise ZeroDivisionError

        peer.endpoint.close_callbacks += [fails, closed.append]
        future = peer.channel.invoke_nowait(RemotingCommand.request(100), 5)
        peer.channel.connection_lost(OSError("reset by peer"))
        with pytest.raises(
            ConnectionLost, match=r"PUT_KV_CONFIG at 10\.0\.0\.9:50000: the connection broke: reset by peer"
        ):
            await future
        assert closed == [peer.channel]
        assert peer.endpoint.channels == set()
        with pytest.raises(ConnectionLost, match="the connection is closed"):
            peer.channel.invoke_nowait(RemotingCommand.request(100), 5)
        with pytest.raises(ConnectionLost):
            peer.channel.invoke_oneway(RemotingCommand.request(100))
        peer.channel.write(b"nobody gets this")
        peer.channel._outbound.flush()
        await asyncio.sleep(0)

    run(scenario)
