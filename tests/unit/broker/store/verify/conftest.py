"""A whole store, and copies of it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.fixtures.stores import (
    message,
    put,
    stored,
)
from tests.fixtures.verified_store import BODY, COUNT, running_store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two queues, three log files and three files of a queue, stopped in order."""
    root = tmp_path_factory.mktemp("whole")

    async def run() -> None:
        async with running_store(root) as store:
            for number in range(COUNT):
                result = store.put(message(b"%06d" % number + BODY, queue_id=number % 8 and 1))
            assert (await stored(store, result)).name == "PUT_OK"

    asyncio.run(run())
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(whole, tmp_path / "store"))


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    """A store whose messages have keys."""

    async def run() -> None:
        async with running_store(tmp_path / "store") as store:
            for number in range(30):
                await put(store, b"%06d" % number, properties=b"KEYS\x01key-%d\x02" % (number % 7))

    asyncio.run(run())
    return tmp_path / "store"
