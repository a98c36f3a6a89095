"""Clients and the process they live in: closing what was forgotten at its end, and noticing ``fork()``.

A forked child has the parent's objects but none of its threads, and must not use its sockets. A producer starts over in
the child; a consumer, whose work is its threads, raises ``ForkedClient``.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from typing import Protocol

__all__ = ["BlockingClient", "watch"]

logger = logging.getLogger(__name__)


class BlockingClient(Protocol):
    """What is watched."""

    def close(self) -> None:
        """Finish and close."""

    def forked(self) -> None:
        """Called in the child after a fork, before anything else runs there."""


class _Watch:
    """The open clients of this process; the hooks are set when the first one comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: weakref.WeakSet[BlockingClient] = weakref.WeakSet()
        self._hooked = False

    def add(self, client: BlockingClient) -> None:
        with self._lock:
            self._clients.add(client)
            if not self._hooked:
                self._hooked = True
                atexit.register(self._close_all)
                os.register_at_fork(after_in_child=self._forked)

    def _close_all(self) -> None:
        for client in list(self._clients):
            try:
                client.close()
            except Exception:
                logger.exception("client not closed at exit client=%r", client)

    def _forked(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it
        for client in list(self._clients):
            client.forked()


_WATCH = _Watch()


def watch(client: BlockingClient) -> None:
    """Close a client at interpreter exit if it still exists then, and tell it when it is in a forked child."""
    _WATCH.add(client)
