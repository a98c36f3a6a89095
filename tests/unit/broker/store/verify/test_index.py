"""Verification of the index of keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcore.broker.store.verify import sized, verify
from tests.fixtures import stores
from tests.fixtures.verified_store import (
    look,
    only,
    overwrite,
    repair,
    store_config,
)


def index_file(root: Path) -> Path:
    return sorted((root / "index").iterdir())[-1]


@pytest.mark.parametrize(
    ("position", "what"),
    [
        (36, "no start believes it, and indexes again what it held"),  # its header
        (40, "its slots do not lead to its entries"),
        (-1, "entry 30 does not follow from those before it"),
    ],
)
def test_a_damaged_index_is_named_and_made_again(indexed: Path, position: int, what: str) -> None:
    assert look(indexed).is_whole
    config, path = store_config(indexed), index_file(indexed)
    if position < 0:
        position = 40 + 4 * config.max_hash_slot_num + 20 * 30 + 16
    overwrite(path, position, b"\x7f\x7f\x7f\x7f")
    if position == 36:
        (indexed / "indexbounds").unlink()
    damage = only(look(indexed))
    assert (damage.kind, damage.path, damage.what) == ("index", path, what)
    after = repair(indexed)
    assert [each for each in after.damaged if each.kind != "config"] == []
    assert index_file(indexed) != path


def test_a_damaged_note_of_the_index(indexed: Path) -> None:
    """No start believes the files that it told of."""
    overwrite(indexed / "indexbounds", 12, b"?")
    found = [(each.kind, each.path) for each in look(indexed).damaged]
    assert found == [("note", indexed / "indexbounds"), ("index", index_file(indexed))]
    assert [each for each in repair(indexed).damaged if each.kind != "config"] == []


def test_an_index_of_other_sizes_is_looked_at_by_its_note(indexed: Path) -> None:
    found = sized(stores.store_config(indexed)).config
    assert found.index_file_bytes == store_config(indexed).index_file_bytes
    assert verify(found).is_whole
