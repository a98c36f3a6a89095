"""Connections of a reactor: what their protocols see, on asyncio's loop and on uvloop, next to the loop's own ones."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import subprocess
import sys
import weakref
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from rocketcore.service import ManualClock
from rocketcore.transport.reactor_kernel import has_reactor
from tests.fuzz.build import SANITIZED
from tests.unit.transport.reactor_place import Place, Recorder, Scenario

pytestmark = pytest.mark.skipif(not has_reactor(), reason="without the reactor")

LARGE = 8 << 20


async def read(peer: socket.socket, size: int) -> bytes:
    """Read in a thread, so that the loop goes on writing."""

    def whole() -> bytes:
        received = bytearray()
        while len(received) < size and (part := peer.recv(1 << 20)):
            received += part
        return bytes(received)

    return await asyncio.get_running_loop().run_in_executor(None, whole)


def test_what_is_sent_arrives_and_is_answered(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        with peer:
            peer.sendall(b"question")
            assert await protocol.until(8) == b"question"
            protocol.transport.write(b"answer")
            protocol.transport.writelines([b"", b" and", memoryview(b" more")])
            assert await read(peer, 15) == b"answer and more"
            assert protocol.transport.get_extra_info("peername") == peer.getsockname()
            assert protocol.transport.get_extra_info("sockname") == peer.getpeername()

    run(scenario)


def test_what_has_the_place_of_the_loop_reads_and_writes_without_it(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        reactor = protocol.transport.reactor
        with peer:
            assert not reactor.poll(0)
            peer.sendall(b"question")
            assert reactor.poll(5)
            assert protocol.received == b"question"
            answer = bytes(LARGE)
            protocol.transport.write(answer)
            assert protocol.transport.get_write_buffer_size()
            reading = asyncio.create_task(read(peer, LARGE))
            await asyncio.sleep(0)  # it begins, on a thread
            while protocol.transport.get_write_buffer_size():
                reactor.poll(5)
            assert await reading == answer
            assert protocol.calls == ["pause", "resume"]
        reactor.close()
        assert not reactor.poll(0)

    run(scenario)


def test_what_is_expected_comes_in_one_piece_and_nothing_with_it(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        with peer:
            peer.sendall(b"..begin")
            head = await protocol.until(7)
            data = bytes(range(256)) * 8192
            protocol.received.clear()
            protocol.transport.expect(head, 2, len(data))
            with pytest.raises(ValueError, match="already"):
                protocol.transport.expect(head, 2, len(data))
            peer.sendall(data[:1000])
            while not protocol.parts:
                protocol.arrived.clear()
                await protocol.arrived.wait()
            assert protocol.parts[-1] <= 1005
            assert not protocol.received
            sending = asyncio.create_task(asyncio.to_thread(peer.sendall, data[1000:] + b"next"))
            assert await protocol.until(len(data) + 9) == b"begin" + data + b"next"
            await sending
            assert protocol.parts == sorted(set(protocol.parts))
            assert all(size < 5 + len(data) for size in protocol.parts)
            for arguments in ((b"abc", 4, 1), (b"abc", -1, 1), (b"abc", 0, 0)):
                with pytest.raises(ValueError, match="missing"):
                    protocol.transport.expect(*arguments)

    run(scenario)


def test_a_peer_that_ends_before_what_is_expected_has_come(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        with peer:
            protocol.transport.expect(b"begin", 0, 1 << 20)
            peer.sendall(b"part")
        assert await protocol.lost is None
        assert (protocol.calls, protocol.received, protocol.parts) == (["eof"], b"", [9])  # type: ignore[comparison-overlap]

    run(scenario)


def test_many_connections_that_are_ready_at_once_all_get_theirs(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        pairs = [await place.connect() for _ in range(300)]
        for number, (_, peer) in enumerate(pairs):
            peer.sendall(struct.pack(">I", number))
        for number, (protocol, peer) in enumerate(pairs):
            assert await protocol.until(4) == struct.pack(">I", number)
            peer.close()

    run(scenario)


@pytest.mark.parametrize(("step", "rounds"), [(0.0, 4), (0.0003, 2), (0.001, 1)])
def test_a_turn_ends_after_some_rounds_or_when_it_takes_long(step: float, rounds: int) -> None:
    """Peers that always have more do not keep what waits for the end of the turn."""
    from rocketcore._fast.reactor import Reactor

    class Asked(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            theirs.send(b"x")
            clock.advance(step)

    ours, theirs = socket.socketpair()
    clock = ManualClock()

    async def scenario() -> None:
        reactor = Reactor(asyncio.get_running_loop(), clock.monotonic)
        ours.setblocking(False)
        protocol = Asked()
        transport = reactor.attach(ours, protocol, None)
        theirs.send(b"x")
        reactor._ready()  # type: ignore[attr-defined]
        assert len(protocol.received) == rounds
        transport.abort()
        await protocol.lost
        reactor.close()

    with theirs:
        asyncio.run(scenario())


@pytest.mark.parametrize("pieces", [1, 1000])
def test_a_peer_that_does_not_read_is_written_to_later(run: Callable[[Scenario], None], pieces: int) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        protocol.transport.set_write_buffer_limits(high=1 << 20)
        data = bytes(range(256)) * (LARGE // 256)
        part = LARGE // pieces + 1
        with peer:
            protocol.transport.writelines([data[start : start + part] for start in range(0, LARGE, part)])
            protocol.transport.write(b"end")
            assert protocol.calls == ["pause"]
            assert protocol.transport.get_write_buffer_size() > 1 << 20
            assert await read(peer, LARGE + 3) == data + b"end"
            assert protocol.calls == ["pause", "resume"]
            assert protocol.transport.get_write_buffer_size() == 0

    run(scenario)


def test_what_is_queued_stays_as_it_was_written(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        buffer, numbers = bytearray(LARGE), array("q", range(1000))
        with peer:
            protocol.transport.write(buffer)
            protocol.transport.write(memoryview(numbers))
            protocol.transport.writelines([buffer[:0], bytearray(b"piece"), memoryview(b"abcdef")[::1]])
            kept = bytearray(b"kept")
            protocol.transport.write(kept)
            buffer[:] = b"\xff" * LARGE
            del buffer[1000:], kept[1:]
            expected = bytes(LARGE) + numbers.tobytes() + b"pieceabcdefkept"
            assert await read(peer, len(expected)) == expected
            assert protocol.transport.get_write_buffer_size() == 0

    run(scenario)


def test_a_closing_transport_sends_what_is_queued_and_no_more(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        with peer:
            protocol.transport.write(bytes(LARGE))
            protocol.transport.close()
            protocol.transport.write(b"late")
            assert protocol.transport.is_closing()
            assert len(await read(peer, LARGE + 4)) == LARGE
            assert await protocol.lost is None

    run(scenario)


@pytest.mark.parametrize("size", [4, LARGE])
def test_a_transport_that_writes_no_more_still_receives(run: Callable[[Scenario], None], size: int) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        with peer:
            assert protocol.transport.can_write_eof()
            protocol.transport.write(bytes(size))
            protocol.transport.write_eof()
            protocol.transport.write_eof()
            assert len(await read(peer, size + 1)) == size, "the end follows what was written before"
            peer.sendall(b"still heard")
            assert await protocol.until(11) == b"still heard"
            assert not protocol.lost.done()
        assert await protocol.lost is None
        assert protocol.calls[-1] == "eof"
        protocol.transport.write_eof()

    run(scenario)


def test_an_aborted_transport_is_closed_at_once(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        with peer:
            protocol.transport.write(bytes(LARGE))
            protocol.transport.abort()
            assert not protocol.lost.done(), "a protocol is told in another turn of the loop"
            assert await protocol.lost is None
            assert len(await read(peer, LARGE)) < LARGE

    run(scenario)


def test_a_protocol_hears_of_the_end_of_what_the_peer_sends(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        protocol.keep_open = True
        with peer:
            peer.sendall(b"last")
            peer.shutdown(socket.SHUT_WR)
            await protocol.until(4)
            await protocol.ended.wait()
            protocol.transport.write(b"still answered")
            assert await read(peer, 14) == b"still answered"
        other, peer = await place.connect()
        peer.close()
        assert await other.lost is None
        assert other.calls == ["eof"]

    run(scenario)


@pytest.mark.parametrize("paused", [False, True])
def test_a_reset_connection_is_lost_also_while_nobody_reads_it(run: Callable[[Scenario], None], paused: bool) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        if paused:
            protocol.transport.pause_reading()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        await protocol.lost

    run(scenario)


def test_nothing_is_read_while_reading_is_paused(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        other, other_peer = await place.connect()
        with peer, other_peer:
            protocol.transport.pause_reading()
            peer.sendall(b"kept")
            other_peer.sendall(b"seen")
            await other.until(4)
            assert not protocol.received
            assert not protocol.transport.is_reading()
            protocol.transport.resume_reading()
            assert await protocol.until(4) == b"kept"

    run(scenario)


def test_a_protocol_that_fails_loses_its_connection_and_no_other(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        protocol, peer = await place.connect()
        other, other_peer = await place.connect()
        protocol.failing = True
        with peer, other_peer:
            peer.sendall(b"x")
            other_peer.sendall(b"y")
            error = await protocol.lost
            assert str(error) == "planted"
            assert await other.until(1) == b"y"
        assert [context["exception"] for context in reported] == [error]

    run(scenario)


def test_a_protocol_that_fails_at_once_is_told_that_its_connection_is_lost(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        place.failing_at_once = True
        protocol, peer = await place.connect()
        with peer:
            error = await protocol.lost
            assert str(error) == "planted"
            assert await read(peer, 1) == b""
        assert [context["exception"] for context in reported] == [error]
        place.failing_at_once = False
        other, other_peer = await place.connect()
        with other_peer:
            protocol.transport.abort()
            other_peer.sendall(b"y")
            assert await other.until(1) == b"y"

    run(scenario)


def test_a_connection_closed_by_another_ones_data_gets_no_more(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        first, first_peer = await place.connect()
        second, second_peer = await place.connect()
        first.data_received = lambda data: second.transport.abort()  # type: ignore[method-assign]
        second.data_received = lambda data: first.transport.abort()  # type: ignore[method-assign]
        with first_peer, second_peer:
            first_peer.sendall(b"x")
            second_peer.sendall(b"x")
            await asyncio.wait([first.lost, second.lost], return_when=asyncio.FIRST_COMPLETED)
            assert first.lost.done() != second.lost.done(), "whoever was served first closed the other before its turn"

    run(scenario)


def test_an_ended_connection_leaves_nothing_behind(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        protocol, peer = await place.connect()
        transport = weakref.ref(protocol.transport)
        peer.close()
        await protocol.lost
        protocol.transport = None
        await asyncio.sleep(0)
        gc.collect()
        assert transport() is None

    run(scenario)


@pytest.mark.skipif(SANITIZED, reason="another allocator, which has no such settings")
def test_a_process_that_keeps_its_heap_faults_large_blocks_in_once() -> None:
    program = (
        "import resource, sys\n"
        "from rocketcore._fast.heap import keep_heap\n"
        "if sys.argv[1] == 'kept': keep_heap()\n"
        "def allocate(): return [bytearray(block) for block in [bytes(1_660_000) for _ in range(3)]]\n"
        "allocate()\n"
        "begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(50): allocate()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun)\n"
    )
    faults = []
    for how in ("kept", "as it is"):
        command = [sys.executable, "-c", program, how]
        faults.append(int(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout))
    assert faults[0] < faults[1] / 5, faults
