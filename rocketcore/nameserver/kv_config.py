"""Namespaced key-value settings that operators keep at the name server (Java: ``KVConfigManager``).

One JSON object, ``{"configTable": {namespace: {key: value}}}``, in Apache's own format so that a file can be moved
either way. Every change is on disk before it is answered; the generation before it stays beside the file as ``.bak``,
but of what was deleted, and is read when the file itself is damaged or not there. The first change sets a damaged file
aside, as ``.damaged``.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import field
from pathlib import Path
from typing import Final

from rocketcore.codes import ResponseCode
from rocketcore.config_file import replace_file
from rocketcore.disk import is_passing
from rocketcore.errors import BrokerSystemError, DecodeError
from rocketcore.protocol import fastjson
from rocketcore.protocol.bodies.base import Body, body

__all__ = ["KVConfigManager"]

logger = logging.getLogger(__name__)

MAX_TABLE_BYTES: Final = 8 << 20
"""The longest text of the table that a value may still be put into: every answer about it must fit into a frame."""


class KVConfigManager:
    """The table and its file. One thread writes; others may read at any time and see whole generations."""

    __slots__ = ("_damaged", "_path", "_table")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        self._damaged = False

    def load(self) -> None:
        """Read the file, or the generation before it; where there is neither, the table is empty.

        raises  OSError where one may be read the next time: the next change would replace it, for good
        """
        self._table = {}
        self._damaged = False
        for path in (self._path, self._beside(".bak")):
            try:
                self._table = _decode(path.read_bytes())
                return
            except FileNotFoundError:
                continue
            except (OSError, DecodeError) as error:
                if isinstance(error, OSError) and is_passing(error):
                    raise
                logger.error("kv file unreadable path=%s reason=%s", path, error)
                self._damaged = self._damaged or path == self._path

    def _beside(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return a copy of one namespace; None when it was never used, empty when its last key was deleted."""
        table = self._table.get(namespace)
        return None if table is None else dict(table)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises, changing nothing, when the table is full (BrokerSystemError) or not saved (OSError)."""
        self._save({**self._table, namespace: {**self._table.get(namespace, {}), key: value}}, MAX_TABLE_BYTES)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value if it is there; the namespace stays."""
        table = self._table.get(namespace)
        if table is not None and key in table:
            left = {name: value for name, value in table.items() if name != key}
            self._save({**self._table, namespace: left}, both=True)

    def _save(self, table: dict[str, dict[str, str]], limit: int | None = None, *, both: bool = False) -> None:
        text = json.dumps({"configTable": table}, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        encoded = text.encode("utf-8", "replace")
        if limit is not None and len(encoded) > limit:
            raise BrokerSystemError(
                ResponseCode.SYSTEM_ERROR, f"the key-value table would take {len(encoded)} bytes, more than {limit}"
            )
        if self._damaged and self._path.exists():
            # It may be a slip of whoever edited it, and is not to become the generation before.
            os.replace(self._path, self._beside(".damaged"))
        self._damaged = False
        replace_file(self._path, encoded, both=both)
        self._table = table


@body
class _File(Body):
    """What the file holds (Java: ``KVConfigSerializeWrapper``)."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


def _decode(data: bytes) -> dict[str, dict[str, str]]:
    text = data.decode("utf-8-sig", "replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        # Edited by hand: fastjson, too, reads over a comma too many. Only then, because to it a key "$ref" refers to
        # something, and here it is a key like any other.
        document = fastjson.loads(text.encode())
    return _File.from_json(document).config_table
