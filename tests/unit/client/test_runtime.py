"""Locks that are not waited for without end."""

from __future__ import annotations

import asyncio

from rocketcore.client.runtime import ASYNCIO, THREADS
from rocketcore.transport.blocking.client import run_sync


def test_a_lock_of_a_loop_is_not_waited_for_beyond_the_time() -> None:
    async def main() -> None:
        lock = ASYNCIO.lock()
        assert await lock.acquire(0.0)
        assert not await lock.acquire(0.01)
        waiting = asyncio.create_task(lock.acquire(10.0))
        await asyncio.sleep(0)
        lock.release()
        assert await waiting

    asyncio.run(main())


def test_a_lock_of_threads_is_not_waited_for_beyond_the_time() -> None:
    lock = THREADS.lock()
    assert run_sync(lock.acquire(0.0))
    assert not run_sync(lock.acquire(0.01))
    lock.release()
    assert run_sync(lock.acquire(0.0))
