"""Command headers, plainly: JSON with ``json``, binary with ``struct``, UTF-8 as Java decodes it."""

from __future__ import annotations

import json
import re
import struct
from typing import Any, NamedTuple

from rocketcore.errors import DecodeError

LANGUAGES = [
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY",
    "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
]  # fmt: skip
INTS = {"code", "flag", "opaque", "version"}
KEYS = INTS | {"extFields", "language", "remark", "serializeTypeCurrentRPC"}
FIXED = struct.Struct(">hBhii")


class Header(NamedTuple):
    """What a header says; ``language`` is an ordinal, −1 for an unknown one."""

    code: int = 0
    language: int = 0
    version: int = 0
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    ext: dict[str, str] | None = None


# Well-formed sequences first; then what Java takes for one malformed piece.
_PIECES = re.compile(
    rb"""(?P<good> [\x00-\x7f] | [\xc2-\xdf][\x80-\xbf] | \xe0[\xa0-\xbf][\x80-\xbf]
       | [\xe1-\xec\xee\xef][\x80-\xbf]{2} | \xed[\x80-\x9f][\x80-\xbf]
       | \xf0[\x90-\xbf][\x80-\xbf]{2} | [\xf1-\xf3][\x80-\xbf]{3} | \xf4[\x80-\x8f][\x80-\xbf]{2} )
    | \xed[\xa0-\xbf][\x80-\xbf] | \xe0[\xa0-\xbf] | [\xe1-\xef][\x80-\xbf]
    | \xf0[\x90-\xbf][\x80-\xbf]? | [\xf1-\xf3][\x80-\xbf]{1,2} | \xf4[\x80-\x8f][\x80-\xbf]?
    | [\x80-\xff]""",
    re.VERBOSE | re.DOTALL,
)


def java_text(data: bytes) -> str:
    """Return what Java's ``new String(data, UTF_8)`` holds."""
    return "".join((m["good"] or b"\xef\xbf\xbd").decode() for m in _PIECES.finditer(data))


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``."""
    value = 0
    for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


def read_json(data: bytes) -> Header | None:
    """Read a JSON header; None where it is unusual (``rocketcore/_fast/command.pxd`` says what that is)."""
    try:
        top = json.loads(data.decode(), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return None
    if not isinstance(top, _Pairs):
        return None
    fields: dict[str, Any] = dict(top)
    if len(fields) != len(top) or not KEYS.issuperset(fields) or "opaque" not in fields:
        return None
    for name in INTS & set(fields):
        if type(fields[name]) is not int or not -(1 << 31) <= fields[name] < 1 << 31:
            return None
    language = fields.get("language", "JAVA")
    remark, ext = fields.get("remark"), fields.get("extFields")
    texts = [fields.get("serializeTypeCurrentRPC", ""), *([] if remark is None else [remark]), language]
    if ext is not None:
        if not isinstance(ext, _Pairs):
            return None
        texts += [text for pair in ext for text in pair]
    if any(not isinstance(text, str) or _has_surrogate(text) for text in texts) or language not in LANGUAGES:
        return None
    return Header(
        fields.get("code", 0),
        LANGUAGES.index(language),
        fields.get("version", 0),
        fields["opaque"],
        fields.get("flag", 0),
        remark,
        None if ext is None else dict(ext),
    )


class _Pairs(list[tuple[str, Any]]):
    """The entries of a JSON object in order, so that keys that come twice are seen."""


def _has_surrogate(text: str) -> bool:
    return any(0xD800 <= ord(character) < 0xE000 for character in text)


def read_binary(data: bytes) -> Header:
    """Read a binary header; DecodeError where it is broken."""
    if len(data) < 21:
        raise DecodeError("short")
    code, language, version, opaque, flag = FIXED.unpack_from(data)
    at = FIXED.size
    remark, at = _cut(data, at, ">i", "remark")
    if len(data) - at < 4:
        raise DecodeError("remark")
    (length,) = struct.unpack_from(">i", data, at)
    at += 4
    ext: dict[str, str] | None = None
    if length > 0:
        if length > len(data) - at:
            raise DecodeError("ext")
        ext = {}
        end = at + length
        while at < end:
            key, at = _cut(data, at, ">h", "key")
            if not key:
                raise DecodeError("empty key")
            value, at = _cut(data, at, ">i", "value")
            ext.pop(java_text(key), None)
            if value:
                ext[java_text(key)] = java_text(value)
    return Header(
        code, language if language < len(LANGUAGES) else -1, version, opaque, flag,
        java_text(remark) if remark else None, ext,
    )  # fmt: skip


def _cut(data: bytes, at: int, length_format: str, what: str) -> tuple[bytes, int]:
    """Return a text with its length before it, and the position after it."""
    size = struct.calcsize(length_format)
    if len(data) - at < size:
        raise DecodeError(what)
    (length,) = struct.unpack_from(length_format, data, at)
    at += size
    if length < 0 or length > len(data) - at:
        raise DecodeError(what)
    return data[at : at + length], at + length


def write_json(header: Header) -> bytes:
    """Write a JSON header as fastjson2 does: sorted keys, no spaces, text as UTF-8."""
    fields: dict[str, Any] = {"code": header.code}
    if header.ext is not None:
        fields["extFields"] = header.ext
    fields |= {"flag": header.flag, "language": LANGUAGES[header.language], "opaque": header.opaque}
    if header.remark is not None:
        fields["remark"] = header.remark
    fields |= {"serializeTypeCurrentRPC": "JSON", "version": header.version}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def write_binary(header: Header) -> bytes:
    """Write a binary header."""
    remark = (header.remark or "").encode()
    entries = b""
    for key, value in (header.ext or {}).items():
        entries += struct.pack(">h", len(key.encode())) + key.encode()
        entries += struct.pack(">i", len(value.encode())) + value.encode()
    fixed = FIXED.pack(header.code, header.language, header.version, header.opaque, header.flag)
    return fixed + struct.pack(">i", len(remark)) + remark + struct.pack(">i", len(entries)) + entries


def read_send(header: Header) -> dict[str, Any] | None:
    """Return the fields of SendMessageRequestHeaderV2 by key, None where one is missing or does not parse."""
    ext = header.ext or {}
    fields: dict[str, Any] = {"i": "", "j": 0, "k": False, "l": -1, "m": False} | {
        key: value for key, value in ext.items() if len(key) == 1
    }
    if not set("abcdefgh") <= set(fields):
        return None
    for key in "defghjl":
        if isinstance(fields[key], str):
            bits = 64 if key == "g" else 32
            if not re.fullmatch(r"-?[0-9]+", fields[key], re.ASCII):
                return None
            fields[key] = int(fields[key])
            if not -(1 << bits - 1) <= fields[key] < 1 << bits - 1:
                return None
    return fields | {key: fields[key] in (True, "true") for key in "km"}
