"""All header and body classes of the package by name, found by walking its modules, and Java's vectors of them."""

from __future__ import annotations

import pkgutil
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from rocketcore.protocol import bodies, headers
from rocketcore.protocol.bodies.base import Body
from rocketcore.protocol.schema import Header
from tests.fixtures.vectors import family


def _declared(package: ModuleType, base: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = import_module(f"{package.__name__}.{info.name}")
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__ and issubclass(value, (base, Enum)):
                found[name] = value
    return dict(sorted(found.items()))


HEADERS: Final = _declared(headers, Header)
BODIES: Final = _declared(bodies, Body)


def declared_vectors(file: str, prefix: str) -> list[dict[str, Any]]:
    """Return the vectors of a family whose class is declared; nothing of ours sends or serves the others."""
    return [record for record in family(file, prefix) if record["class"] in HEADERS or record["class"] in BODIES]
