"""What a client holds of messages that it popped, and tells brokers of them: acknowledged, or invisible for longer.

Nobody waits for a broker to say so: what is said of messages of one broker while an answer is outstanding leaves
together in the next request. A request that fails is made again as long as the messages are invisible.

RocketMQ 5.5.0: ``DefaultMQPushConsumerImpl.ackAsync``, ``changePopInvisibleTimeAsync``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final

from rocketcore.client import pop_api
from rocketcore.client.config import MAX_INVISIBLE_SECONDS, check_invisible
from rocketcore.client.instance import ClientInstance
from rocketcore.client.pop_api import MAX_BATCH_SPAN
from rocketcore.errors import (
    AcksFailed,
    ClientClosed,
    ForkedClient,
    InvisibleTimeOver,
    RequestNotSupported,
    RocketError,
    RouteNotFound,
)
from rocketcore.message import ConsumeResult, ReceivedMessage
from rocketcore.protocol.pop_info import Handle
from rocketcore.service import Backoff, Clock, Seldom
from rocketcore.warning import warn

__all__ = ["Receipt", "Receipts"]

logger = logging.getLogger(__name__)

ACKS_AT_ONCE: Final = 1024
CHANGES_AT_ONCE: Final = 64
REQUEST_TIMEOUT: Final = 3.0
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
GIVE_BACK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""After how long a message comes again that failed, by how often it was redelivered before; as Java has it."""


def retry_seconds(reconsume_times: int) -> float:
    """Return after how long a message comes again that failed and was redelivered so often before."""
    return _RETRY_SECONDS[min(reconsume_times, len(_RETRY_SECONDS) - 1)]


class Receipt:
    """One popped message: by what it is acknowledged, and until when. It takes what its message is told.

    topic     the one that the message was sent to
    deadline  monotonic time at which it comes again; never later than the broker's
    settled   nothing more is to be said of it
    """

    __slots__ = ("_receipts", "deadline", "handle", "seconds", "settled", "topic")

    def __init__(self, receipts: Receipts, topic: str, handle: Handle, deadline: float) -> None:
        self._receipts = receipts
        self.topic = topic
        self.handle = handle
        self.deadline = deadline
        self.seconds = handle.invisible_time / 1000
        self.settled = False

    def __call__(self, message: ReceivedMessage, result: ConsumeResult, delay: float | None) -> None:
        """Acknowledge the message, or have it come again after ``delay`` seconds."""
        if self.settled:
            return
        self._receipts.check_time(self, message.msg_id)
        if result is ConsumeResult.SUCCESS:
            self._receipts.say(self, None)
        else:
            seconds = retry_seconds(message.reconsume_times) if delay is None else delay
            self._receipts.say(self, min(max(1.0, seconds), MAX_INVISIBLE_SECONDS))
        self.settled = True

    def change_invisible(self, message: ReceivedMessage, seconds: float) -> None:
        """Have the message be invisible for so long from now."""
        check_invisible(seconds)
        if self.settled:
            raise InvisibleTimeOver(f"message {message.msg_id} has been acknowledged or given back")
        self._receipts.check_time(self, message.msg_id)
        self._receipts.say(self, seconds)

    def __repr__(self) -> str:
        return f"Receipt({self.topic!r}, {self.handle.encode()!r})"


class _Word:
    """What is to be said of one message.

    seconds  its new invisible time; None: it is acknowledged
    before   the receipt's deadline as long as the broker has not been told
    """

    __slots__ = ("before", "receipt", "seconds")

    def __init__(self, receipt: Receipt, seconds: float | None) -> None:
        self.receipt = receipt
        self.seconds = seconds
        self.before = receipt.deadline

    @property
    def deadline(self) -> float:
        """Until when the broker may be told."""
        return min(self.before, self.receipt.deadline) if self.seconds is not None else self.receipt.deadline


class Receipts:
    """Tells brokers what became of popped messages; ``say`` may be called on any thread, all else on the loop."""

    def __init__(self, instance: ClientInstance, group: str, clock: Clock) -> None:
        self._instance = instance
        self._group = group
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._said: deque[_Word] = deque()
        self._planned = False
        self._closed = False
        self.forked = False
        """Whether this is a child, which has no loop to tell brokers by."""
        self._waiting: dict[str, deque[_Word]] = {}
        self._senders: dict[str, asyncio.Task[None]] = {}
        self._no_batches: set[str] = set()
        """Brokers that do not know acknowledgements of several messages; those of 5.0 do not."""
        self._failed = 0
        self._first: BaseException | None = None
        self._warn = Seldom(60.0, clock)

    # What messages say

    def check_time(self, receipt: Receipt, msg_id: str) -> None:
        """Raise InvisibleTimeOver for a message that comes again, ClientClosed where nobody can be told."""
        if self.forked:
            raise ForkedClient("the consumer was started by the parent process, which acknowledges its messages")
        if self._closed:
            raise ClientClosed("the consumer is closed: its message comes again when its invisible time is over")
        late = self._clock.monotonic() - receipt.deadline
        if late >= 0:
            raise InvisibleTimeOver(
                f"message {msg_id} was invisible for {receipt.seconds:g} s, which were over {late:.3f} s ago:"
                " it is delivered again"
            )

    def say(self, receipt: Receipt, seconds: float | None) -> None:
        """Acknowledge a message, or have it be invisible for ``seconds`` from now; any thread."""
        word = _Word(receipt, seconds)
        if seconds is not None:  # what follows counts from now; if the broker is not told, the time before does
            receipt.deadline = self._clock.monotonic() + seconds
            receipt.seconds = seconds
        self._said.append(word)
        if threading.get_ident() == self._loop_thread:
            if not self._planned:
                self._planned = True
                self._loop.call_soon(self._collect)
        elif not self._planned:
            self._planned = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:
                raise ClientClosed("the consumer is closed") from None

    def acknowledge(self, receipts: Iterable[Receipt]) -> None:
        """Acknowledge messages that nobody sees."""
        for receipt in receipts:
            receipt.settled = True
            self.say(receipt, None)

    def give_back(self, receipt: Receipt) -> None:
        """Let other members have soon what nobody here has seen."""
        if receipt.deadline > self._clock.monotonic() + GIVE_BACK_SECONDS:
            receipt.settled = True
            self.say(receipt, GIVE_BACK_SECONDS)

    # Sending

    def _collect(self) -> None:
        self._planned = False
        while self._said:
            word = self._said.popleft()
            broker = word.receipt.handle.broker
            self._waiting.setdefault(broker, deque()).append(word)
            if broker not in self._senders:
                task = self._loop.create_task(self._send(broker), name=f"consumer-acks-{broker}")
                self._senders[broker] = task

    async def _send(self, broker: str) -> None:
        """Say what there is to say to one broker, until nothing is left."""
        waiting = self._waiting[broker]
        pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        try:
            while waiting:
                words = self._next(waiting)
                left = await self._attempt(broker, words)
                if not left:
                    pauses.reset()
                    continue
                waiting.extendleft(reversed(left))
                await asyncio.sleep(pauses.next())
        finally:
            del self._senders[broker]

    def _next(self, waiting: deque[_Word]) -> list[_Word]:
        """Return what is said next: changes, in the order in which they were asked for, or acknowledgements."""
        changes = waiting[0].seconds is not None
        limit = CHANGES_AT_ONCE if changes else ACKS_AT_ONCE
        words: list[_Word] = []
        seen: set[int] = set()
        while waiting and len(words) < limit and (waiting[0].seconds is not None) == changes:
            if id(waiting[0].receipt) in seen:
                break
            seen.add(id(waiting[0].receipt))
            words.append(waiting.popleft())
        return words

    async def _attempt(self, broker: str, words: Sequence[_Word]) -> list[_Word]:
        """Try once; return what is to be tried again."""
        in_time = [word for word in words if self._in_time(word)]
        if not in_time:
            return []
        if in_time[0].seconds is not None:
            outcomes = await asyncio.gather(*(self._tried([word], self._change(broker, word)) for word in in_time))
            return [word for outcome in outcomes for word in outcome]
        single = [word for word in in_time if broker in self._no_batches or self._span(word) > MAX_BATCH_SPAN]
        several = [word for word in in_time if word not in single]
        if len(several) == 1:
            single, several = [*single, *several], []
        left: list[_Word] = []
        if several:
            left += await self._tried(several, self._acknowledge_all(broker, several))
        for start in range(0, len(single), CHANGES_AT_ONCE):
            some = single[start : start + CHANGES_AT_ONCE]
            outcomes = await asyncio.gather(*(self._tried([word], self._acknowledge(broker, word)) for word in some))
            left += [word for outcome in outcomes for word in outcome]
        return left

    def _in_time(self, word: _Word) -> bool:
        if self._clock.monotonic() < word.deadline:
            return True
        self._fail([word], InvisibleTimeOver("the invisible time was over before the broker could be told"))
        return False

    @staticmethod
    def _span(word: _Word) -> int:
        return word.receipt.handle.queue_offset - word.receipt.handle.start_offset

    async def _tried(self, words: list[_Word], attempt: Awaitable[None]) -> list[_Word]:
        """Return the messages of an attempt that is to be made again."""
        try:
            await attempt
        except RequestNotSupported as error:
            broker = words[0].receipt.handle.broker
            if len(words) > 1 and broker not in self._no_batches:
                self._no_batches.add(broker)
                return words
            self._fail(words, error)
        except RocketError as error:
            if error.refresh_route:
                await self._instance.try_refresh(words[0].receipt.topic)
            if error.retriable or isinstance(error, RouteNotFound):  # it may come back
                logger.info("not acknowledged yet group=%s count=%d error=%s", self._group, len(words), error)
                return words
            self._fail(words, error)
        return []

    async def _acknowledge_all(self, broker: str, words: list[_Word]) -> None:
        acks = [(word.receipt.topic, word.receipt.handle) for word in words]
        address = self._instance.routes.publish_address(broker)
        await pop_api.ack_messages(self._instance.remoting, address, self._group, acks, REQUEST_TIMEOUT)

    async def _acknowledge(self, broker: str, word: _Word) -> None:
        receipt = word.receipt
        address = self._instance.routes.publish_address(broker)
        await pop_api.ack_message(
            self._instance.remoting, address, self._group, receipt.topic, receipt.handle, REQUEST_TIMEOUT
        )

    async def _change(self, broker: str, word: _Word) -> None:
        receipt, seconds = word.receipt, word.seconds
        assert seconds is not None
        address = self._instance.routes.publish_address(broker)
        asked_at = self._clock.monotonic()
        receipt.handle = await pop_api.change_invisible_time(
            self._instance.remoting, address, self._group, receipt.topic, receipt.handle, seconds, REQUEST_TIMEOUT
        )
        receipt.deadline = asked_at + seconds

    def _fail(self, words: Sequence[_Word], error: RocketError) -> None:
        for word in words:
            if word.seconds is not None:
                word.receipt.deadline = word.before
        self._failed += len(words)
        self._first = self._first or error
        if self._warn.due() is not None:
            text = "not acknowledged, delivered again group=%s count=%d error=%s"
            warn(logger, text, self._group, len(words), error)

    # The end

    async def flush(self) -> None:
        """Wait until brokers have been told everything; raises AcksFailed for what they were not, once."""
        self._collect()
        while self._senders:
            await asyncio.wait(list(self._senders.values()))
        if self._failed:
            count, first = self._failed, self._first
            self._failed, self._first = 0, None
            assert first is not None
            raise AcksFailed(count, first)

    async def close(self, timeout: float) -> None:
        """Tell brokers what is to be told, for ``timeout`` seconds at most; what is left is delivered again."""
        self._closed = True
        try:
            async with asyncio.timeout(timeout):
                await self.flush()
        except (AcksFailed, TimeoutError) as error:
            warn(logger, "closed with acknowledgements left group=%s error=%s", self._group, error or "time is over")
        finally:
            senders = list(self._senders.values())
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)
