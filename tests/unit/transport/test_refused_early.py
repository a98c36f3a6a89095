"""Requests that are refused by their header, before the body has come; and answers that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rocketcore.codes import ResponseCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import Chunk
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Route
from tests.unit.transport.fakes import ListTransport, Peer, PlacingTransport, echo, run

SERVED, UNKNOWN = 100, 9999


def never(channel: Channel, request: RemotingCommand) -> RemotingCommand:
    raise AssertionError("a request that is refused reached its handler")


def never_run(channel: Channel, chunk: Chunk, first: int, last: int) -> bytes:
    raise AssertionError("a request that is refused reached its handler of runs")


def limited(peer: Peer, header_limit: int = 1000, body_limit: int = 1000) -> None:
    """Give code 105 limits; 100 echoes and has none."""
    peer.serve(SERVED)
    peer.endpoint.routes.add(
        [Route(105, never, header_limit=header_limit, body_limit=body_limit, run=never_run), Route(106, never)]
    )


@pytest.mark.parametrize("transport", [ListTransport, PlacingTransport])
@pytest.mark.parametrize("serialize_type", [0, 1])
def test_a_code_that_nobody_serves(transport: Callable[[Channel], ListTransport], serialize_type: int) -> None:
    async def scenario() -> None:
        request = RemotingCommand.request(UNKNOWN, body=bytes(1 << 20), serialize_type=serialize_type)
        frame = request.encode()
        for cut in (*range(1, 100, 7), 200_000, len(frame) - 1):
            peer = Peer(transport=transport)
            peer.serve(SERVED)
            following = RemotingCommand.request(SERVED, body=b"next")
            for part in (frame[:cut], frame[cut : len(frame) - 1]):
                if part:
                    peer.channel.data_received(part)
            (answer,) = peer.transport.commands()
            assert (answer.code, answer.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, request.opaque)
            assert answer.remark == f" request type {UNKNOWN} not supported"
            assert answer.serialize_type == serialize_type
            assert peer.endpoint.partial_bytes == 0
            assert not getattr(peer.transport, "direct", False), "what is thrown away is no request of a responder"
            peer.channel.data_received(frame[-1:] + following.encode())
            assert [answer.body for answer in peer.transport.commands()] == [b"", b"next"]
            assert getattr(peer.transport, "direct", True)

    run(scenario)


@pytest.mark.parametrize(
    ("request_", "remark"),
    [
        (RemotingCommand.request(105, body=bytes(1001)), "request type 105: a body of 1001 bytes, 1000 at most"),
        (RemotingCommand(105, remark="x" * 2000), "request type 105: a header of "),
        (RemotingCommand.request(106, body=bytes(70_000)), "request type 106: a body of 70000 bytes, 65536 at most"),
    ],
)
def test_a_request_that_is_too_long_is_refused_wherever_it_is_cut(request_: RemotingCommand, remark: str) -> None:
    async def scenario() -> None:
        frame = request_.encode()
        following = RemotingCommand.request(SERVED, body=b"next").encode()
        for cut in (*range(1, min(len(frame), 2500), 11), len(frame)):
            peer = Peer()
            limited(peer)
            peer.channel.data_received(following + frame[:cut])
            peer.channel.data_received(frame[cut:] + following)
            await asyncio.sleep(0)
            first, refusal, last = peer.transport.commands()
            assert (first.body, last.body) == (b"next", b"next")
            assert (refusal.code, refusal.opaque) == (ResponseCode.SYSTEM_ERROR, request_.opaque)
            assert (refusal.remark or "").startswith(remark)
            assert peer.endpoint.partial_bytes == 0

    run(scenario)


def test_what_is_within_its_limits_is_served() -> None:
    async def scenario() -> None:
        seen: list[int] = []

        def served(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            seen.append(len(request.body))
            return echo(channel, request)

        def counted(channel: Channel, chunk: Chunk, first: int, last: int) -> None:
            seen.extend(len(chunk.command(index).body) for index in range(first, last))

        peer = Peer()
        peer.endpoint.routes.add([Route(105, never, body_limit=1000, run=counted), Route(106, served, body_limit=1000)])
        lengths = (1000, 10, 1001, 1000, 999)
        for code in (105, 106):
            peer.receive(*(RemotingCommand.request(code, body=bytes(length)) for length in lengths))
            assert seen == [1000, 10, 1000, 999]
            seen.clear()

    run(scenario)


def test_one_way_requests_are_thrown_away_without_a_word() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.serve(SERVED)
        frame = RemotingCommand.request(UNKNOWN, body=bytes(100_000), oneway=True).encode()
        peer.channel.data_received(frame[:1000])
        assert peer.endpoint.partial_bytes == 0
        peer.channel.data_received(frame[1000:] + RemotingCommand.request(SERVED).encode())
        assert len(peer.transport.commands()) == 1

    run(scenario)


@pytest.mark.parametrize("there", [8, 1000, 200_000])
def test_a_header_longer_than_any_may_be_ends_the_connection(there: int) -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.serve(SERVED)
        frame = RemotingCommand(SERVED, remark="x" * 190_000).encode()
        peer.channel.data_received(RemotingCommand.request(SERVED).encode() + frame[:there])
        assert len(peer.transport.commands()) == 1
        assert peer.transport.ended == "closed"

    run(scenario)


def test_a_broken_header_ends_the_connection_before_the_body_has_come() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.channel.data_received(b"\x00\x10\x00\x00\x00\x00\x00\x02{x" + bytes(100))
        assert peer.transport.ended == "closed"

    run(scenario)


def test_a_client_takes_the_answers_it_waits_for_and_holds_no_others() -> None:
    async def scenario() -> None:
        peer = Peer(server=False)
        request = RemotingCommand.request(10)
        future = peer.channel.invoke_nowait(request, 5)
        late = RemotingCommand.response(RemotingCommand.request(10), remark="x" * 5000, body=bytes(200_000)).encode()
        peer.channel.data_received(late[:100_000])
        assert peer.endpoint.partial_bytes == 0
        # The ids of a great many messages are a long header.
        answer = RemotingCommand(0, opaque=request.opaque, flag=1, ext_fields={"msgId": "x" * 300_000}).encode()
        peer.channel.data_received(late[100_000:] + answer[:150_000])
        assert peer.endpoint.partial_bytes == 150_000
        peer.channel.data_received(answer[150_000:])
        assert len(((await future).ext_fields or {})["msgId"]) == 300_000
        assert not peer.channel.closed

    run(scenario)


def test_what_is_thrown_away_is_traffic_and_has_the_time_of_a_frame() -> None:
    async def scenario() -> None:
        peer = Peer(idle_timeout=50, partial_frame_timeout=120)
        frame = RemotingCommand.request(UNKNOWN, body=bytes(100_000)).encode()
        for size in range(3):
            peer.channel.data_received(frame[size * 1000 : size * 1000 + 1000])
            peer.clock.advance(40)
            peer.endpoint.sweep()
            assert (peer.transport.ended == "aborted") == (size == 2)

    run(scenario)


def test_the_parts_of_a_long_frame_do_not_put_its_deadline_off() -> None:
    async def scenario() -> None:
        peer = Peer(partial_frame_timeout=30)
        peer.serve(SERVED)
        peer.endpoint.routes.add([Route(105, echo, body_limit=1 << 20)])
        frame = RemotingCommand.request(105, body=bytes(100_000)).encode()
        for first, last, ended in ((0, 6, ""), (6, 20, ""), (20, 500, "aborted")):
            peer.channel.data_received(frame[first:last])
            peer.clock.advance(12)
            peer.endpoint.sweep()
            assert peer.transport.ended == ended

    run(scenario)


def test_a_frame_behind_one_that_was_thrown_away_has_its_own_time() -> None:
    async def scenario() -> None:
        peer = Peer(partial_frame_timeout=60.0, idle_timeout=1000.0)
        peer.serve(SERVED)
        refused = RemotingCommand.request(UNKNOWN, body=bytes(100_000)).encode()
        peer.channel.data_received(refused[:50_000])
        peer.clock.advance(58.0)
        following = RemotingCommand.request(SERVED, body=b"next").encode()
        peer.channel.data_received(refused[50_000:] + following[:20])
        peer.clock.advance(59.0)
        peer.endpoint.sweep()
        peer.channel.data_received(following[20:])
        assert [answer.body for answer in peer.transport.commands()] == [b"", b"next"]

    run(scenario)
