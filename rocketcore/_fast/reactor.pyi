import asyncio
import socket
from collections.abc import Callable
from typing import Any

from _typeshed import ReadableBuffer

class Responder:
    def answer(self, data: ReadableBuffer, peer: object = None) -> bytes | None: ...

class Reactor:
    loop: asyncio.AbstractEventLoop
    responder: Responder | None
    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float]) -> None: ...
    def attach(self, sock: socket.socket, protocol: asyncio.Protocol, peername: Any) -> StreamTransport: ...
    def poll(self, seconds: float) -> bool: ...
    def close(self) -> None: ...

class StreamTransport(asyncio.Transport):
    direct: bool
    reactor: Reactor
    def __new__(
        cls, reactor: Reactor, sock: socket.socket, protocol: asyncio.Protocol, peername: Any
    ) -> StreamTransport: ...
    def expect(self, data: bytes, position: int, missing: int) -> None: ...
