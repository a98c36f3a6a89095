"""What a header declaration is: typed fields and the ext fields that carry them.

A header is a class with annotations. ``int`` is Java's int (32 bits), ``Long`` its long (64 bits), ``bool`` travels as
``true``/``false``, an enumeration by its name, everything else as text. The wire name is the attribute's name in
camelCase unless ``wire()`` names another. A field without a default is required: it has to be given to the constructor,
and decoding fails where it is missing, except that ``wire(absent=…)`` names the value which servers assume then.

Classes are built without generated code, because a process that asks one question imports all of them.

RocketMQ: ``CommandCustomHeader``, ``RemotingCommand.makeCustomHeaderToNet`` and ``decodeCommandCustomHeader``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Final, Self, TypeAlias, dataclass_transform

from rocketcore._fast.fields import FieldTable
from rocketcore.codes import BoundaryType
from rocketcore.errors import DecodeError
from rocketcore.naming import camel_case

__all__ = ["Field", "Header", "Long", "RpcHeader", "TopicHeader", "wire"]

Long: TypeAlias = int
"""An int64 on the wire; ``int`` is an int32."""

_UNSET: Final = object()


class _Wire:
    """What ``wire()`` says of a field, until its class is built."""

    __slots__ = ("absent", "default", "name")

    def __init__(self, name: str | None, default: object, absent: object) -> None:
        self.name = name
        self.default = default
        self.absent = absent


def wire(name: str | None = None, *, default: Any = _UNSET, absent: Any = _UNSET) -> Any:
    """Describe a field whose ext field has another name than its own, or that may be missing in what is received.

    name     the ext field, where it is not the attribute in camelCase
    default  makes the field optional for the constructor; None is not sent
    absent   the value of a required field that a peer left out
    """
    return _Wire(name, default, absent)


def _parse_int(text: str, bits: int) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isdigit() and digits.isascii()) or len(digits) > 40:
        raise ValueError("not a number")
    value = int(text)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError(f"not within {bits} bits")
    return value


def _parse_int32(text: str) -> int:
    return _parse_int(text, 32)


def _parse_int64(text: str) -> int:
    return _parse_int(text, 64)


def _parse_bool(text: str) -> bool:
    return text.lower() == "true"


def _format_bool(value: bool) -> str:
    return "true" if value else "false"


def _format_enum(value: Enum) -> str:
    return value.name


# What a field of a type is on the wire: its Java type's text form, how it is read, how it is written.
_KINDS: Final[dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]]] = {
    "int": (_parse_int32, int.__repr__),
    "Long": (_parse_int64, int.__repr__),
    "bool": (_parse_bool, _format_bool),
    "str": (str, str),
    "BoundaryType": (lambda text: BoundaryType[text.upper()], _format_enum),
}


class Field:
    """One field of a header: attribute ``name``, ext field ``wire_name``, type ``kind``, and what missing means."""

    __slots__ = ("absent", "default", "format", "kind", "name", "parse", "required", "wire_name")

    def __init__(self, name: str, annotation: str, declared: object) -> None:
        described = declared if isinstance(declared, _Wire) else _Wire(None, declared, _UNSET)
        self.name = name
        self.wire_name = described.name or camel_case(name)
        self.kind = annotation.removesuffix(" | None")
        self.parse, self.format = _KINDS[self.kind]
        self.default = described.default
        self.required = described.default is _UNSET
        self.absent = described.default if described.absent is _UNSET else described.absent


@dataclass_transform(kw_only_default=True, field_specifiers=(wire,))
class HeaderType(type):
    """Turns the annotations of a header class into a table of fields.

    Defaults stay class attributes, so that making, writing and reading a header touches only the fields it has.
    """

    FIELDS: tuple[Field, ...]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, strict: bool = False
    ) -> HeaderType:
        inherited = [field for base in bases for field in getattr(base, "FIELDS", ())]
        own = [
            Field(attribute, annotation, namespace.pop(attribute, _UNSET))
            for attribute, annotation in namespace.get("__annotations__", {}).items()
            if not annotation.startswith("ClassVar")
        ]
        namespace.update({field.name: field.default for field in own if not field.required})
        namespace["STRICT"] = strict
        cls = super().__new__(mcs, name, bases, namespace)
        cls.FIELDS = fields = (*inherited, *own)
        cls._names = frozenset(field.name for field in fields)
        cls._required = frozenset(field.name for field in fields if field.required)
        cls._by_name = {field.name: field for field in fields}
        cls._by_wire_name = {field.wire_name: field for field in fields}
        cls._always_sent = {
            field.wire_name: field.format(field.default)
            for field in fields
            if not field.required and field.default is not None
        }
        cls._stand_ins = {field.name: field.absent for field in fields if field.required and field.absent is not _UNSET}
        cls._table = None
        return cls

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: object) -> None:
        super().__init__(name, bases, namespace)

    _names: frozenset[str]
    _required: frozenset[str]
    _by_name: dict[str, Field]
    _by_wire_name: dict[str, Field]
    _always_sent: dict[str, str]
    _stand_ins: dict[str, Any]
    _table: FieldTable | None

    def table(cls) -> FieldTable:
        """Return what ``_fast.fields`` reads this header by; made for the first that is received."""
        if cls._table is None:
            fields = tuple((field.wire_name, field.name, field.kind, field.required) for field in cls.FIELDS)
            cls._table = FieldTable(fields, cls._stand_ins)
        return cls._table


class Header(metaclass=HeaderType):
    """The parameters of a request or an answer (Java: ``CommandCustomHeader``).

    ``STRICT`` classes refuse a number that does not parse even where the field is optional, as Java's hand-written
    decoders of sends and pulls do; all others take such a field as missing.
    """

    FIELDS: ClassVar[tuple[Field, ...]]
    STRICT: ClassVar[bool]

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        given = values.keys()
        if not given <= cls._names:
            raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(given - cls._names))}")
        if not given >= cls._required:
            raise TypeError(f"{cls.__name__}: {', '.join(sorted(cls._required - given))} is missing")
        self.__dict__ = values

    @classmethod
    def of_values(cls, values: dict[str, Any]) -> Self:
        """Make a header of attributes that a kernel has read, without a check; it keeps the dict."""
        header = cls.__new__(cls)
        header.__dict__ = values
        return header

    @property
    def text_length(self) -> int:
        """How many characters its texts have."""
        return sum(len(value) for value in self.__dict__.values() if type(value) is str)

    def to_ext_fields(self) -> dict[str, str]:
        """Return the fields that have a value as ext fields."""
        cls = type(self)
        ext_fields = cls._always_sent.copy()
        fields = cls._by_name
        for name, value in self.__dict__.items():
            field = fields[name]
            if value is not None:
                ext_fields[field.wire_name] = field.format(value)
            else:
                ext_fields.pop(field.wire_name, None)
        return ext_fields

    @classmethod
    def from_ext_fields(cls, ext_fields: Mapping[str, str] | None) -> Self:
        """Read a header; ext fields that it does not declare are ignored.

        raises  DecodeError naming the field that is required and missing, or that is not of its type
        """
        values = cls._stand_ins.copy()
        fields = cls._by_wire_name
        for name, text in (ext_fields or {}).items():
            field = fields.get(name)
            if field is None:
                continue
            try:
                values[field.name] = field.parse(text)
            except (ValueError, KeyError) as error:
                if cls.STRICT or field.absent is _UNSET:
                    raise DecodeError(f"{cls.__name__}: {name} is {text[:40]!r}: {error}") from None
        if not values.keys() >= cls._required:
            missing = next(field for field in cls.FIELDS if field.required and field.name not in values)
            raise DecodeError(f"{cls.__name__}: {missing.wire_name} is missing")
        return cls.of_values(values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in type(self).FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ((field.name, getattr(self, field.name)) for field in type(self).FIELDS)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values if value is not None)})"


class RpcHeader(Header):
    """The optional fields that 5.x adds to most requests (Java: ``RpcRequestHeader``)."""

    ns: str | None = None
    nsd: bool | None = None
    bname: str | None = None
    oway: bool | None = None


class TopicHeader(RpcHeader):
    """The same, and whether topic and queue are logical ones of a static topic (Java: ``TopicRequestHeader``)."""

    lo: bool | None = None
