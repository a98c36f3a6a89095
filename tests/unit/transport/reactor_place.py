"""A listener, and the protocols of its connections, which note what they are told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from rocketcore.transport.server.listener import LoopListener, ReactorListener


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
