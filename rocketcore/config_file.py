"""Settings from one declaration: defaults, RocketMQ ``.properties`` or TOML files, environment, command line.

A configuration is a frozen, keyword-only dataclass. Every field carries metadata: ``help``, ``unit`` and ``property``,
RocketMQ's name for it (the camelCase of the field name where it is left out). All sources are read into one mapping of
property name to text; ``load_config`` picks from it what a class declares. What no class declares stays in the mapping,
because a server shows it again (GET_BROKER_CONFIG, GET_NAMESRV_CONFIG).

Mapping rules as in ``MixAll.properties2Object``: texts are trimmed, here numbers and booleans as well. There a value
that does not parse leaves the default, silently, and a boolean that does not read ``true`` is false. Here such a value
ends the start of a server (``load_config``): who has asked for something gets no default in its place. A request that
changes a running server (``update_config``) is read by the original's rules, with a log line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import types
import typing
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rocketcore.errors import ConfigError
from rocketcore.naming import camel_case

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    ConfigT = TypeVar("ConfigT", bound=DataclassInstance)
else:
    ConfigT = TypeVar("ConfigT")

__all__ = [
    "ENVIRONMENT_PREFIX",
    "HIDDEN",
    "BadSetting",
    "PortNotOpened",
    "changed_properties",
    "check_properties",
    "check_ranges",
    "config_properties",
    "environment_properties",
    "format_properties",
    "home_folder",
    "load_config",
    "other_variables",
    "parse_properties",
    "print_config",
    "property_lines",
    "property_name",
    "property_names",
    "read_properties",
    "replace_file",
    "setting",
    "setting_variables",
    "update_config",
    "write_properties",
]

ENVIRONMENT_PREFIX = "ROCKETCORE_"
HIDDEN = "******"
_YEAR = {"ms": 366 * 86_400_000, "s": 366 * 86_400}
"""Nobody waits longer, and the clocks of the system do not count on for ever."""
_SERVICE_ADDRESS = re.compile("(tcp|udp|sctp)://")
_SERVICE_VARIABLE = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_\w+)?$")
_NO_SETTINGS = ("DEBUG", "NO_KERNELS", "SANITIZE", "ANNOTATE", "FAULT_", "SOAK_")
"""How variables go on that are for clients, for the build and for tests."""
_WORD_START = re.compile("(?<=[a-z])(?=[A-Z])")

logger = logging.getLogger(__name__)


def setting(
    default: Any = MISSING,
    help: str = "",
    *,
    unit: str = "",
    property: str = "",
    default_factory: Any = MISSING,
    secret: bool = False,
    least: int | None = None,
    most: int | None = None,
) -> Any:
    """Declare a field of a configuration class.

    help         one sentence for ``--help`` and the documentation
    unit         ``ms``, ``bytes``, ``count`` …, empty for none
    property     RocketMQ's name; empty: the camelCase of the field name
    secret       the value is never printed
    least, most  what a number may be, for ``check_ranges``; the most of a time that has a least is a year
    """
    if most is None and least is not None and unit in _YEAR:
        most = _YEAR[unit]
    metadata = {"help": help, "unit": unit, "property": property, "secret": secret, "least": least, "most": most}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


def property_name(declared: Field[Any]) -> str:
    """Return RocketMQ's property name of a field."""
    return str(declared.metadata.get("property") or camel_case(declared.name))


def property_names(cls: type[DataclassInstance]) -> list[str]:
    """Return RocketMQ's names of all fields."""
    return [property_name(declared) for declared in fields(cls)]


class BadSetting(ConfigError):
    """A setting with a value that it cannot have; ``name`` is RocketMQ's."""

    def __init__(self, name: str, value: str, rule: str) -> None:
        super().__init__(f"{name}={value}: {rule}")
        self.name = name


class PortNotOpened(OSError):
    """A server cannot listen where a setting says, mostly since another process does; ``name`` is RocketMQ's."""

    def __init__(self, name: str, value: str, error: OSError) -> None:
        super().__init__(error.errno, f"{name}={value}: {error.strerror}")
        self.name = name
        self.value = value
        self.reason = error.strerror


def check_ranges(config: DataclassInstance) -> None:
    """Raise BadSetting for the first number that is not what its declaration allows; for ``__post_init__``."""
    for declared in fields(config):
        _check_range(declared, getattr(config, declared.name))


def _check_range(declared: Field[Any], value: Any) -> None:
    least, most = declared.metadata.get("least"), declared.metadata.get("most")
    if (least is not None and value < least) or (most is not None and value > most):
        rule = f"must be at least {least}" if most is None else f"must be {least} to {most}"
        raise BadSetting(property_name(declared), str(value), rule)


def check_properties(cls: type[DataclassInstance], properties: Mapping[str, str]) -> None:
    """Raise BadSetting for the first property that a class declares and that cannot be read, or is out of its range.

    For each source of settings by itself: another source may have a value that wins, and hides that one is wrong.
    """
    values = dict(_declared_values(cls, properties, strict=True))
    for declared in fields(cls):
        if declared.name in values:
            _check_range(declared, values[declared.name])


def load_config(cls: type[ConfigT], properties: Mapping[str, str]) -> ConfigT:
    """Build a configuration from its defaults and the properties that it declares; others are left alone.

    raises  BadSetting for a text that does not parse; ConfigError where the class itself refuses a value
            (its ``__post_init__``)
    """
    return cls(**dict(_declared_values(cls, properties, strict=True)))


def update_config(config: ConfigT, properties: Mapping[str, str], *, strict: bool = False) -> ConfigT:
    """Return a copy of ``config`` with the properties that it declares.

    strict  raise BadSetting for one that does not parse; otherwise it stays as it was, and a log line says so
    """
    return replace(config, **dict(_declared_values(type(config), properties, strict=strict)))


def _declared_values(cls: type[Any], properties: Mapping[str, str], *, strict: bool) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(cls)
    for declared in fields(cls):
        name = property_name(declared)
        text = properties.get(name)
        if text is None or not declared.init:
            continue
        try:
            yield declared.name, _parse(text.strip(), hints[declared.name], strict)
        except ValueError as error:
            shown = HIDDEN if declared.metadata.get("secret") else repr(text)
            if strict:
                raise BadSetting(name, shown, str(error)) from None
            logger.warning("setting ignored name=%s value=%s reason=%s", name, shown, error)


def _parse(text: str, kind: Any, strict: bool) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        return None if not text else _parse(text, options[0], strict)
    if kind is bool:
        if strict and text.lower() not in ("true", "false"):
            raise ValueError("neither true nor false")
        return text.lower() == "true"
    if kind is int:
        if not re.fullmatch(r"[+-]?[0-9]+", text):
            raise ValueError("not an integer")
        number = int(text)
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError("not within 64 bits")
        return number
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError("not a number") from None
    if kind is Path:
        return _path(text)
    if isinstance(kind, type) and issubclass(kind, Enum):
        for member in kind:
            if text in (member.name, str(member.value)):
                return member
        raise ValueError(f"not one of {', '.join(member.name for member in kind)}")
    if typing.get_origin(kind) is tuple:
        return tuple(item.strip() for item in text.split(";") if item.strip())
    if typing.get_origin(kind) is typing.Literal:
        allowed = typing.get_args(kind)
        if text not in allowed:
            raise ValueError(f"not one of {', '.join(map(str, allowed))}")
    return text


def _path(text: str) -> Path:
    """Return a path; ``~`` is the home folder, as in a shell: a folder of that name is what nobody means."""
    if not text:
        raise ValueError("empty, where a path has to be")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("no such user") from None


def home_folder() -> Path:
    """Return the user's home folder; ``/`` where nobody knows it: no HOME, and no entry of the user's in ``passwd``."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def config_properties(*configs: DataclassInstance, reveal: bool = False) -> dict[str, str]:
    """Return every field of the configurations as property name → text, in order of declaration."""
    result = {}
    for config in configs:
        for declared in fields(config):
            value = getattr(config, declared.name)
            secret = bool(declared.metadata.get("secret")) and not reveal
            result[property_name(declared)] = HIDDEN if secret and value else _text(value)
    return result


def changed_properties(*configs: DataclassInstance) -> dict[str, str]:
    """Return the properties that have another value than their default: property name → default."""
    changed = {}
    for config in configs:
        shown, defaults = config_properties(config, reveal=True), config_properties(type(config)(), reveal=True)
        changed.update({name: default for name, default in defaults.items() if shown[name] != default})
    return changed


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (tuple, list)):
        return ";".join(map(_text, value))
    return str(value)


def print_config(*configs: DataclassInstance) -> str:
    """Return ``name=value`` lines, each below a comment: what it is, its unit, the default that it replaces.

    Values are shown as they are, secrets are not.
    """
    lines = []
    for config in configs:
        shown, defaults = config_properties(config), changed_properties(config)
        for declared in fields(config):
            name = property_name(declared)
            unit = declared.metadata.get("unit")
            said = declared.metadata.get("help", "") + (f" [{unit}]" if unit else "")
            changed = f" (changed from {defaults[name] or 'nothing'})" if name in defaults else ""
            lines.append(f"# {said}{changed}\n{name}={shown[name]}\n")
    return "".join(lines)


def environment_properties(variables: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the properties set by variables, those of ``setting_variables``.

    What Kubernetes sets for a service named ``rocketcore-metrics`` (``ROCKETCORE_METRICS_PORT=tcp://…``) is no setting.
    """
    environ = os.environ if environ is None else environ
    result = {}
    for variable, name in variables.items():
        value = environ.get(variable)
        if value is not None and variable.endswith("_PORT") and _SERVICE_ADDRESS.match(value):
            logger.info("variable of a Kubernetes service passed over name=%s value=%s", variable, value)
        elif value is not None:
            result[name] = value
    return result


def setting_variables(classes: Iterable[type[DataclassInstance]]) -> dict[str, str]:
    """Return the variable of every setting: variable → property name.

    Field ``listen_port`` is ``ROCKETCORE_LISTEN_PORT``. A property with dots in its name is known by that:
    ``tls.server.certPath`` is ``ROCKETCORE_TLS_SERVER_CERT_PATH``.
    """
    found = {}
    for cls in classes:
        for declared in fields(cls):
            name = property_name(declared)
            words = _WORD_START.sub("_", name).replace(".", "_") if "." in name else declared.name
            found[ENVIRONMENT_PREFIX + words.upper()] = name
    return found


def other_variables(known: Container[str], environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the variables that begin as those of settings do and are none; Kubernetes' for services are left out."""
    return sorted(
        name
        for name, value in (os.environ if environ is None else environ).items()
        if name.upper().startswith(ENVIRONMENT_PREFIX)
        and name not in known
        and not name.removeprefix(ENVIRONMENT_PREFIX).startswith(_NO_SETTINGS)
        and not _SERVICE_VARIABLE.search(name)
        and not _SERVICE_ADDRESS.match(value)
    )


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read a ``.properties`` file (any suffix), or a TOML file of values under property names (``.toml``).

    A name with dots may be written in TOML as it is, in quotes, or by tables: ``mode = …`` below ``[tls.server]``.

    raises  ConfigError when the file cannot be read or does not parse
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {os.fspath(path)}: {error.strerror}") from error
    if os.fspath(path).endswith(".toml"):
        import tomllib

        try:
            table = tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{os.fspath(path)}: {error}") from error
        return dict(_flat(table, ""))
    return parse_properties(_properties_text(data))


def _properties_text(data: bytes) -> str:
    """Decode UTF-8, which is what people write, and what is not UTF-8 as ISO-8859-1, as Java reads these files."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, _text(value)


_KEY = re.compile(r"[^\\=: \t\f]*+(?:\\.[^\\=: \t\f]*+)*+", re.DOTALL)  # possessive: see protocol/fastjson.py
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r", "\f": r"\f", "\ufeff": r"\ufeff"})


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java ``.properties`` text: comments, continued lines, escapes; the last of equal keys wins.

    raises  ConfigError on an escape ``\\u`` without four hexadecimal digits
    """
    return {name: value for name, value, _ in _entries(text)}


def property_lines(path: str | os.PathLike[str]) -> dict[str, int]:
    """Return the line on which each name of a file has its value, from 1."""
    text = _properties_text(Path(path).read_bytes())
    entries = _toml_entries(text) if os.fspath(path).endswith(".toml") else _entries(text)
    return {name: number for name, _, number in entries}


def _toml_entries(text: str) -> Iterator[tuple[str, str, int]]:
    """As ``_entries``, for where settings stand: one a line, as people write them; others are left out."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.fullmatch(r"\s*\[([\w.\s\"-]+)\]\s*(#.*)?", line):
            table = header[1] + "."
        elif entry := re.match(r"\s*([\w.\s\"-]+?)\s*=(.*)", line):
            yield re.sub(r"[\s\"]", "", table + entry[1]), entry[2], number


def _entries(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield name, value and number of the line on which the entry begins."""
    for line, number in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None, "the pattern matches the empty text"
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None, "the pattern matches the empty text"
        yield _unescape(key.group()), _unescape(line[separator.end() :]), number


def _logical_lines(text: str) -> Iterable[tuple[str, int]]:
    pending = ""
    begin = 1
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(" \t\f")
        if not pending:
            begin = number
        if not pending and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        if pending or line:
            yield pending + line, begin
        pending = ""
    if pending:
        yield pending, begin


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        escape = match.group(1)
        if len(escape) == 5:
            return chr(int(escape[1:], 16))
        if escape == "u":
            raise ConfigError("malformed \\uxxxx escape")
        return _ESCAPED.get(escape, escape)

    unescaped = _ESCAPE.sub(one, text)
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if "\\u" in text else unescaped


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Save properties so that ``read_properties`` reads them back, atomically; TOML where the name says so."""
    if path.suffix == ".toml":
        lines = [f"{_toml_text(name)} = {_toml_text(value)}\n" for name, value in properties.items()]
    else:
        lines = [f"{_escape(name, ' :=#!')}={_escape(value, '')}\n" for name, value in properties.items()]
    replace_file(path, "".join(lines).encode("utf-8", "replace"))


def _toml_text(text: str) -> str:
    """Quote as JSON does, whose escapes TOML shares; only DEL has to be escaped in TOML and not in JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _escape(text: str, special: str) -> str:
    text = text.translate(_ESCAPES)
    for character in special:
        text = text.replace(character, "\\" + character)
    return "\\" + text if text.startswith(" ") else text


def format_properties(properties: Mapping[str, str]) -> str:
    """Return ``name=value`` lines, values as they are (RocketMQ's form on the wire and with ``-p``)."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def replace_file(path: Path, data: bytes, *, both: bool = False) -> None:
    """Write a file atomically and durably; the previous content stays beside it as ``<name>.bak``.

    both  that is replaced, too: something was deleted, which the older content would bring back where the disk does not
          give the newer one. It is replaced first: what a crash cuts off is still to be deleted then

    At any crash the path holds the old or the new content, whole. The folder is created where it is missing, and its
    own name made durable too. A failure leaves nothing else beside it: half a file would keep the room of a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if both:
        _replace(path.with_name(path.name + ".bak"), data)
    _replace(path, data, keeps_previous=not both)


def _replace(path: Path, data: bytes, *, keeps_previous: bool = False) -> None:
    temporary = path.with_name(path.name + ".tmp")
    previous = path.with_name(path.name + ".bak.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if keeps_previous and path.exists():
            previous.unlink(missing_ok=True)
            try:
                os.link(path, previous)
            except OSError:  # a file system without hard links
                import shutil

                shutil.copyfile(path, previous)
            os.replace(previous, path.with_name(path.name + ".bak"))
        os.replace(temporary, path)
    except BaseException:
        for left in (temporary, previous):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)
        raise
    # The folder's name is in the one above it, and nobody knows whether an earlier run came to make that durable.
    for folder in (path.parent, path.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
