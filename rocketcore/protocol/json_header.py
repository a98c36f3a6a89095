"""The general reader of JSON command headers, for those that the kernel does not know at sight.

It accepts what fastjson2 accepts (RocketMQ 5.5.0) and a little more of what fastjson 1.2 did; the kernel accepts the
plain form that every client writes. Both give the same values for the same header.

RocketMQ: ``RemotingSerializable.decode(byte[], RemotingCommand.class)``.
"""

from __future__ import annotations

import json
from typing import Any, Final

from rocketcore.codes import LanguageCode
from rocketcore.errors import DecodeError
from rocketcore.protocol import fastjson

__all__ = ["UNKNOWN_LANGUAGE", "HeaderValues", "read_json_header"]

MAX_VALUES: Final = 10_000
"""Values of a header that is not standard JSON; one that peers write has some dozen."""
UNKNOWN_LANGUAGE: Final = -1
"""The language of a sender that names one we do not know; Java has null there."""

HeaderValues = tuple[int, int, int, int | None, int, str | None, dict[str, str] | None]
"""code, language, version, opaque (None where it is missing), flag, remark, ext fields."""

_LANGUAGES: Final = {language.name: int(language) for language in LanguageCode}


def read_json_header(data: bytes, position: int = 0) -> HeaderValues:
    """Read a header; raises DecodeError, ``position`` being where it begins."""
    try:
        fields = fastjson.loads(data, MAX_VALUES)
    except DecodeError as error:
        raise DecodeError(f"header: {error.reason}", position + max(0, error.position)) from None
    if not isinstance(fields, dict):
        raise DecodeError("header: not a JSON object", position)
    if isinstance(fields.get("body"), str):
        raise DecodeError("header: a body within the header", position)
    try:
        return (
            _int32(fields.get("code"), "code"),
            _language(fields),
            _int32(fields.get("version"), "version"),
            _int32(fields["opaque"], "opaque") if "opaque" in fields else None,
            _int32(fields.get("flag"), "flag"),
            _text(fields.get("remark")),
            _ext_fields(fields.get("extFields")),
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise DecodeError(f"header: {error}", position) from None


def _int32(value: Any, name: str) -> int:
    if value is None or value == "":
        return 0
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{name} is not a number: {str(value)[:40]!r}") from None
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{name} does not fit 32 bits: {number}")
    return number


def _language(fields: dict[Any, Any]) -> int:
    if "language" not in fields:
        return int(LanguageCode.JAVA)
    value = fields["language"]
    if isinstance(value, str):
        if value.isdigit() and value.isascii():
            ordinal = int(value[:4])
            return ordinal if ordinal < len(_LANGUAGES) else UNKNOWN_LANGUAGE
        return _LANGUAGES.get(value.upper(), UNKNOWN_LANGUAGE)
    if value is None or isinstance(value, bool):
        return UNKNOWN_LANGUAGE
    if isinstance(value, int) and 0 <= value < len(_LANGUAGES):
        return int(value)
    raise ValueError(f"no language has the number {str(value)[:40]}")


def _ext_fields(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("extFields is not an object")
    return {str(key): str(_text(item)) for key, item in value.items() if item is not None}


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)
