"""Serving: the port is bound at once, and pages come as soon as the libraries are there."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

from rocketcore import addresses
from rocketcore.console.settings import ConsoleSettings
from rocketcore.errors import ConfigError, RocketError
from rocketcore.transport.lookup import host_of

if TYPE_CHECKING:
    import uvicorn

    from rocketcore.console.console import Console

__all__ = ["ConsoleThread", "address_of", "bind", "check_extra", "server_of"]


def check_extra() -> None:
    """Raise ConfigError where the libraries of the console are not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "jinja2", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the console needs {', '.join(missing)}: pip install 'rocketcore[console]'")


def bind(settings: ConsoleSettings) -> socket.socket:
    """Listen; whoever connects waits until pages are served.

    raises  BadSetting for a host that has no address, OSError
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with host_of("listen", settings.host):
        found = socket.getaddrinfo(settings.host, settings.port, family, socket.SOCK_STREAM)
    return socket.create_server(found[0][4], family=family, backlog=128)


def address_of(listening: socket.socket, settings: ConsoleSettings) -> str:
    """Return ``host:port`` of a bound socket."""
    return addresses.join(settings.host, listening.getsockname()[1])


def server_of(settings: ConsoleSettings) -> uvicorn.Server:
    """Return the server, to be run on a bound socket."""
    import uvicorn

    from rocketcore.console.app import create_app

    app = create_app(settings)
    console: Console = app.state.console

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            console.leaving.set()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=200,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
    )
    return Server(config)


class ConsoleThread:
    """A console on a thread of its own, beside servers in this process.

    raises  OSError where the port is taken, ConfigError without the extra
    """

    def __init__(self, settings: ConsoleSettings) -> None:
        check_extra()
        self._settings = settings
        self._socket = bind(settings)
        self.address = address_of(self._socket, settings)
        self._server: uvicorn.Server | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="rocketcore-console", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def _run(self) -> None:
        server = server_of(self._settings)
        self._server = server
        if self._ended:
            return
        asyncio.run(server.serve([self._socket]))

    def stop(self) -> None:
        """Close the port, and the connections within a second or two."""
        self._ended = True
        if self._server is not None:
            self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(5)
        self._socket.close()
        if self._thread.is_alive():
            raise RocketError("the console has not ended after 5 s")
