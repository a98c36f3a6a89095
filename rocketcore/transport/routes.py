"""Who answers which request: one row a request code, of a server or of what servers ask of a client.

RocketMQ: ``NettyRemotingAbstract.processorTable``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketcore.codes import FRAME_MAX_BYTES
from rocketcore.errors import ConfigError
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import Chunk

if TYPE_CHECKING:
    from rocketcore.protocol.schema import Header

__all__ = ["Handler", "Right", "Route", "RunHandler", "add_routes"]

Handler = Callable[..., "RemotingCommand | Awaitable[RemotingCommand | None] | None"]
"""Serves one request: ``(channel, request)``, or ``(channel, request, header)`` where its row has a header class.

Returns the answer, or an awaitable of it; None: no answer now, or none at all.
"""

RunHandler = Callable[[Any, Chunk, int, int], "bytes | list[bytes] | None"]
"""``(channel, chunk, first, last)``: serves the rows ``first`` to ``last`` (exclusive) of a chunk, all of one code.

Returns the answers' bytes.
"""


class Right(Enum):
    """What a caller may do who may ask this. RocketMQ 5: ``Action``."""

    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"


class Route(NamedTuple):
    """Who answers one request code.

    header        class of the header, read before the handler is called
    right         what the caller needs
    header_limit  bytes of a request's header, at most
    body_limit    bytes of its body, at most
    run           serves requests that came together, from their heads; the unusual ones are ``handler``'s
    """

    code: int
    handler: Handler
    header: type[Header] | None = None
    right: Right = Right.ANY
    header_limit: int = FRAME_MAX_BYTES
    body_limit: int = FRAME_MAX_BYTES
    run: RunHandler | None = None

    def serve(self, channel: Any, request: RemotingCommand) -> Any:
        """Return what the handler returns; raises what it raises, and DecodeError for a header that cannot be read."""
        if self.header is None:
            return self.handler(channel, request)
        return self.handler(channel, request, request.header(self.header))


def add_routes(table: dict[int, Route], rows: Iterable[Route]) -> None:
    """Add rows to a table by their codes; raises ConfigError where a code has a row already."""
    for row in rows:
        if row.code in table:
            raise ConfigError(f"request code {int(row.code)} already has a handler")
        table[int(row.code)] = row
