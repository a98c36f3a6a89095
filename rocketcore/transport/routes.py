"""Who answers which request: one row a request code, of a server or of what servers ask of a client.

RocketMQ: ``NettyRemotingAbstract.processorTable``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketcore.errors import ConfigError
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import Chunk

if TYPE_CHECKING:
    from rocketcore.protocol.schema import Header

__all__ = ["Handler", "Right", "Route", "Routes", "RunHandler"]

_USUAL_LIMIT: Final = 64 << 10

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
    run_most      so many of them at a time: whether the peer takes its answers is looked at between
    waits         its answer may be late on purpose
    """

    code: int
    handler: Handler
    header: type[Header] | None = None
    right: Right = Right.ANY
    header_limit: int = _USUAL_LIMIT
    body_limit: int = _USUAL_LIMIT
    run: RunHandler | None = None
    run_most: int = 1 << 30
    waits: bool = False

    def serve(self, channel: Any, request: RemotingCommand) -> Any:
        """Return what the handler returns; raises what it raises, and DecodeError for a header that cannot be read."""
        if self.header is None:
            return self.handler(channel, request)
        return self.handler(channel, request, request.header(self.header))

    def excess(self, header_bytes: int, body_bytes: int) -> str:
        """Tell what of a request is longer than may be; empty where nothing is."""
        if header_bytes > self.header_limit:
            return f"request type {self.code}: a header of {header_bytes} bytes, {self.header_limit} at most"
        if body_bytes > self.body_limit:
            return f"request type {self.code}: a body of {body_bytes} bytes, {self.body_limit} at most"
        return ""


class Routes(dict[int, Route]):
    """The rows of one server or client by their codes.

    header_limit  bytes of the longest header that a row allows
    least_limit   a frame of so many bytes is within the limits of every row, and no burden where a code has none
    """

    def __init__(self, rows: Iterable[Route] = ()) -> None:
        super().__init__()
        self.header_limit = self.least_limit = _USUAL_LIMIT
        self.add(rows)

    def add(self, rows: Iterable[Route]) -> None:
        """Add rows; raises ConfigError where a code has one already."""
        for row in rows:
            if row.code in self:
                raise ConfigError(f"request code {int(row.code)} already has a handler")
            self[int(row.code)] = row
            self.header_limit = max(self.header_limit, row.header_limit)
            self.least_limit = min(self.least_limit, row.header_limit, row.body_limit)
