"""Host names looked up for those who have a deadline.

``getaddrinfo`` takes as long as the system's resolver does, whatever time the caller has. So it runs on a thread of its
own, which nobody has to wait for, also not an event loop that ends, as for those of its executor. Who asks for a host
that is being looked up waits for the same thread: a resolver that hangs costs one thread a host.

Of several addresses the one that a client gave up comes last the next time: it may take connections and answer nothing.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, TypeAlias

from rocketcore.config_file import BadSetting

__all__ = ["Address", "HostLookup", "host_of"]

Address: TypeAlias = tuple[int, int, int, str, Any]
"""Family, kind, protocol, canonical name and socket address, as of ``socket.getaddrinfo``."""


@contextlib.contextmanager
def host_of(setting: str, host: str) -> Iterator[None]:
    """Have the error of a host that has no address name the setting that the host comes from.

    raises  BadSetting
    """
    try:
        yield
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadSetting(setting, host, f"this machine finds no address of that host: {reason}") from error


class HostLookup:
    """The look-ups of one client in one process, for any number of threads and loops.

    What they return are the stream addresses of a host, at least one.
    raises  OSError for a host that has none, UnicodeError for what cannot be a name
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the table
        self._running: dict[tuple[str, int], Future[list[Address]]] = {}
        self._taken: dict[tuple[str, int], Any] = {}
        self._given_up: dict[tuple[str, int], Any] = {}

    def find(self, host: str, port: int, timeout: float) -> list[Address]:
        """Look up and wait; raises TimeoutError after ``timeout`` seconds as well."""
        return _numeric(host, port) or self._ordered(host, port, self._look_up(host, port).result(max(0.0, timeout)))

    async def find_async(self, host: str, port: int) -> list[Address]:
        """Look up and let the loop go on meanwhile; may be cancelled."""
        import asyncio

        known = _numeric(host, port)
        return known or self._ordered(host, port, await asyncio.wrap_future(self._look_up(host, port)))

    def took(self, host: str, port: int, target: object, addresses: list[Address]) -> None:
        """Note which of the addresses of a host has a connection now."""
        if len(addresses) > 1:
            self._taken[host, port] = target

    def give_up(self, host: str, port: int) -> None:
        """Note that the connection to a host is given up: another of its addresses is to be tried first."""
        target = self._taken.pop((host, port), None)
        if target is not None:
            self._given_up[host, port] = target

    def _ordered(self, host: str, port: int, found: list[Address]) -> list[Address]:
        last = self._given_up.get((host, port))
        return found if last is None else sorted(found, key=lambda address: address[4] == last)

    def _look_up(self, host: str, port: int) -> Future[list[Address]]:
        with self._lock:
            lookup = self._running.get((host, port))
            if lookup is None:
                lookup = Future()
                lookup.set_running_or_notify_cancel()  # nobody who leaves cancels it for the others
                thread = threading.Thread(target=self._run, args=(host, port, lookup), name="lookup", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # too many of them, or the interpreter ends
                    raise OSError(f"no look-up of {host}: {error}") from error
                self._running[host, port] = lookup
        return lookup

    def _run(self, host: str, port: int, lookup: Future[list[Address]]) -> None:
        try:
            found = _ask(host, port)
        except Exception as error:
            self._forget(host, port)
            lookup.set_exception(error)
        else:
            self._forget(host, port)
            lookup.set_result(found)

    def _forget(self, host: str, port: int) -> None:
        with self._lock:
            del self._running[host, port]


def _numeric(host: str, port: int) -> list[Address]:
    """Return the address that is written out, nothing for a name."""
    try:
        return _ask(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return []


def _ask(host: str, port: int, flags: int = 0) -> list[Any]:
    # Bytes of a name in ASCII are taken as they are. A text goes through the codec of other names, a slow import, which
    # refuses labels that no name has.
    is_plain = host.isascii() and all(0 < len(label) < 64 for label in host.removesuffix(".").split("."))
    name = host.encode() if is_plain else host
    return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=flags)
