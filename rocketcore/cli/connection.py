"""The connection of a command to its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketcore.cli.options import Settings, current

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin

__all__ = ["open_admin"]


def open_admin(calls: int = 1, settings: Settings | None = None) -> Admin:
    """Return an admin client with the settings of the running command, whose ``calls`` share its time-out.

    settings  those of the command, for a thread beside it, which has no context of click's
    """
    from rocketcore.cli.budget import CommandAdmin

    settings = settings or current()
    return CommandAdmin(
        settings.namesrv, timeout=settings.timeout, tls=settings.tls, calls=calls, credentials=settings.credentials
    )
