"""Clients and the process they live in: closing what was forgotten, and noticing ``fork()``.

A client that exists at the end of the interpreter, or of a process of ``multiprocessing``, is closed then. One that
nobody refers to any more before that is complained of (ResourceWarning) and closed by a thread, for which the end of
the interpreter waits.

A forked child has the parent's objects but none of its threads, and must not use its sockets. A producer starts over in
the child; a consumer, whose work is its threads, raises ``ForkedClient``.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Final, Protocol

from rocketcore.errors import RequestTimeout, SendsFailed
from rocketcore.warning import tell_all, warn

__all__ = ["BlockingClient", "close_forgotten", "watch"]

logger = logging.getLogger(__name__)

END_PRIORITY: Final = 20
"""Before multiprocessing ends its own queues (10) and pools (15): callbacks may use them."""


class BlockingClient(Protocol):
    """What is watched."""

    def close(self) -> None:
        """Finish and close."""

    def _in_child(self) -> None:
        """Called in the child after a fork, before anything else runs there."""


class _Watch:
    """The open clients of this process; the hooks are set when the first one comes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler that comes in may make a client
        self._clients: weakref.WeakSet[BlockingClient] = weakref.WeakSet()
        # Changed without a lock: garbage collection comes at any time, also to a thread that holds one.
        self._closing: set[threading.Thread] = set()
        self._hooked = False
        self._ends_with = 0
        """The process that multiprocessing ends, as far as that is known."""

    def add(self, client: BlockingClient) -> None:
        with self._lock:
            self._clients.add(client)
            if not self._hooked:
                self._hooked = True
                atexit.register(self._close_all)
                os.register_at_fork(after_in_child=self._forked)
            self._end_with_multiprocessing()

    def _end_with_multiprocessing(self) -> None:
        """Close at the end of a process of multiprocessing, which comes without that of its interpreter."""
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is None or self._ends_with == os.getpid():
            return
        if sys.modules["multiprocessing.process"].parent_process() is not None:
            self._ends_with = os.getpid()
            multiprocessing.Finalize(None, self._close_all, exitpriority=END_PRIORITY)

    def close_later(self, name: str, close: Callable[[], None]) -> None:
        """Close something on a thread of its own."""

        def work() -> None:
            try:
                _close(name, close)
            finally:
                self._closing.discard(thread)

        thread = threading.Thread(target=work, name=f"close {name}", daemon=True)
        self._closing.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends: it starts no thread any more
            work()

    def _close_all(self) -> None:
        for client in list(self._clients):
            _close(repr(client), client.close)
        for thread in list(self._closing):
            thread.join()
        tell_all()  # clients that are closed here call back

    def _forked(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._closing = set()
        for client in list(self._clients):
            client._in_child()
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:  # it forgets now, in a process of its own, what is to be done at the end
            multiprocessing.register_after_fork(self, _Watch._end_with_multiprocessing)


def _close(name: str, close: Callable[[], None]) -> None:
    try:
        close()
    except (SendsFailed, RequestTimeout) as error:
        warn(logger, "not closed cleanly client=%s error=%s", name, error)
    except Exception:
        warn(logger, "not closed cleanly client=%s", name, traceback=True)


_WATCH = _Watch()


def watch(client: BlockingClient) -> None:
    """Close a client at interpreter exit if it still exists then, and tell it when it is in a forked child."""
    _WATCH.add(client)


def close_forgotten(name: str, close: Callable[[], None]) -> None:
    """Complain that nobody refers to a client that is open, and close it; for ``weakref.finalize``."""
    try:
        warnings.warn(f"unclosed {name}: call close(), or use it with 'with'", ResourceWarning, stacklevel=2)
    finally:
        _WATCH.close_later(name, close)
