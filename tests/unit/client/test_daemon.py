"""Plain functions called for a loop on daemon threads."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from rocketcore.client.daemon import call_on_daemon

place: contextvars.ContextVar[str] = contextvars.ContextVar("place")


def test_the_outcome_and_the_context_are_the_callers() -> None:
    async def main() -> None:
        place.set("here")
        assert await call_on_daemon("called", lambda more: (place.get(), threading.current_thread().name, more), 1) == (
            "here",
            "called",
            1,
        )

    asyncio.run(main())


@pytest.mark.parametrize("raised", [ValueError, SystemExit, asyncio.CancelledError])
def test_what_a_function_raises_is_raised(raised: type[BaseException]) -> None:
    def fail() -> None:
        raise raised("x")

    async def main() -> None:
        with pytest.raises(raised):
            await call_on_daemon("called", fail)

    asyncio.run(main())


def test_stop_iteration_is_raised_too() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await call_on_daemon("called", next, iter([]))

    asyncio.run(main())


def test_a_function_that_hangs_keeps_no_loop_from_ending() -> None:
    released = threading.Event()

    async def main() -> None:
        waiting = asyncio.create_task(call_on_daemon("called", released.wait))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    [hanging] = [thread for thread in threading.enumerate() if thread.name == "called"]
    released.set()
    hanging.join()
