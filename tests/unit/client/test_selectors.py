"""The queue of a message group."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rocketcore.client.selectors import find_selector, select_by_java_hash, select_by_xxhash
from rocketcore.errors import ConfigError
from tests.fixtures.vectors import family, name_of


@pytest.mark.parametrize("record", family("hash.jsonl", "select/"), ids=name_of)
def test_java_hash_chooses_javas_queue(record: dict[str, Any]) -> None:
    size = record["input"]["size"]
    assert {key: select_by_java_hash(key, size) for key in record["text"]} == record["text"]


def test_xxhash_is_stable_and_spreads_similar_groups() -> None:
    assert select_by_xxhash("order-42", 8) == select_by_xxhash("order-42", 8)
    counts = Counter(select_by_xxhash(f"order-{i}", 8) for i in range(8000))
    assert set(counts) == set(range(8))
    assert max(counts.values()) < 1.2 * min(counts.values())


def test_a_selector_is_found_by_name_or_given() -> None:
    assert find_selector("xxhash") is select_by_xxhash
    assert find_selector(select_by_java_hash) is select_by_java_hash
    with pytest.raises(ConfigError, match="java_hash"):
        find_selector("md5")
