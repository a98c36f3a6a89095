"""Brokers that stand still for as long as a test wants, and the log lines that a test waits for."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator

__all__ = ["at_log", "halting_broker"]


@contextlib.contextmanager
def halting_broker(address: str) -> Iterator[tuple[str, threading.Event]]:
    """A way to a broker, its address and an event: nothing goes forward while that is clear, and nothing is lost."""
    moves = threading.Event()
    moves.set()
    ends: list[socket.socket] = []

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                moves.wait()
                target.sendall(data)

    def accept(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = server.accept()[0]
                host, _, port = address.rpartition(":")
                far = socket.create_connection((host, int(port)))
                ends.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pass_on, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, args=(server,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", moves
        moves.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for end in ends:
            end.close()


@contextlib.contextmanager
def at_log(name: str, pattern: str, then: Callable[[], object]) -> Iterator[None]:
    """Call something at the first message of a logger that matches, and only then."""
    log = logging.getLogger(name)
    level = log.level

    class Waiting(logging.Handler):
        called = False

        def emit(self, record: logging.LogRecord) -> None:
            if not self.called and re.search(pattern, record.getMessage()):
                self.called = True
                then()

    handler = Waiting()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
