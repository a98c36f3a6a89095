"""What sends the messages of ``send_nowait`` in a blocking program: an accumulator, on a loop in a thread.

All producers of a process have one such loop, which is there as long as one of them is open: a program may have
hundreds of producers. So a callback runs on the loop of every other producer, too. While one does not return, producers
that begin get another loop, and those that wait for this one give up in the end.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Final

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.config import ProducerConfig
from rocketcore.client.loop_thread import LoopThread
from rocketcore.client.runtime import LOOP_BESIDE_THREADS
from rocketcore.client.sender import Sender
from rocketcore.errors import RequestTimeout
from rocketcore.transport.blocking.client import run_sync
from rocketcore.transport.client import RemotingClient

__all__ = ["Nowait"]


class _SharedLoop:
    """A loop thread with users, which starts with the first and ends with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards the rest; a signal's handler may come in
        self._thread: LoopThread | None = None
        self._users: dict[LoopThread, int] = {}
        os.register_at_fork(after_in_child=self._start_over)

    def _start_over(self) -> None:
        """Know, in a child, of no thread: it is the parent's."""
        self._lock = threading.RLock()
        self._thread, self._users = None, {}

    def take(self) -> LoopThread:
        with self._lock:
            if self._thread is None or not self._thread.alive:
                self._thread = LoopThread("producer-nowait")
            self._users[self._thread] = self._users.get(self._thread, 0) + 1
            return self._thread

    def replace(self, thread: LoopThread) -> None:
        """Let those that come have another thread: this one stands still."""
        with self._lock:
            if thread is self._thread:
                self._thread = None

    def leave(self, thread: LoopThread) -> None:
        with self._lock:
            if thread not in self._users:  # of the parent process
                return
            self._users[thread] -= 1
            last = self._users[thread] == 0
            if last:
                del self._users[thread]
                if thread is self._thread:
                    self._thread = None
        if last:
            thread.stop(0.0 if thread.stands else STOP_SECONDS)


_SHARED = _SharedLoop()

OPEN_SECONDS: Final = 1.0
"""A loop that does not turn for so long is not for a producer that begins."""
STANDS_SECONDS: Final = 5.0
"""A loop that does not turn for so long, after all was to be done, is not waited for any more."""
STOP_SECONDS: Final = 5.0


class Nowait:
    """The accumulator, the loop, and connections of that loop; beside the ``Sender`` of a blocking producer."""

    def __init__(self, config: ProducerConfig, logic: Sender) -> None:
        self._delivery_timeout = config.delivery_timeout
        while not self._begin(config, logic):
            pass

    def _begin(self, config: ProducerConfig, logic: Sender) -> bool:
        """Open on the loop that all share; False: it stands still, and the next to ask for one gets another."""
        self._thread = _SHARED.take()
        try:
            opening = self._open(config, logic)
            # The first message of a producer may be sent in a callback of another one: there is nothing to wait for.
            opened = run_sync(opening) if self._thread.is_current else self._thread.run(opening, OPEN_SECONDS, margin=0)
            self._remoting, self.accumulator = opened
        except TimeoutError:
            _SHARED.replace(self._thread)
            _SHARED.leave(self._thread)
            return False
        except BaseException:
            _SHARED.leave(self._thread)
            raise
        return True

    @staticmethod
    async def _open(config: ProducerConfig, logic: Sender) -> tuple[RemotingClient, Accumulator]:
        remoting = RemotingClient(name="producer-nowait", **config.remoting)
        return remoting, Accumulator(logic.beside(remoting, LOOP_BESIDE_THREADS), config)

    @property
    def is_current(self) -> bool:
        """Whether the caller is a callback of a ``SendFuture``, of whichever producer."""
        return self._thread.is_current

    def flush(self) -> None:
        try:
            self._thread.run(self.accumulator.drain(), self._delivery_timeout, margin=STANDS_SECONDS)
        except TimeoutError as error:
            raise self._hangs("flush()") from error
        self.accumulator.tell()

    def _hangs(self, call: str) -> RequestTimeout:
        return RequestTimeout(
            f"{call}: a callback of send_nowait does not return, and nothing can be sent meanwhile:"
            f" {self._thread.where()}"
        )

    def close(self, timeout: float | None) -> None:
        try:
            bound = self._delivery_timeout if timeout is None else timeout
            self._thread.run(self._close(timeout), bound, margin=STANDS_SECONDS)
        except TimeoutError as error:
            self.accumulator.abandon(self._thread.where())
            self._thread.leave_to(self._close(0.0))  # it may return yet: connections are not to wait for the collector
            raise self._hangs("close()") from error
        finally:
            _SHARED.leave(self._thread)

    async def _close(self, timeout: float | None) -> None:
        try:
            await self.accumulator.close(timeout)
        finally:
            try:
                await self._remoting.close()
            except asyncio.CancelledError:  # the loop ends
                await self._remoting.close()
                raise
