"""``rocket version``."""

from __future__ import annotations

import platform

from rocketcore import __version__
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.render import show_object
from rocketcore.codes import CURRENT_VERSION, Version

__all__ = ["version"]


@command(help="Show the versions of the package, of Python and of the protocol.")
def version() -> None:
    show_object(
        {
            "rocketcore": __version__,
            "python": platform.python_version(),
            "protocol": Version(CURRENT_VERSION).name.lstrip("V").replace("_", "."),
            "platform": platform.platform(),
        }
    )
