"""A channel without a socket, for tests of what it does with bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rocketcore.codes import FRAME_MAX_BYTES
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.service import ManualClock
from rocketcore.transport.channel import Channel
from rocketcore.transport.endpoint import Endpoint
from rocketcore.transport.limits import ChannelLimits
from rocketcore.transport.routes import Handler, Route, RunHandler


class ListTransport(asyncio.Transport):
    """Keeps what is written, one entry a write; ``full`` behaves like a socket whose peer does not read."""

    def __init__(self, protocol: Channel) -> None:
        super().__init__()
        self.protocol = protocol
        self.writes: list[bytes] = []
        self.full = False
        self.reading = True
        self.ended = ""
        self.aborted = asyncio.Event()
        self.high = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("10.0.0.9", 50000), "sockname": ("10.0.0.1", 10911)}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def is_closing(self) -> bool:
        return bool(self.ended)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes)) if self.full else 0

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))
        if self.full and self.get_write_buffer_size() > self.high:
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"
        self.aborted.set()

    def commands(self) -> list[RemotingCommand]:
        return FrameDecoder().feed(b"".join(self.writes))


class Peer:
    """A channel, its endpoint, its clock, and the other side's view."""

    def __init__(
        self, *, server: bool = True, transport: Callable[[Channel], ListTransport] | None = None, **limits: Any
    ) -> None:
        self.clock = ManualClock()
        self.endpoint: Endpoint[Channel] = Endpoint("test", ChannelLimits(**limits), clock=self.clock, server=server)
        self.channel = Channel(self.endpoint)
        self.transport = (transport or ListTransport)(self.channel)
        self.channel.connection_made(self.transport)

    def serve(self, code: int, handler: Handler | None = None, run: RunHandler | None = None) -> None:
        self.endpoint.routes.add([Route(code, handler or echo, body_limit=FRAME_MAX_BYTES, run=run)])

    def receive(self, *commands: RemotingCommand) -> None:
        self.channel.data_received(b"".join(command.encode() for command in commands))


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await scenario()

    asyncio.run(bounded())


def echo(channel: Channel, request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response(request, remark="echo", body=request.body)


class PlacingTransport(ListTransport):
    """A stream that receives what is missing of a large frame into its place."""

    def __init__(self, protocol: Channel) -> None:
        super().__init__(protocol)
        self.direct = False
        self.expected: tuple[bytes, int] | None = None

    def expect(self, data: bytes, position: int, missing: int) -> None:
        assert self.expected is None
        self.expected = data[position:], missing


def placing(**limits: Any) -> tuple[Peer, PlacingTransport]:
    peer = Peer(transport=PlacingTransport, **limits)
    peer.serve(9999, echo)
    assert isinstance(peer.transport, PlacingTransport)
    return peer, peer.transport
