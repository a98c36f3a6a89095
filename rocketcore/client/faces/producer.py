"""``rocketcore.aio.Producer``."""

from __future__ import annotations

from typing import Unpack

from rocketcore.client.blocking import constructor
from rocketcore.client.config import NameServers, ProducerConfig, ProducerOptions
from rocketcore.client.faces.guard import Face, guarded
from rocketcore.client.producer import Producer as Logic
from rocketcore.client.sender import Sender
from rocketcore.client.transaction import AsyncTransaction
from rocketcore.errors import RocketError
from rocketcore.message import Message, MessageQueue

__all__ = ["Producer"]


class Producer(Face[Logic]):
    """Sends messages on an event loop (Java: ``DefaultMQProducer``).

    Use it as ``async with``, or just send: it starts on first use; ``close()`` sends what ``send_nowait`` took, leaves
    the group and closes the connections. All methods belong to the event loop on which it is used first.

    namesrv  ``host:port``, several joined by ``;``, or a list; None: ``ROCKETMQ_NAMESRV_ADDR``, ``NAMESRV_ADDR``,
             ``127.0.0.1:9876``
    config   settings as one object; or its fields as keyword arguments, see ``ProducerConfig``
    """

    @constructor
    def __init__(
        self, namesrv: NameServers = None, *, config: ProducerConfig | None = None, **options: Unpack[ProducerOptions]
    ) -> None:
        logic = Logic(namesrv, config=config, **options)
        super().__init__(logic, f"of group {logic.config.group!r}")

    @property
    def config(self) -> ProducerConfig:
        """The settings of this producer."""
        return self._logic.config

    @property
    def client_id(self) -> str:
        """The name under which brokers know this producer."""
        return self._logic.client_id

    async def _close_after(self, error: BaseException | None) -> None:
        try:
            await self._logic.close()
        except RocketError as failure:
            if error is None:
                raise
            error.add_note(f"the producer was closed: {failure}")  # what ended the block says more

    start = guarded(Logic.start)
    send = guarded(Sender.send)
    request = guarded(Sender.request)
    send_oneway = guarded(Sender.send_oneway)
    send_batch = guarded(Sender.send_batch)
    queues = guarded(Sender.queues)
    recall = guarded(Sender.recall)
    send_arrow = guarded(Logic.send_arrow)
    send_nowait = guarded(Logic.send_nowait)
    flush = guarded(Logic.flush)
    close = guarded(Logic.close)

    def transaction(
        self, message: Message, *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> AsyncTransaction:
        """Return a transaction: ``async with`` it, or call ``begin()`` and then ``commit()`` or ``rollback()``.

        queue    the queue to send to; without it and without ``message_group`` the queues take turns
        timeout  seconds for the half message, and for its end; default: the producer's
        raises   ConfigError without ``checker``
        """
        self._guard.check()
        return AsyncTransaction(self._logic, message, queue, timeout, self, self._guard.enter)
