"""HttpPort: a small HTTP server for GET and HEAD, beside a server's own port, for what monitors ask.

One request a connection, and each of them is bounded: how many there are, how long a request is, how long it may take
to come, and how long its answer may take to leave. It has no TLS and asks nobody who they are.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from rocketcore.addresses import join

__all__ = ["Answer", "HttpPort", "Page", "path_of"]

logger = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 32
"""What comes beside them is closed at once."""
MOST_REQUEST_BYTES: Final = 8192
REQUEST_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
_LINGER_SECONDS: Final = 1.0
"""How long what a client still sends is read and dropped, so that it gets to see the answer and no reset."""

_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) ([\x21-\x7e]+) HTTP/1\.[01]")
_WHOLE_URL: Final = re.compile(r"\A(?i:https?)://[^/?#]+")


def path_of(target: str) -> str:
    """Return the path that a request asks for: of a whole URL, too, which a proxy may send (RFC 9112, 3.2.2)."""
    return _WHOLE_URL.sub("", target, count=1).partition("?")[0]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page says; the parts of its body are written one by one."""

    status: HTTPStatus
    parts: Iterable[bytes]
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: HTTPStatus, text: str, **headers: str) -> Answer:
        """Make one of a line of text."""
        return cls(status, [f"{text}\n".encode()], headers=headers)


Page = Callable[[], Awaitable[Answer]]


class HttpPort:
    """Serves pages by their paths; ``address`` is known once it is started.

    request_seconds, answer_seconds  for tests
    """

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Page],
        *,
        request_seconds: float = REQUEST_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._host = host
        self._port = port
        self._pages = pages
        self._request_seconds = request_seconds
        self._answer_seconds = answer_seconds
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        return self._port

    @property
    def address(self) -> str:
        return join(self._host, self._port)

    async def start(self) -> None:
        """Listen.

        raises  OSError
        """
        where: dict[str, Any] = {"host": self._host, "port": self._port}
        if self._host == "::":
            # asyncio would listen for IPv6 alone, the servers' own ports take both.
            where = {"sock": socket.create_server(("::", self._port), family=socket.AF_INET6, dualstack_ipv6=True)}
        self._server = await asyncio.start_server(self._accept, limit=MOST_REQUEST_BYTES, **where)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and every connection."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= MOST_CONNECTIONS or self._server is None:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="http-request")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, answer = await self._answer(reader)
            if answer is not None:
                async with asyncio.timeout(self._answer_seconds):
                    await _write(writer, answer, body=method != b"HEAD")
                    writer.write_eof()
                async with asyncio.timeout(_LINGER_SECONDS):
                    while await reader.read(MOST_REQUEST_BYTES):
                        pass
        except (OSError, TimeoutError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[bytes, Answer | None]:
        """Read a request; return its method and its answer, None for a client that left before it had asked."""
        try:
            async with asyncio.timeout(self._request_seconds):
                line = await _head(reader)
        except asyncio.IncompleteReadError:
            return b"", None
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return b"", Answer.of(status, f"a request has at most {MOST_REQUEST_BYTES} bytes")
        except TimeoutError:
            return b"", Answer.of(HTTPStatus.REQUEST_TIMEOUT, f"no request within {self._request_seconds:g} s")
        request = _REQUEST_LINE.fullmatch(line)
        if request is None:
            return b"", Answer.of(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
        return request[1], await self._page(request[1], request[2].decode())

    async def _page(self, method: bytes, target: str) -> Answer:
        if method not in (b"GET", b"HEAD"):
            return Answer.of(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served", Allow="GET, HEAD")
        page = self._pages.get(path_of(target))
        if page is None:
            return Answer.of(HTTPStatus.NOT_FOUND, f"there are {', '.join(self._pages)}")
        try:
            async with asyncio.timeout(self._answer_seconds):
                return await page()
        except TimeoutError:
            return Answer.of(HTTPStatus.SERVICE_UNAVAILABLE, f"not answered within {self._answer_seconds:g} s")
        except Exception as error:
            logger.exception("page failed path=%s", target)
            return Answer.of(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}, see the log")


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Read a request's head and return its first line.

    A line may end with a line feed alone, and one empty line may come first (RFC 9112, 2.2).

    raises  IncompleteReadError, LimitOverrunError for more than ``MOST_REQUEST_BYTES``
    """
    size = 0
    lines: list[bytes] = []
    while not lines or lines[-1]:
        line = await reader.readuntil(b"\n")
        size += len(line)
        if size > MOST_REQUEST_BYTES:
            raise asyncio.LimitOverrunError("the head of a request is too long", 0)
        line = line[:-1].removesuffix(b"\r")
        if line or size > 2:
            lines.append(line)
    return lines[0]


async def _write(writer: asyncio.StreamWriter, answer: Answer, *, body: bool) -> None:
    parts = list(answer.parts)
    headers = {
        "Content-Type": answer.content_type,
        "Content-Length": str(sum(map(len, parts))),
        "Connection": "close",
        **answer.headers,
    }
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        *(f"{k}: {v}" for k, v in headers.items()),
        "",
        "",
    ]
    writer.write("\r\n".join(lines).encode())
    for part in parts if body else ():
        writer.write(part)
        await writer.drain()
    await writer.drain()
