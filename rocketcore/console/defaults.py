"""Which settings of a broker differ from their defaults, and what those are.

Our brokers say it. Apache's do not: theirs are compared with the defaults of 5.5.0, whatever the release, but for what
Java takes from the machine (paths, addresses, numbers of threads), which ``apache_defaults.json`` leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

__all__ = ["changed_settings", "is_told"]

_TOLD = "changedSettings"


def is_told(runtime: Mapping[str, str]) -> bool:
    """Return whether a broker says itself what differs, in its runtime information."""
    return _TOLD in runtime


def changed_settings(config: Mapping[str, str], runtime: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a broker that have another value than their default: name → default."""
    if is_told(runtime):
        try:
            told = json.loads(runtime[_TOLD])
        except ValueError:
            return {}
        return {str(name): str(default) for name, default in told.items() if name in config}
    return {name: default for name, default in _apaches().items() if config.get(name, default) != default}


@cache
def _apaches() -> dict[str, str]:
    table = json.loads((Path(__file__).parent / "apache_defaults.json").read_text("ascii"))
    return {str(name): str(default) for name, default in table.items()}
