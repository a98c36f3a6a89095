"""docs/filters.md: what it says of each expression in its table is so."""

from __future__ import annotations

import re

import pytest

from rocketcore._fast.properties import encode_properties
from rocketcore.broker.config import LIVE_PROPERTIES, BrokerConfig
from rocketcore.errors import ConfigError
from rocketcore.filter_sql import compile_sql
from tests.fixtures.pages import PAGES

PAGE = (PAGES / "filters.md").read_text()
ROWS = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| (yes|no) \|$", PAGE, re.MULTILINE)


def test_the_page_has_examples() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize(("expression", "properties", "matches"), ROWS)
def test_examples(expression: str, properties: str, matches: str) -> None:
    pairs = dict(pair.split("=") for pair in properties.split())
    assert compile_sql(expression).matches(encode_properties(pairs)) is (matches == "yes")


def test_what_is_not_there() -> None:
    for expression in ("a != 1", "a NOT LIKE 'x'", "a * 2 = 2", '"a" = 1'):
        with pytest.raises(ConfigError):
            compile_sql(expression)
    assert compile_sql("a = 1 XOR b = 2").matches(b"a\x011\x02")


def test_the_setting_is_live_and_off() -> None:
    assert "enablePropertyFilter" in LIVE_PROPERTIES
    assert not BrokerConfig().enable_property_filter
