"""Clocks, deadlines, intervals and supervised tasks."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from rocketcore.service import (
    Backoff,
    Deadline,
    ManualClock,
    PeriodicTask,
    PeriodicThread,
    acquire_or_signal,
    wait_or_signal,
)


def test_a_deadline_follows_its_clock() -> None:
    clock = ManualClock()
    deadline = Deadline(2.0, clock)
    clock.advance(1.5)
    assert deadline.remaining() == pytest.approx(0.5)
    assert not deadline.expired
    clock.advance(1.0)
    assert deadline.remaining() == 0.0
    assert deadline.expired


def test_the_wall_clock_may_jump_without_moving_a_deadline() -> None:
    clock = ManualClock()
    deadline = Deadline(2.0, clock)
    clock.set_wall(0)
    assert clock.time_millis() == 0
    assert deadline.remaining() == 2.0


def test_backoff_grows_to_its_maximum_and_starts_over() -> None:
    backoff = Backoff(1.0, 4.0, rng=random.Random(1))
    for limit in (1.0, 2.0, 4.0, 4.0):
        assert limit / 2 <= backoff.next() <= limit
    backoff.reset()
    assert backoff.next() <= 1.0


def test_a_task_outlives_its_failures_and_is_woken() -> None:
    async def run() -> None:
        rounds: asyncio.Queue[int] = asyncio.Queue()
        count = 0

        def work() -> None:
            nonlocal count
            count += 1
            rounds.put_nowait(count)
            if count == 1:
                raise RuntimeError("once")

        task = PeriodicTask("test", work, 3600.0, initial_delay=0.0)
        task.start()
        async with asyncio.timeout(5):
            assert await rounds.get() == 1
            task.wake()
            assert await rounds.get() == 2
        assert task.failures == 1
        await task.stop()
        await task.stop()

    asyncio.run(run())


def test_a_task_outlives_the_cancellation_of_what_it_waits_for() -> None:
    """A CancelledError that nobody sent to the task itself is a failure like any other."""

    async def run() -> None:
        again = asyncio.Event()
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()

        async def work() -> None:
            if task.failures:
                again.set()
            await cancelled

        task = PeriodicTask("test", work, 0.0)
        task.start()
        async with asyncio.timeout(5):
            await again.wait()
        await task.stop()

    asyncio.run(run())


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_task_runs_again_sooner_when_its_function_asks_for_it(coroutine: bool) -> None:
    async def run() -> None:
        rounds = asyncio.Event()
        waits: list[float | None] = [0.0, 7200.0, None]

        def work() -> float | None:
            wait = waits.pop(0)
            if wait is None:
                rounds.set()
            return wait

        async def slow_work() -> float | None:
            return work()

        task = PeriodicTask("test", slow_work if coroutine else work, 0.01, initial_delay=0.0)
        task.start()
        async with asyncio.timeout(5):
            await rounds.wait()
        await task.stop()

    asyncio.run(run())


def test_the_interval_of_a_task_may_change() -> None:
    async def run() -> None:
        intervals = [3600.0, 0.0, 3600.0]
        rounds = 0
        done = asyncio.Event()

        def work() -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 2:
                done.set()

        task = PeriodicTask("test", work, lambda: intervals.pop(0), initial_delay=0.0)
        intervals.pop(0)  # what holds before the first round is nothing to it
        task.start()
        await asyncio.wait_for(done.wait(), 5)
        await task.stop()
        assert intervals == []

    asyncio.run(run())


def test_a_thread_runs_again_sooner_when_its_function_asks_for_it() -> None:
    ran = threading.Semaphore(0)

    def work() -> float:
        ran.release()
        return 0.0

    thread = PeriodicThread("test", work, 3600.0, initial_delay=0.0)
    thread.start()
    for _ in range(3):
        assert ran.acquire(timeout=5)
    thread.stop()
    assert thread.failures == 0


def test_a_cancelled_caller_can_still_stop_a_task() -> None:
    async def run() -> bool:
        task = PeriodicTask("test", lambda: None, 3600.0)
        stopped = asyncio.Event()

        async def owner() -> None:
            task.start()
            try:
                await asyncio.Event().wait()
            finally:
                await task.stop()
                stopped.set()

        running = asyncio.create_task(owner())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        return stopped.is_set()

    assert asyncio.run(run())


def test_a_thread_outlives_its_failures_and_ends() -> None:
    ran = threading.Semaphore(0)

    def work() -> None:
        ran.release()
        raise RuntimeError("always")

    thread = PeriodicThread("test", work, 3600.0, initial_delay=0.0)
    thread.start()
    assert ran.acquire(timeout=5)
    thread.wake()
    assert ran.acquire(timeout=5)
    thread.stop()
    assert thread.failures == 2


@pytest.fixture
def signal_elsewhere() -> Iterator[Callable[[], None]]:
    """Ctrl-C that another thread takes, as one that comes in the instant before the main thread waits: no wait ends."""
    sent = threading.Event()
    taker = threading.Thread(target=lambda: sent.wait(30) and os.kill(os.getpid(), signal.SIGINT), daemon=True)
    taker.start()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield sent.set
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        sent.set()
        taker.join()


@pytest.mark.parametrize(
    "wait", [lambda: wait_or_signal(threading.Event()), lambda: acquire_or_signal(held())], ids=["event", "lock"]
)
def test_waiting_hears_signals(wait: Callable[[], None], signal_elsewhere: Callable[[], None]) -> None:
    def interrupted() -> None:
        signal_elsewhere()
        wait()

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def test_a_lock_is_waited_for_no_longer_than_there_is_time() -> None:
    assert acquire_or_signal(threading.Lock(), 0.0)
    assert not acquire_or_signal(held(), 0.01)
