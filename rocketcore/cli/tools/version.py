"""``rocket version``."""

from __future__ import annotations

import platform
from importlib import metadata

from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.render import show_object
from rocketcore.codes import CURRENT_VERSION, Version

__all__ = ["installed_version", "version"]


def installed_version() -> str | None:
    """Return the version of the package; None where it runs without being installed."""
    try:
        return metadata.version("rocketcore")
    except metadata.PackageNotFoundError:
        return None


@command(help="Show the versions of the package, of Python and of the protocol.")
def version() -> None:
    show_object(
        {
            "rocketcore": installed_version(),
            "python": platform.python_version(),
            "protocol": Version(CURRENT_VERSION).name.lstrip("V").replace("_", "."),
            "platform": platform.platform(),
        }
    )
