"""No descriptors left, as in a flood of connections: refusals that heal by themselves, and no message lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.store import MessageStore, PutStatus
from tests.fixtures.stores import SEGMENT_BYTES, FailingFiles, message, put, read_queue, running_store, stored

BODY = bytes(30_000)
FAST_SAVES: dict[str, Any] = {"flush_interval_consume_queue": 1, "flush_consume_queue_thorough_interval": 1}


def run_in_subprocess(test: str, folder: Path) -> None:
    """Run a function of this module in a process whose limit may be lowered."""
    code = f"from pathlib import Path\nfrom {__name__} import {test}\n{test}(Path({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def flood() -> Iterator[None]:
    """Take every descriptor that is left."""
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    try:
        yield
    finally:
        for fd in taken:
            os.close(fd)


async def saves(store: MessageStore, count: int) -> None:
    """Let the store save a few times."""
    saver = store._queue_saver
    for _ in range(count):
        error = None
        async with saver.lock:
            error = await saver.save_under_lock()
        assert error is None, error


def go_on_with_the_spare(root: Path) -> None:
    async def run() -> None:
        async with running_store(root) as store:
            await put(store)
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            with flood():
                for number in range(10):
                    await put(store, topic=f"New{number}")
                    await saves(store, 1)
                assert store.refusal == ""
        async with running_store(root) as store:
            assert not store.recovery.rebuilt
            assert len(list(store.queues())) == 11

    asyncio.run(run())


def test_queues_are_saved_with_the_spare_descriptor(tmp_path: Path) -> None:
    run_in_subprocess("go_on_with_the_spare", tmp_path)


def heal_after_a_flood(root: Path) -> None:
    acknowledged = []

    async def run() -> None:
        async with running_store(root, **FAST_SAVES) as store:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            reason = ""
            with flood():
                # A file of the log that is made stays open, with the spare: the second one is refused.
                for _ in range(4 * SEGMENT_BYTES // len(BODY)):
                    result = store.put(message(BODY))
                    if await stored(store, result) is PutStatus.PUT_OK:
                        acknowledged.append(result.queue_offset)
                    else:
                        reason = result.reason
                # Whoever comes first is refused: the next file of the log, a queue, a note, or a folder to be synced.
                named = re.search(r"Too many open files: '(.+?)'", reason)
                assert named is not None, reason
                assert Path(named[1]).is_relative_to(root)
                assert store.read_only_reason is None
            async with asyncio.timeout(10):
                while store.put(message(BODY)).status is not PutStatus.PUT_OK:  # noqa: ASYNC110  # the store's retries
                    await asyncio.sleep(0.01)
            await saves(store, 1)
            assert store.refusal == ""
            assert [one["queue_offset"] for one in read_queue(store)][: len(acknowledged)] == acknowledged
        async with running_store(root) as store:
            assert len(read_queue(store)) == len(acknowledged) + 1

    asyncio.run(run())


def test_sends_are_taken_again_after_a_flood(tmp_path: Path) -> None:
    run_in_subprocess("heal_after_a_flood", tmp_path)


class NoDescriptors(FailingFiles):
    """Opening fails with an error for as long as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        if self.refused:
            raise OSError(self.refused, os.strerror(self.refused))
        return super().open(path, flags)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_save_that_cannot_open_a_file_is_refused_and_heals(tmp_path: Path, code: int) -> None:
    files = NoDescriptors()

    async def run() -> None:
        async with running_store(tmp_path, files=files, **FAST_SAVES) as store:
            await put(store)
            files.refused = code
            refused = None
            async with asyncio.timeout(10):
                while refused is None or refused.status is PutStatus.PUT_OK:
                    refused = store.put(message())
                    await asyncio.sleep(0.002)
            assert "consume queues below" in refused.reason
            assert os.strerror(code) in refused.reason
            assert store.read_only_reason is None
            files.refused = 0
            async with asyncio.timeout(10):
                while store.refusal:  # noqa: ASYNC110  # the store's own saves
                    await asyncio.sleep(0.002)
            await put(store)

    asyncio.run(run())


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_a_log_file_that_cannot_be_made_is_refused_and_heals(tmp_path: Path, code: int) -> None:
    files = FailingFiles()

    async def run() -> None:
        async with running_store(tmp_path, files=files) as store:
            files.fail(0, code, only="allocate", forever=True)
            taken = 0
            while (result := store.put(message(BODY))).status is PutStatus.PUT_OK:
                assert await stored(store, result) is PutStatus.PUT_OK
                taken += 1
            assert result.reason == store.refusal
            assert "the next commit log file" in result.reason
            assert os.strerror(code) in result.reason
            files.heal()
            async with asyncio.timeout(10):
                while store.put(message(BODY)).status is not PutStatus.PUT_OK:  # noqa: ASYNC110  # the store's retries
                    await asyncio.sleep(0.01)
            assert store.refusal == ""
        async with running_store(tmp_path) as store:
            assert len(read_queue(store)) == taken + 1

    asyncio.run(run())


@pytest.mark.parametrize("call", ["sync", "sync_folder"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_sync_that_fails_latches_whatever_it_says(tmp_path: Path, call: str, code: int) -> None:
    files = FailingFiles()

    async def run() -> None:
        async with running_store(tmp_path, files=files, **FAST_SAVES) as store:
            files.fail(0, code, only=call)
            await stored(store, store.put(message(topic="New")))
            async with asyncio.timeout(10):
                while store.read_only_reason is None:  # noqa: ASYNC110  # the store's own saves
                    await asyncio.sleep(0.002)

    asyncio.run(run())
