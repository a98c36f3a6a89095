"""Times as operations take and JSON has them; alone, because servers that print one import it at their start."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = ["millis_of", "timestamp"]

_YEAR_10000: Final = 253_402_300_800_000
"""In milliseconds."""


def millis_of(time: int | datetime) -> int:
    """Return a time as milliseconds since the epoch, which an int is already."""
    return round(time.timestamp() * 1000) if isinstance(time, datetime) else time


def timestamp(millis: int | None) -> str | None:
    """Return milliseconds since the epoch as RFC 3339 in UTC; None where there is no time, or none of ours."""
    if millis is None or not 0 < millis < _YEAR_10000:
        return None
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
