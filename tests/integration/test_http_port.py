"""The HTTP port of servers over real sockets: its answers, and clients that send garbage, nothing or too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest

from rocketcore.transport.http_port import MOST_CONNECTIONS, Answer, HttpPort

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


async def ask(port: int, request: bytes, host: str = "127.0.0.1") -> tuple[int, bytes]:
    """Send bytes and return the status and the body of the answer, 0 where there is none."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        answer = await reader.read()
    except ConnectionError:
        return 0, b""
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return 0, b""
    assert f"Content-Length: {len(body)}".encode() in head.split(b"\r\n")
    return int(head.split()[1]), body


async def livez() -> Answer:
    return Answer.of(HTTPStatus.OK, "ok")


async def metrics() -> Answer:
    return Answer(HTTPStatus.OK, [b"a{} 1\n", b"b{} 2\n"], "text/x")


def play(scenario: Callable[[HttpPort], Awaitable[None]], host: str = "127.0.0.1", **settings: Any) -> None:
    @asynccontextmanager
    async def running() -> AsyncIterator[HttpPort]:
        port = HttpPort(host, 0, {"/livez": livez, "/metrics": metrics}, **settings)
        await port.start()
        try:
            yield port
        finally:
            await port.stop()

    async def run() -> None:
        async with asyncio.timeout(30), running() as port:
            await scenario(port)

    asyncio.run(run())


def test_pages_by_their_paths() -> None:
    async def scenario(port: HttpPort) -> None:
        assert await ask(port.port, GET) == (200, b"ok\n")
        assert await ask(port.port, b"GET /livez?verbose HTTP/1.0\r\n\r\n") == (200, b"ok\n")
        assert await ask(port.port, b"GET /metrics HTTP/1.1\r\n\r\n") == (200, b"a{} 1\nb{} 2\n")
        assert (await ask(port.port, b"GET /other HTTP/1.1\r\n\r\n"))[0] == 404
        for whole in (b"http://x:80/livez", b"HTTP://x/livez?a=http://y/", b"https://[::1]:9/livez"):
            assert await ask(port.port, b"GET " + whole + b" HTTP/1.1\r\n\r\n") == (200, b"ok\n")
        assert (await ask(port.port, b"GET http://x HTTP/1.1\r\n\r\n"))[0] == 404
        assert (await ask(port.port, b"GET /http://x/livez HTTP/1.1\r\n\r\n"))[0] == 404

    play(scenario)


@pytest.mark.parametrize(
    "request_bytes",
    [GET.replace(b"\r\n", b"\n"), b"\r\n" + GET, b"\n" + GET, b"GET /livez HTTP/1.1\nHost: x\r\n\n"],
    ids=["bare line feeds", "an empty line first", "a bare line feed first", "mixed"],
)
def test_lines_that_a_server_may_take(request_bytes: bytes) -> None:
    async def scenario(port: HttpPort) -> None:
        assert await ask(port.port, request_bytes) == (200, b"ok\n")

    play(scenario, request_seconds=5)


def test_the_address_of_all_is_that_of_both_families() -> None:
    async def scenario(port: HttpPort) -> None:
        for host in ("127.0.0.1", "::1"):
            assert await ask(port.port, GET, host) == (200, b"ok\n")

    play(scenario, "::")


@pytest.mark.parametrize("path", [b"/livez", b"/metrics", b"/other", b"http://x/livez"])
def test_head_is_get_without_the_body(path: bytes) -> None:
    """``wget --spider`` and load balancers ask by HEAD."""

    async def scenario(port: HttpPort) -> None:
        said = {}
        for method in (b"GET", b"HEAD"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            writer.write(method + b" " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            said[method] = await reader.read()
            writer.close()
        head, separator, body = said[b"GET"].partition(b"\r\n\r\n")
        assert body
        assert said[b"HEAD"] == head + separator

    play(scenario)


def test_what_may_be_asked_is_said() -> None:
    async def scenario(port: HttpPort) -> None:
        for method in (b"POST", b"PUT", b"DELETE", b"OPTIONS"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            writer.write(method + b" /livez HTTP/1.1\r\n\r\n")
            answer = await reader.read()
            writer.close()
            assert b" 405 " in answer.splitlines()[0]
            assert b"Allow: GET, HEAD" in answer.splitlines()

    play(scenario)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x00\xff garbage\r\n\r\n", 400), (b"\r\n\r\n", 400), (b"GET /livez\r\n\r\n", 400),
        (b"GET /livez HTTP/2.0\r\n\r\n", 400), (b"POST /livez HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", 405), (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", 431), (b"x" * 1_000_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    ],
)  # fmt: skip
def test_what_is_no_request_for_a_page_is_refused(request_bytes: bytes, status: int) -> None:
    async def scenario(port: HttpPort) -> None:
        assert (await ask(port.port, request_bytes))[0] == status
        assert await ask(port.port, GET) == (200, b"ok\n")

    play(scenario)


def test_a_request_that_does_not_come_to_its_end_is_not_waited_for() -> None:
    async def scenario(port: HttpPort) -> None:
        assert (await ask(port.port, b"GET /livez HT"))[0] == 408
        assert (await ask(port.port, b""))[0] == 408

    play(scenario, request_seconds=0.05)


def test_an_answer_that_nobody_reads_is_not_waited_for() -> None:
    async def scenario(port: HttpPort) -> None:
        asked = asyncio.Event()
        size = 64 << 20

        async def large() -> Answer:
            asked.set()
            return Answer(HTTPStatus.OK, (bytes(1 << 20) for _ in range(size >> 20)))

        port._pages = {"/large": large}
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
        await asked.wait()
        while port._serving:
            await asyncio.wait(port._serving)
        received = 0
        try:
            while part := await reader.read(1 << 20):
                received += len(part)
        except ConnectionError:
            pass
        finally:
            writer.close()
        assert received < size

    play(scenario, answer_seconds=0.1)


def test_a_page_that_fails_or_takes_too_long_is_an_answer() -> None:
    async def scenario(port: HttpPort) -> None:
        async def failing() -> Answer:
            raise ValueError("no")

        async def endless() -> Answer:
            await asyncio.Event().wait()
            raise AssertionError

        port._pages = {"/failing": failing, "/endless": endless}
        assert await ask(port.port, b"GET /failing HTTP/1.1\r\n\r\n") == (500, b"ValueError, see the log\n")
        assert (await ask(port.port, b"GET /endless HTTP/1.1\r\n\r\n"))[0] == 503

    play(scenario, answer_seconds=0.05)


def test_of_many_connections_some_are_served_and_none_stays() -> None:
    async def scenario(port: HttpPort) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(MOST_CONNECTIONS)]
        assert (await ask(port.port, GET))[0] == 0
        for _, writer in silent:
            writer.close()
        while port._serving:
            await asyncio.wait(port._serving)
        assert await ask(port.port, GET) == (200, b"ok\n")

    play(scenario)


def test_a_stop_ends_what_is_open() -> None:
    async def scenario(port: HttpPort) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        assert (await ask(port.port, GET))[0] == 200  # which came behind it
        await port.stop()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port.port)

    play(scenario)
