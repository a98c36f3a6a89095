"""Tag expressions against Java's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rocketcore.client.arrow_reader import ReadSettings
from rocketcore.client.pull import PullConsumer
from rocketcore.client.push import PushConsumer
from rocketcore.client.simple import SimpleConsumer
from rocketcore.errors import ConfigError
from rocketcore.filter import parse_tags
from rocketcore.message import MessageQueue
from rocketcore.spark.options import SourceOptions, parse_options
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


def given(filter: dict[str, str]) -> dict[str, Callable[[], object]]:
    """Return, by where it is given, what takes a filter."""
    tag, sql = filter.get("tag"), filter.get("sql")
    ways: dict[str, Callable[[], object]] = {
        kind.__name__: lambda kind=kind: kind("127.0.0.1:1", group="G").note_subscription("T", tag, sql)  # type: ignore[misc]
        for kind in (PushConsumer, PullConsumer, SimpleConsumer)
    }
    ways["assign"] = lambda: asyncio.run(
        PullConsumer("127.0.0.1:1", group="G").assign([MessageQueue("T", "a", 0)], tag=tag, sql=sql)
    )
    ways["arrow"] = lambda: ReadSettings(tags=tag or "*", sql=sql)
    spark = {"subExpression": tag, "sqlExpression": sql}
    options = {"nameServer": "127.0.0.1:1", "topic": "T", **{key: value for key, value in spark.items() if value}}
    ways["spark"] = lambda: parse_options(SourceOptions, options)
    return ways


@pytest.mark.parametrize("way", given({}))
@pytest.mark.parametrize("filter", [{"tag": " "}, {"tag": " || "}, {"sql": ""}, {"sql": " "}], ids=str)
def test_a_filter_with_nothing_in_it_is_refused_where_it_is_given(filter: dict[str, str], way: str) -> None:
    if way == "spark" and not "".join(filter.values()):
        pytest.skip("an option without a value")
    with pytest.raises(ConfigError, match=r"leave it out to receive all messages|expected: text that is not blank"):
        given(filter)[way]()
