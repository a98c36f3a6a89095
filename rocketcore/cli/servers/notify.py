"""What a service tells systemd of its state (sd_notify), where systemd asks for it with ``Type=notify``."""

from __future__ import annotations

import logging
import os
from typing import Final, Literal

__all__ = ["NOTIFY_SOCKET", "notify"]

logger = logging.getLogger(__name__)

NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"
"""The variable that names the socket; ``@`` begins the name of one that is in no folder."""
_SECONDS: Final = 1.0


def notify(state: Literal["READY=1", "STOPPING=1"]) -> None:
    """Send a state to who started this process, if it wants to know; that it cannot be told is a warning."""
    path = os.environ.get(NOTIFY_SOCKET)
    if not path:
        return
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.settimeout(_SECONDS)
            to.connect("\0" + path[1:] if path.startswith("@") else path)
            to.sendall(state.encode())
    except OSError as error:
        logger.warning("not told state=%s socket=%s error=%s", state, path, error)
