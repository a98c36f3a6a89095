"""Print, for ``pip install -r``, the lowest version that pyproject.toml allows of everything that it names.

``python .ci/lowest_versions.py [EXTRA…] [--without EXTRA…]``: what the package itself needs, and the extras, with those
that they name; all extras where none is named. One line each, ``click==8.1``. What these need in turn is left to pip.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[([^\]]*)\])?\s*([^;]*)")
_LOWEST = re.compile(r"\s*>=\s*([0-9][0-9a-zA-Z.]*)\s*")


def lowest(project: Path = PROJECT, extras: Iterable[str] = (), without: Iterable[str] = ()) -> dict[str, str]:
    """Return the lowest version of each distribution, by name; of two bounds the higher one.

    raises  ValueError for a requirement that says no lowest version, and for an extra that is not there
    """
    declared = tomllib.loads(project.read_text("utf-8"))["project"]
    optional = declared.get("optional-dependencies", {})
    if unknown := {*extras, *without} - {*optional}:
        raise ValueError(f"{project} has no extra {', '.join(sorted(unknown))}")
    waiting = list(declared.get("dependencies", ()))
    asked = [extra for extra in extras or optional if extra not in without]
    seen = {*without}
    found: dict[str, str] = {}
    while waiting or asked:
        if not waiting:
            extra = asked.pop()
            waiting = [] if extra in seen else list(optional[extra])
            seen.add(extra)
            continue
        requirement = waiting.pop()
        match = _REQUIREMENT.match(requirement)
        if match is None:
            raise ValueError(f"{requirement!r} is no requirement")
        name, more, bounds = match.groups()
        if name == declared["name"]:
            asked.extend(extra.strip() for extra in more.split(","))
            continue
        least = [version[1] for bound in bounds.split(",") if (version := _LOWEST.fullmatch(bound))]
        if len(least) != 1:
            raise ValueError(f"{requirement!r} says no lowest version")
        found[name] = max(found.get(name, "0"), least[0], key=_parts)
    return dict(sorted(found.items()))


def _parts(version: str) -> list[int]:
    return [int(part) for part in re.findall("[0-9]+", version)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--without", action="append", default=[])
    asked = parser.parse_args()
    for name, version in lowest(extras=asked.extras, without=asked.without).items():
        print(f"{name}=={version}")
