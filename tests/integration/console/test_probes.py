"""What load balancers and proxies ask a console, over its real socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")

from rocketcore.addresses import split
from rocketcore.console.serve import ConsoleThread
from rocketcore.console.settings import ConsoleSettings
from rocketcore.local import LocalCluster


@pytest.fixture(scope="module")
def address(cluster: LocalCluster) -> Iterator[tuple[str, int]]:
    console = ConsoleThread(ConsoleSettings(namesrv=cluster.namesrv, listen="127.0.0.1:0"))
    console.start()
    yield split(console.address)
    console.stop()


def ask(address: tuple[str, int], *lines: str) -> tuple[str, dict[str, str], str]:
    """Return the status line, the headers and the body of the answer."""
    with socket.create_connection(address, 30) as connection:
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    head, _, body = answer.partition("\r\n\r\n")
    status, *headers = head.split("\r\n")
    return status, {name.lower(): value for name, _, value in (line.partition(": ") for line in headers)}, body


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
@pytest.mark.parametrize(
    "lines",
    [
        ("GET {path} HTTP/1.1", "Host: 127.0.0.1"),
        ("GET {path}?x=1 HTTP/1.1", "Host: 127.0.0.1"),
        ("GET {path} HTTP/1.0",),
        ("GET http://127.0.0.1{path} HTTP/1.1", "Host: 127.0.0.1"),
        ("HEAD {path} HTTP/1.1", "Host: 127.0.0.1"),
        ("HEAD http://127.0.0.1{path}?x=1 HTTP/1.1", "Host: 127.0.0.1"),
    ],
    ids=lambda lines: lines[0],
)
def test_probes_are_answered(address: tuple[str, int], path: str, lines: tuple[str, ...]) -> None:
    status, headers, body = ask(address, *(line.format(path=path) for line in lines))
    assert status.split()[1] == "200", status
    assert body == ("" if lines[0].startswith("HEAD") else "ok\n")
    assert headers["content-length"] == "3"


def test_pages_are_answered_by_head_and_by_their_whole_url(address: tuple[str, int]) -> None:
    for line in ("HEAD /topics HTTP/1.1", "HEAD /metrics HTTP/1.1", "GET http://127.0.0.1/topics HTTP/1.1"):
        status, headers, body = ask(address, line, "Host: 127.0.0.1")
        assert status.split()[1] == "200", status
        assert bool(body) is line.startswith("GET")
        assert int(headers["content-length"]) > 0
    assert ask(address, "GET http://127.0.0.1/topics HTTP/1.1", "Host: elsewhere.example")[0].split()[1] == "421"


@pytest.mark.parametrize("line", ["POST /livez HTTP/1.1", "OPTIONS /topics HTTP/1.1", "POST /topics HTTP/1.1"])
def test_what_may_be_asked_is_said(address: tuple[str, int], line: str) -> None:
    status, headers, _ = ask(address, line, "Host: 127.0.0.1", "Content-Length: 0")
    assert status.split()[1] == "405"
    assert {"GET", "HEAD"} <= set(headers["allow"].split(", "))


@pytest.mark.parametrize(
    ("length", "body"),
    [("Content-Length: 1000", b"name=T&que"), ("Transfer-Encoding: chunked", b"5\r\nname=\r\nzz\r\n")],
    ids=["cut off", "chunk that is none"],
)
def test_a_form_that_breaks_off_is_no_failure_of_the_console(
    address: tuple[str, int], length: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["POST /topic/new HTTP/1.1", "Host: 127.0.0.1", f"Origin: http://127.0.0.1:{address[1]}",
             "Content-Type: application/x-www-form-urlencoded", length, "", ""]  # fmt: skip
    with caplog.at_level("INFO"), socket.create_connection(address, 30) as connection:
        connection.sendall("\r\n".join(lines).encode() + body)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert ask(address, "GET /topics HTTP/1.1", "Host: 127.0.0.1")[0].split()[1] == "200"
    assert answer == b"" or answer.split()[1] == b"400"
    assert [record for record in caplog.records if record.levelname == "ERROR" or record.exc_info] == []
