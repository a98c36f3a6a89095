"""Connections of a reactor: what their protocols see, on asyncio's loop and on uvloop, next to the loop's own ones."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import struct
import subprocess
import sys
import weakref
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from rocketcore.service import SYSTEM_CLOCK, ManualClock
from rocketcore.transport.server import listener as listener_module
from rocketcore.transport.server.listener import LoopListener, ReactorListener, open_listener
from tests.fuzz.build import SANITIZED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's")

LARGE = 8 << 20


class Recorder(asyncio.Protocol):
    """Notes what it is told; events to wait for it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = bytearray()
        self.arrived = asyncio.Event()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.calls: list[str] = []
        self.parts: list[int] = []
        self.keep_open = False
        self.failing = False
        self.failing_at_once = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.failing_at_once:
            raise OSError("planted")

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        self.received += data
        self.arrived.set()
        if self.failing:
            raise RuntimeError("planted")

    def part_received(self, size: int) -> None:
        self.parts.append(size)
        self.arrived.set()

    def eof_received(self) -> bool:
        self.calls.append("eof")
        self.ended.set()
        return self.keep_open

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)

    async def until(self, size: int) -> bytes:
        while len(self.received) < size:
            self.arrived.clear()
            await self.arrived.wait()
        return bytes(self.received)


class Place:
    """A listener and the protocols of its connections."""

    def __init__(self) -> None:
        self.listener: ReactorListener | LoopListener
        self.protocols: list[Recorder] = []
        self.made = asyncio.Event()
        self.failing_at_once = False

    def make(self) -> Recorder:
        protocol = Recorder()
        protocol.failing_at_once = self.failing_at_once
        self.protocols.append(protocol)
        self.made.set()
        return protocol

    async def connect(self) -> tuple[Recorder, socket.socket]:
        """Return the accepted side's protocol and the other side's plain, blocking socket."""
        self.made.clear()
        peer = socket.create_connection(self.listener.sockets[0].getsockname()[:2], 5)
        await self.made.wait()
        await asyncio.sleep(0)
        return self.protocols[-1], peer


Scenario = Callable[[Place], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    def run(scenario: Scenario, host: str = "127.0.0.1") -> None:
        async def bounded() -> None:
            place = Place()
            place.listener = await open_listener(host, 0, place.make, monotonic=SYSTEM_CLOCK.monotonic)
            try:
                async with asyncio.timeout(20):
                    await scenario(place)
            finally:
                place.listener.close()
                for protocol in place.protocols:
                    if protocol.transport is not None:
                        protocol.transport.abort()
                await asyncio.gather(*(protocol.lost for protocol in place.protocols))
                place.listener.end()

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run


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
        assert (protocol.calls, protocol.received, protocol.parts) == (["eof"], b"", [9])

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
        reactor._ready()
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


def test_a_name_with_two_addresses_is_listened_at_on_one_port(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        ports = {listening.getsockname()[1] for listening in place.listener.sockets}
        assert len(ports) == 1

    run(scenario, "localhost")  # type: ignore[call-arg]


def test_an_address_that_is_taken_is_named(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        port = place.listener.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen at 127.0.0.1:{port}: Address already in use"):
            await open_listener("127.0.0.1", port, place.make, monotonic=SYSTEM_CLOCK.monotonic)

    run(scenario)


def test_an_address_that_this_machine_lacks_is_left_out_where_a_name_has_others(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with ``localhost``, where the system knows IPv6 by name and has none."""

    def found(*addresses: str) -> None:
        async def resolve(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in addresses]

        monkeypatch.setattr("rocketcore.transport.server.listener._resolve", resolve)

    async def scenario(place: Place) -> None:
        found("192.0.2.1", "127.0.0.1")
        listener = await open_listener("name", 0, place.make, monotonic=SYSTEM_CLOCK.monotonic)
        assert [listening.getsockname()[0] for listening in listener.sockets] == ["127.0.0.1"]
        assert "cannot listen at 192.0.2.1:0" in caplog.text
        listener.close()
        listener.end()
        found("192.0.2.1")
        with pytest.raises(OSError, match=r"cannot listen at 192\.0\.2\.1:0: Cannot assign requested address"):
            await open_listener("name", 0, place.make, monotonic=SYSTEM_CLOCK.monotonic)

    run(scenario)


@pytest.mark.parametrize("taken", [1, 3])
def test_another_port_is_tried_where_the_chosen_one_is_taken_elsewhere(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    others: list[socket.socket] = []

    async def resolve(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, port)) for each in ("127.0.0.1", "127.0.0.2")]

    listen = listener_module._listen

    def listen_late(*where: Any) -> socket.socket:
        address, port = where[-1]
        if address == "127.0.0.2" and len(others) < taken:
            others.append(socket.create_server((address, port)))
        return listen(*where)

    async def scenario(place: Place) -> None:
        monkeypatch.setattr(listener_module, "_resolve", resolve)
        monkeypatch.setattr(listener_module, "_listen", listen_late)
        listener = await open_listener("name", 0, place.make, monotonic=SYSTEM_CLOCK.monotonic)
        ports = {listening.getsockname()[1] for listening in listener.sockets}
        assert (len(others), len(listener.sockets), len(ports)) == (taken, 2, 1)
        listener.close()
        listener.end()
        with pytest.raises(OSError, match="Address already in use"):
            await open_listener("name", others[0].getsockname()[1], place.make, monotonic=SYSTEM_CLOCK.monotonic)

    try:
        run(scenario)
    finally:
        for other in others:
            other.close()


def test_an_address_is_free_again_where_the_reactor_finds_no_descriptor(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario(place: Place) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        monkeypatch.setattr("rocketcore._fast.reactor.Reactor", no_room)
        with pytest.raises(OSError, match="Too many open files") as caught:
            await open_listener("127.0.0.1", port, place.make, monotonic=SYSTEM_CLOCK.monotonic)
        assert caught.tb is not None, "whoever keeps the error keeps what its frames refer to"
        socket.create_server(("127.0.0.1", port)).close()

    run(scenario)


def test_accepting_goes_on_after_the_system_had_no_descriptor(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    monkeypatch.setattr("rocketcore.transport.server.listener._NO_ROOM_PAUSE", 0.01)

    async def scenario(place: Place) -> None:
        peers = [socket.socket() for _ in range(3)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(peer.fileno() for peer in peers)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        try:
            for peer in peers:
                peer.connect(place.listener.sockets[0].getsockname())
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(place.protocols) < 3
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        while len(place.protocols) < 3:
            place.made.clear()
            await place.made.wait()
        for peer in peers:
            peer.close()

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
