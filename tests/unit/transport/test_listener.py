"""Listeners of a reactor: the addresses of a name, ports that are taken, and a system without descriptors."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore.service import SYSTEM_CLOCK
from rocketcore.transport.reactor_kernel import has_reactor
from rocketcore.transport.server import listener as listener_module
from rocketcore.transport.server.listener import open_listener
from tests.unit.transport.reactor_place import Place, Scenario

pytestmark = pytest.mark.skipif(not has_reactor(), reason="without the reactor")


def test_a_name_with_two_addresses_is_listened_at_on_one_port(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        ports = {listening.getsockname()[1] for listening in place.listener.sockets}
        assert len(ports) == 1

    run(scenario, "localhost")  # type: ignore[call-arg]


def test_an_address_that_is_taken_is_named(run: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        port = place.listener.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen at 127.0.0.1:{port}: Address already in use"):
            await open_listener("127.0.0.1", port, place.make, monotonic=SYSTEM_CLOCK.monotonic)

    run(scenario)


def test_an_address_that_this_machine_lacks_is_left_out_where_a_name_has_others(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with ``localhost``, where the system knows IPv6 by name and has none."""

    def found(*addresses: str) -> None:
        async def resolve(host: str, port: int) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in addresses]

        monkeypatch.setattr("rocketcore.transport.server.listener._resolve", resolve)

    async def scenario(place: Place) -> None:
        found("192.0.2.1", "127.0.0.1")
        listener = await open_listener("name", 0, place.make, monotonic=SYSTEM_CLOCK.monotonic)
        assert [listening.getsockname()[0] for listening in listener.sockets] == ["127.0.0.1"]
        assert "cannot listen at 192.0.2.1:0" in caplog.text
        listener.close()
        listener.end()
        found("192.0.2.1")
        with pytest.raises(OSError, match=r"cannot listen at 192\.0\.2\.1:0: Cannot assign requested address"):
            await open_listener("name", 0, place.make, monotonic=SYSTEM_CLOCK.monotonic)

    run(scenario)


def test_what_is_accepted_within_a_machine_is_not_paced(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip().encode()

    async def congestion(place: Place) -> bytes:
        protocol, peer = await place.connect()
        peer.close()
        sock = protocol.transport.get_extra_info("socket")
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")

    async def scenario(place: Place) -> None:
        assert await congestion(place) == b"reno"
        monkeypatch.setattr(listener_module, "is_loopback", lambda host: False)
        here, place.listener = place.listener, await open_listener(
            "127.0.0.1", 0, place.make, monotonic=SYSTEM_CLOCK.monotonic
        )  # fmt: skip
        try:
            assert await congestion(place) == default
        finally:
            place.listener.close()
            place.listener.end()
            place.listener = here

    run(scenario)


@pytest.mark.parametrize("taken", [1, 3])
def test_another_port_is_tried_where_the_chosen_one_is_taken_elsewhere(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    others: list[socket.socket] = []

    async def resolve(host: str, port: int) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, port)) for each in ("127.0.0.1", "127.0.0.2")]

    listen = listener_module._listen

    def listen_late(*where: Any) -> socket.socket:
        address, port = where[-1]
        if address == "127.0.0.2" and len(others) < taken:
            others.append(socket.create_server((address, port)))
        return listen(*where)

    async def scenario(place: Place) -> None:
        monkeypatch.setattr(listener_module, "_resolve", resolve)
        monkeypatch.setattr(listener_module, "_listen", listen_late)
        listener = await open_listener("name", 0, place.make, monotonic=SYSTEM_CLOCK.monotonic)
        ports = {listening.getsockname()[1] for listening in listener.sockets}
        assert (len(others), len(listener.sockets), len(ports)) == (taken, 2, 1)
        listener.close()
        listener.end()
        with pytest.raises(OSError, match="Address already in use"):
            await open_listener("name", others[0].getsockname()[1], place.make, monotonic=SYSTEM_CLOCK.monotonic)

    try:
        run(scenario)
    finally:
        for other in others:
            other.close()


def test_an_address_is_free_again_where_the_reactor_finds_no_descriptor(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario(place: Place) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        monkeypatch.setattr("rocketcore._fast.reactor.Reactor", no_room)
        with pytest.raises(OSError, match="Too many open files") as caught:
            await open_listener("127.0.0.1", port, place.make, monotonic=SYSTEM_CLOCK.monotonic)
        assert caught.tb is not None, "whoever keeps the error keeps what its frames refer to"
        socket.create_server(("127.0.0.1", port)).close()

    run(scenario)


def test_accepting_goes_on_after_the_system_had_no_descriptor(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    monkeypatch.setattr("rocketcore.transport.server.listener._NO_ROOM_PAUSE", 0.01)

    async def scenario(place: Place) -> None:
        peers = [socket.socket() for _ in range(3)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(peer.fileno() for peer in peers)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        try:
            for peer in peers:
                peer.connect(place.listener.sockets[0].getsockname())
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(place.protocols) < 3
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        while len(place.protocols) < 3:
            place.made.clear()
            await place.made.wait()
        for peer in peers:
            peer.close()

    run(scenario)
