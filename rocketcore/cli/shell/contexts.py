"""``config.toml`` in the user's configuration folder: named contexts, each a cluster and an account.

Verbs change lines of the file and leave the others, comments too, as they are; what they wrote is read again before it
takes the place of the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

if TYPE_CHECKING:
    from rocketcore.errors import ConfigError

__all__ = ["CONTEXT_KEYS", "CONTEXT_VARIABLE", "ContextFile", "chosen_context", "config_path"]

CONTEXT_VARIABLE: Final = "ROCKET_CONTEXT"

_KINDS: Final[dict[type, str]] = {str: "text", bool: "true or false"}
CONTEXT_KEYS: Final[dict[str, type]] = {
    "namesrv": str,
    "tls": bool,
    "tls_ca": str,
    "tls_cert": str,
    "tls_key": str,
    "tls_insecure": bool,
    "access_key": str,
    "secret_key_env": str,
    "secret_key_file": str,
}
"""What a context may say; a secret is named, never there itself."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_TABLE: Final = re.compile(r"\s*\[")
_CURRENT: Final = re.compile(r"\s*(?:current|\"current\"|'current')\s*=")


def config_path() -> Path:
    """Return where the file is, or would be; a relative path where nobody knows the user's home."""
    return Path(click.get_app_dir("rocket", force_posix=False)) / "config.toml"


def _config_error(text: str) -> ConfigError:
    from rocketcore.errors import ConfigError

    return ConfigError(text)


class ContextFile:
    """The file as it was read."""

    def __init__(self, path: Path | None = None) -> None:
        """Read it.

        raises  OSError for one that this user may not read, ConfigError for one that is no TOML
        """
        self.path = path or config_path()
        # Without a home the path would be one of the working folder, which is nobody's configuration.
        self.there = self.path.is_absolute() and _is_file(self.path)
        self._text = ""
        self._document: dict[str, Any] = {}
        if self.there:
            try:
                self._text = self.path.read_text("utf-8")
            except UnicodeDecodeError as error:
                raise _config_error(f"{self.path}: {error}") from error
            self._document = self._parsed(self._text)

    @classmethod
    def opened(cls) -> ContextFile:
        """Read the file of this user, for a command that is about contexts; raises ConfigError where that cannot be."""
        try:
            return cls()
        except OSError as error:
            what = f"{config_path()}: {error.strerror}; HOME or XDG_CONFIG_HOME names a folder of yours"
            raise _config_error(what) from error

    def _parsed(self, text: str) -> dict[str, Any]:
        import tomllib

        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _config_error(f"{self.path}: {error}") from error

    @property
    def current(self) -> str | None:
        """The name of the context in use where neither an option nor a variable names one; None without."""
        name = self._document.get("current")
        return name if isinstance(name, str) else None if name is None else self._fail("current must be text")

    @property
    def names(self) -> list[str]:
        """The names of the contexts, in the order of the file."""
        return list(self._contexts())

    def context(self, name: str) -> dict[str, str]:
        """Return what a context says; raises ConfigError for one that is not there, or says what none may."""
        context = self._contexts().get(name)
        if not isinstance(context, dict):
            self._fail(f"no context {name!r}")
        for key, value in context.items():
            kind = CONTEXT_KEYS.get(key)
            if kind is None:
                self._fail(f"context {name!r} has a key {key!r}; there are {', '.join(CONTEXT_KEYS)}")
            if not isinstance(value, kind):
                self._fail(f"{key} of context {name!r} must be {_KINDS[kind]}, got {value!r}")
            if value == "":
                self._fail(f"{key} of context {name!r} is empty")
        return {key: str(value).lower() if isinstance(value, bool) else value for key, value in context.items()}

    def add(self, name: str, values: Mapping[str, str | bool], *, use: bool) -> None:
        """Add a context to the file, and make it the one in use."""
        lines = self._text.splitlines()
        quoted = name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
        says = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
        lines += [*([""] if lines and lines[-1].strip() else []), f"[contexts.{quoted}]", *says]
        wanted = {**self._contexts(), name: dict(values)}
        self._write(_with_current(lines, name) if use else lines, wanted, name if use else self.current)

    def use(self, name: str) -> None:
        """Make a context the one in use."""
        self._write(_with_current(self._text.splitlines(), name), self._contexts(), name)

    def remove(self, name: str) -> None:
        """Take a context out of the file; if it is the one in use, none is then."""
        kept: list[str] = []
        inside = False
        for line in self._text.splitlines():
            if _TABLE.match(line):
                inside = self._heads(line, name)
            if not inside:
                kept.append(line)
        current = self.current
        if current == name:
            kept, current = _with_current(kept, None), None
        self._write(kept, {key: value for key, value in self._contexts().items() if key != name}, current)

    def _heads(self, line: str, name: str) -> bool:
        try:
            return self._parsed(line) == {"contexts": {name: {}}}
        except ValueError:  # a line of a longer value
            return False

    def _contexts(self) -> dict[str, Any]:
        contexts = self._document.get("contexts")
        return dict(contexts) if isinstance(contexts, dict) else {}

    def _write(self, lines: list[str], contexts: dict[str, Any], current: str | None) -> None:
        text = "\n".join(lines).strip("\n") + "\n"
        meant = {key: value for key, value in self._document.items() if key not in ("current", "contexts")}
        meant |= {"contexts": contexts} if contexts else {}
        meant |= {} if current is None else {"current": current}
        found = self._parsed(text)
        if not found.get("contexts"):
            found.pop("contexts", None)
        if found != meant:
            self._fail("rocket cannot change a file written in this way: edit it yourself")
        self._text, self._document = text, found
        from rocketcore.config_file import replace_file

        if not self.path.is_absolute():
            raise _config_error("no home folder for the contexts: set HOME or XDG_CONFIG_HOME")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, text.encode())
        except OSError as error:
            what = f"cannot write {self.path}: {error.strerror}; HOME or XDG_CONFIG_HOME names a folder of yours"
            raise _config_error(what) from error

    def _fail(self, what: str) -> NoReturn:
        raise _config_error(f"{self.path}: {what}")


def _with_current(lines: list[str], name: str | None) -> list[str]:
    """Return the lines of a file with another context in use, None for none: it stands before all tables."""
    end = next((i for i, line in enumerate(lines) if _TABLE.match(line)), len(lines))
    head = [line for line in lines[:end] if not _CURRENT.match(line)]
    said = [] if name is None else [f"current = {json.dumps(name, ensure_ascii=False)}"]
    rest = lines[end:]
    if said and rest and not head:
        head = [""]
    return [*said, *head, *rest]


def _is_file(path: Path) -> bool:
    """Whether there is a file; other than pathlib's of 3.14 this says so where a folder keeps us from seeing it."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def chosen_context(option: str | None, *, needed: bool = True) -> tuple[str | None, dict[str, str]]:
    """Return the name of the context in use and what it says: ``--context``, the variable, or ``current``.

    needed  False: where this user may not read the file (``sudo -u app`` with the HOME of root), there is none, and a
            line says so, unless the option or the variable names one
    """
    given = option or os.environ.get(CONTEXT_VARIABLE)
    try:
        file = ContextFile()
    except OSError as error:
        if not (needed or given):
            command = click.get_current_context(silent=True)
            if command is not None and not command.find_root().obj.quiet:
                _tell_once(f"{config_path()} is passed over: {error.strerror}")
            return None, {}
        what = f"{config_path()}: {error.strerror}; give --namesrv, and HOME as yours"
        raise _config_error(what) from error
    if not file.there and given:
        who = "--context" if option else CONTEXT_VARIABLE
        raise _config_error(f"{who} names a context, but the file {file.path} does not exist")
    name = given or file.current
    return name, {} if name is None else file.context(name)


@cache
def _tell_once(text: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(text, err=True)
