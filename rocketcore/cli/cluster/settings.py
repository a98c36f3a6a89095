"""What a setting of a server means, as text."""

from __future__ import annotations

__all__ = ["means"]


def means(value: str, said: str | None) -> bool:
    """Whether a server that says a setting's value has the one that was asked for: numbers and truths have one form."""
    value = value.strip()
    if said in ("true", "false"):
        return value.lower() == said
    try:
        return said is not None and (value == said or int(value) == int(said))
    except ValueError:
        return False
