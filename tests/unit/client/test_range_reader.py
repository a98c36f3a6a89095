"""Reads of ranges without sockets: how many pulls are under way, and what becomes of them when a connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import pytest

from rocketcore.client.api import PullStatus
from rocketcore.client.arrow_ranges import QueueRange
from rocketcore.client.arrow_reader import RangeReader, ReadSettings
from rocketcore.client.instance import ClientInstance
from rocketcore.codes import ResponseCode
from rocketcore.errors import ConnectionLost, NoPermission, RemoteProtocolError, RequestTimeout, RocketError
from rocketcore.message import MessageQueue
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.protocol.headers.message import PullMessageResponseHeader
from rocketcore.service import ManualClock
from tests.reference.message import Stored, encode

SIZE = len(encode(Stored(topic=b"T", body=b"x", queue_offset=0)))


class Broker:
    """A connection whose requests wait until a test answers them; it is the client around it too.

    longest   messages of an answer
    misplace  queue offset → the one that the message there is sent with
    """

    def __init__(self, longest: int, high: int = 1_000_000, misplace: Callable[[int], int] = int) -> None:
        self.clock = ManualClock()
        self.high = high
        self.longest = longest
        self.misplace = misplace
        self.refreshed: list[str] = []
        self.rounds = 0
        self.patience = 0.0
        self.sent: list[tuple[RemotingCommand, asyncio.Future[RemotingCommand]]] = []
        self.remoting = self.routes = self.runtime = self
        self._known = False

    # The instance

    def find(self, topic: str) -> object:
        return self if self._known else None

    async def try_refresh(self, topic: str, timeout: float) -> None:
        self.refreshed.append(topic)
        self._known = True

    def subscribe_address(self, broker: str, broker_id: int = 0) -> tuple[str, int]:
        return "broker:1", 0

    async def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # The connection

    def invoke_nowait(
        self, address: str, command: RemotingCommand, timeout: float
    ) -> asyncio.Future[RemotingCommand] | None:
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self.sent.append((command, future))
        self.patience = timeout
        return future

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        future = self.invoke_nowait(address, command, timeout)
        assert future is not None
        return await future

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        raise AssertionError("pulls have answers")

    def close_channel(self, address: str) -> None:
        raise AssertionError("no one closes channels here")

    # The broker

    async def asked(self) -> list[tuple[int, int]]:
        """Return offset and number of the pulls under way, once no more are sent."""
        before = -1
        while len(self.sent) != before:
            before = len(self.sent)
            for _ in range(10):
                await asyncio.sleep(0)
        self.sent = [each for each in self.sent if not each[1].done()]
        return [self._range(command) for command, _ in self.sent]

    def _range(self, command: RemotingCommand) -> tuple[int, int]:
        fields = command.ext_fields or {}
        return int(fields["queueOffset"]), int(fields["maxMsgNums"])

    def answer(self, *, reverse: bool = False) -> None:
        """Answer all that is under way."""
        self.rounds += 1
        sent, self.sent = self.sent, []
        for command, future in reversed(sent) if reverse else sent:
            if not future.done():
                future.set_result(self._answer_to(command))

    def _answer_to(self, command: RemotingCommand) -> RemotingCommand:
        begin, most = self._range(command)
        end = min(self.high, begin + min(most, self.longest))
        header = PullMessageResponseHeader(
            next_begin_offset=end, min_offset=0, max_offset=self.high, suggest_which_broker_id=0
        )
        queue_id = int((command.ext_fields or {})["queueId"])
        body = b"".join(
            encode(Stored(topic=b"T", body=b"x", queue_offset=self.misplace(at), queue_id=queue_id))
            for at in range(begin, end)
        )
        response = RemotingCommand.response(command, int(PullStatus.FOUND.value), None, header, body)
        [answer] = FrameDecoder().feed(response.encode())
        return answer

    def fail(self, error: RocketError) -> None:
        sent, self.sent = self.sent, []
        for _, future in sent:
            if not future.done():
                future.set_exception(error)


def reader_of(broker: Broker, ranges: Iterable[tuple[int, int, int]], **settings: Any) -> RangeReader:
    """A reader of ranges of the queues with these ids, from one offset up to another."""
    queue_ranges = [QueueRange(MessageQueue("T", "b", queue), begin, end) for queue, begin, end in ranges]
    return RangeReader(cast(ClientInstance, broker), queue_ranges, ReadSettings(**settings))


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(run())


async def rows(reader: RangeReader, broker: Broker, **options: bool) -> list[tuple[int, int]]:
    """Answer everything and return the queue ids and offsets that came, in order."""
    found: list[tuple[int, int]] = []
    done = False
    while not done:
        waiting = asyncio.create_task(reader.next_answers())
        while not waiting.done():
            if await broker.asked():
                broker.answer(**options)
        answers = waiting.result()
        done = not answers
        for batch in reader.decode(answers):
            found += zip(batch["queueId"].to_pylist(), batch["queueOffset"].to_pylist(), strict=True)
    await reader.close()
    return found


@pytest.mark.parametrize("reverse", [False, True])
def test_two_long_answers_are_under_way(reverse: bool) -> None:
    async def scenario() -> None:
        broker = Broker(longest=100)
        reader = reader_of(broker, [(0, 0, 1000)], pull_bytes=100 * SIZE, batch_bytes=100 * SIZE)
        waiting = asyncio.create_task(reader.next_answers())
        assert await broker.asked() == [(0, 1000)]
        broker.answer()
        answers = await waiting
        assert [(each.begin, each.end) for each in answers] == [(0, 100)]
        assert await broker.asked() == [(100, 100), (200, 100)]
        # Nobody takes what comes now: an answer is ready, two are on their way, and no more are asked for.
        broker.answer()
        assert await broker.asked() == [(300, 100)]
        broker.answer()
        assert await broker.asked() == []
        list(reader.decode(answers))
        assert await rows(reader, broker, reverse=reverse) == [(0, offset) for offset in range(100, 1000)]

    play(scenario)


def test_many_short_answers_are_under_way() -> None:
    async def scenario() -> None:
        broker = Broker(longest=32)
        reader = reader_of(broker, [(0, 5, 2000)])
        waiting = asyncio.create_task(reader.next_answers())
        assert await broker.asked() == [(5, 1995)]
        broker.answer()
        assert await broker.asked() == [(begin, 32) for begin in range(37, 37 + 16 * 32, 32)]
        waiting.cancel()
        assert await rows(reader, broker, reverse=True) == [(0, offset) for offset in range(5, 2000)]
        assert broker.rounds <= 6

    play(scenario)


def test_a_thousand_small_queues_do_not_wait_for_one_another() -> None:
    async def scenario() -> None:
        broker = Broker(longest=32)
        reader = reader_of(broker, [(queue, 0, 3) for queue in range(1000)])
        assert await rows(reader, broker) == [(queue, offset) for queue in range(1000) for offset in range(3)]
        assert broker.rounds <= 1000 / 16 + 2
        assert broker.refreshed == ["T"]

    play(scenario)


def test_with_a_filter_ranges_are_pulled_beside_one_another() -> None:
    async def scenario() -> None:
        broker = Broker(longest=10)
        reader = reader_of(broker, [(0, 0, 30), (1, 0, 20)], sql="a > 1")
        waiting = asyncio.create_task(reader.next_answers())
        assert await broker.asked() == [(0, 30), (0, 20)]
        broker.answer()
        assert await broker.asked() == [(10, 20)], "the other one's is judged when its turn comes"
        waiting.cancel()
        found = await rows(reader, broker)
        assert sorted(found) == [(0, offset) for offset in range(30)] + [(1, offset) for offset in range(20)]

    play(scenario)


def test_after_a_lost_connection_all_are_asked_again() -> None:
    async def scenario() -> None:
        broker = Broker(longest=10)
        reader = reader_of(broker, [(0, 0, 500), (1, 0, 5)])
        waiting = asyncio.create_task(reader.next_answers())
        await broker.asked()
        broker.answer()
        assert len(await broker.asked()) == 15, "the other queue's was answered already"
        broker.fail(ConnectionLost("broker:1: the connection broke"))
        assert await broker.asked() == [(10, 10)], "the one that is waited for, first"
        waiting.cancel()
        expected = [(0, offset) for offset in range(500)] + [(1, offset) for offset in range(5)]
        assert await rows(reader, broker) == expected
        assert broker.refreshed == ["T", "T"]

    play(scenario)


def test_a_refusal_comes_after_what_was_found() -> None:
    async def scenario() -> None:
        broker = Broker(longest=10)
        reader = reader_of(broker, [(0, 0, 100)], pull_bytes=10 * SIZE, batch_bytes=10 * SIZE)
        waiting = asyncio.create_task(reader.next_answers())
        await broker.asked()
        broker.answer()
        assert len(await waiting) == 1
        waiting = asyncio.create_task(reader.next_answers())
        while not waiting.done():
            await broker.asked()
            broker.fail(NoPermission(int(ResponseCode.NO_PERMISSION), "no", "broker:1"))
        with pytest.raises(NoPermission):
            waiting.result()
        await reader.close()

    play(scenario)


@pytest.mark.parametrize("loss", [True, False])
@pytest.mark.parametrize("settings", [{}, {"tags": "a"}, {"sql": "a > 1"}])
def test_as_many_messages_of_other_offsets_are_an_error(settings: dict[str, str], loss: bool) -> None:
    """Their number is right: half of them are there twice, the other half is missing."""

    async def scenario() -> None:
        broker = Broker(longest=100, misplace=lambda offset: offset // 2)
        with pytest.raises(RemoteProtocolError, match=r"broker='b', queue_id=7.* has offset 0 where 1 or more"):
            await rows(reader_of(broker, [(7, 0, 100)], fail_on_data_loss=loss, **settings), broker)

    play(scenario)


def test_the_wait_for_the_first_answer_is_part_of_the_time() -> None:
    async def scenario() -> None:
        broker = Broker(longest=10)
        reader = reader_of(broker, [(0, 0, 100)], timeout=10, fetch_timeout=15)
        waiting = asyncio.create_task(reader.next_answers())
        while not waiting.done():
            if await broker.asked():
                broker.clock.advance(broker.patience)
                broker.fail(RequestTimeout(f"broker:1: no answer within {broker.patience:g} s"))
        with pytest.raises(RequestTimeout, match=r"\(\d attempts within 15 s\)"):
            waiting.result()
        assert 10 < broker.clock.monotonic() <= 15.5
        await reader.close()

    play(scenario)
