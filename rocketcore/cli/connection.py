"""The connection of a command to its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketcore.cli.options import current

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin

__all__ = ["open_admin"]


def open_admin(calls: int = 1) -> Admin:
    """Return an admin client with the settings of the running command, whose ``calls`` share its time-out."""
    from rocketcore.cli.budget import CommandAdmin

    settings = current()
    return CommandAdmin(settings.namesrv, timeout=settings.timeout, tls=settings.tls, calls=calls)
