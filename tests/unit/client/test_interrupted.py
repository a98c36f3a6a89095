"""``send_nowait`` where a signal's handler, or the end of an object, comes in at any line and sends too, or raises."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.config import ProducerConfig
from rocketcore.client.future import SendFuture
from rocketcore.client.instance import ClientInstance
from rocketcore.client.loop_thread import LoopThread
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.sender import Sender
from rocketcore.codes import RequestCode
from rocketcore.errors import ClientClosed
from rocketcore.ids import UniqKeys
from rocketcore.message import Message
from rocketcore.protocol.command import RemotingCommand
from tests.unit.client.fakes import FakeRemoting, route
from tests.unit.client.interruptions import Interruption, Stop, at_each_line, stop

pytestmark = pytest.mark.timeout(60)

WAIT = 10.0


class Held(FakeRemoting):
    """Answers sends when the test lets it."""

    def __init__(self) -> None:
        super().__init__({"T": route("a")})
        self.open = threading.Event()

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        # the test is another thread
        while command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC and not self.open.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        return await super().invoke(address, command, timeout)


class Hosted:
    """An accumulator on a loop of its own, as a blocking producer has it."""

    def __init__(self, thread: LoopThread) -> None:
        self.remoting = Held()
        self.remoting.open.set()
        self._thread = thread
        self._count = 0
        config = ProducerConfig(linger=0.001, delivery_timeout=WAIT)
        self._logic = Sender(config, ClientInstance(config, self.remoting, ASYNCIO))
        self._accumulator = thread.run(self._make(config))

    async def _make(self, config: ProducerConfig) -> Accumulator:
        await self._logic.publisher("T")
        return Accumulator(self._logic, config)

    def send(self, group: str | None = None) -> SendFuture:
        self._count += 1
        future = self._accumulator.append(Message("T", f"<{self._count}>", message_group=group), wait=True)
        assert future is not None
        return future

    def flush(self) -> None:
        self._thread.run(self._accumulator.flush(), WAIT)

    def stored(self, number: int) -> int:
        return sum(request.body.count(f"<{number}>".encode()) for _, request in self.remoting.asked)

    def close(self) -> None:
        self._thread.run(self._accumulator.close(), WAIT)

    def begin_close(self) -> Future[None]:
        """Close, as far as it goes while nothing is answered."""
        closing = asyncio.run_coroutine_threadsafe(self._accumulator.close(), self._thread.loop)
        for _ in range(3):
            self._thread.run(asyncio.sleep(0))
        return closing


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    host = LoopThread("host")
    yield host
    host.stop()


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("more", [False, True])
def test_a_send_that_is_interrupted_strands_nothing(thread: LoopThread, group: str | None, more: bool) -> None:
    for interruption in at_each_line(stop):
        hosted = Hosted(thread)
        futures = {1: hosted.send(group)}
        with contextlib.suppress(Stop):
            futures[2] = interruption.during(lambda hosted=hosted: hosted.send(group))  # type: ignore[misc]
        if more:
            futures[3] = hosted.send(group)
        for future in futures.values():
            assert future.result(WAIT)
        hosted.flush()
        assert {number: hosted.stored(number) for number in futures} == dict.fromkeys(futures, 1)
        assert hosted.stored(2) <= 1
        hosted.close()


def test_a_message_that_was_taken_when_its_send_was_interrupted_leaves_by_itself(thread: LoopThread) -> None:
    """The caller has no future; whether it leaves or not, it must not lie there until something else is sent."""
    for interruption in at_each_line(stop):
        hosted = Hosted(thread)
        with contextlib.suppress(Stop):
            interruption.during(hosted.send)
        thread.run(asyncio.sleep(0))  # the loop has done what it was told before
        assert not hosted._accumulator._coming, "it was taken, and nobody was told to send it"
        hosted.close()


@pytest.mark.parametrize("group", [None, "g"])
def test_a_handler_may_send_and_flush_at_any_line_of_a_send(thread: LoopThread, group: str | None) -> None:
    hosted = Hosted(thread)

    def handle() -> None:
        inner.append(hosted.send(group))
        hosted.flush()

    inner: list[SendFuture] = []
    outer: list[SendFuture] = []
    for interruption in at_each_line(handle):
        outer.append(interruption.during(lambda: hosted.send(group)))
    hosted.flush()
    assert all(future.done() and future.exception() is None for future in inner + outer)
    assert len({future.msg_id for future in inner + outer}) == len(inner) + len(outer)
    assert [hosted.stored(number + 1) for number in range(hosted._count)] == [1] * hosted._count


def test_a_handler_may_ask_and_flush_at_any_line_of_a_flush_or_a_question(thread: LoopThread) -> None:
    hosted = Hosted(thread)

    def handle() -> None:
        hosted.flush()
        assert future.result(WAIT)
        assert future.exception() is None

    def use() -> None:
        hosted.flush()
        assert future.result(WAIT)

    for interruption in at_each_line(handle):
        future = hosted.send()
        interruption.during(use)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a coroutine that was never run
def test_a_flush_that_is_interrupted_leaves_the_loop_alone(thread: LoopThread) -> None:
    hosted = Hosted(thread)
    for interruption in at_each_line(stop):
        future = hosted.send()
        with contextlib.suppress(Stop):
            interruption.during(hosted.flush)
        assert future.result(WAIT)
        hosted.flush()


def test_a_handler_may_make_ids_at_any_line_of_making_one() -> None:
    now = [0.0]
    keys = UniqKeys("10.0.0.9", pid=1, process_number=2, clock=lambda: now[0])
    made: list[str] = []
    number = 0
    while True:
        now[0] += 10.0  # the next id has a new stamp
        interruption = Interruption(number, lambda: made.append(keys.next()))
        made.append(interruption.during(keys.next))
        if not interruption.happened:
            break
        number += 1
    assert number > 5
    assert len(set(made)) == len(made)


def test_threads_and_their_handlers_hand_over_each_message_once(thread: LoopThread) -> None:
    hosted = Hosted(thread)
    futures: list[SendFuture] = []

    def work() -> None:
        for _ in range(300):
            future = hosted._accumulator.append(Message("T", b"x"), wait=True)
            assert future is not None
            futures.append(future)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT)
    assert all(future.result(WAIT) for future in futures)
    assert len({future.msg_id for future in futures}) == len(futures) == 1200
    ids = [future.msg_id for future in futures]
    text = b"".join(request.body + str(request.ext_fields).encode() for _, request in hosted.remoting.asked)
    assert [text.count(each.encode()) for each in ids] == [1] * 1200


def test_what_a_closing_producer_takes_it_sends(thread: LoopThread) -> None:
    closing: list[Future[None]] = []
    hosted = Hosted(thread)
    taken = 0

    def begin_close() -> None:
        closing.append(hosted.begin_close())

    for interruption in at_each_line(begin_close):
        hosted = Hosted(thread)
        hosted.remoting.open.clear()
        first = hosted.send()
        late = None
        with contextlib.suppress(ClientClosed):
            late = interruption.during(hosted.send)
        hosted.remoting.open.set()
        if closing:
            closing.pop().result(WAIT)
        assert first.result(WAIT)
        if late is not None:
            taken += 1
            assert late.result(WAIT)
    assert taken > 1, "none was taken while the producer closed"
