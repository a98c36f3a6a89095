"""Requests that were asked over one connection of an event loop and have no answer yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport import exchange

__all__ = ["Outstanding"]

logger = logging.getLogger(__name__)


class Outstanding:
    """The table of one connection, by opaque."""

    __slots__ = ("_loop", "_monotonic", "_table")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._loop = asyncio.get_running_loop()
        self._monotonic = monotonic
        self._table: dict[int, tuple[asyncio.Future[RemotingCommand], asyncio.TimerHandle, int]] = {}

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, opaque: int) -> bool:
        return opaque in self._table

    def add(
        self, command: RemotingCommand, address: str, timeout: float, on_deadline: Callable[[float], None]
    ) -> asyncio.Future[RemotingCommand]:
        """Return the future of the answer to a request whose opaque is not in use.

        on_deadline  called where the deadline comes without an answer, also where the caller has left, with the
                     monotonic seconds of when the request was sent
        """
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        late = self._loop.call_later(
            timeout, self._expire, future, command, address, timeout, self._monotonic(), on_deadline
        )
        self._table[command.opaque] = future, late, command.code
        return future

    def answered(self, answer: RemotingCommand, address: str) -> None:
        """Give an answer, which came from ``address``, to whoever waits for it."""
        entry = self._table.pop(answer.opaque, None)
        if entry is None:
            logger.debug("late answer remote=%s opaque=%d", address, answer.opaque)
            return
        future, late, _ = entry
        late.cancel()
        if not future.done():
            future.set_result(answer)

    def leave(self, opaque: int, future: asyncio.Future[RemotingCommand]) -> None:
        """Forget a request whose caller does not wait any more; its deadline still comes."""
        entry = self._table.get(opaque)
        if entry is not None and entry[0] is future:
            del self._table[opaque]

    def fail(self, address: str, cause: str) -> None:
        """End all requests with ConnectionLost."""
        table, self._table = self._table, {}
        for future, late, code in table.values():
            late.cancel()
            if not future.done():
                future.set_exception(exchange.lost(code, address, cause))

    def _expire(
        self,
        future: asyncio.Future[RemotingCommand],
        command: RemotingCommand,
        address: str,
        timeout: float,
        began: float,
        on_deadline: Callable[[float], None],
    ) -> None:
        self.leave(command.opaque, future)
        if not future.done():
            future.set_exception(exchange.no_answer(command.code, address, timeout))
        on_deadline(began)
