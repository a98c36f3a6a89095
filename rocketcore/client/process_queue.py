"""Messages of one queue that were pulled and are not done yet.

Messages enter in the order of their offsets and leave in any order. The offset to commit is that of the first message
still here, or one past the last that ever was: a commit never runs ahead of a message that is not done.

Not thread-safe: it belongs to the event loop of its consumer.

RocketMQ 5.5.0: ``ProcessQueue``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from rocketcore.client.config import ConsumerConfig
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.protocol.bodies.client import ProcessQueueInfo
from rocketcore.service import SYSTEM_CLOCK, Clock

__all__ = ["ProcessQueue"]


class ProcessQueue:
    """Messages of one queue between their pull and their consume result."""

    def __init__(
        self,
        queue: MessageQueue,
        next_offset: int,
        clock: Clock = SYSTEM_CLOCK,
        config: ConsumerConfig | None = None,
    ) -> None:
        self.queue = queue
        self.room = asyncio.Event()
        """Set while the next pull may begin: ``config`` bounds what is here in messages, bytes and offsets."""
        self.room.set()
        self.first_offset = next_offset
        """Where this began to be read."""
        self.polled = next_offset
        """Behind the last message that a poll returned."""
        self.unstored = False
        """Whether polls have come further than what was noted to be stored."""
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.max_offset = next_offset
        """Where commits would stand if everything here were done."""
        self.leaving = False
        """Being given up: what is worked on is finished, nothing else is handed out."""
        self.dropped = False
        self._paused = False
        self.cached_bytes = 0
        self.last_pull = clock.monotonic()
        self.last_consume: float | None = None
        """When somebody last got messages of it."""
        self.last_lock: float | None = None
        self.suspended = False
        """A message of it failed and is tried again in a moment: nothing is handed out until then."""
        self._clock = clock
        self._config = config or ConsumerConfig()
        self._last = -1
        self._messages: dict[int, ReceivedMessage] = {}
        self._waiting: deque[ReceivedMessage] = deque()
        self._handed: dict[int, float] = {}
        self.returning: set[int] = set()
        """Offsets of messages on their way back to the broker."""

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Add what a pull brought, in the order of offsets; one that is here already is left as it is.

        next_offset  where the next pull begins; what lies before it and is not in ``messages`` is not for this consumer
        """
        for message in messages:
            if message.offset not in self._messages:
                self._messages[message.offset] = message
                self._waiting.append(message)
                self.cached_bytes += len(message.body)
                self._last = message.offset
        self.next_offset = next_offset
        self.max_offset = max(self.max_offset, next_offset)
        self._check_room()

    @property
    def paused(self) -> bool:
        """Whether nothing is pulled, nor handed out."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._check_room()

    def _check_room(self) -> None:
        config = self._config
        if (
            self._paused
            or len(self._messages) >= config.pull_threshold_for_queue
            or self.cached_bytes >= config.pull_threshold_bytes_for_queue
            or self.span > config.consume_concurrently_max_span
        ):
            self.room.clear()
        else:
            self.room.set()

    def take(self, limit: int) -> list[ReceivedMessage]:
        """Return up to ``limit`` messages that no one works on, and note that someone does from now."""
        waiting = self._waiting
        taken = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        if taken:
            self.last_consume = now = self._clock.monotonic()
            for message in taken:
                self._handed[message.offset] = now
        return taken

    def peek_topic(self) -> str:
        """Return the topic of the message that would be taken next; only with a message waiting."""
        return self._waiting[0].topic

    def give_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Put taken messages back to the front; the first of them will be taken next."""
        for message in reversed(list(messages)):
            if self._handed.pop(message.offset, None) is not None:
                self._waiting.appendleft(message)

    def remove(self, message: ReceivedMessage) -> bool:
        """Take out a message that is done; False when it is not here (done before, or the queue was reset)."""
        if self._messages.pop(message.offset, None) is None:
            return False
        self._handed.pop(message.offset, None)
        self.cached_bytes -= len(message.body)
        if not self.room.is_set():
            self._check_room()
        return True

    def put_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Undo the taking and the acknowledgement of messages that were the first here."""
        self._messages = {message.offset: message for message in messages} | self._messages
        self._waiting.extendleft(reversed(messages))
        self.cached_bytes += sum(len(message.body) for message in messages)
        self._check_room()

    def displace(self, messages: Iterable[ReceivedMessage]) -> None:
        """Take out what is here at the offsets of others that come: their queue has begun anew since."""
        for message in messages:
            here = self._messages.get(message.offset)
            if here is not None and _place(here) != _place(message):
                self.remove(here)
                self._waiting = deque(each for each in self._waiting if each is not here)

    def holds(self, message: ReceivedMessage) -> bool:
        """Say whether a message is here, not done yet."""
        return self._messages.get(message.offset) is message

    def expired(self, timeout: float) -> list[ReceivedMessage]:
        """Return the messages that someone has been working on for longer than ``timeout`` seconds."""
        before = self._clock.monotonic() - timeout
        return [self._messages[offset] for offset, since in self._handed.items() if since < before]

    def clear(self) -> None:
        """Forget all messages; what is being worked on now will not count."""
        self._messages.clear()
        self._waiting.clear()
        self._handed.clear()
        self.returning.clear()
        self.cached_bytes = 0
        self._check_room()

    def restart(self, offset: int) -> None:
        """Begin at another offset, as if this were new."""
        self.clear()
        self.first_offset = self.polled = self.next_offset = self.max_offset = offset
        self.unstored = False

    @property
    def commit_offset(self) -> int:
        """The offset that may be stored: everything before it is done."""
        return next(iter(self._messages), self.max_offset)

    @property
    def waiting_count(self) -> int:
        """Messages that no one works on."""
        return len(self._waiting)

    @property
    def handed_count(self) -> int:
        """Messages that someone works on."""
        return len(self._handed)

    @property
    def span(self) -> int:
        """Queue offsets between the first and the last message here."""
        return self._last - next(iter(self._messages)) if self._messages else 0

    def info(self) -> ProcessQueueInfo:
        """Return what an administrator is shown."""
        epoch = self._clock.time_millis() - self._clock.monotonic() * 1000
        return ProcessQueueInfo(
            commit_offset=self.commit_offset,
            cached_msg_min_offset=next(iter(self._messages), 0),
            cached_msg_max_offset=self.max_offset - 1 if self._messages else 0,
            cached_msg_count=len(self._messages),
            cached_msg_size_in_mib=self.cached_bytes >> 20,
            dropped=self.dropped,
            last_pull_timestamp=round(epoch + self.last_pull * 1000),
            last_consume_timestamp=0 if self.last_consume is None else round(epoch + self.last_consume * 1000),
        )

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"ProcessQueue({self.queue!r}, messages={len(self._messages)}, next_offset={self.next_offset})"


def _place(message: ReceivedMessage) -> tuple[int, int]:
    """Return what two messages of one queue and offset differ in."""
    return message.physical_offset, message.store_timestamp
