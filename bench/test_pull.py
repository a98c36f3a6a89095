"""A whole pull by an SQL92 expression, of 800 units of which none matches: the broker's store, without the wire.

``general`` reads message by message, as the store does where a page may not be in memory or is damaged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from bench import data
from rocketcore.broker.store import GetStatus, MessageStore, StoreConfig, StoredMessage
from rocketcore.broker.store.reading import property_reader
from rocketcore.filter_sql import compile_sql

UNITS = 800


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    config = StoreConfig(
        store_path_root_dir=tmp_path_factory.mktemp("store"),
        mapped_file_size_commit_log=64 << 20,
        message_index_enable=False,
    )

    async def fill() -> None:
        filled = MessageStore(config)
        filled.load()
        await filled.start()
        for index, body in enumerate(data.bodies(UNITS, 128)):
            properties = data.stored_properties(index) + f"price\x01{index % 100}\x02".encode()
            filled.put(StoredMessage(topic="T", queue_id=0, body=body, properties=properties))
        await filled.stop()

    asyncio.run(fill())
    loaded = MessageStore(config)
    loaded.load()
    yield loaded
    loaded._log.close()
    loaded._folder.close()


@pytest.mark.parametrize("row", ["kernel", "general"])
def test_nothing_matches(benchmark: Any, store: MessageStore, row: str) -> None:
    wanted = compile_sql("price > 500 AND region = 'eu'")
    benchmark.group = "pull-by-sql"
    benchmark.extra_info["messages"] = UNITS
    window = property_reader._window if row == "kernel" else lambda *_: property_reader._NOTHING
    with patch.object(property_reader, "_window", window):
        found = benchmark(store.get, "T", 0, 0, 32, None, wanted)
    assert (found.status, found.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, UNITS)
