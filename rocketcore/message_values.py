"""What a message may be made of: bodies, and the values that become its keys, properties, tag and message group."""

from __future__ import annotations

import json
import sys
from numbers import Number
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rocketcore.errors import MessageIllegal

if TYPE_CHECKING:
    from decimal import Decimal
    from uuid import UUID

__all__ = ["Body", "Scalar", "body_bytes", "is_scalar", "json_body", "text_of"]

Body: TypeAlias = bytes | bytearray | memoryview | str
Scalar: TypeAlias = "str | int | float | Decimal | UUID"
"""What has one text that everybody expects. True is no number here: Java writes it in small letters."""

_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_JSON_TYPES: Final = (str, int, float, bool, type(None))


def is_scalar(value: object) -> bool:
    """Say whether a value has one text: it is text, a number, or a UUID."""
    if isinstance(value, (str, Number)):
        return not isinstance(value, bool)
    uuid = sys.modules.get("uuid")  # who has one has the module
    return uuid is not None and isinstance(value, uuid.UUID)


def text_of(what: str, value: object) -> str:
    """Return the text of a value; raises TypeError for one that has not one, which says what to write.

    what  the value in words
    """
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)  # a StrEnum is its value, whichever way an Enum is printed
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value)
    if is_scalar(value):
        return str(value)
    raise TypeError(f"{what} must be text, a number or a UUID, got {type(value).__name__}{_hint(value)}")


def _hint(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return ": write 'true' or 'false'"
    if isinstance(value, (bytes, bytearray)):
        return ": value.decode() makes text of it"
    if isinstance(value, (list, tuple, set, dict)):
        return ": give one value"
    return ": write str(value), or the text that you mean"


def body_bytes(topic: str, body: object) -> bytes:
    """Return a body as bytes; text is encoded as UTF-8."""
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise MessageIllegal(f"message to {topic!r}: the body has no UTF-8: {error}") from None
    if not isinstance(body, (bytes, bytearray, memoryview)):
        hint = "; json= encodes it" if isinstance(body, (dict, list, tuple)) else ""
        raise TypeError(f"message to {topic!r}: body must be bytes or text, got {type(body).__name__}{hint}")
    return bytes(body)


def json_body(topic: str, value: Any) -> bytes:
    """Return a value as JSON, in UTF-8, without spaces.

    raises  TypeError for what JSON has no form for, MessageIllegal for a number that it has not (NaN), text without
            UTF-8, and what contains itself; each names the value and where it is
    """
    try:
        return _JSON.encode(value).encode()
    except TypeError as error:
        found = _find_refused(value, "json")
        if found is None:
            raise TypeError(f"message to {topic!r}: json: {error}") from None
        where, refused = found
        raise TypeError(
            f"message to {topic!r}: JSON has no form for {where}, {refused!r:.80} ({type(refused).__name__})"
        ) from None
    except UnicodeEncodeError as error:
        raise MessageIllegal(f"message to {topic!r}: a text in json has no UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        found = _find_refused(value, "json") if isinstance(error, ValueError) else None
        if found is None:
            raise MessageIllegal(f"message to {topic!r}: json contains itself, or is nested too deep") from None
        where, refused = found
        raise MessageIllegal(f"message to {topic!r}: JSON has no form for {where}, {refused!r:.80}") from None


def _find_refused(value: object, where: str, above: tuple[int, ...] = ()) -> tuple[str, object] | None:
    """Return where in a value the first part is that JSON has no form for, and the part; None: it contains itself."""
    if isinstance(value, float) and value - value != 0:
        return where, value
    if isinstance(value, _JSON_TYPES) or id(value) in above:
        return None
    above = (*above, id(value))
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, _JSON_TYPES):
                return f"a key of {where}", key
            found = _find_refused(each, f"{where}[{key!r:.40}]", above)
            if found is not None:
                return found
        return None
    if isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            found = _find_refused(each, f"{where}[{place}]", above)
            if found is not None:
                return found
        return None
    return where, value
