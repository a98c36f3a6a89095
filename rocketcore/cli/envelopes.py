"""Messages to send as lines of JSON: what ``produce --jsonl`` and ``message import`` read."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any

__all__ = ["ENVELOPE", "read_envelope"]

ENVELOPE = frozenset({"body", "body_base64", "tag", "keys", "properties", "message_group"})


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "body_base64": (_is_text, "a text"),
    "tag": (_is_text, "a text"),
    "message_group": (_is_text, "a text"),
    "keys": (lambda v: _is_text(v) or (isinstance(v, list) and all(isinstance(k, str) for k in v)), "a list of texts"),
    "properties": (
        lambda v: v is None or (isinstance(v, dict) and all(isinstance(text, str) for text in v.values())),
        "an object of texts",
    ),
}
"""What a field of an envelope may be, besides null; a body may be anything."""


def read_envelope(line: bytes, more: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the fields of a message to send that a line holds; raises ValueError naming what is wrong.

    more  further fields that may be there
    """
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("no object")
        unknown = fields.keys() - ENVELOPE - more
        if unknown:
            raise ValueError(f"unknown field {sorted(unknown)[0]}")
        for name, (fits, form) in _FIELDS.items():
            if not fits(fields.get(name)):
                raise ValueError(f"{name} is not {form}")
        encoded = fields.pop("body_base64", None)
        if encoded is not None:
            fields["body"] = base64.b64decode(encoded, validate=True)
        elif not isinstance(fields.get("body"), str):
            fields["body"] = json.dumps(fields["body"], ensure_ascii=False)
    except KeyError:
        raise ValueError("an envelope has no body") from None
    except RecursionError:
        raise ValueError(f"{line[:60].decode('utf-8', 'replace')!r}: nested too deeply") from None
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"{line[:60].decode('utf-8', 'replace')!r}: {error}") from None
    return fields
