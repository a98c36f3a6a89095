"""What client logic needs of a transport, whichever it is: nothing of asyncio is imported for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.routes import Route

if TYPE_CHECKING:
    import asyncio

__all__ = ["PipeliningRemoting", "PolledRemoting", "Remoting", "ServedRemoting"]


class Remoting(Protocol):
    """What client logic needs of a transport; asyncio's and the blocking one both have it."""

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Ask and return the answer, whatever its code."""

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        """Send a request that has no answer."""

    def close_channel(self, address: str) -> None:
        """Close the connection to an address, if there is one."""


@runtime_checkable
class ServedRemoting(Remoting, Protocol):
    """A transport that serves what servers ask of us."""

    def add_routes(self, rows: Iterable[Route]) -> None:
        """Serve requests that servers send to us."""

    def expecting(self) -> contextlib.AbstractContextManager[None]:
        """Look for requests of servers at once while the context lasts."""

    def connection_to(self, address: str) -> object | None:
        """Return what is another object for another connection to an address; None where none is open."""


@runtime_checkable
class PipeliningRemoting(Remoting, Protocol):
    """A transport whose requests go on by themselves, on an event loop."""

    def invoke_nowait(
        self, address: str, command: RemotingCommand, timeout: float
    ) -> asyncio.Future[RemotingCommand] | None:
        """Ask now and return the future of the answer; None where that takes an ``invoke``."""


@runtime_checkable
class PolledRemoting(PipeliningRemoting, Protocol):
    """A transport whose connections are also served by who has the loop's place while that stands still."""

    def is_polled(self, address: str) -> bool:
        """Tell whether a connection to an address is open, and served by ``poll``."""

    def poll(self, seconds: float) -> bool:
        """Read and write what is ready; see ``RemotingClient``."""

    def unsent(self) -> bool:
        """Write all that can be written; tell whether something is left."""
