"""Requests of the blocking client over loopback sockets, alone and from many threads."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rocketcore.errors import (
    ClientClosed,
    ConnectionLost,
    Overloaded,
    RequestTimeout,
    TransportError,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.blocking.client import BlockingChannelAdapter, BlockingRemotingClient, run_sync
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.limits import ChannelLimits
from rocketcore.transport.remoting import Remoting
from tests.fixtures.threads import InThread
from tests.integration.remoting_server import (
    CALL_BACK,
    DROP,
    ECHO,
    NEVER,
    SLOW,
    TIMEOUT,
    TestServer,
    add_handler,
    eventually,
    run_threads,
    with_client,
)


@pytest.fixture
def server() -> Iterator[TestServer]:
    with TestServer() as running:
        yield running


@pytest.fixture
def blocking() -> Iterator[BlockingRemotingClient]:
    with BlockingRemotingClient() as client:
        yield client


def test_blocking_round_trip(server: TestServer, blocking: BlockingRemotingClient) -> None:
    for size in (0, 1, 5000, 300_000, 4 << 20):
        body = os.urandom(size)
        assert blocking.invoke(server.address, RemotingCommand.request(ECHO, body=body), TIMEOUT).body == body
    blocking.invoke_oneway(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    assert server.channels() == 1


def test_many_threads_share_one_connection(server: TestServer, blocking: BlockingRemotingClient) -> None:
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            for turn in range(100):
                body = b"%d-%d" % (number, turn) * (turn % 7 * 50 + 1)
                answer = blocking.invoke(server.address, RemotingCommand.request(ECHO, body=body), TIMEOUT)
                if answer.body != body:
                    failures.append((number, turn))
        except TransportError as error:
            failures.append(error)

    run_threads([threading.Thread(target=work, args=(number,)) for number in range(32)])
    assert failures == []
    assert server.channels() == 1


def test_deadlines_are_kept_and_leave_the_connection_usable(
    server: TestServer, blocking: BlockingRemotingClient
) -> None:
    blocking.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    for timeout in (0.02, 0.2):
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match=f"GET_KV_CONFIG at {server.address}: no answer within"):
            blocking.invoke(server.address, RemotingCommand.request(NEVER), timeout)
        assert timeout * 0.9 <= time.monotonic() - began < timeout + 2
    with pytest.raises(RequestTimeout):
        blocking.invoke(server.address, RemotingCommand.request(SLOW, body=b"0.1"), 0.05)
    # The late answer arrives while somebody else waits, and is dropped.
    assert blocking.invoke(server.address, RemotingCommand.request(SLOW, body=b"0.1"), TIMEOUT).remark == "slow"
    assert server.channels() == 1


def test_a_reader_that_gives_up_hands_over(
    server: TestServer, blocking: BlockingRemotingClient, in_thread: InThread
) -> None:
    """The thread that reads runs into its deadline while others wait: they read on."""
    blocking.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    first = in_thread(blocking.invoke, server.address, RemotingCommand.request(NEVER), 0.1)
    others = [
        in_thread(blocking.invoke, server.address, RemotingCommand.request(SLOW, body=b"0.3"), TIMEOUT)
        for _ in range(5)
    ]
    assert isinstance(first.exception(TIMEOUT), RequestTimeout)
    assert [each.result(TIMEOUT).remark for each in others] == ["slow"] * 5


def test_the_handler_of_a_signal_asks_over_a_connection_of_its_own(
    server: TestServer, blocking: BlockingRemotingClient
) -> None:
    """It comes in while its thread reads an answer, and would wait for that thread to read its own."""
    bodies: list[bytes] = []

    def ask(number: int, frame: object) -> None:
        for size in (3, 300_000):
            answer = blocking.invoke(server.address, RemotingCommand.request(ECHO, body=b"x" * size), TIMEOUT)
            bodies.append(answer.body)

    before = signal.signal(signal.SIGALRM, ask)
    try:
        blocking.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        slow = blocking.invoke(server.address, RemotingCommand.request(SLOW, body=b"1"), TIMEOUT)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert slow.remark == "slow"
    assert [len(body) for body in bodies] == [3, 300_000]
    assert blocking.invoke(server.address, RemotingCommand.request(ECHO, body=b"after"), TIMEOUT).body == b"after"
    eventually(lambda: server.channels() == 1)


def test_pipelining_from_one_thread_does_not_deadlock(server: TestServer, blocking: BlockingRemotingClient) -> None:
    """Both socket buffers fill while nobody waits for an answer: the writer has to read."""
    body = bytes(200_000)
    channel = blocking.connect(server.address)
    pending = [channel.invoke_nowait(RemotingCommand.request(ECHO, body=body), 30) for _ in range(150)]
    assert all(len(channel.wait(each).body) == len(body) for each in pending)


def test_outstanding_requests_are_bounded(server: TestServer) -> None:
    with BlockingRemotingClient(limits=ChannelLimits(max_in_flight=3)) as client:
        channel = client.connect(server.address)
        for _ in range(3):
            channel.invoke_nowait(RemotingCommand.request(NEVER), 0.05)
        with pytest.raises(Overloaded, match="3 requests are outstanding"):
            channel.invoke_nowait(RemotingCommand.request(NEVER), 0.05)
        threading.Event().wait(0.1)
        # Those whose time is over make room.
        channel.wait(channel.invoke_nowait(RemotingCommand.request(ECHO), TIMEOUT))


def test_the_server_drops_the_connection(
    server: TestServer, blocking: BlockingRemotingClient, in_thread: InThread
) -> None:
    blocking.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    waiting = [in_thread(blocking.invoke, server.address, RemotingCommand.request(NEVER), TIMEOUT) for _ in range(4)]
    eventually(lambda: len(blocking.connect(server.address)._pending) == 4)
    with pytest.raises(ConnectionLost, match=f"REGISTER_BROKER|UNREGISTER_BROKER.*at {server.address}"):
        blocking.invoke(server.address, RemotingCommand.request(DROP), TIMEOUT)
    assert [type(each.exception(TIMEOUT)) for each in waiting] == [ConnectionLost] * 4
    assert blocking.invoke(server.address, RemotingCommand.request(ECHO, body=b"x"), TIMEOUT).body == b"x"


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    with TestServer(idle_timeout=0.1) as server, BlockingRemotingClient() as client:
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        eventually(lambda: server.channels() == 0)
        channel = client.connect(server.address)
        channel.last_used -= 5
        assert client.invoke(server.address, RemotingCommand.request(ECHO, body=b"x"), TIMEOUT).body == b"x"
        assert client.connect(server.address) is not channel


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_the_server_asks_the_blocking_client(server: TestServer, blocking: BlockingRemotingClient, kind: str) -> None:
    def answer(channel: Any, request: RemotingCommand) -> RemotingCommand:
        # A handler may ask the same server meanwhile.
        nested = channel.invoke(RemotingCommand.request(ECHO, body=request.body.upper()), TIMEOUT)
        return RemotingCommand.response(request, body=nested.body)

    async def answer_later(channel: Any, request: RemotingCommand) -> RemotingCommand:
        return answer(channel, request)

    add_handler(blocking, 307, answer if kind == "function" else answer_later)
    response = blocking.invoke(server.address, RemotingCommand.request(CALL_BACK, body=b"ask"), TIMEOUT)
    assert response.body == b"ASK"


def test_the_server_asks_on_an_idle_connection(server: TestServer, blocking: BlockingRemotingClient) -> None:
    asked = threading.Event()

    def answer(channel: Any, request: RemotingCommand) -> None:
        asked.set()

    add_handler(blocking, 40, answer)
    blocking.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    server.call(lambda running: [channel.invoke_oneway(RemotingCommand.request(40)) for channel in running.channels])
    assert asked.wait(TIMEOUT)


def test_handler_errors_of_the_blocking_client(
    server: TestServer, blocking: BlockingRemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(channel: Any, request: RemotingCommand) -> RemotingCommand:
        raise ValueError("broken")

    blocking.invoke(server.address, RemotingCommand.request(CALL_BACK), TIMEOUT)
    add_handler(blocking, 307, answer)
    blocking.invoke(server.address, RemotingCommand.request(CALL_BACK), TIMEOUT)
    answers = [(each.code, each.remark) for each in server.callback_answers]
    assert answers == [(3, " request type 307 not supported"), (1, "ValueError: broken")]
    assert "request=GET_CONSUMER_RUNNING_INFO" in caplog.text


def test_a_child_process_makes_connections_of_its_own(server: TestServer) -> None:
    with BlockingRemotingClient() as client:
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        pid = os.fork()
        if pid == 0:
            try:
                answer = client.invoke(server.address, RemotingCommand.request(ECHO, body=b"child"), TIMEOUT)
                os._exit(0 if answer.body == b"child" else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        parent = client.invoke(server.address, RemotingCommand.request(ECHO, body=b"parent"), TIMEOUT)
        assert parent.body == b"parent"
        eventually(lambda: server.channels() == 1)


def test_closing_the_blocking_client(server: TestServer, in_thread: InThread) -> None:
    client = BlockingRemotingClient()
    client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    waiting = in_thread(client.invoke, server.address, RemotingCommand.request(NEVER), TIMEOUT)
    eventually(lambda: bool(client.connect(server.address)._pending))
    client.close()
    assert isinstance(waiting.exception(TIMEOUT), ConnectionLost)
    with pytest.raises(ClientClosed):
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    eventually(lambda: server.channels() == 0)


def test_one_logic_for_both_worlds(server: TestServer, blocking: BlockingRemotingClient) -> None:
    async def logic(remoting: Remoting, address: str) -> bytes:
        first = await remoting.invoke(address, RemotingCommand.request(ECHO, body=b"a"), TIMEOUT)
        await remoting.invoke_oneway(address, RemotingCommand.request(ECHO), TIMEOUT)
        remoting.close_channel(address)
        second = await remoting.invoke(address, RemotingCommand.request(ECHO, body=b"b"), TIMEOUT)
        return first.body + second.body

    assert run_sync(logic(BlockingChannelAdapter(blocking), server.address)) == b"ab"

    async def scenario(client: RemotingClient) -> None:
        assert await logic(client, server.address) == b"ab"

    with_client(server, scenario)


def test_run_sync_refuses_what_needs_a_loop() -> None:
    class Never:
        def __await__(self) -> Iterator[None]:
            yield

    async def waits() -> None:
        await Never()  # type: ignore[misc]

    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(RuntimeError, match="only an event loop can give"):
        run_sync(waits())
    with pytest.raises(KeyError):
        run_sync(fails())


def test_a_long_request_that_is_not_sent_whole_ends_the_connection() -> None:
    """Half a frame is out: nothing else can follow it."""
    with socket.create_server(("127.0.0.1", 0)) as server, BlockingRemotingClient() as client:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        channel = client.connect(address, TIMEOUT)
        body = memoryview(bytes(12 << 20))
        request = RemotingCommand.request(ECHO)
        request.body = body
        with pytest.raises(RequestTimeout, match="the server does not read"):
            client.invoke(address, request, 0.3)
        assert channel.closed
        del request
        body.release()
