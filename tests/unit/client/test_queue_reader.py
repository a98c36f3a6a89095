"""What a reader makes of a broker's answers to its pulls; the broker says what a test has written down for it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rocketcore.client.pull import PullConsumer
from rocketcore.client.push import PushConsumer
from rocketcore.client.queue_reader import PULL_DELAY_ON_ERROR, PULL_DELAY_ON_FLOW_CONTROL
from rocketcore.codes import MessageSysFlag, PullSysFlag, RequestCode, ResponseCode
from rocketcore.errors import RequestTimeout, RocketError
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock
from tests.reference.message import Stored, encode
from tests.unit.client.fakes import FakeRemoting, Outcome, decoded, route

QUEUE = MessageQueue("T", "a", 0)
UNSAID = -1
"""The next offset of an answer that does not name one."""


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await body()

    asyncio.run(main())


class Broker(FakeRemoting):
    """Answers pulls as written down, one after the other, and then holds them; remembers from where it was pulled."""

    def __init__(self, *answers: tuple[int, int, bytes] | RocketError) -> None:
        super().__init__({"T": route("a", queues=1)}, self._serve)
        self._answers = list(answers)
        self.pulled_at: list[int] = []
        self.may_hold: list[bool] = []
        self.committed: list[int] = []
        self.held = asyncio.Event()

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        fields = decoded(command).ext_fields or {}
        if fields.get("subscription") == "*" and fields.get("maxMsgNums") == "1":  # a look at the last message
            return RemotingCommand.response(command, ResponseCode.SYSTEM_ERROR)
        if command.code == RequestCode.PULL_MESSAGE and not self._answers:
            self.pulled_at.append(int(decoded(command).ext_fields["queueOffset"]))  # type: ignore[index]
            self.held.set()
            await asyncio.Event().wait()
        return await super().invoke(address, command, timeout)

    def _serve(self, address: str, request: RemotingCommand) -> Outcome:
        fields = request.ext_fields or {}
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.committed.append(int(fields["commitOffset"]))
        if request.code != RequestCode.PULL_MESSAGE:
            return RemotingCommand.response(request)
        self.pulled_at.append(int(fields["queueOffset"]))
        self.may_hold.append(bool(int(fields["sysFlag"]) & PullSysFlag.SUSPEND))
        answer = self._answers.pop(0)
        if isinstance(answer, RocketError):
            return answer
        code, next_offset, body = answer
        response = RemotingCommand.response(request, code, "as written", body=body)
        if next_offset != UNSAID:
            response.ext_fields = {
                "nextBeginOffset": f"{next_offset}",
                "minOffset": f"{next_offset if code == MOVED else 0}",
                "maxOffset": "1000",
                "suggestWhichBrokerId": "0",
            }
        return response


def stored(*offsets: int, body: bytes = b"x", sys_flag: int = 0) -> bytes:
    """Return messages as a broker sends them."""
    return b"".join(
        encode(
            Stored(
                b"T", body, queue_offset=offset, physical_offset=offset, sys_flag=sys_flag, body_crc=zlib.crc32(body)
            )
        )
        for offset in offsets
    )


async def pull(consumer: PullConsumer | PushConsumer, broker: Broker, offset: int) -> Any:
    """Give a consumer a queue to read from an offset, and return its process queue when the broker has said all."""
    await consumer.start()
    consumer.instance.remoting = broker
    consumer.instance.routes.update("T", broker.routes["T"], inherited=False)
    process_queue = consumer.own(QUEUE, offset).process_queue
    await broker.held.wait()
    return process_queue


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketcore.client.queue_reader.PULL_DELAY_ON_ERROR", 0.001)


FOUND, NOT_FOUND = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
AGAIN, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    ("answers", "pulled_at", "commit_offset", "committed"),
    [
        # MESSAGE_WAS_REMOVING, NO_MATCHED_MESSAGE: the units up to there point to nothing that is for us
        ([(AGAIN, 40, b""), (AGAIN, 70, b"")], [5, 40, 70], 70, []),
        # OFFSET_FOUND_NULL: the file of the queue was deleted, the broker names the next one
        ([(NOT_FOUND, 300, b"")], [5, 300], 300, []),
        # OFFSET_TOO_SMALL, OFFSET_OVERFLOW_BADLY, OFFSET_RESET, NO_MATCHED_LOGIC_QUEUE
        ([(MOVED, 300, b"")], [5, 300], 300, []),
        ([(MOVED, 0, b"")], [5, 0], 0, [0]),
        ([(FOUND, 7, stored(5, 6)), (MOVED, 300, b"")], [5, 7, 300], 5, []),
        ([(FOUND, 7, stored(5, 6)), (MOVED, 0, b"")], [5, 7, 0], 0, [0]),
        # messages, and units before and after them whose messages are deleted
        ([(FOUND, 90, stored(60, 61)), (NOT_FOUND, 90, b"")], [5, 90, 90], 60, []),
        # failures, which say nothing of where to go on
        ([(ResponseCode.SYSTEM_ERROR, UNSAID, b"")], [5, 5], 5, []),
        ([(ResponseCode.SYSTEM_BUSY, UNSAID, b"")], [5, 5], 5, []),
        ([(4711, UNSAID, b"")], [5, 5], 5, []),
        ([(NOT_FOUND, UNSAID, b"")], [5, 5], 5, []),
        ([(FOUND, 7, stored(5, 6)[:-1])], [5, 6], 5, []),
        ([(MOVED, -(2**63), b"")], [5, 5], 5, []),
        ([(FOUND, -5, stored(5, 6))], [5, 5], 5, []),
        ([(FOUND, 9, b"")], [5, 9], 9, []),
        ([RequestTimeout("lost")], [5, 5], 5, []),
    ],
)
def test_where_a_reader_goes_on_after_an_answer(
    answers: list[Any], pulled_at: list[int], commit_offset: int, committed: list[int]
) -> None:
    async def body() -> None:
        consumer, broker = PullConsumer(group="G"), Broker(*answers)
        process_queue = await pull(consumer, broker, 5)
        assert broker.pulled_at == pulled_at
        assert process_queue.commit_offset == commit_offset
        assert broker.committed == committed
        await consumer.close()

    run(body)


@pytest.mark.parametrize(
    ("code", "pause"),
    [(MOVED, PULL_DELAY_ON_ERROR), *((code, PULL_DELAY_ON_FLOW_CONTROL) for code in (FOUND, NOT_FOUND, AGAIN))],
)
def test_a_broker_that_gets_a_reader_nowhere_is_not_asked_without_a_pause(
    code: int, pause: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither is each of its answers told in the log. A pull that it may hold comes first, and comes at once."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause_for(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("rocketcore.client.queue_reader.asyncio.sleep", pause_for)

    async def body() -> None:
        consumer, broker = PullConsumer(group="G"), Broker(*[(code, 5, b"")] * 100)
        consumer.clock = ManualClock()  # each answer comes at once
        process_queue = await pull(consumer, broker, 5)
        assert (process_queue.commit_offset, broker.committed) == (5, [])
        await consumer.close()

    run(body)
    assert pauses.count(pause) >= 99
    assert len(caplog.records) < 5


def test_a_pull_is_held_only_at_the_end_of_the_queue() -> None:
    async def body() -> None:
        found = [(FOUND, 6, stored(5)), (FOUND, 1000, stored(999))]
        waiting = [(NOT_FOUND, 1000, b"")] * 2
        files_gone = [(NOT_FOUND, 300, b""), (NOT_FOUND, 600, b""), (NOT_FOUND, 600, b""), (NOT_FOUND, 600, b"")]
        for answers, may_hold in (
            (found + waiting, [False, False, True, True]),
            (files_gone, [False, False, False, True]),
            ([(AGAIN, 7, b""), (MOVED, 1000, b""), *waiting], [False, False, True, True]),
        ):
            consumer, broker = PullConsumer(group="G"), Broker(*answers)
            await pull(consumer, broker, 5)
            assert broker.may_hold == may_hold
            await consumer.close()

    run(body)


@pytest.mark.parametrize("tag", [None, "a"])
def test_what_a_broker_leaves_out_is_told(tag: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """At the beginning, in the middle and at the end of an answer, and a whole answer; a filter leaves out, too."""
    answers = [(FOUND, 10, stored(6, 7, 9)), (FOUND, 12, stored(10)), (AGAIN, 15, b""), (FOUND, 16, stored(15))]

    async def read(told: list[tuple[MessageQueue, int, int]] | None) -> None:
        consumer = PullConsumer(group="G")
        if told is not None:
            consumer.gaps.tell(lambda queue, begin, end: told.append((queue, begin, end)))
        consumer.add_subscription("T", tag, None)
        await pull(consumer, Broker(*answers), 5)
        await consumer.close()

    async def body() -> None:
        told: list[tuple[MessageQueue, int, int]] = []
        await read(told)
        assert told == ([] if tag else [(QUEUE, *gap) for gap in ((5, 6), (8, 9), (11, 12), (12, 15))])
        assert "left out" not in caplog.text
        await read(None)
        assert caplog.text.count("messages left out by the broker") == (0 if tag else 4)

    run(body)


def test_what_was_pulled_before_a_broker_deleted_it_is_handed_out(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        broker = Broker((FOUND, 7, stored(5, 6)), (MOVED, 300, b""), (FOUND, 302, stored(300, 301)))
        consumer = PullConsumer(group="G")
        consumer.add_subscription("T", None, None)
        await pull(consumer, broker, 5)
        assert [message.offset for message in await consumer.poll(5.0)] == [5, 6, 300, 301]
        assert consumer.position(QUEUE) == 302
        await consumer.close()

    run(body)
    assert "293 offsets were deleted unread group=G" in caplog.text


def test_offsets_that_the_queue_still_holds_were_reset(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        broker = Broker((FOUND, 7, stored(5, 6)), (MOVED, 5, b""), (FOUND, 7, stored(5, 6)))
        consumer = PullConsumer(group="G")
        consumer.add_subscription("T", None, None)
        await pull(consumer, broker, 5)
        assert [message.offset for message in await consumer.poll(5.0)] == [5, 6]
        await consumer.close()

    run(body)
    assert "offset moved, those of the group were reset group=G" in caplog.text


def test_an_answer_that_inflates_beyond_the_window_is_taken_as_far_as_there_is_room() -> None:
    async def body() -> None:
        large = zlib.compress(bytes(1000))
        packed = [stored(offset, body=large, sys_flag=int(MessageSysFlag.COMPRESSED)) for offset in range(10)]
        broker = Broker((FOUND, 20, b"".join(packed)), (FOUND, 20, b"".join(packed[3:])))
        consumer = PullConsumer(group="G", pull_threshold_bytes_for_queue=2500)
        await consumer.start()
        consumer.instance.remoting = broker
        consumer.instance.routes.update("T", broker.routes["T"], inherited=False)
        consumer.add_subscription("T", None, None)
        reader = consumer.own(QUEUE, 0)
        seen: list[ReceivedMessage] = []
        while len(seen) < 6:
            assert reader.process_queue.cached_bytes < 3500
            seen += await consumer.poll(5.0)
        assert [message.offset for message in seen] == list(range(6))
        assert {message.body for message in seen} == {bytes(1000)}
        assert broker.pulled_at[:2] == [0, 3]
        await consumer.close()

    run(body)
