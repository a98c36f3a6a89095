"""A loop on a thread ends what runs on it, and lets a thread have its place."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from rocketcore.client.loop_thread import LoopThread
from rocketcore.errors import ClientClosed, ConfigError
from tests.unit.client.interruptions import Stop, at_each_line, stop


@pytest.mark.parametrize("begun", [True, False])
def test_a_loop_that_ends_leaves_no_caller_waiting(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    host = LoopThread("host")
    handed, started, ended = threading.Event(), threading.Event(), threading.Event()
    free = threading.Event()
    outcome: list[BaseException] = []
    hand_over = host._hand_over

    def noticed(function: Callable[[], None], **_: bool) -> None:
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


class Place:
    """Brings what the test says, and notes what it was asked."""

    def __init__(self, *, begins: bool = True, brings: Callable[[], bool] = lambda: False, done: bool = True) -> None:
        self.begins, self.brings, self.done = begins, brings, done
        self.asked: list[str] = []

    def begin(self) -> bool:
        self.asked.append("begin")
        return self.begins

    def wait(self) -> bool:
        self.asked.append("wait")
        return self.brings()

    def end(self) -> bool:
        self.asked.append("end")
        return self.done


class Calling(Place):
    """Calls what it stands in for."""

    def __init__(self, host: LoopThread) -> None:
        super().__init__()
        self._host = host

    def begin(self) -> bool:
        self._host.run_here(where(), Place())
        return True


@pytest.fixture
def host() -> Iterator[LoopThread]:
    thread = LoopThread("host")
    yield thread
    thread.stop()


async def where() -> tuple[int, asyncio.AbstractEventLoop]:
    return threading.get_ident(), asyncio.get_running_loop()


def test_what_need_not_wait_runs_in_the_place_of_the_loop(host: LoopThread) -> None:
    for _ in range(3):
        place = Place()
        assert host.run_here(where(), place) == (threading.get_ident(), host.loop)
        assert place.asked == ["begin", "end"]
    assert asyncio._get_running_loop() is None
    assert host.run(where())[0] != threading.get_ident()


def test_what_waits_gets_it_from_the_place(host: LoopThread) -> None:
    async def ask() -> int:
        future = asyncio.get_running_loop().create_future()
        made.append(future)
        await future
        return threading.get_ident()

    def bring() -> bool:
        if len(place.asked) == 3:
            made[0].set_result(None)
        return True

    made: list[asyncio.Future[None]] = []
    place = Place(brings=bring)
    assert host.run_here(ask(), place) == threading.get_ident()
    assert place.asked == ["begin", "wait", "wait", "end"]


def test_what_waits_for_longer_goes_on_as_a_task(host: LoopThread) -> None:
    async def ask() -> tuple[int, ...]:
        idents = [threading.get_ident()]
        await asyncio.sleep(0.001)
        idents.append(threading.get_ident())
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        return tuple(idents)

    first, second = host.run_here(ask(), Place())
    assert first == threading.get_ident() != second


def test_an_error_of_a_task_that_began_in_the_place_of_the_loop_arrives(host: LoopThread) -> None:
    async def fail(seconds: float) -> None:
        with contextlib.suppress(ZeroDivisionError):
            await nothing(seconds)
        raise ValueError("planted")

    async def nothing(seconds: float) -> None:
        await asyncio.sleep(seconds)
        raise ZeroDivisionError

    for seconds in (0, 0.001):
        with pytest.raises(ValueError, match="planted"):
            host.run_here(fail(seconds), Place())


def test_what_may_not_begin_runs_on_the_loop(host: LoopThread) -> None:
    place = Place(begins=False)
    assert host.run_here(where(), place)[0] != threading.get_ident()
    assert place.asked == ["begin"]


def test_a_loop_that_rests_has_its_timers_and_serves_others(host: LoopThread) -> None:
    fired, served = threading.Event(), threading.Event()
    host.run_here(where(), Place())
    host.loop.call_soon_threadsafe(host.loop.call_later, 0.001, fired.set)
    other = threading.Thread(target=lambda: (host.run(where()), served.set()), daemon=True)
    other.start()
    for event in (fired, served):
        while not event.is_set():
            host.run_here(where(), Place())
    other.join()


def test_the_place_is_asked_for_again_where_the_rest_ended_before_it_was_taken(
    host: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest, rests = host._rest, list[None]()

    def rung_out_at_first() -> None:
        rests.append(None)
        if len(rests) > 1:
            rest()

    monkeypatch.setattr(host, "_rest", rung_out_at_first)
    assert host.run_here(where(), Place())[0] == threading.get_ident()
    assert len(rests) > 1


def test_a_loop_goes_on_at_once_where_something_is_left(host: LoopThread) -> None:
    rung: list[bool] = []
    host.run_here(where(), Place())
    ring = host._ring
    host._ring = lambda: (rung.append(host._resting), ring())  # type: ignore[assignment]
    host.run_here(where(), Place())
    assert not rung[1:]
    host.run_here(where(), Place(done=False))
    assert rung


def test_a_handler_that_comes_in_cannot_wait_for_the_loop(host: LoopThread) -> None:
    async def call() -> None:
        host.run(where())

    with pytest.raises(ConfigError, match="'host' and was made on it"):
        host.run_here(call(), Place())
    with pytest.raises(ConfigError, match="'host' and was made on it"):
        host.run_here(where(), Calling(host))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_place_is_left_wherever_a_signal_comes_in(host: LoopThread) -> None:
    async def ask() -> None:
        await asyncio.sleep(0)

    for interruption in at_each_line(stop):
        with contextlib.suppress(Stop):
            interruption.during(lambda: host.run_here(ask(), Place()))
        assert asyncio._get_running_loop() is None
        assert host.run(where(), 5.0)[0] != threading.get_ident()
        assert host.run_here(where(), Place())[0] == threading.get_ident()


def test_nothing_takes_the_place_of_a_loop_that_has_ended(host: LoopThread) -> None:
    host.run_here(where(), Place())
    host.stop()
    for _ in range(2):
        with pytest.raises(ClientClosed):
            host.run_here(where(), Place())
