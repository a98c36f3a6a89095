"""The blocking client where threads meet: deadlines, signals, forks, a server that asks, one that goes away."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from rocketcore.errors import ConnectError, RequestTimeout
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.transport.blocking import BlockingRemotingClient
from tests.integration.test_transport import (
    ECHO,
    TIMEOUT,
    TestServer,
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
        with pytest.raises((ConnectError, RequestTimeout)):
            client.invoke(silent_address, RemotingCommand.request(ECHO), 0.5)
        took.append(time.monotonic() - began)

    with BlockingRemotingClient() as client:
        run_threads([threading.Thread(target=ask, args=(client, delay)) for delay in (0.0, 0.1, 0.2)])
    assert len(took) == 3
    assert max(took) < 0.8


def test_the_addresses_of_a_host_share_the_time(silent_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = socket.getaddrinfo(*silent_address.split(":"), type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found * 5)
    began = time.monotonic()
    with (
        BlockingRemotingClient() as client,
        pytest.raises(ConnectError, match=r"at many:1: no connection within 0\.2 s"),
    ):
        client.connect("many:1", 0.2)
    assert time.monotonic() - began < 0.6


def test_the_next_address_of_a_host_is_tried(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        found = [
            socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
            for address in (unused.getsockname(), tuple(server.address.split(":")))
        ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    with BlockingRemotingClient() as client:
        assert client.invoke("two:1", RemotingCommand.request(ECHO, body=b"x"), TIMEOUT).body == b"x"
