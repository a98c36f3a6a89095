"""Filter expressions, parsed.

A tag expression names tags separated by ``||``; empty or ``*`` takes everything. Brokers compare the 32-bit Java hash
of a message's tag, so a client compares the tag itself again.

RocketMQ: ``FilterAPI``, ``ExpressionType``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocketcore._fast.properties import java_hash
from rocketcore.errors import ConfigError

__all__ = ["SQL92", "SUBSCRIBE_ALL", "TAG", "TagFilter", "check_filter", "parse_tags"]

SUBSCRIBE_ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A parsed tag expression; ``codes`` are sorted, both are empty where everything is taken, or nothing."""

    expression: str
    tags: frozenset[str]
    codes: tuple[int, ...]

    @property
    def takes_all(self) -> bool:
        return self.expression == SUBSCRIBE_ALL


_ALL: Final = TagFilter(SUBSCRIBE_ALL, frozenset(), ())


def check_filter(tag: str | None, sql: str | None, names: tuple[str, str] = ("tag", "sql")) -> None:
    """Refuse a filter that lets nothing through, or that no broker can read: it was to have something in it.

    An empty ``tag`` is for all messages, as in Java.

    names   of the two, as they were given
    raises  ConfigError
    """
    of_tag, of_sql = names
    if tag and not any(part.strip() for part in tag.split("||")):
        raise ConfigError(
            f"{of_tag} {tag!r} names no tag, so no message would arrive: leave it out to receive all messages"
        )
    if sql is not None and not sql.strip():
        raise ConfigError(f"{of_sql} {sql!r} is not a condition: leave it out to receive all messages")


def parse_tags(expression: str | None) -> TagFilter:
    """Parse a tag expression; one of blanks takes nothing, as in Java.

    raises  ConfigError where there is nothing but separators
    """
    if not expression or expression == SUBSCRIBE_ALL:
        return _ALL
    parts = expression.split("||")
    if not any(parts):
        raise ConfigError(f"tag expression {expression!r} names no tag")
    tags = frozenset(tag for tag in map(str.strip, parts) if tag)
    return TagFilter(expression, tags, tuple(sorted(set(map(java_hash, tags)))))
