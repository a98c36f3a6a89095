"""The connection of a command to its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketcore.cli.options import current

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin

__all__ = ["open_admin"]


def open_admin() -> Admin:
    """Return an admin client with the settings of the running command."""
    from rocketcore.admin.client import Admin

    settings = current()
    return Admin(settings.namesrv, timeout=settings.timeout, tls=settings.tls)
