"""Gathers the sentences that users read from the program itself, for ``prose.py``: each with its kind and its place.

help        commands and options of ``rocket``
settings    the settings of servers and clients
docstrings  the public names of ``rocketcore``, ``rocketcore.aio`` and ``rocketcore.testing``, and their methods
console     the English texts of the web console
errors      literals in ``raise …Error("…")``
logs        literals in ``logger.….("…")`` and ``warn(…)``
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "rocketcore"
PUBLIC = ("rocketcore", "rocketcore.aio", "rocketcore.testing")
LOGGING = ("debug", "info", "warning", "error", "exception", "warn", "critical")


class Text(NamedTuple):
    kind: str
    place: str
    text: str


def helps() -> Iterator[Text]:
    from rocketcore.cli.main import rocket

    yield from _helps(rocket, "rocket", set())


def _helps(command: Any, name: str, seen: set[str]) -> Iterator[Text]:
    """Walk the tree of commands; an option that many share comes once."""
    texts = [(name, command.help)]
    texts += [(f"{name} {one.opts[0]}", one.help) for one in command.params if getattr(one, "help", None)]
    entries = getattr(command, "entries", {})
    texts += [(f"{name} {verb}", str(entry.help)) for verb, entry in entries.items()]
    for place, text in texts:
        if text not in seen:
            seen.add(text)
            yield Text("help", place, text)
    for verb in entries:
        yield from _helps(command.get_command(None, verb), f"{name} {verb}", seen)


def settings() -> Iterator[Text]:
    for module in modules():
        for name, value in list(vars(import_module(module)).items()):
            if inspect.isclass(value) and value.__module__ == module and dataclasses.is_dataclass(value):
                for field in dataclasses.fields(value):
                    if field.metadata.get("help"):
                        yield Text("settings", f"{name}.{field.name}", field.metadata["help"])


def modules() -> Iterator[str]:
    """Yield the modules that declare settings."""
    for path in sorted(SOURCES.rglob("*.py")):
        if " setting(" in path.read_text("utf-8"):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


def docstrings() -> Iterator[Text]:
    seen: set[int] = set()
    for module in map(import_module, PUBLIC):
        for name in module.__all__:
            yield from _docstrings(getattr(module, name), f"{module.__name__}.{name}", seen)


def _docstrings(value: Any, name: str, seen: set[int]) -> Iterator[Text]:
    text = getattr(value, "__doc__", None)
    ours = str(getattr(value, "__module__", "")).startswith("rocketcore")
    if not (inspect.isclass(value) or callable(value)) or not ours or id(value) in seen:
        return
    seen.add(id(value))
    if text and not (dataclasses.is_dataclass(value) and text.startswith(f"{value.__name__}(")):  # type: ignore[union-attr]
        yield Text("docstrings", name, re.sub(r"``([^`]*)``", r"`\1`", inspect.cleandoc(text)))
    if inspect.isclass(value):
        for base in [one for one in value.__mro__ if one.__module__.startswith("rocketcore")]:
            for verb, member in vars(base).items():
                if not verb.startswith("_"):
                    called = getattr(member, "fget", None) or getattr(member, "__func__", member)
                    yield from _docstrings(called, f"{name}.{verb}", seen)


def console() -> Iterator[Text]:
    for english in json.loads((SOURCES / "console/zh.json").read_text("utf-8")):
        yield Text("console", "zh.json", english)


@cache
def literals() -> list[Text]:
    """Return the texts of errors and log lines; a value within is a word in backquotes."""
    return list(_literals())


def _literals() -> Iterator[Text]:
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            kind = _kind(node)
            call = node.exc if isinstance(node, ast.Raise) else node
            if kind and isinstance(call, ast.Call):
                for argument in call.args:
                    text = _text(argument)
                    if " " in text:
                        yield Text(kind, f"{path.relative_to(ROOT)}:{argument.lineno}", text)


def _kind(node: ast.AST) -> str:
    if isinstance(node, ast.Raise):  # the remarks of a broker stay as Apache's clients know them
        return "" if node.exc and ast.unparse(node.exc).startswith("BrokerError.of") else "errors"
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        logger = ast.unparse(node.func).lower()
        if name == "warn" or (name in LOGGING and "log" in logger):
            return "logs"
        if name.endswith(("Error", "Failed", "Failure", "BadSetting", "fail")):
            return "errors"
    return ""


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[-\d.]*[sdrf]", "`x`", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(one) if isinstance(one, ast.Constant) else "`x`" for one in node.values)
    return ""


SOURCES_OF = {
    "help": helps,
    "settings": settings,
    "docstrings": docstrings,
    "console": console,
    "errors": literals,
    "logs": literals,
}
KINDS = tuple(SOURCES_OF)


def gathered(kinds: tuple[str, ...]) -> list[Text]:
    """Return the texts of some kinds, each once."""
    sources = dict.fromkeys(SOURCES_OF[kind] for kind in kinds)
    return list(dict.fromkeys(one for source in sources for one in source() if one.kind in kinds))
