"""Names for a shell to complete: topics and groups of the cluster that a command line names."""

from __future__ import annotations

from typing import Final

from rocketcore.cli.shell.options import Settings
from rocketcore.errors import RocketError

__all__ = ["names_of"]

PATIENCE: Final = 1.0
"""Seconds for which a shell waits; without an answer by then it completes nothing."""
MOST: Final = 1000


def names_of(kind: str, settings: Settings) -> list[str]:
    """Return the first names of a kind, ``topic`` or ``group``; none where nobody answers in time."""
    from rocketcore.cli.shell.connection import open_admin

    settings.timeout_option = min(settings.timeout, PATIENCE)
    try:
        with open_admin(1 if kind == "group" else 2, settings) as admin:
            if kind == "group":
                return sorted(admin.groups())[:MOST]
            from rocketcore.admin.shapes import topic_kind

            info = admin.cluster_info()
            own = {*info.cluster_addr_table, *info.broker_addr_table}
            return [name for name in admin.topics() if topic_kind(name, own) == "normal"][:MOST]
    except (RocketError, OSError, ValueError):
        return []
