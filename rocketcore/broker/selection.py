"""What a subscription lets through, as the store is asked for it: tag codes, or a test of properties."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from rocketcore.codes import ResponseCode
from rocketcore.errors import BrokerError, ConfigError
from rocketcore.filter import parse_tags
from rocketcore.message import RETRY_TOPIC

if TYPE_CHECKING:
    from rocketcore._fast.sql_filter import SqlFilter

__all__ = [
    "FILTER_HEADER_LIMIT",
    "SELECT_ALL",
    "Selection",
    "select_by_sql",
    "select_by_tags",
    "select_retries",
    "unreadable",
]


FILTER_HEADER_LIMIT = 256 << 10
"""Of a request that brings a filter: one by some thousand tags is a field of its header."""
_LONG_CHARACTERS = 256
"""A client of a thousand queues asks with one expression; a thousand clients do not each have one longer than this."""


class Selection(NamedTuple):
    """Tag codes, or an expression on properties; neither: everything."""

    sorted_codes: array[int] | None
    properties: SqlFilter | None

    def takes_code(self, tags_code: int) -> bool:
        """Whether a message with this tags code may be selected: by its properties it has to be looked at."""
        codes = self.sorted_codes
        if codes is None:
            return True
        at = bisect_left(codes, tags_code)
        return at < len(codes) and codes[at] == tags_code


SELECT_ALL = Selection(None, None)


def select_by_tags(expression: str) -> Selection:
    """Return what a tag expression selects; raises BrokerError (23) for what names no tag at all."""
    return _select_by_tags(expression) if len(expression) <= _LONG_CHARACTERS else _select_by_many_tags(expression)


def _parse(expression: str) -> Selection:
    try:
        parsed = parse_tags(expression)
    except ConfigError as error:
        raise unreadable(str(error)) from error
    return SELECT_ALL if parsed.takes_all else Selection(array("q", parsed.codes), None)


# What is remembered is bounded in bytes, too: a request may bring 256 KiB of tags, each time others.
_select_by_tags = lru_cache(maxsize=4096)(_parse)
_select_by_many_tags = lru_cache(maxsize=16)(_parse)


@lru_cache(maxsize=64)
def select_by_sql(expression: str) -> Selection:
    """Return what an SQL92 expression selects; raises ConfigError where it does not compile."""
    from rocketcore.filter_sql import compile_sql  # most brokers start for tags alone

    return Selection(None, compile_sql(expression))


@lru_cache(maxsize=64)
def select_retries(expressions: tuple[tuple[str, str], ...]) -> Selection:
    """Return what SQL92 expressions, each of a topic, select of what comes again; raises as ``select_by_sql``."""
    from rocketcore.filter_sql import compile_for_retries

    return Selection(None, compile_for_retries(dict(expressions), RETRY_TOPIC))


def unreadable(reason: str) -> BrokerError:
    """The answer to who brings an expression that cannot be read."""
    return BrokerError.of(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {reason}")
