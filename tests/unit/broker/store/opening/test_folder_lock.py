"""The locks of a store: its folder is one store's, and so is the folder of its log, wherever that is."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.store import MessageStore
from rocketcore.broker.store.opening import folder_lock
from rocketcore.broker.store.verify import verify
from rocketcore.errors import StoreLocked
from tests.fixtures.stores import put, read_queue, running_store, store_config


@pytest.mark.parametrize("by", ["setting", "link"])
def test_a_log_has_one_store(tmp_path: Path, by: str) -> None:
    """Two brokers that write one log overwrite what the other has acknowledged."""
    log = tmp_path / "log"
    settings: dict[str, Any] = {"store_path_commit_log": log} if by == "setting" else {}
    for root in ("a", "b"):
        (tmp_path / root).mkdir()
        if by == "link":
            (tmp_path / root / "commitlog").symlink_to(log)
    log.mkdir()

    async def run() -> None:
        async with running_store(tmp_path / "a", **settings) as store:
            await put(store, b"1")
            other = store_config(tmp_path / "b", **settings)
            for _ in range(2):
                with pytest.raises(StoreLocked, match="of the commit log is in use by another store"):
                    MessageStore(other).load()
            with pytest.raises(StoreLocked, match="in this process"):
                verify(store.config)
            assert not list((tmp_path / "b").glob("abort*"))
            assert [one["body"] for one in read_queue(store)] == [b"1"]
        async with running_store(tmp_path / "b", **settings) as store:
            assert [one["body"] for one in read_queue(store)] == [b"1"]

    asyncio.run(run())


def test_a_lock_file_that_is_removed_lets_no_other_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            (tmp_path / "lock").unlink()
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(folder_lock, "_locked_folders", set())  # as in another process
                with pytest.raises(StoreLocked, match="of the commit log is in use by another store"):
                    MessageStore(store_config(tmp_path)).load()
            await put(store, b"1")
        async with running_store(tmp_path) as store:
            assert [one["body"] for one in read_queue(store)] == [b"1"]

    asyncio.run(run())


def test_a_process_that_was_forked_keeps_no_folder(tmp_path: Path) -> None:
    children = []

    async def run() -> None:
        async with running_store(tmp_path):
            children.append(os.fork())
            if not children[0]:
                signal.pause()
        async with running_store(tmp_path):
            pass

    try:
        asyncio.run(run())
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
