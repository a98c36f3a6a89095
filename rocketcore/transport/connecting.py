"""Sockets connected on an event loop, without its thread pool.

uvloop resolves on the threads of libuv's pool whatever ``sock_connect`` is given, a numeric address too. A process that
has used that pool must not fork: libuv joins the pool's threads when a process ends, and the child's end crashes, as
they exist in the parent alone.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any

__all__ = ["connect"]


async def connect(sock: socket.socket, address: Any) -> None:
    """Connect a socket that does not block to a numeric address; raises OSError."""
    number = sock.connect_ex(address)
    if number in (errno.EINPROGRESS, errno.EINTR):
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(sock, _set, ready)
        try:
            await ready
        finally:
            loop.remove_writer(sock)
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, os.strerror(number))


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
