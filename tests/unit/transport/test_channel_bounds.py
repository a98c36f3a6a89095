"""A channel over a transport that is only a list: what is bounded, in bytes, in requests and in time."""

from __future__ import annotations

import asyncio

import pytest

from rocketcore.codes import ResponseCode
from rocketcore.errors import Overloaded, RequestTimeout
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.channel import Channel
from tests.unit.transport.fakes import ListTransport, Peer, echo, placing, run


def test_too_many_requests_in_progress() -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def waits(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            await release.wait()
            return echo(channel, request)

        peer = Peer(max_in_flight=3)
        peer.serve(100, waits)
        peer.receive(*(RemotingCommand.request(100) for _ in range(5)))
        busy = peer.transport.commands()
        assert [command.code for command in busy] == [ResponseCode.SYSTEM_BUSY] * 2
        assert busy[0].remark == "[OVERLOAD]system busy, start flow control for a while"
        release.set()
        await asyncio.gather(*peer.endpoint.tasks)
        await asyncio.sleep(0)
        assert len(peer.transport.commands()) == 5
        peer.receive(RemotingCommand.request(100))
        await asyncio.gather(*peer.endpoint.tasks)

    run(scenario)


def test_too_many_requests_of_all_connections_in_progress() -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def waits(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            await release.wait()
            return echo(channel, request)

        peer = Peer(max_serving=3)
        peer.serve(100, waits)
        other = Channel(peer.endpoint)
        transport = ListTransport(other)
        other.connection_made(transport)
        peer.receive(*(RemotingCommand.request(100) for _ in range(2)))
        other.data_received(b"".join(RemotingCommand.request(100).encode() for _ in range(2)))
        (busy,) = transport.commands()
        assert (busy.code, busy.remark) == (
            ResponseCode.SYSTEM_BUSY,
            "[OVERLOAD]system busy, start flow control for a while",
        )
        other.data_received(RemotingCommand.request(100, oneway=True).encode())
        assert len(transport.commands()) == 1
        release.set()
        await asyncio.gather(*peer.endpoint.tasks)
        await asyncio.sleep(0)
        assert (len(peer.transport.commands()), len(transport.commands())) == (2, 2)
        other.data_received(RemotingCommand.request(100).encode())
        await asyncio.gather(*peer.endpoint.tasks)
        await asyncio.sleep(0)
        assert [command.code for command in transport.commands()] == [ResponseCode.SYSTEM_BUSY, 0, 0]

    run(scenario)


def test_a_server_stops_reading_a_peer_that_does_not_read() -> None:
    async def scenario() -> None:
        served = []

        def large(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            served.append(request.opaque)
            return RemotingCommand.response(request, body=bytes(1000))

        peer = Peer(write_high_water_bytes=10_000)
        peer.serve(100, large)
        peer.transport.full = True
        requests = [RemotingCommand.request(100) for _ in range(200)]
        peer.receive(*requests)
        assert not peer.transport.reading
        assert len(served) < 15, "memory is bounded by the high-water mark, not by what was received"
        while len(served) < 200:
            peer.transport.writes.clear()
            peer.channel.resume_writing()
            assert peer.transport.reading
            await asyncio.sleep(0)
        assert served == [request.opaque for request in requests]

    run(scenario)


def test_a_client_goes_on_reading_and_waits_to_write() -> None:
    async def scenario() -> None:
        peer = Peer(server=False, write_high_water_bytes=100)
        peer.transport.full = True
        peer.channel.invoke_nowait(RemotingCommand.request(100, body=bytes(150)), 5)
        await asyncio.sleep(0)
        assert peer.transport.reading
        waiting = asyncio.create_task(peer.channel.invoke(RemotingCommand.request(101), 5))
        await asyncio.sleep(0)
        assert len(peer.transport.commands()) == 1
        with pytest.raises(Overloaded, match="bytes are not sent yet"):
            peer.channel.invoke_oneway(RemotingCommand.request(102))
        peer.transport.full = False
        peer.channel.resume_writing()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [command.code for command in peer.transport.commands()] == [100, 101]
        peer.receive(*(RemotingCommand.response(command) for command in peer.transport.commands()))
        assert (await waiting).code == 0

    run(scenario)


def test_what_one_turn_writes_is_bounded_by_the_high_water_mark() -> None:
    """Many tasks ask in one turn of the loop, before the transport could say that it is full."""

    async def scenario() -> None:
        peer = Peer(server=False, write_high_water_bytes=10_000)
        peer.transport.full = True
        asking = [
            asyncio.create_task(peer.channel.invoke(RemotingCommand.request(100, body=bytes(1000)), 5))
            for _ in range(200)
        ]
        await asyncio.sleep(0)
        assert len(peer.channel._outstanding) < 15
        served = 0
        while served < 200:
            sent = peer.transport.commands()
            assert len(sent) < 15
            served += len(sent)
            peer.transport.writes.clear()
            peer.receive(*(RemotingCommand.response(command) for command in sent))
            peer.channel.resume_writing()
            for _ in range(3):
                await asyncio.sleep(0)
            peer.channel._outbound.flush()
        assert all(answer.code == 0 for answer in await asyncio.gather(*asking))

    run(scenario)


def test_a_peer_that_never_reads_costs_the_deadline_only() -> None:
    async def scenario() -> None:
        peer = Peer(server=False, write_high_water_bytes=1_000_000)
        peer.channel.pause_writing()
        with pytest.raises(RequestTimeout, match=r"not sent within 0\.01 s, the peer does not read"):
            await peer.channel.invoke(RemotingCommand.request(101), 0.01)

    run(scenario)


def test_outstanding_requests_are_bounded() -> None:
    async def scenario() -> None:
        peer = Peer(server=False, max_in_flight=2)
        for _ in range(2):
            peer.channel.invoke_nowait(RemotingCommand.request(100), 5)
        with pytest.raises(Overloaded, match="2 requests are outstanding"):
            peer.channel.invoke_nowait(RemotingCommand.request(100), 5)

    run(scenario)


def test_idle_and_slow_connections_are_closed() -> None:
    async def scenario() -> None:
        idle, slow, busy = (Peer(idle_timeout=120, partial_frame_timeout=30) for _ in range(3))
        frame = RemotingCommand.request(9999).encode()
        slow.channel.data_received(frame[:9])
        for peer in (idle, slow, busy):
            peer.clock.advance(31)
            if peer is busy:
                peer.channel.data_received(frame)
            peer.endpoint.sweep()
        assert (idle.transport.ended, slow.transport.ended, busy.transport.ended) == ("", "aborted", "")
        for peer in (idle, busy):
            peer.clock.advance(90)
            peer.endpoint.sweep()
        assert (idle.transport.ended, busy.transport.ended) == ("aborted", "")

    run(scenario)


def test_a_frame_has_all_its_time_from_when_we_read_again() -> None:
    async def scenario() -> None:
        peer = Peer(partial_frame_timeout=30, write_high_water_bytes=1000)
        peer.serve(100, echo)
        peer.transport.full = True
        request = RemotingCommand.request(100, body=bytes(600))
        peer.channel.data_received(request.encode() * 3 + request.encode()[:300])
        assert not peer.transport.reading
        peer.clock.advance(40)
        peer.endpoint.sweep()
        assert peer.transport.ended == ""
        peer.transport.full = False
        peer.channel.resume_writing()
        await asyncio.sleep(0)
        for seconds, ended in ((20, ""), (20, "aborted")):
            peer.clock.advance(seconds)
            peer.endpoint.sweep()
            assert peer.transport.ended == ended
        assert len(peer.transport.commands()) == 3

    run(scenario)


def test_incomplete_frames_of_all_connections_are_bounded() -> None:
    async def scenario() -> None:
        peer = Peer(max_partial_bytes=10_000)
        other = Channel(peer.endpoint)
        transport = ListTransport(other)
        other.connection_made(transport)
        frame = RemotingCommand.request(9999, body=bytes(8_000)).encode()
        peer.channel.data_received(frame[:6_000])
        other.data_received(frame[:3_000])
        assert peer.endpoint.partial_bytes == 9_000
        peer.channel.data_received(frame[6_000:])
        assert peer.endpoint.partial_bytes == 3_000
        peer.channel.data_received(frame[:7_500])
        assert (peer.transport.ended, transport.ended) == ("aborted", "")
        peer.channel.connection_lost(None)
        other.connection_lost(None)
        assert peer.endpoint.partial_bytes == 0

    run(scenario)


def test_the_rest_of_a_large_frame_is_received_into_its_place() -> None:
    async def scenario() -> None:
        peer, transport = placing()
        small, large = (RemotingCommand.request(9999, body=bytes(size)) for size in (10, 500_000))
        frame = large.encode()
        peer.channel.data_received(small.encode() + frame[:100_000])
        assert transport.expected == (frame[:100_000], len(frame) - 100_000)
        assert (peer.endpoint.partial_bytes, transport.direct) == (100_000, False)
        peer.channel.part_received(300_000)
        assert peer.endpoint.partial_bytes == 300_000
        peer.channel.data_received(frame)
        assert (peer.endpoint.partial_bytes, transport.direct) == (0, True)
        assert [len(answer.body) for answer in transport.commands()] == [10, 500_000]
        peer.channel.data_received(frame[:100])
        peer.channel.connection_lost(None)
        assert peer.endpoint.partial_bytes == 0

    run(scenario)


@pytest.mark.parametrize(("size", "there"), [(500_000, 1000), (60_000, 10_000), (500_000, 3)])
def test_no_room_is_made_for_the_claim_of_a_length_or_for_little(size: int, there: int) -> None:
    async def scenario() -> None:
        peer, transport = placing()
        frame = RemotingCommand.request(9999, body=bytes(size)).encode()
        peer.channel.data_received(frame[:there])
        assert transport.expected is None
        peer.channel.data_received(frame[there:])
        assert len(transport.commands()) == 1

    run(scenario)


def test_a_frame_that_is_received_into_its_place_counts_and_has_its_time() -> None:
    async def scenario() -> None:
        frame = RemotingCommand.request(9999, body=bytes(500_000)).encode()
        peer, transport = placing(max_partial_bytes=200_000)
        peer.channel.data_received(frame[:100_000])
        peer.channel.part_received(200_000)
        assert transport.ended == ""
        peer.channel.part_received(200_001)
        assert transport.ended == "aborted"
        peer, transport = placing(partial_frame_timeout=30)
        peer.channel.data_received(frame[:100_000])
        for size, ended in ((200_000, ""), (300_000, "aborted")):
            peer.clock.advance(20)
            peer.channel.part_received(size)
            peer.endpoint.sweep()
            assert transport.ended == ended

    run(scenario)


def test_large_answers_are_not_joined() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.channel.write([bytes(100_000), b"x"])
        peer.channel.write(memoryview(b"y"))
        peer.channel._outbound.flush()
        assert b"".join(peer.transport.writes) == bytes(100_000) + b"xy"
        peer.channel.close()
        peer.channel.close()
        assert peer.transport.ended == "closed"

    run(scenario)
