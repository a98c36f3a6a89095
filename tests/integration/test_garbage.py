"""A peer that is none of ours: both clients say what came, and with debug logs what was asked of whom."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator

import pytest

import rocketcore
from rocketcore import aio
from rocketcore.errors import RocketError
from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(60)

GARBAGE = [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"\xff" * 64]


@pytest.fixture(params=GARBAGE, ids=["http", "ssh", "bytes"])
def peer(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that answers each connection with the same bytes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(request.param)
                connection.recv(1 << 16)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_blocking_client_says_what_came(peer: str) -> None:
    with rocketcore.Admin(peer) as admin, pytest.raises(RocketError, match="it sent what is no frame"):
        admin.topics()


def test_an_asyncio_client_says_what_came(peer: str) -> None:
    async def main() -> None:
        async with aio.Admin(peer) as admin:
            with pytest.raises(RocketError, match="it sent what is no frame"):
                await admin.topics()

    asyncio.run(main())


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_debug_logs_name_each_request(face: str, cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with aio.Admin(cluster.namesrv) as admin:
            await admin.topics()

    with caplog.at_level(logging.DEBUG, logger="rocketcore.transport"):
        if face == "blocking":
            with rocketcore.Admin(cluster.namesrv) as admin:
                admin.topics()
        else:
            asyncio.run(main())
    texts = [record.getMessage() for record in caplog.records]
    assert any(text.startswith(f"connecting address={cluster.namesrv}") for text in texts)
    assert f"answered request=GET_ALL_TOPIC_LIST_FROM_NAMESERVER address={cluster.namesrv} code=0 remark=None" in texts
