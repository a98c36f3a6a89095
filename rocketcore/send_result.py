"""What becomes of what is sent: results of sends, of batches, and of replies."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, overload

from rocketcore.errors import ConfigError
from rocketcore.message_queue import MessageQueue

__all__ = ["BatchResult", "ReplyFuture", "SendResult", "SendStatus"]


class SendStatus(Enum):
    """The status of a stored message (Java: ``SendStatus``)."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of a send (Java: ``SendResult``): ``msg_id`` is the UNIQ_KEY, ``offset`` the place in the queue.

    Of a batch ``msg_id``, ``offset_msg_id`` and ``offset`` are those of its first message; ``msg_ids`` are all.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    _batch_ids: tuple[str, ...] = field(default=(), repr=False)

    @property
    def msg_ids(self) -> tuple[str, ...]:
        """The ids of all messages that were sent together, in their order; of a single message its own."""
        return self._batch_ids or (self.msg_id,)

    def __bool__(self) -> bool:
        return self.status is SendStatus.SEND_OK


@dataclass(frozen=True, slots=True)
class BatchResult(Sequence[SendResult]):
    """The result of ``send_batch``: a SendResult for each batch that left, in the order of their first messages.

    Messages of one topic, and of one message group if they have any, are one batch. It is true where each batch is
    SEND_OK, also where there was none. ``msg_id``, ``queue``, ``offset`` and ``offset_msg_id`` are those of the first
    message; without any message they raise ConfigError.

    msg_ids  of all messages, in the order in which they were given
    """

    results: tuple[SendResult, ...]
    msg_ids: tuple[str, ...]

    @property
    def status(self) -> SendStatus:
        """SEND_OK, or the first other status."""
        return next((each.status for each in self.results if not each), SendStatus.SEND_OK)

    @property
    def msg_id(self) -> str:
        return self._first.msg_id

    @property
    def offset_msg_id(self) -> str:
        return self._first.offset_msg_id

    @property
    def queue(self) -> MessageQueue:
        return self._first.queue

    @property
    def offset(self) -> int:
        return self._first.offset

    @property
    def _first(self) -> SendResult:
        if not self.results:
            raise ConfigError("no message was sent: send_batch() was given none")
        return self.results[0]

    @overload
    def __getitem__(self, place: int) -> SendResult: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[SendResult, ...]: ...

    def __getitem__(self, place: int | slice) -> SendResult | tuple[SendResult, ...]:
        return self.results[place]

    def __len__(self) -> int:
        return len(self.results)

    def __bool__(self) -> bool:
        return all(self.results)


class ReplyFuture(Future[SendResult]):
    """The future of a reply: ``await`` it on a loop, or call ``result()`` on a thread.

    loop  sends the reply: on it ``result()`` and ``exception()`` raise ConfigError, as they would wait for themselves
    """

    def __init__(self, loop: object = None) -> None:
        super().__init__()
        self._loop = loop

    def __await__(self) -> Generator[Any, None, SendResult]:
        import asyncio  # who awaits has it

        return asyncio.wrap_future(self).__await__()

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait for the result on a thread, for at most ``timeout`` seconds."""
        self._check_thread()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the failure on a thread, for at most ``timeout`` seconds; None after a success."""
        self._check_thread()
        return super().exception(timeout)

    def _check_thread(self) -> None:
        if self._loop is not None and not self.done():
            import asyncio  # who has a loop has it

            if asyncio._get_running_loop() is self._loop:
                raise ConfigError("the reply is not sent yet: await the future on its event loop")
