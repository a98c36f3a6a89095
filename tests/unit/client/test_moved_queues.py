"""Where a consumer goes on when its queue is not what it was: begun anew, shorter, reset; without sockets."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from rocketcore.client.pull import PullConsumer
from rocketcore.codes import PullSysFlag, RequestCode, ResponseCode
from rocketcore.errors import ConnectionLost
from rocketcore.message import MessageQueue
from rocketcore.protocol.command import RemotingCommand
from tests.reference.message import Stored, encode
from tests.unit.client.fakes import FakeRemoting, Outcome, route

QUEUE = MessageQueue("T", "a", 0)
SUSPEND = int(PullSysFlag.SUSPEND)


@dataclass(frozen=True)
class Content:
    """A queue with the offsets from ``first`` to ``end``, which ``began`` at a time in milliseconds."""

    end: int
    began: int
    first: int = 0
    anew_from: int | None = None
    """Where messages begin that came in place of others, later: the queue had lost its last ones."""
    anew_at: int = 500_000
    """When the first of those was stored."""

    def time(self, offset: int) -> int:
        if self.anew_from is not None and offset >= self.anew_from:
            return self.anew_at + offset
        return self.began + offset

    def record(self, offset: int) -> bytes:
        time = self.time(offset)
        body = f"{time}".encode()
        return encode(
            Stored(
                b"T", body, queue_offset=offset, physical_offset=offset * 100, store_timestamp=time,
                body_crc=zlib.crc32(body),
            )
        )  # fmt: skip


OLD = Content(end=50, began=1_000)
ANEW = Content(end=10, began=1_000_000)


class Broker(FakeRemoting):
    """Has one queue, whose content a test exchanges; holds a pull that finds nothing until it does."""

    def __init__(self, content: Content) -> None:
        super().__init__({"T": route("a", queues=1)}, self._serve)
        self.content = content
        self.offset: int | None = None
        self.later: list[Content] = []
        """What the queue is from the next pulls on, one after the other."""
        self.lost = False
        self.reset_to: int | None = None
        self.pulls = 0
        self.matches_from = 0
        """From which offset on messages match the subscription."""
        self.searches = True
        self.changed = asyncio.Event()

    def become(self, *contents: Content) -> None:
        self.later = list(contents)
        self.changed.set()

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        answer = await super().invoke(address, command, timeout)
        holds = command.code == RequestCode.PULL_MESSAGE and int((command.ext_fields or {})["sysFlag"]) & SUSPEND
        if holds and answer.code == ResponseCode.PULL_NOT_FOUND:
            await self.changed.wait()
            self.changed.clear()
            answer = await super().invoke(address, command, timeout)
        return answer

    def _serve(self, address: str, request: RemotingCommand) -> Outcome:
        fields, answer = request.ext_fields or {}, RemotingCommand.response(request)
        match request.code:
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.offset = int(fields["commitOffset"])
            case RequestCode.QUERY_CONSUMER_OFFSET if self.offset is None:
                answer.code = ResponseCode.QUERY_NOT_FOUND
            case RequestCode.QUERY_CONSUMER_OFFSET:
                answer.ext_fields = {"offset": str(self.offset)}
            case RequestCode.GET_EARLIEST_MSG_STORETIME:
                first = self.content.began + self.content.first if self.content.end else -1
                answer.ext_fields = {"timestamp": str(first)}
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP if self.searches:
                content, time = self.content, int(fields["timestamp"])
                later = (each for each in range(content.first, content.end) if content.time(each) >= time)
                answer.ext_fields = {"offset": str(next(later, content.end))}
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                answer.code = ResponseCode.SYSTEM_ERROR
            case RequestCode.PULL_MESSAGE:
                looks = fields.get("subscription") == "*" and fields["maxMsgNums"] == "1"
                return self._pulled(answer, int(fields["queueOffset"]), int(fields["maxMsgNums"]), looks)
        return answer

    def _pulled(self, answer: RemotingCommand, offset: int, count: int, looks: bool) -> Outcome:
        self.pulls += 1
        if self.later and not looks:
            self.content = self.later.pop(0)
        if self.lost:
            self.lost = False
            return ConnectionLost("away")
        content, following = self.content, offset
        if self.reset_to is not None:
            answer.code, following, answer.remark = ResponseCode.PULL_OFFSET_MOVED, self.reset_to, "OFFSET_RESET"
            self.reset_to = None
        elif offset > content.end or (offset and not content.end):
            answer.code, following = ResponseCode.PULL_OFFSET_MOVED, content.end
        elif offset < content.first:
            answer.code, following = ResponseCode.PULL_OFFSET_MOVED, content.first
        elif offset == content.end:
            answer.code = ResponseCode.PULL_NOT_FOUND
        else:
            following = min(offset + count, content.end)
            found = range(offset if looks else max(offset, self.matches_from), following)
            answer.body = b"".join(map(content.record, found))
            if not found:
                answer.code = ResponseCode.PULL_RETRY_IMMEDIATELY
        answer.ext_fields = {
            "nextBeginOffset": str(following), "minOffset": str(content.first), "maxOffset": str(content.end),
            "suggestWhichBrokerId": "0",
        }  # fmt: skip
        return answer


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await body()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketcore.client.queue_reader.PULL_DELAY_ON_ERROR", 0.001)


async def reading(broker: Broker, offset: int) -> PullConsumer:
    """Return a consumer that has been given the queue at an offset."""
    consumer = PullConsumer(group="G", pull_batch_size=100)
    await consumer.start()
    consumer.instance.remoting = broker
    consumer.instance.routes.update("T", broker.routes["T"], inherited=False)
    consumer.add_subscription("T", None, None)
    await consumer.offsets.read(QUEUE)
    consumer.own(QUEUE, offset)
    return consumer


async def polled(consumer: PullConsumer, count: int) -> list[int]:
    """Poll until so many messages have come, and then once more without waiting."""
    offsets: list[int] = []
    while len(offsets) < count:
        offsets += [message.offset for message in await consumer.poll(5.0)]
    return offsets + [message.offset for message in await consumer.poll(0.02)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the consumer's inner state has no event
        await asyncio.sleep(0)


EMPTY = Content(end=0, began=0)


@pytest.mark.parametrize(
    ("later", "stored", "come"),
    [
        pytest.param([ANEW], None, range(10), id="begun anew"),
        pytest.param([EMPTY, EMPTY, EMPTY, ANEW], None, range(10), id="empty at first"),
        pytest.param([ANEW], 3, range(3, 10), id="begun anew, another member has stored"),
        pytest.param([ANEW], 70, range(10), id="begun anew, an offset of before is stored"),
        pytest.param([replace(ANEW, first=4)], None, range(4, 10), id="begun anew, the first messages are deleted"),
        pytest.param([EMPTY, replace(ANEW, end=80)], None, range(80), id="empty, then longer than before"),
        pytest.param([replace(OLD, end=45), replace(OLD, end=55)], None, range(50, 55), id="shorter for a moment"),
        pytest.param([EMPTY, EMPTY, replace(OLD, end=55)], None, range(50, 55), id="unknown for a moment"),
        pytest.param([replace(OLD, end=45)] * 3 + [replace(OLD, end=47)], None, range(45, 47), id="its end is lost"),
        pytest.param([replace(OLD, end=45)] * 3 + [replace(OLD, end=47)], 40, range(45, 47), id="lost, and behind"),
    ],
)
def test_where_a_reader_goes_on_in_a_queue_that_ends_before_it(
    later: list[Content], stored: int | None, come: range, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        broker = Broker(OLD)
        consumer = await reading(broker, 0)
        assert await polled(consumer, 50) == list(range(50))
        await consumer.commit()
        broker.offset = stored
        broker.become(*later)
        if len(later) > 3 and later[-1].began == OLD.began:  # what comes when the end is lost comes after that
            await until(lambda: len(broker.later) <= 1)
            broker.changed.set()
        assert await polled(consumer, len(come)) == list(come)
        assert consumer.position(QUEUE) == come.stop
        await consumer.commit()
        assert broker.offset == come.stop
        await consumer.close()

    run(body)
    assert ("offset moved" in caplog.text) == (come.start != 50)


@pytest.mark.parametrize("notice", ["away", "shorter"])
@pytest.mark.parametrize(
    ("content", "searches", "come"),
    [
        pytest.param(replace(OLD, anew_from=45, end=57), True, range(45, 57), id="longer than before"),
        pytest.param(replace(OLD, anew_from=45, end=50), True, range(45, 50), id="as long as before"),
        pytest.param(replace(OLD, anew_from=45, end=47), True, range(45, 47), id="shorter than before"),
        pytest.param(replace(OLD, anew_from=49, end=57), True, range(49, 57), id="one was lost"),
        pytest.param(replace(OLD, anew_from=45, end=57, first=20), True, range(45, 57), id="the first are deleted"),
        pytest.param(replace(OLD, anew_from=45, end=57), False, range(30, 57), id="times are not told"),
        pytest.param(replace(OLD, anew_from=45, end=57, anew_at=0), True, range(30, 57), id="the clock went back"),
    ],
)
def test_a_queue_that_lost_its_last_messages_is_read_on_where_others_took_their_places(
    content: Content, searches: bool, come: range, notice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketcore.client.queue_reader.STEP_BACK", 19)

    async def body() -> None:
        broker = Broker(OLD)
        broker.searches = searches
        consumer = await reading(broker, 0)
        assert await polled(consumer, 50) == list(range(50))
        broker.lost = notice == "away"
        broker.become(*[replace(OLD, end=45)] * (notice == "shorter"), content)
        assert await polled(consumer, len(come)) == list(come)
        assert consumer.position(QUEUE) == come.stop
        await consumer.close()

    run(body)


@pytest.mark.parametrize("reads", ["nothing since it started", "nothing for its filter", "nothing but an early one"])
@pytest.mark.parametrize(
    ("content", "come"),
    [
        pytest.param(replace(ANEW, end=65), range(65), id="another one, longer"),
        pytest.param(ANEW, range(10), id="another one, shorter"),
        pytest.param(replace(OLD, end=55), range(50, 55), id="the same"),
        pytest.param(replace(OLD, anew_from=45, end=57), range(45, 57), id="lost its end"),
    ],
)
def test_a_queue_is_known_again_by_who_has_read_nothing_of_it(content: Content, come: range, reads: str) -> None:
    async def body() -> None:
        broker = Broker(replace(OLD, end=20) if reads == "nothing but an early one" else OLD)
        at_end = reads == "nothing since it started"
        broker.matches_from = 0 if at_end else 19 if reads == "nothing but an early one" else 50
        broker.offset = 50 if at_end else None
        consumer = await reading(broker, 50 if at_end else 0)
        reader = consumer._readers[QUEUE]
        if reads == "nothing but an early one":
            assert await polled(consumer, 1) == [19]
            broker.matches_from = 50
            broker.become(OLD)
        await until(lambda: reader._last is not None and reader._last.offset == 49)
        await until(lambda: reader._at_end)
        broker.matches_from = 0
        broker.lost = True
        broker.become(*[OLD] * (content.began != ANEW.began), content)
        assert await polled(consumer, len(come)) == list(come)
        await consumer.close()

    run(body)


def test_a_broker_that_goes_while_it_is_looked_at_has_nothing_passed_over() -> None:
    async def body() -> None:
        broker = Broker(OLD)
        broker.matches_from = 50
        asked = broker.invoke

        async def invoke(address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
            answer = await asked(address, command, timeout)
            if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and broker.content is OLD:
                broker.lost, broker.content, broker.matches_from = True, replace(ANEW, end=65), 0
            return answer

        broker.invoke = invoke  # type: ignore[method-assign]
        consumer = await reading(broker, 0)
        assert await polled(consumer, 65) == list(range(65))
        await consumer.close()

    run(body)


def test_the_look_at_the_last_message_is_one_request_of_a_queue() -> None:
    async def body() -> None:
        broker = Broker(OLD)
        broker.offset = 50
        consumer = await reading(broker, 50)
        await until(lambda: broker.pulls == 3)
        for end in (51, 52, 53):
            broker.become(replace(OLD, end=end))
            assert await polled(consumer, 1) == [end - 1]
        await consumer.close()
        pulls = [request.ext_fields or {} for _, request in broker.asked if request.code == RequestCode.PULL_MESSAGE]
        assert [each["queueOffset"] for each in pulls if each["maxMsgNums"] == "1"] == ["49"]

    run(body)


@pytest.mark.parametrize("stored", [0, 20, 49, 50])
@pytest.mark.parametrize("first", [50, 30])
def test_messages_that_expired_unread_are_passed_over(stored: int, first: int) -> None:
    """All of them, where nothing is left, or the first ones."""

    async def body() -> None:
        emptied = replace(OLD, first=first)
        broker = Broker(emptied)
        broker.offset = stored
        consumer = await reading(broker, stored)
        begin = max(stored, first)
        assert await polled(consumer, 50 - begin) == list(range(begin, 50))
        broker.become(replace(emptied, end=55))
        assert await polled(consumer, 5) == list(range(50, 55))
        await consumer.commit()
        assert broker.offset == 55
        await consumer.close()

    run(body)


def test_an_offset_behind_the_end_of_a_queue_of_which_nothing_was_read_begins_at_its_first_message() -> None:
    async def body() -> None:
        broker = Broker(ANEW)
        broker.offset = 40
        consumer = await reading(broker, 40)
        assert await polled(consumer, 10) == list(range(10))
        await consumer.close()

    run(body)


@pytest.mark.parametrize(
    ("content", "come"), [(replace(OLD, end=55), range(50, 55)), (replace(ANEW, end=80), range(80))]
)
def test_a_broker_that_was_away_is_looked_at_whether_it_has_the_same_queue(content: Content, come: range) -> None:
    async def body() -> None:
        broker = Broker(OLD)
        consumer = await reading(broker, 0)
        assert await polled(consumer, 50) == list(range(50))
        broker.lost = True
        broker.become(OLD, content)
        assert await polled(consumer, len(come)) == list(come)
        await consumer.close()

    run(body)


def test_a_slave_that_is_late_moves_nobody() -> None:
    async def body() -> None:
        broker = Broker(OLD)
        data = broker.routes["T"]
        data.broker_datas[0].broker_addrs = {1: "a:2"}
        consumer = await reading(broker, 0)
        assert await polled(consumer, 50) == list(range(50))
        broker.become(*[replace(OLD, end=20)] * 5, replace(OLD, end=52))
        assert await polled(consumer, 2) == [50, 51]
        await consumer.close()

    run(body)


@pytest.mark.parametrize("target", [0, 20, 30, 50])
def test_a_reset_begins_there_and_nothing_from_before_is_stored_over_it(target: int) -> None:
    """Polled and not noted, polled and held, waiting to be polled: nothing of it counts any more."""

    async def body() -> None:
        broker = Broker(OLD)
        consumer = await reading(broker, 0)
        object.__setattr__(consumer.config, "auto_commit", True)
        held = await consumer.poll(5.0, max_messages=30)
        broker.reset_to = broker.offset = target
        broker.changed.set()
        process_queue = consumer._readers[QUEUE].process_queue
        await until(lambda: broker.reset_to is None and process_queue.first_offset == target)
        await consumer.commit(held[-1])
        assert broker.offset == target
        assert await consumer.poll(0.01, max_messages=1) is not None
        await consumer.close()
        assert broker.offset in (target, min(50, target + 1))

    run(body)


def test_flags_of_the_look_neither_hold_nor_commit() -> None:
    async def body() -> None:
        broker = Broker(OLD)
        consumer = await reading(broker, 0)
        assert await polled(consumer, 50) == list(range(50))
        broker.lost = True
        broker.become(replace(OLD, end=51))
        assert await polled(consumer, 1) == [50]
        looks = [
            request.ext_fields or {}
            for _, request in broker.asked
            if request.code == RequestCode.PULL_MESSAGE and (request.ext_fields or {})["queueOffset"] == "49"
        ]
        assert [(int(look["sysFlag"]), look["maxMsgNums"]) for look in looks] == [(int(PullSysFlag.SUBSCRIPTION), "1")]
        await consumer.close()

    run(body)
