"""Tag expressions against Java's."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcore.errors import ConfigError
from rocketcore.filter import parse_tags
from tests.fixtures.vectors import family, name_of


@pytest.mark.parametrize("record", family("hash.jsonl", "subscription/"), ids=name_of)
def test_expressions(record: dict[str, Any]) -> None:
    expected = record["expected"]
    if "error" in expected:
        with pytest.raises(ConfigError, match="names no tag"):
            parse_tags(record["input"]["expression"])
        return
    found = parse_tags(record["input"]["expression"])
    assert found.expression == expected["subString"]
    assert found.tags == set(expected["tagsSet"])
    assert set(found.codes) == set(expected["codeSet"])
    assert list(found.codes) == sorted(found.codes)


def test_what_takes_everything() -> None:
    assert parse_tags("*").takes_all
    assert not parse_tags("TagA || Aa").takes_all
