"""What every JSON body does: its dataclass fields to and from the JSON that Java writes.

A body is a dataclass with slots, made by ``@body``. A field's name on the wire is its own in camelCase, or the one that
``wire()`` gives. Reading is as tolerant as Java: unknown fields are ignored, a missing one or null keeps its default, a
number or truth value may come as text, an enumeration by name in any case or by number, and one that we do not know is
None. A field is found in another spelling too (``BrokerName``), unless the right one is there, as by fastjson 1.2.
Writing leaves None out. How a class is read and written is worked out when it is first used.

RocketMQ: ``RemotingSerializable``.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from operator import attrgetter
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar, dataclass_transform

from rocketcore.errors import DecodeError
from rocketcore.message_queue import MessageQueue
from rocketcore.naming import camel_case
from rocketcore.protocol import fastjson

__all__ = ["Body", "Int", "body", "wire"]

Int: TypeAlias = Annotated[int, 32]
"""A field that is an int in Java, where no reader takes more than 32 bits; ``int`` is its long."""


def wire(name: str) -> dict[str, str]:
    """Return the metadata of a field whose name on the wire is not its own in camelCase."""
    return {"wire": name}


class Body:
    """Base of all JSON bodies."""

    __slots__ = ()

    __match_args__: ClassVar[tuple[str, ...]]
    _values: ClassVar[Callable[[Body], object]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        values = type(self)._values
        return values(self) == values(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__qualname__}({values})"

    def encode(self) -> bytes:
        """Return the JSON text in Java's form: number keys bare, message queue keys as objects, doubles as 1.0E-7."""
        return fastjson.dumps_plain(self.to_json()) if _plan(type(self)).dialect else fastjson.dumps(self.to_json())

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read a body; raises DecodeError naming the class and the field."""
        if not data:
            raise DecodeError(f"{cls.__name__}: no body")
        return cls.from_json(fastjson.loads(data))

    def require(self, *names: str) -> None:
        """Raise DecodeError where one of these fields is empty or was left out."""
        for step in _plan(type(self)).steps:
            if step.name in names and not getattr(self, step.name):
                raise DecodeError(f"{type(self).__name__}: {step.wire_name} is missing")

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are not None, by their names on the wire."""
        result = {}
        for step in _plan(type(self)).steps:
            value = getattr(self, step.name)
            if value is not None:
                result[step.wire_name] = step.write(value) if step.write is not None else value
        return result

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Build the body from parsed JSON; raises DecodeError."""
        if type(value) is cls:
            return value
        if not isinstance(value, dict):
            raise DecodeError(f"{cls.__name__}: {type(value).__name__} in place of an object")
        values = {}
        plan = _plan(cls)
        if not value.keys() <= plan.names:
            value = plan.by_known_names(value)
        for step in plan.steps:
            raw = value.get(step.wire_name)
            if raw is None:
                continue
            try:
                values[step.name] = step.read(raw)
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                raise DecodeError(f"{cls.__name__}.{step.wire_name}: {error}") from None
        return cls(**values)

    @classmethod
    def drop_misfits(cls, value: Any) -> list[str]:
        """Take the numbers that do not fit their field out of parsed JSON; returns ``name=value`` of each."""
        misfits = []
        for step in _plan(cls).steps if isinstance(value, dict) else ():
            number = value.get(step.wire_name)
            if step.bits and type(number) is int and not _fits(number, step.bits):
                misfits.append(f"{step.wire_name}={number}")
                del value[step.wire_name]
        return misfits


BodyT = TypeVar("BodyT", bound=Body)


@dataclass_transform(field_specifiers=(field,))
def body(cls: type[BodyT]) -> type[BodyT]:
    """Make a dataclass with slots of a body's class.

    ``Body`` compares and shows them all: to generate that code for each doubles what a class costs, and a process that
    asks one question makes dozens.
    """
    made = dataclass(slots=True, eq=False, repr=False)(cls)
    made._values = attrgetter(*made.__match_args__)
    return made


class _Step(NamedTuple):
    """One field: how it is read from parsed JSON, how it is written (None: as it is), and bits of a whole number."""

    name: str
    wire_name: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None
    bits: int


class _Plan(NamedTuple):
    """How a class is read and written; ``names`` on the wire, ``plain_names`` the same without case and dashes."""

    steps: tuple[_Step, ...]
    dialect: bool
    names: frozenset[str]
    plain_names: dict[str, str]

    def by_known_names(self, value: dict[Any, Any]) -> dict[Any, Any]:
        """Return an object with names of ours for fields that are spelt otherwise, as Go spells them: ``ClientID``."""
        known = dict(value)
        for name in value.keys() - self.names:
            meant = self.plain_names.get(fastjson.plain_name(name))
            if meant is not None and known.get(meant) is None:
                known[meant] = value[name]
        return known


class _Codec(NamedTuple):
    """Of a type: reader, writer, and whether its text differs from standard JSON's: bare keys, Java's doubles."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None
    dialect: bool = False
    bits: int = 0


_plans: dict[type, _Plan] = {}


def _plan(cls: type[Body]) -> _Plan:
    plan = _plans.get(cls)
    if plan is None:
        plan = _plans[cls] = _make_plan(cls)
    return plan


def _make_plan(cls: type[Body]) -> _Plan:
    hints = typing.get_type_hints(cls, include_extras=True)
    steps = []
    dialect = False
    for declared in fields(cls):  # type: ignore[arg-type]
        codec = _codec(hints[declared.name])
        if declared.default is MISSING and declared.default_factory is MISSING:
            raise TypeError(f"{cls.__name__}.{declared.name} needs a default: a peer may leave it out")
        steps.append(
            _Step(
                declared.name,
                str(declared.metadata.get("wire") or camel_case(declared.name)),
                codec.read,
                codec.write,
                codec.bits,
            )
        )
        dialect = dialect or codec.dialect
    names = frozenset(step.wire_name for step in steps)
    return _Plan(tuple(steps), dialect, names, {fastjson.plain_name(name): name for name in names})


def _codec(hint: Any) -> _Codec:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _codec(next(argument for argument in arguments if argument is not type(None)))
    if origin in (list, set):
        return _collection(origin, _codec(arguments[0]))
    if origin is dict:
        return _mapping(arguments[0], _codec(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, Body):
        # The plan of a nested class is looked up when it is used, so that a class may hold its own kind.
        return _Codec(hint.from_json, hint.to_json, _plan(hint).dialect)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Codec(_enumeration(hint), _enum_name)
    raise TypeError(f"no JSON form for {hint}")


def _collection(kind: Any, item: _Codec) -> _Codec:
    read_item, write_item = item.read, item.write

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError(f"{type(value).__name__} in place of a list")
        return kind(read_item(element) for element in value if element is not None)

    def write(value: Any) -> list[Any]:
        elements = sorted(value) if kind is set else value
        return list(elements) if write_item is None else [write_item(element) for element in elements]

    return _Codec(read, write, item.dialect)


def _mapping(key_type: Any, item: _Codec) -> _Codec:
    read_item, write_item = item.read, item.write
    read_key = _KEYS[key_type]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"{type(value).__name__} in place of an object")
        return {read_key(key): read_item(element) for key, element in value.items() if element is not None}

    def write(value: Any) -> dict[Any, Any]:
        return value if write_item is None else {key: write_item(element) for key, element in value.items()}

    return _Codec(read, write, item.dialect or key_type is not str)


def _fits(number: int, bits: int) -> bool:
    return -(1 << (bits - 1)) <= number < 1 << (bits - 1)


def _read_int(value: Any, bits: int = 64) -> int:
    """Read a number of at most the bits of Java's type: no writer of ours, and no reader of theirs, takes more."""
    if type(value) is int:
        number = value
    elif isinstance(value, str) and not value.strip():
        number = 0
    else:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"{str(value)[:40]!r} is not a number") from None
    if not _fits(number, bits):
        raise ValueError(f"a number of more than {bits} bits: {number if number.bit_length() < 128 else 'a huge one'}")
    return number


def _read_int32(value: Any) -> int:
    return _read_int(value, 32)


def _read_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in ("true", "1", "y")
    return bool(value)


def _read_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return fastjson.dumps_plain(value).decode()
    return str(value)


def _read_queue(value: Any) -> MessageQueue:
    queue = fastjson.message_queue(value)
    if queue is None:
        raise ValueError(f"{str(value)[:80]!r} is not a message queue")
    return queue


def _write_queue(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic}


def _enumeration(cls: type[Enum]) -> Callable[[Any], Enum | None]:
    by_name = {member.name.upper(): member for member in cls}
    by_ordinal = dict(enumerate(cls))

    def read(value: Any) -> Enum | None:
        if isinstance(value, str):
            return by_ordinal.get(int(value)) if value.isdecimal() else by_name.get(value.upper())
        return by_ordinal.get(value)

    return read


def _enum_name(value: Enum) -> str:
    return value.name


_SIMPLE: dict[Any, _Codec] = {
    int: _Codec(_read_int, None, bits=64),
    Int: _Codec(_read_int32, None, bits=32),
    float: _Codec(float, float, True),
    bool: _Codec(_read_bool, None),
    str: _Codec(_read_text, None),
    object: _Codec(lambda value: value, None, True),
    MessageQueue: _Codec(_read_queue, _write_queue),
}
_KEYS: dict[Any, Callable[[Any], Any]] = {int: _read_int, str: _read_text, MessageQueue: _read_queue}
