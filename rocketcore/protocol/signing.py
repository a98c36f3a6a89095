"""Signatures of requests, as ACL 4.x and the auth of 5.3 check them.

signature  base64(HMAC-SHA1(secret key, values of the ext fields in the order of their names · body)), all UTF-8; the
           field ``Signature`` itself is left out, names are ordered by UTF-16 code units

RocketMQ: ``AclClientRPCHook``, ``AclSigner``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocketcore.protocol.command import RemotingCommand

__all__ = ["ACCESS_KEY", "SECURITY_TOKEN", "SIGNATURE", "Signer", "sign", "signed_content", "verify"]

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


def signed_content(
    ext_fields: Mapping[str, str], body: bytes = b"", *, without_unique_key_query: bool = False
) -> bytes:
    """Return what is signed. Servers up to 5.0, and all for versions up to 4.9.3, leave ``_UNIQUE_KEY_QUERY`` out."""
    left_out = {SIGNATURE, UNIQUE_KEY_QUERY} if without_unique_key_query else {SIGNATURE}
    names = sorted((name for name in ext_fields if name not in left_out), key=_utf16)
    return "".join(ext_fields[name] for name in names).encode(errors="replace") + body


def sign(ext_fields: Mapping[str, str], body: bytes, secret_key: str, *, without_unique_key_query: bool = False) -> str:
    """Return the signature of a request."""
    content = signed_content(ext_fields, body, without_unique_key_query=without_unique_key_query)
    return base64.b64encode(hmac.digest(secret_key.encode(), content, hashlib.sha1)).decode()


def verify(
    ext_fields: Mapping[str, str], body: bytes, secret_key: str, *, without_unique_key_query: bool = False
) -> bool:
    """Whether a request carries the right signature; takes the same time whatever it carries."""
    expected = sign(ext_fields, body, secret_key, without_unique_key_query=without_unique_key_query)
    return hmac.compare_digest(expected.encode(), ext_fields.get(SIGNATURE, "").encode(errors="replace"))


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


class Signer:
    """Signs requests with one access key; called by a transport when all other fields are set."""

    __slots__ = ("_secret_key", "_security_token", "access_key")

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self.access_key = access_key
        self._secret_key = secret_key
        self._security_token = security_token

    def __call__(self, command: RemotingCommand) -> None:
        command.add_ext_field(ACCESS_KEY, self.access_key)
        if self._security_token is not None:
            command.add_ext_field(SECURITY_TOKEN, self._security_token)
        command.add_ext_field(SIGNATURE, sign(command.ext_fields or {}, command.body, self._secret_key))

    def __repr__(self) -> str:
        return f"Signer(access_key={self.access_key!r})"
