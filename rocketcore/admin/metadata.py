"""The settings of a cluster's topics and groups as a value, as a file, and as a plan of what a cluster lacks of them.

The file is one JSON object, ``{"format": 1, "cluster": …, "topics": {NAME: {BROKER: {…}}}, "groups": {…}}``. A setting
has the name that ``rocket -o json`` gives it, or else that of RocketMQ in snake_case; one that is left out has
RocketMQ's default. RocketMQ 5.5.0: ``ExportMetadataCommand``, which has no way back.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from typing import Any, Final, Literal, TypeAlias, TypeVar

from rocketcore.admin.shapes import permission_text, topic_kind
from rocketcore.codes import Permission
from rocketcore.errors import ConfigError
from rocketcore.naming import check_group, check_topic, is_system_group
from rocketcore.protocol.bodies.base import Body
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.topic import TopicConfig, TopicFilterType

__all__ = [
    "ClusterMetadata",
    "MetadataChange",
    "MetadataPlan",
    "Settings",
    "metadata_document",
    "plan_of",
    "read_metadata",
    "settings_row",
]

FORMAT: Final = 1
Settings: TypeAlias = TopicConfig | SubscriptionGroupConfig
T = TypeVar("T", bound=Settings)

_SHOWN: Final = {
    "read_queue_nums": "read_queues",
    "write_queue_nums": "write_queues",
    "consume_enable": "consume_enabled",
    "consume_broadcast_enable": "broadcast_enabled",
    "consume_message_orderly": "orderly",
    "retry_max_times": "max_retries",
    "retry_queue_nums": "retry_queues",
}
"""What settings are called elsewhere in the data of ``rocket``, where that is not the name of the field."""
_NAMES: Final = ("topic_name", "group_name")
"""Fields that the place in the file says."""
_PERMISSIONS: Final = {"rw": Permission.READ | Permission.WRITE, "r": Permission.READ, "w": Permission.WRITE, "none": 0}
_QUEUES: Final = ("read_queue_nums", "write_queue_nums", "retry_queue_nums")


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The topics and groups that users made, with their settings by name, then by broker.

    Those of the system are left out, and topics of retries and dead letters: brokers make them by themselves, from the
    settings of groups.
    """

    cluster: str
    topics: Mapping[str, Mapping[str, TopicConfig]]
    groups: Mapping[str, Mapping[str, SubscriptionGroupConfig]]


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """What becomes of a topic or group at one broker; ``before`` is None where it is created."""

    kind: Literal["topic", "group"]
    name: str
    broker: str
    before: Settings | None
    after: Settings

    @property
    def action(self) -> Literal["create", "change", "keep"]:
        if self.before is None:
            return "create"
        return "keep" if self.before == self.after else "change"

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Return the settings that change, as the file has them: before and after.

        Of what is created those that are not RocketMQ's default; before is None then.
        """
        before = settings_row(type(self.after)() if self.before is None else self.before)
        after = settings_row(self.after)
        return {
            key: (None if self.before is None else before[key], value)
            for key, value in after.items()
            if before[key] != value
        }


@dataclass(frozen=True, slots=True)
class MetadataPlan:
    """An import that was looked at and not done yet: a row for each topic and group of the file at each broker.

    What a cluster has and the file has not is in no row, and stays.
    """

    cluster: str
    rows: tuple[MetadataChange, ...]

    def of_action(self, action: str) -> tuple[MetadataChange, ...]:
        return tuple(row for row in self.rows if row.action == action)

    @property
    def changes(self) -> tuple[MetadataChange, ...]:
        """The rows that are not as they are already."""
        return tuple(row for row in self.rows if row.action != "keep")


def plan_of(metadata: ClusterMetadata, now: ClusterMetadata, brokers: list[str]) -> MetadataPlan:
    """Return what a cluster with these masters lacks of metadata; ``now`` are the settings that it has.

    raises  ConfigError for what differs between brokers of the file of which the cluster lacks one, MessageIllegal for
            a name of what would be created that cannot be
    """
    rows = [
        *_rows("topic", metadata.topics, now.topics, now.cluster, brokers),
        *_rows("group", metadata.groups, now.groups, now.cluster, brokers),
    ]
    return MetadataPlan(now.cluster, tuple(rows))


def _rows(
    kind: Literal["topic", "group"],
    wanted: Mapping[str, Mapping[str, T]],
    there: Mapping[str, Mapping[str, T]],
    cluster: str,
    brokers: list[str],
) -> Iterator[MetadataChange]:
    for name, by_broker in sorted(wanted.items()):
        targets: Mapping[str, T] = by_broker
        lacking = sorted(by_broker.keys() - set(brokers))
        if lacking:
            first, *others = by_broker.values()
            if any(other != first for other in others):
                raise ConfigError(
                    f"{kind} {name!r} has other settings on each of {', '.join(sorted(by_broker))}, and cluster "
                    f"{cluster!r} has no {', '.join(lacking)}"
                )
            targets = dict.fromkeys(brokers, first)
        for broker, after in sorted(targets.items()):
            before = there.get(name, {}).get(broker)
            if before is None:  # 4.9 has groups with any name
                _CHECKS[kind](name)
            yield MetadataChange(kind, name, broker, before, after)


_CHECKS: Final = {"topic": check_topic, "group": check_group}


# The file


def metadata_document(metadata: ClusterMetadata) -> dict[str, Any]:
    """Return metadata as JSON values, sorted by name and broker."""
    return {
        "format": FORMAT,
        "cluster": metadata.cluster,
        "topics": _document(metadata.topics),
        "groups": _document(metadata.groups),
    }


def _document(table: Mapping[str, Mapping[str, Settings]]) -> dict[str, Any]:
    return {
        name: {broker: settings_row(config) for broker, config in sorted(by_broker.items())}
        for name, by_broker in sorted(table.items())
    }


def settings_row(value: Body) -> dict[str, Any]:
    """Return settings as JSON values: those of a topic or group, or of a part of them."""
    row = {}
    for name in value.__match_args__:
        if name in _NAMES:
            continue
        each = getattr(value, name)
        text = permission_text(each) if name == "perm" else None
        row[_SHOWN.get(name, name)] = text if text is not None and _PERMISSIONS[text] == each else _plain(each)
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, Body):
        return settings_row(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def read_metadata(text: str | bytes) -> ClusterMetadata:
    """Read a file's text; raises ConfigError that says at which line, or at which place in the object, and what."""
    try:
        value = json.loads(
            text if isinstance(text, str) else text.decode("utf-8-sig"), object_pairs_hook=_without_doubles
        )
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"byte {error.start}: no UTF-8") from None
    except RecursionError:
        raise ConfigError("it is nested too deeply") from None
    except ConfigError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError(str(error)) from None
    file = _object(value, "")
    unknown = sorted(file.keys() - {"format", "cluster", "topics", "groups"})
    if unknown:
        raise ConfigError(f"{unknown[0]}: unknown key")
    if type(file.get("format")) is not int:
        raise ConfigError("format: it is the number of the file's format, and is not there")
    if file["format"] != FORMAT:
        raise ConfigError(f"format: {file['format']} is not known, only {FORMAT} is")
    cluster = file.get("cluster")
    if not isinstance(cluster, str) or not cluster:
        raise ConfigError("cluster: it is the name of a cluster, and is not there")
    return ClusterMetadata(
        cluster,
        _read_table(file.get("topics", {}), "topics", TopicConfig, lambda name: topic_kind(name, ()) == "normal"),
        _read_table(file.get("groups", {}), "groups", SubscriptionGroupConfig, lambda name: not is_system_group(name)),
    )


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ConfigError(f"{next(key for key in keys if keys.count(key) > 1)}: it is there twice")
    return found


def _read_table(value: Any, place: str, kind: type[T], of_users: Callable[[str], bool]) -> dict[str, dict[str, T]]:
    found = {}
    for name, by_broker in _object(value, place).items():
        at = f"{place}.{name}"
        if not of_users(name):
            raise ConfigError(f"{at}: brokers make it by themselves")
        found[name] = {
            broker: _settings(each, f"{at}.{broker}", kind) for broker, each in _object(by_broker, at).items()
        }
        if not found[name]:
            raise ConfigError(f"{at}: it names no broker")
        for config in found[name].values():
            setattr(config, _NAMES[kind is SubscriptionGroupConfig], name)
    return found


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(
            f"{place}: {_shown(value)} is not an object" if place else f"{_shown(value)} is not an object"
        )
    return value


def _settings(value: Any, place: str, kind: type[T]) -> T:
    config: T = _part(value, place, kind)
    if isinstance(config, TopicConfig) and config.topic_filter_type is None:
        raise ConfigError(f"{place}.topic_filter_type: null is not one of {', '.join(TopicFilterType.__members__)}")
    for name in _QUEUES:
        queues = getattr(config, name, 0)
        if queues < 0:
            raise ConfigError(f"{place}.{_SHOWN[name]}: {queues} is less than 0")
    return config


def _part(value: Any, place: str, kind: Any) -> Any:
    """Read a body; unlike one of the wire it has no other keys, and each value is of its type."""
    given = dict(_object(value, place))
    hints = _hints(kind)
    values = {}
    for declared in fields(kind):
        key = _SHOWN.get(declared.name, declared.name)
        if declared.name in _NAMES or key not in given:
            continue
        each, at = given.pop(key), f"{place}.{key}"
        if declared.name == "perm" and isinstance(each, str) and each in _PERMISSIONS:
            values[declared.name] = int(_PERMISSIONS[each])
        else:
            values[declared.name] = _value(each, at, hints[declared.name])
    if given:
        raise ConfigError(f"{place}.{min(given)}: unknown setting")
    return kind(**values)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(value: Any, place: str, hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _value(value, place, arguments[0])
    if origin is list:
        if not isinstance(value, list):
            raise ConfigError(f"{place}: {_shown(value)} is not a list")
        return [_value(each, f"{place}[{number}]", arguments[0]) for number, each in enumerate(value)]
    if origin is dict:
        return {key: _value(each, f"{place}.{key}", arguments[1]) for key, each in _object(value, place).items()}
    if issubclass(hint, Body):
        return _part(value, place, hint)
    if issubclass(hint, Enum):
        if not isinstance(value, str) or value not in hint.__members__:
            raise ConfigError(f"{place}: {_shown(value)} is not one of {', '.join(hint.__members__)}")
        return hint[value]
    if type(value) is not hint:
        raise ConfigError(f"{place}: {_shown(value)} is not {_KINDS[hint]}")
    if hint is int:
        bits = 64 if place.endswith(_LONG) else 32
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ConfigError(f"{place}: {_shown(value)} does not fit into {bits} bits")
    return value


_KINDS: Final = {int: "a number", bool: "true or false", str: "text"}
_LONG: Final = (".broker_id", ".which_broker_when_consume_slowly", ".version", "]", ".initial", ".max", ".multiplier")
"""Ends of the places of numbers that are Java's longs."""


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
