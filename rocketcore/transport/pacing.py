"""Pacing: what TCP spaces out to spare a network, where there is none."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["unpace"]


def unpace(sock: socket.socket) -> None:
    """Have what is sent within a machine leave at once, where the system's default would space it out (BBR).

    What a listening socket accepts is as it is. There is no network to be kept from congestion within a machine, and
    the timers cost a sixth of what it costs to send 1 MiB.
    """
    congestion = getattr(socket, "TCP_CONGESTION", None)
    if congestion is not None:
        with contextlib.suppress(OSError):  # it may be forbidden
            sock.setsockopt(socket.IPPROTO_TCP, congestion, b"reno")
