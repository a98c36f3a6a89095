"""A disk that fails: the store stops taking messages, says why, tells no lie, and goes on reading."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketcore.broker.store import FlushDiskType, MessageStore, PutStatus
from rocketcore.errors import StoreFull
from rocketcore.service import ManualClock
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    STORE_HOST,
    FailingFiles,
    crash_copy,
    message,
    put,
    read_queue,
    running_store,
    store_config,
    stored,
)

MESSAGES = 9
BODY = bytes(30_000)
"""Four messages a segment: the run rolls over twice."""

FAST_SAVES = {"flush_interval_consume_queue": 1, "flush_consume_queue_thorough_interval": 1}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the store's own timers bring about."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is awaited has no event: it is a state of the store
            await asyncio.sleep(0.002)


async def load_run(
    root: Path, files: FailingFiles, mode: FlushDiskType, acknowledged: list[int]
) -> MessageStore | None:
    """Put messages one by one with saves in between; note the offsets that were acknowledged."""
    store = MessageStore(store_config(root, flush_disk_type=mode, **FAST_SAVES), store_host=STORE_HOST, files=files)
    try:
        store.load()
    except (OSError, StoreFull):
        return None
    await store.start()
    for _ in range(MESSAGES):
        result = store.put(message(BODY))
        if await stored(store, result) is PutStatus.PUT_OK:
            acknowledged.append(result.queue_offset)
        await asyncio.sleep(0.002)
    if store.read_only_reason is not None:
        assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert [one["queue_offset"] for one in read_queue(store)] == acknowledged
    await store.stop()
    return store


@pytest.mark.parametrize("mode", list(FlushDiskType))
def test_an_error_at_any_call_never_acknowledges_what_is_lost(tmp_path: Path, mode: FlushDiskType) -> None:
    calls = FailingFiles()
    asyncio.run(load_run(tmp_path / "count", calls, mode, []))
    assert len(calls.calls) > 40
    latched = 0
    for at in range(0, len(calls.calls), 5):
        root = tmp_path / str(at)
        files = FailingFiles()
        files.fail(at, errno.EIO)
        acknowledged: list[int] = []
        store = asyncio.run(load_run(root, files, mode, acknowledged))
        if store is not None and store.read_only_reason is not None:
            latched += 1
            assert str(root) in store.read_only_reason
            assert "Input/output error" in store.read_only_reason

        async def reopen(root: Path = root, acknowledged: list[int] = acknowledged) -> None:
            async with running_store(root) as store:
                found = read_queue(store)
                offsets = [one["queue_offset"] for one in found]
                assert offsets == list(range(len(found)))
                assert set(acknowledged) <= set(offsets)
                assert {one["body"] for one in found} <= {BODY}
                assert (await put(store)).queue_offset == len(found)

        asyncio.run(reopen())
    assert latched > 3


@pytest.mark.parametrize("call", ["write", "sync"])
def test_after_the_first_failure_nothing_is_written_any_more(tmp_path: Path, call: str) -> None:
    files = FailingFiles()

    async def run() -> None:
        async with running_store(tmp_path, files=files) as store:
            await put(store, b"safe")
            files.fail(0, errno.EIO, only=call)
            lost = store.put(message(b"lost"))
            behind = store.put(message(b"behind"))
            assert await stored(store, lost) is PutStatus.SERVICE_NOT_AVAILABLE
            assert await stored(store, behind) is PutStatus.SERVICE_NOT_AVAILABLE
            reason = store.read_only_reason
            assert reason is not None
            assert "commitlog/00000000000000000000" in reason
            assert "[Errno 5]" in reason
            done = len(files.calls)
            refused = store.put(message())
            assert (refused.status, refused.reason) == (PutStatus.SERVICE_NOT_AVAILABLE, reason)
            assert [one["body"] for one in read_queue(store)] == [b"safe"]
        assert files.calls[done:] == []
        assert (tmp_path / "abort").exists()

    asyncio.run(run())


def test_a_full_disk_refuses_and_heals(tmp_path: Path) -> None:
    files = FailingFiles()
    clock = ManualClock()

    async def run() -> None:
        async with running_store(tmp_path, files=files, clock=clock) as store:
            files.fail(0, errno.ENOSPC, only="allocate", forever=True)
            taken = 0
            while (result := store.put(message(BODY))).status is PutStatus.PUT_OK:
                assert await stored(store, result) is PutStatus.PUT_OK
                taken += 1
            assert taken == SEGMENT_BYTES // (len(BODY) + 100)
            assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
            assert "disk full" in result.reason
            assert f"{SEGMENT_BYTES:020d}" in result.reason
            assert store.read_only_reason is None
            # What still fits into the current file is taken.
            assert await stored(store, store.put(message(b"small"))) is PutStatus.PUT_OK
            attempts = files.calls.count("allocate")
            assert store.put(message(BODY)).status is PutStatus.SERVICE_NOT_AVAILABLE
            assert files.calls.count("allocate") == attempts
            files.heal()
            clock.advance(1)
            result = await put(store, BODY)
            assert result.queue_offset == taken + 1
            assert store.refusal == ""
        assert sorted(path.name for path in (tmp_path / "commitlog").glob("*.tmp")) == []
        async with running_store(tmp_path) as store:
            assert len(read_queue(store)) == taken + 2

    asyncio.run(run())


def test_queues_that_cannot_be_saved_for_lack_of_space_heal(tmp_path: Path) -> None:
    files = FailingFiles()

    async def run() -> None:
        async with running_store(tmp_path, files=files, flush_interval_consume_queue=2) as store:
            files.fail(0, errno.ENOSPC, only="resize", forever=True)
            await put(store)
            await until(lambda: bool(store.refusal))
            assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
            assert "disk full" in store.refusal
            assert len(read_queue(store)) == 1
            files.heal()
            await until(lambda: not store.refusal)
            await put(store)
        async with running_store(tmp_path) as store:
            assert not store.recovery.rebuilt
            assert len(read_queue(store)) == 2

    asyncio.run(run())


def test_asynchronous_flush_latches_on_a_failed_fsync(tmp_path: Path) -> None:
    files = FailingFiles()

    async def run() -> None:
        async with running_store(
            tmp_path, files=files, flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_interval_commit_log=2
        ) as store:
            files.fail(0, errno.EIO, only="sync")
            await put(store, b"written")
            await until(lambda: store.read_only_reason is not None)
            assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
            assert [one["body"] for one in read_queue(store)] == [b"written"]

    asyncio.run(run())


def test_a_callback_that_raises_does_not_stop_the_next(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            result = store.put(message())

            def broken(_status: PutStatus) -> None:
                raise ValueError("broken callback")

            store.wait(result.end_offset, broken)
            assert await stored(store, result) is PutStatus.PUT_OK

    asyncio.run(run())
    assert "broken callback" in caplog.text


def test_a_store_that_stops_commits_what_it_took(tmp_path: Path) -> None:
    async def run() -> None:
        answers: list[PutStatus] = []
        async with running_store(tmp_path) as store:
            for _ in range(5):
                store.wait(store.put(message()).end_offset, answers.append)
        assert answers == [PutStatus.PUT_OK] * 5
        assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert not (tmp_path / "abort").exists()

    asyncio.run(run())


def test_a_copy_made_while_running_is_an_unclean_start(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path / "a") as store:
            await put(store, b"one")
            crash_copy(tmp_path / "a", tmp_path / "b")
        async with running_store(tmp_path / "b") as store:
            assert [one["body"] for one in read_queue(store)] == [b"one"]

    asyncio.run(run())


@pytest.mark.parametrize("how", ["folder removed", "file removed", "folder moved", "file replaced"])
def test_a_log_that_is_taken_away_takes_no_messages(tmp_path: Path, how: str) -> None:
    """They would be acknowledged, and gone with the run."""
    log = tmp_path / "commitlog"

    async def run() -> None:
        async with running_store(tmp_path) as store:
            store._committer.watch()
            await put(store, b"1")
            assert [one["body"] for one in read_queue(store)] == [b"1"]
            file = log / f"{0:020d}"
            if how == "file removed":
                file.unlink()
            elif how == "file replaced":
                shutil.copy(file, tmp_path / "copy")
                (tmp_path / "copy").replace(file)
            elif how == "folder removed":
                shutil.rmtree(log)
            else:
                log.rename(tmp_path / "elsewhere")
            store._committer.watch()
            assert "it was removed or moved while it was written" in store.refusal
            assert str(file) in store.refusal
            assert store.put(message(b"2")).status is PutStatus.SERVICE_NOT_AVAILABLE
            assert [one["body"] for one in read_queue(store)] == [b"1"]

    asyncio.run(run())
