"""``rocket version``."""

from __future__ import annotations

import platform
from importlib import metadata

from rocketcore.cli.options import command
from rocketcore.cli.render import show_object
from rocketcore.codes import CURRENT_VERSION, Version


@command(help="Show versions of the package, of Python and of the protocol that is spoken.")
def version() -> None:
    try:
        installed = metadata.version("rocketcore")
    except metadata.PackageNotFoundError:
        installed = None
    show_object(
        {
            "rocketcore": installed,
            "python": platform.python_version(),
            "protocol": Version(CURRENT_VERSION).name.lstrip("V").replace("_", "."),
            "platform": platform.platform(),
        }
    )
