"""Messages to send as lines of JSON: what ``produce --jsonl`` and ``message import`` read."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from rocketcore.files.faults import TextFault
from rocketcore.files.json_text import JsonFault, json_members, json_value
from rocketcore.files.text import decoded_line

__all__ = ["ENVELOPE", "read_envelope"]

ENVELOPE = frozenset({"body", "body_base64", "tag", "keys", "properties", "message_group"})

_SHOWN = 60
"""Characters of a bad line that its error shows."""


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "body_base64": (lambda v: v is None or type(v) is str, "a text"),
    "tag": (_is_text, "a text"),
    "message_group": (_is_text, "a text"),
    "msg_id": (_is_text, "a text"),
    "keys": (lambda v: _is_text(v) or (isinstance(v, list) and all(isinstance(k, str) for k in v)), "a list of texts"),
    "properties": (
        lambda v: v is None or (isinstance(v, dict) and all(isinstance(text, str) for text in v.values())),
        "an object of texts",
    ),
}
"""What a field of an envelope may be, besides null; a number is its digits. A body may be anything."""


def read_envelope(line: bytes, number: int, more: frozenset[str] = frozenset()) -> dict[str, Any] | None:
    """Return the fields of a message to send that a line holds; None for a blank line.

    number  of the line; the first of a file is 1, and may begin with a byte order mark
    more    further fields that may be there
    raises  TextFault naming line and column, and what is wrong

    A body that is a string is its text; any other is the JSON text that stands in the line.
    """
    text = decoded_line(line, number).rstrip("\r\n")
    if not text or text.isspace():
        return None
    try:
        return _fields(text, ENVELOPE | more)
    except JsonFault as error:
        shown = text.strip()[:_SHOWN]
        hint = "; each line is an object, not part of an array" if shown.startswith("[") else ""
        raise TextFault(f"{shown!r}: {error.reason}{hint}", number, error.position + 1) from None


def _fields(text: str, known: frozenset[str]) -> dict[str, Any]:
    fields = json_value(text).content
    if not isinstance(fields, dict):
        raise JsonFault("no object", len(text) - len(text.lstrip()))
    for name, content in fields.items():
        if name not in known:
            raise _fault(text, name, f"unknown field {name}")
        fits, form = _FIELDS.get(name, (None, ""))
        if fits is not None and not fits(content):
            raise _fault(text, name, f"{name} is not {form}")
    encoded = fields.pop("body_base64", None)
    if encoded is not None:
        if fields.get("body") is not None:
            raise _fault(text, "body_base64", "an envelope has body or body_base64, not both")
        try:
            fields["body"] = base64.b64decode(encoded, validate=True)
        except (ValueError, binascii.Error) as error:
            raise _fault(text, "body_base64", f"body_base64: {error}") from None
    elif "body" not in fields:
        raise JsonFault("an envelope has no body", len(text.rstrip()) - 1)
    elif type(fields["body"]) is not str:
        body = json_members(text)["body"]
        fields["body"] = text[body.begin : body.end]
    if "\\u" in text:
        _check_surrogates(text, fields)
    return fields


def _fault(text: str, name: str, reason: str) -> JsonFault:
    return JsonFault(reason, json_members(text)[name].begin)


def _check_surrogates(text: str, fields: Mapping[str, Any]) -> None:
    """Refuse half a surrogate pair in what is sent: an escape can write it, UTF-8 cannot."""
    for name in ENVELOPE & fields.keys():
        content = fields[name]
        parts = [*content, *content.values()] if isinstance(content, dict) else content
        for part in [parts] if isinstance(parts, (str, bytes)) else parts or ():
            try:
                if isinstance(part, str):
                    part.encode()
            except UnicodeEncodeError:
                raise _fault(text, name, f"{name} has half of a surrogate pair: no UTF-8 writes it") from None
