"""A loop on a thread ends what runs on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from rocketcore.client.loop_thread import LoopThread
from rocketcore.errors import ClientClosed, ConfigError


@pytest.mark.parametrize("begun", [True, False])
def test_a_loop_that_ends_leaves_no_caller_waiting(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    host = LoopThread("host")
    handed, started, ended = threading.Event(), threading.Event(), threading.Event()
    free = threading.Event()
    outcome: list[BaseException] = []
    hand_over = host._hand_over

    def noticed(function: Callable[[], None]) -> None:
        hand_over(function)
        handed.set()

    async def forever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def call() -> None:
        try:
            host.run(forever())
        except BaseException as error:
            outcome.append(error)

    monkeypatch.setattr(host, "_hand_over", noticed)
    if not begun:
        host.loop.call_soon_threadsafe(free.wait, 5.0)
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert (started if begun else handed).wait(5.0)
    host.stop(0.0)
    free.set()
    host.stop()
    caller.join(5.0)
    assert not caller.is_alive()
    assert [type(error) for error in outcome] == [ClientClosed]
    assert ended.is_set() == started.is_set()


def test_after_the_end_nothing_is_begun() -> None:
    host = LoopThread("host")
    host.stop()
    host.stop()
    with pytest.raises(ClientClosed):
        host.run(asyncio.sleep(0))


def test_a_loop_does_not_wait_for_itself() -> None:
    host = LoopThread("host")

    async def call() -> None:
        host.run(asyncio.sleep(0))

    with pytest.raises(ConfigError, match="'host' and was made on it"):
        host.run(call())
    host.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt()])
def test_a_thread_that_dies_leaves_no_caller_waiting(end: BaseException) -> None:
    host = LoopThread("host")

    def die() -> None:
        raise end

    async def forever() -> None:
        host.loop.call_soon(die)
        await asyncio.Event().wait()

    with pytest.raises(ClientClosed):
        host.run(forever(), 30.0)
    host.stop()
    assert not host.alive
