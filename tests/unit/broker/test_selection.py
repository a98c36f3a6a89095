"""What a subscription lets through, and what of it is remembered."""

from __future__ import annotations

import pytest

from rocketcore._fast.properties import java_hash
from rocketcore.broker import selection
from rocketcore.broker.selection import SELECT_ALL, select_by_tags
from rocketcore.codes import ResponseCode
from rocketcore.errors import BrokerError


@pytest.mark.parametrize("count", [1, 2, 7, 5_000])
def test_the_tags_named_are_taken_and_no_others(count: int) -> None:
    tags = [f"tag-{number}" for number in range(count)]
    selected = select_by_tags(" || ".join(tags))
    assert all(selected.takes_code(java_hash(tag)) for tag in tags)
    assert not any(selected.takes_code(java_hash(f"other-{number}")) for number in range(count))
    assert not selected.takes_code(0)


def test_everything_is_taken() -> None:
    assert select_by_tags("*") is SELECT_ALL
    assert SELECT_ALL.takes_code(0)
    assert SELECT_ALL.takes_code(-1)


def test_of_long_expressions_few_are_remembered() -> None:
    for number in range(100):
        text = "||".join(f"{number}-{tag}" for tag in range(100))
        assert select_by_tags(text) is select_by_tags(text)
    assert selection._select_by_many_tags.cache_info().currsize == 16


@pytest.mark.parametrize("length", [2, 1_000])
def test_separators_alone_are_refused(length: int) -> None:
    with pytest.raises(BrokerError) as refused:
        select_by_tags("|" * length)
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
