"""Accounts of a console: a file of names, roles and hashes; who is logged in.

line  ``NAME:ROLE:scrypt$SALT$HASH``, role ``admin`` or ``viewer``; salt and hash in hexadecimal; ``#`` begins a note
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketcore.errors import ConfigError
from rocketcore.printable import error_text
from rocketcore.service import SYSTEM_CLOCK, Clock

__all__ = ["ROLES", "Sessions", "account_line", "read_accounts", "verify"]

ROLES: Final = ("admin", "viewer")
SESSION_SECONDS: Final = 12 * 3600
MOST_SESSIONS: Final = 1000
MOST_FAILURES: Final = 5
"""Of one name within a minute; then it has to wait for the minute's end."""

_NOBODY: Final = "scrypt$" + "00" * 16 + "$" + "00" * 32


def _hash(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=32)


def account_line(name: str, role: str, password: str) -> str:
    """Return the line of an account; raises ConfigError."""
    if not name or not name.isprintable() or ":" in name or name.startswith("#"):
        raise ConfigError(f"invalid account name: {name!r}")
    if role not in ROLES:
        raise ConfigError(f"a role must be one of {', '.join(ROLES)}, got {role!r}")
    if len(password) < 8:
        raise ConfigError("a password has 8 characters at least")
    salt = secrets.token_bytes(16)
    return f"{name}:{role}:scrypt${salt.hex()}${_hash(password, salt).hex()}"


def read_accounts(path: Path) -> dict[str, tuple[str, str]]:
    """Return name → (role, hash); raises ConfigError for a file without accounts, or with a line that is none."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error_text(error)}") from error
    found: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        role, _, digest = rest.partition(":")
        if role not in ROLES or not _is_digest(digest) or not name or name in found:
            raise ConfigError(f"{path}, line {number}: an account is NAME:ROLE:HASH, as rocket console --add prints it")
        found[name] = role, digest
    if not found:
        raise ConfigError(f"{path} has no accounts: rocket console --add NAME prints the line of one")
    return found


def _is_digest(text: str) -> bool:
    kind, _, rest = text.partition("$")
    salt, _, digest = rest.partition("$")
    try:
        return kind == "scrypt" and len(bytes.fromhex(salt)) >= 16 and len(bytes.fromhex(digest)) == 32
    except ValueError:
        return False


def verify(accounts: Mapping[str, tuple[str, str]], name: str, password: str) -> str | None:
    """Return the role of an account whose password this is, else None; a name that there is not takes as long."""
    role, digest = accounts.get(name, ("", _NOBODY))
    _, salt, expected = digest.split("$")
    same = hmac.compare_digest(_hash(password, bytes.fromhex(salt)), bytes.fromhex(expected))
    return role if same and role else None


@dataclass(frozen=True, slots=True)
class Session:
    name: str
    role: str
    ends: float


class Sessions:
    """Who is logged in, by the value of their cookie; the oldest goes when there are too many."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._failures: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def open(self, name: str, role: str) -> str:
        """Begin a session; return the value of its cookie."""
        while len(self._sessions) >= MOST_SESSIONS:
            self._sessions.popitem(last=False)
        value = secrets.token_urlsafe(32)
        self._sessions[value] = Session(name, role, self._clock.monotonic() + SESSION_SECONDS)
        return value

    def find(self, value: str) -> Session | None:
        found = self._sessions.get(value)
        if found is not None and found.ends <= self._clock.monotonic():
            del self._sessions[value]
            return None
        return found

    def close(self, value: str) -> None:
        self._sessions.pop(value, None)

    def may_try(self, name: str) -> bool:
        """Whether an account may be tried: not after too many failures within this minute."""
        minute, count = self._failures.get(name, (0, 0))
        return count < MOST_FAILURES or minute != self._minute

    def failed(self, name: str) -> None:
        minute, count = self._failures.pop(name, (0, 0))
        while len(self._failures) >= MOST_SESSIONS:
            self._failures.popitem(last=False)
        self._failures[name] = self._minute, count + 1 if minute == self._minute else 1

    @property
    def _minute(self) -> int:
        return int(self._clock.monotonic() // 60)
