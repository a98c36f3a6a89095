"""The blocking client where threads meet: deadlines, signals, forks, a server that asks, one that goes away."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import FrameType
from typing import Any

import pytest

from rocketcore.codes import ResponseCode
from rocketcore.errors import ConnectError, ConnectionLost
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.transport.blocking.channel import BlockingChannel
from rocketcore.transport.blocking.client import BlockingRemotingClient
from rocketcore.transport.limits import ChannelLimits
from rocketcore.transport.server.server import RemotingServer
from tests.fixtures.threads import InThread
from tests.integration.remoting_server import (
    CALL_BACK,
    ECHO,
    NEVER,
    SLOW,
    TIMEOUT,
    TestServer,
    add_handler,
    eventually,
    run_threads,
)

Script = Callable[["ScriptedServer", socket.socket, int], None]


class ScriptedServer:
    """Runs a script for each connection, with its number; what scripts leave open ends with it."""

    def __init__(self, script: Script) -> None:
        self.released = threading.Event()
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._run, args=(sock, number), daemon=True))
                self._threads[-1].start()
                number += 1

    def _run(self, sock: socket.socket, number: int) -> None:
        with sock, contextlib.suppress(OSError):
            self._script(self, sock, number)

    def close(self) -> None:
        self.released.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def commands(sock: socket.socket) -> Iterator[RemotingCommand]:
    """All that arrives until the other end closes."""
    decoder = FrameDecoder()
    while data := sock.recv(1 << 20):
        yield from decoder.feed(data)


@pytest.fixture
def server() -> Iterator[TestServer]:
    with TestServer() as running:
        yield running


# Deadlines


def test_the_wait_for_the_attempt_of_another_thread_counts(silent_address: str) -> None:
    took: list[float] = []

    def ask(client: BlockingRemotingClient, delay: float) -> None:
        time.sleep(delay)
        began = time.monotonic()
        with pytest.raises(ConnectError, match=r"no connection within 1 s"):
            client.invoke(silent_address, RemotingCommand.request(ECHO), 1.0)
        took.append(time.monotonic() - began)

    with BlockingRemotingClient() as client:
        run_threads([threading.Thread(target=ask, args=(client, delay)) for delay in (0.0, 0.1, 0.2)])
    assert len(took) == 3
    assert max(took) < 1.7, "1.9 where it does not count"


def test_the_addresses_of_a_host_share_the_time(silent_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = socket.getaddrinfo(*silent_address.split(":"), type=socket.SOCK_STREAM)  # type: ignore[arg-type, misc]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found * 5)
    began = time.monotonic()
    with (
        BlockingRemotingClient() as client,
        pytest.raises(ConnectError, match=r"at many:1: no connection within 0\.5 s"),
    ):
        client.connect("many:1", 0.5)
    assert time.monotonic() - began < 2.0, "2.5 where each address has all of it"


def test_the_next_address_of_a_host_is_tried(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        found = [
            socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]  # type: ignore[misc]
            for address in (unused.getsockname(), tuple(server.address.split(":")))
        ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    with BlockingRemotingClient() as client:
        assert client.invoke("two:1", RemotingCommand.request(ECHO, body=b"x"), TIMEOUT).body == b"x"


# Signals: their handlers run, and may raise, in the main thread between any two steps


class Interrupted(BaseException):
    """What KeyboardInterrupt is, or the soft time limit of a task queue."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[float], None]]:
    """Raise in this thread, some seconds from now."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.get_ident()
    timers: list[threading.Timer] = []

    def later(seconds: float) -> None:
        timers.append(threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGUSR1)))
        timers[-1].start()

    yield later
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGUSR1, before)


def test_after_an_interrupted_write_nothing_follows_half_a_frame(interrupt: Callable[[float], None]) -> None:
    """The next request's bytes would become the end of the body that was not sent whole."""
    received: list[tuple[int, bytes]] = []

    def script(server: ScriptedServer, sock: socket.socket, number: int) -> None:
        if number == 0:
            sock.recv(1, socket.MSG_PEEK)
            interrupt(0.2)
            server.released.wait(TIMEOUT)
        for command in commands(sock):
            received.append((number, command.body))
            sock.sendall(RemotingCommand.response(command).encode())

    with closing(ScriptedServer(script)) as server, BlockingRemotingClient() as client:
        client.connect(server.address, TIMEOUT)
        with pytest.raises(Interrupted):
            client.invoke(server.address, RemotingCommand.request(ECHO, body=b"a" * (15 << 20)), TIMEOUT)
        body = b"b" * (15 << 20)
        server.released.set()
        assert client.invoke(server.address, RemotingCommand.request(ECHO, body=body), TIMEOUT).code == 0
    assert received == [(1, body)]


def test_an_interrupted_thread_is_not_woken_in_place_of_another(
    server: TestServer, interrupt: Callable[[float], None]
) -> None:
    """One thread reads, the main thread and a third one sleep; when the reader is done the third has to read."""
    took: list[float] = []

    def ask(client: BlockingRemotingClient, body: bytes) -> None:
        began = time.monotonic()
        client.invoke(server.address, RemotingCommand.request(SLOW, body=body), TIMEOUT)
        took.append(time.monotonic() - began)

    with BlockingRemotingClient() as client:
        channel = client.connect(server.address)
        reader = threading.Thread(target=ask, args=(client, b"0.5"))
        reader.start()
        eventually(lambda: channel._reading)
        third = threading.Timer(0.1, ask, (client, b"0.8"))
        third.start()
        interrupt(0.3)
        with pytest.raises(Interrupted):
            client.invoke(server.address, RemotingCommand.request(NEVER), TIMEOUT)
        reader.join(TIMEOUT)
        third.join(TIMEOUT)
        assert len(took) == 2
        assert max(took) < 3
        assert channel._pending == {}
        assert client.connect(server.address) is channel


def test_an_interrupted_reader_ends_its_connection(
    server: TestServer, interrupt: Callable[[float], None], in_thread: InThread
) -> None:
    """It may have received what nobody will ever see."""
    with BlockingRemotingClient() as client:
        channel = client.connect(server.address)

        def waits() -> None:
            eventually(lambda: channel._reading)
            client.invoke(server.address, RemotingCommand.request(NEVER), TIMEOUT)

        waiting = in_thread(waits)
        interrupt(0.3)
        with pytest.raises(Interrupted):
            client.invoke(server.address, RemotingCommand.request(NEVER), TIMEOUT)
        with pytest.raises(ConnectionLost, match=r"reading was interrupted$"):
            waiting.result(TIMEOUT)
        assert channel.closed
        assert client.invoke(server.address, RemotingCommand.request(ECHO, body=b"x"), TIMEOUT).body == b"x"


class InterruptedLock:
    """Raises once, after it was taken and before who took it could know."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._armed = True

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken: bool = self._lock.acquire(blocking, timeout)
        if self._armed:
            self._armed = False
            raise Interrupted
        return taken

    def release(self) -> None:
        self._lock.release()


@pytest.mark.parametrize("step", ["connecting", "writing"])
def test_a_lock_is_not_kept_by_a_thread_that_was_interrupted_while_it_took_it(server: TestServer, step: str) -> None:
    answers: list[bytes] = []

    def ask(client: BlockingRemotingClient) -> None:
        answers.append(client.invoke(server.address, RemotingCommand.request(ECHO, body=b"x"), 1.0).body)

    with BlockingRemotingClient() as client:
        channel: Any = client.connect(server.address)
        slot: Any = client._slots[server.address]
        if step == "connecting":
            channel.close()
            slot.lock = InterruptedLock(slot.lock)
        else:
            channel._write_lock = InterruptedLock(channel._write_lock)
        with pytest.raises(Interrupted):
            ask(client)
        run_threads([threading.Thread(target=ask, args=(client,))])
        assert answers == [b"x"]
        assert (client.connect(server.address) is channel) == (step == "writing"), "nothing was written yet"


# A server that asks


def test_a_server_asks_while_a_request_is_being_written() -> None:
    """Whoever reads the question holds the lock of writing: it cannot answer itself."""
    answers: list[tuple[int, str | None]] = []

    def script(server: ScriptedServer, sock: socket.socket, number: int) -> None:
        time.sleep(0.2)
        sock.sendall(RemotingCommand.request(4711).encode())
        time.sleep(0.2)
        for command in commands(sock):
            if command.is_response:
                answers.append((command.code, command.remark))
            else:
                sock.sendall(RemotingCommand.response(command).encode())

    with closing(ScriptedServer(script)) as server, BlockingRemotingClient(connect_timeout=5.0) as client:
        began = time.monotonic()
        assert client.invoke(server.address, RemotingCommand.request(ECHO, body=bytes(15 << 20)), TIMEOUT).code == 0
        assert time.monotonic() - began < 4
        eventually(lambda: bool(answers))
    assert answers == [(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 4711 not supported")]


def test_requests_of_a_server_are_bounded(server: TestServer, caplog: pytest.LogCaptureFixture) -> None:
    begun, release = threading.Event(), threading.Event()
    served: list[int] = []

    def handler(channel: Any, request: RemotingCommand) -> None:
        begun.set()
        release.wait(TIMEOUT)
        served.append(request.opaque)

    def ask(number: int) -> None:
        def on_loop(running: RemotingServer) -> None:
            (channel,) = running.channels
            for _ in range(number):
                channel.invoke_oneway(RemotingCommand.request(40))

        server.call(on_loop)

    with BlockingRemotingClient(limits=ChannelLimits(max_serving=3)) as client:
        add_handler(client, 40, handler)
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        ask(1)
        assert begun.wait(TIMEOUT)
        ask(10)
        # Its answer comes behind them.
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        release.set()
        eventually(lambda: len(served) == 4)
    assert caplog.text.count("request dropped, too many wait") == 7


@pytest.mark.parametrize(
    ("answer", "remark"),
    [
        (RemotingCommand(0, flag=1, body=bytes(17 << 20)), "LocalProtocolError: answer: a frame of"),
        (RemotingCommand(0, flag=1, ext_fields={"count": 5}), "TypeError: expected a str"),  # type: ignore[dict-item]
        (RemotingCommand(0, opaque=1, remark="as it should be"), "as it should be"),
    ],
)
def test_whatever_a_handler_returns_is_answered(server: TestServer, answer: RemotingCommand, remark: str) -> None:
    with BlockingRemotingClient() as client:
        add_handler(client, 307, lambda channel, request: answer)
        client.invoke(server.address, RemotingCommand.request(CALL_BACK), TIMEOUT)
    (response,) = server.callback_answers
    assert (response.remark or "").startswith(remark)


# A server that goes away


def test_a_connection_whose_server_goes_away_ends_when_its_last_request_does(in_thread: InThread) -> None:
    ended = threading.Event()

    def script(server: ScriptedServer, sock: socket.socket, number: int) -> None:
        held: list[RemotingCommand] = []
        for command in commands(sock):
            if command.code == NEVER:
                held.append(command)
                threading.Thread(
                    target=lambda: (
                        server.released.wait(TIMEOUT)
                        and sock.sendall(RemotingCommand.response(held[0], remark="held").encode())
                    )
                ).start()
            else:
                code = ResponseCode.GO_AWAY if number == 0 else ResponseCode.SUCCESS
                sock.sendall(RemotingCommand.response(command, code).encode())
        if number == 0:
            ended.set()

    with closing(ScriptedServer(script)) as server, BlockingRemotingClient() as client:
        old = client.connect(server.address)
        waiting = in_thread(client.invoke, server.address, RemotingCommand.request(NEVER), TIMEOUT)
        eventually(lambda: bool(old._pending))
        assert client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT).code == 0
        assert not old.closed
        assert client.connect(server.address) is not old
        server.released.set()
        assert waiting.result(TIMEOUT).remark == "held"
        assert ended.wait(TIMEOUT)
        assert old.closed


@pytest.mark.parametrize("kind", ["invoke", "invoke_oneway"])
def test_a_request_on_its_way_to_a_connection_that_another_thread_gives_up_takes_the_new_one(kind: str) -> None:
    arrived: list[tuple[int, bytes]] = []
    taken = threading.Event()

    def script(server: ScriptedServer, sock: socket.socket, number: int) -> None:
        for command in commands(sock):
            arrived.append((number, command.body))
            if command.body == b"late":
                taken.set()
            code = ResponseCode.GO_AWAY if number == 0 else ResponseCode.SUCCESS
            sock.sendall(RemotingCommand.response(command, code).encode())

    class Hook:
        """Between the look for a connection and its use, another thread is sent away."""

        def before_request(self, address: str, command: RemotingCommand) -> None:
            if command.body == b"late":
                client.invoke(server.address, RemotingCommand.request(ECHO, body=b"first"), TIMEOUT)

        def after_response(self, address: str, command: RemotingCommand, response: RemotingCommand) -> None:
            assert response.code == ResponseCode.SUCCESS

    with closing(ScriptedServer(script)) as server, BlockingRemotingClient(hooks=[Hook()]) as client:
        answer = getattr(client, kind)(server.address, RemotingCommand.request(ECHO, body=b"late"), TIMEOUT)
        if kind != "invoke_oneway":
            assert answer.code == ResponseCode.SUCCESS
        assert taken.wait(TIMEOUT)
        assert arrived == [(0, b"first"), (1, b"first"), (1, b"late")]


def test_closing_ends_what_waits_on_a_connection_whose_server_goes_away(in_thread: InThread) -> None:
    def script(server: ScriptedServer, sock: socket.socket, number: int) -> None:
        for command in commands(sock):
            if command.code != NEVER:
                code = ResponseCode.GO_AWAY if number == 0 else ResponseCode.SUCCESS
                sock.sendall(RemotingCommand.response(command, code).encode())

    with closing(ScriptedServer(script)) as server, BlockingRemotingClient() as client:
        old = client.connect(server.address)
        waiting = in_thread(client.invoke, server.address, RemotingCommand.request(NEVER), TIMEOUT)
        eventually(lambda: bool(old._pending))
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        client.close()
        assert type(waiting.exception(TIMEOUT / 2)) is ConnectionLost


# Ends


def test_a_socket_is_closed_whoever_lets_go_of_it_last(server: TestServer) -> None:
    """The reader stops just when another thread has seen it read and therefore not closed the socket."""

    class Socket:
        """Ends the connection only when ``end`` is called."""

        def __init__(self, sock: Any) -> None:
            self._socket = sock

        def __getattr__(self, name: str) -> Any:
            return getattr(self._socket, name)

        def shutdown(self, how: int) -> None:
            pass

        def end(self) -> None:
            self._socket.shutdown(socket.SHUT_RDWR)

    class Lock:
        """The lock of writing; the reader may stop before it is released."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            return self._lock.acquire(blocking, timeout)

        def release(self) -> None:
            if threading.current_thread() is not reader:
                ending.end()
                reader.join(0.5)
            self._lock.release()

    with BlockingRemotingClient() as client:
        channel = client.connect(server.address)

        def waits() -> None:
            with pytest.raises(ConnectionLost):
                client.invoke(server.address, RemotingCommand.request(NEVER), TIMEOUT)

        reader = threading.Thread(target=waits)
        reader.start()
        eventually(lambda: channel._reading)
        ending: Any = Socket(channel._socket)
        lock: Any = Lock()
        channel._socket, channel._write_lock = ending, lock
        channel.close()
        reader.join(TIMEOUT)
        assert channel._socket.fileno() == -1


# Forks


def in_child(work: Callable[[], bool]) -> int:
    """Return 0 where the work is true in a forked child."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_closing_in_a_child_leaves_the_connection_to_the_parent(server: TestServer) -> None:
    with BlockingRemotingClient() as client:
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        channel = client.connect(server.address)

        def work() -> bool:
            client.close_channel(server.address)
            return True

        assert in_child(work) == 0
        assert client.invoke(server.address, RemotingCommand.request(ECHO, body=b"x"), TIMEOUT).body == b"x"
        assert client.connect(server.address) is channel


def test_threads_of_a_child_start_over_together(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them finds out that it is in a child, one does something about it."""
    abandon = BlockingChannel.abandon

    def slowly(channel: BlockingChannel) -> None:
        abandon(channel)
        time.sleep(0.05)

    monkeypatch.setattr(BlockingChannel, "abandon", slowly)
    with BlockingRemotingClient() as client:
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)

        def work() -> bool:
            channels: list[BlockingChannel] = []
            threads = [
                threading.Timer(delay, lambda: channels.append(client.connect(server.address)))
                for delay in (0.0, 0.02, 0.04, 0.08)
            ]
            run_threads([*threads])
            return len(channels) == 4 and len(set(channels)) == 1 and not channels[0].closed

        assert in_child(work) == 0


@pytest.mark.parametrize("place", ["connect", "channel"])
def test_a_connection_that_is_interrupted_as_it_is_made_is_closed(
    server: TestServer, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    made: list[socket.socket] = []

    class Noted(socket.socket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

        def connect(self, address: Any) -> None:
            super().connect(address)
            if place == "connect":
                raise KeyboardInterrupt

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with closing(BlockingRemotingClient()) as client:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Noted)
            if place == "channel":
                patch.setattr(BlockingChannel, "__init__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.invoke(server.address, RemotingCommand(ECHO), TIMEOUT)
        assert [sock.fileno() for sock in made] == [-1]
        assert client.invoke(server.address, RemotingCommand(ECHO), TIMEOUT).code == ResponseCode.SUCCESS
