"""Namespaced key-value settings that operators keep at the name server (Java: ``KVConfigManager``).

One JSON object, ``{"configTable": {namespace: {key: value}}}``, in Apache's own format so that a file can be moved
either way. Every change is on disk before it is answered; the generation before it stays beside the file as ``.bak``
and is read when the file itself is damaged.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

from rocketcore.codes import ResponseCode
from rocketcore.config_file import replace_file
from rocketcore.errors import BrokerSystemError

__all__ = ["KVConfigManager"]

logger = logging.getLogger(__name__)

MAX_TABLE_BYTES: Final = 8 << 20
"""The longest text of the table that a value may still be put into: every answer about it must fit into a frame."""


class KVConfigManager:
    """The table and its file. One thread writes; others may read at any time and see whole generations."""

    __slots__ = ("_path", "_table")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file, or the generation before it; a missing file is an empty table."""
        for path in (self._path, self._path.with_name(self._path.name + ".bak")):
            try:
                self._table = _decode(path.read_bytes())
                return
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RecursionError) as error:
                logger.error("kv file unreadable path=%s reason=%s", path, error)
        self._table = {}

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
            self._save({**self._table, namespace: {name: value for name, value in table.items() if name != key}})

    def _save(self, table: dict[str, dict[str, str]], limit: int | None = None) -> None:
        text = json.dumps({"configTable": table}, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        encoded = text.encode("utf-8", "replace")
        if limit is not None and len(encoded) > limit:
            raise BrokerSystemError(
                ResponseCode.SYSTEM_ERROR, f"the key-value table would take {len(encoded)} bytes, more than {limit}"
            )
        replace_file(self._path, encoded)
        self._table = table


def _decode(data: bytes) -> dict[str, dict[str, str]]:
    document = json.loads(data)
    table = document.get("configTable") if isinstance(document, dict) else None
    if table is None:
        return {}
    if not isinstance(table, dict) or not all(isinstance(entries, dict) for entries in table.values()):
        raise ValueError("configTable is not a table of tables")
    return {
        namespace: {key: value for key, value in entries.items() if isinstance(value, str)}
        for namespace, entries in table.items()
    }
