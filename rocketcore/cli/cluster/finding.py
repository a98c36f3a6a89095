"""Finding: one thing that ``rocket doctor`` looked at."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``state`` is ok, warn, fail or unknown."""

    check: str
    target: str
    state: str
    detail: str
    hint: str | None = None
