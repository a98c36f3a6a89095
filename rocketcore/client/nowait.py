"""What sends the messages of ``send_nowait`` in a blocking program: an accumulator, on a loop in a thread.

All producers of a process have one such loop, which is there as long as one of them is open: a program may have
hundreds of producers. So a callback runs on the loop of every other producer, too.
"""

from __future__ import annotations

import os
import threading

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.config import ProducerConfig
from rocketcore.client.loop_thread import LoopThread
from rocketcore.client.runtime import LOOP_BESIDE_THREADS
from rocketcore.client.sender import Sender
from rocketcore.transport.blocking.client import run_sync
from rocketcore.transport.client import RemotingClient

__all__ = ["Nowait"]


class _SharedLoop:
    """A loop thread with users, which starts with the first and ends with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards the rest; a signal's handler may come in
        self._thread: LoopThread | None = None
        self._users = 0
        os.register_at_fork(after_in_child=self._start_over)

    def _start_over(self) -> None:
        """Know, in a child, of no thread: it is the parent's."""
        self._lock = threading.RLock()
        self._thread, self._users = None, 0

    def take(self) -> LoopThread:
        with self._lock:
            if self._thread is None or not self._thread.alive:
                self._users = 0
                self._thread = LoopThread("producer-nowait")
            self._users += 1
            return self._thread

    def leave(self, thread: LoopThread) -> None:
        with self._lock:
            if thread is not self._thread:
                last = not thread.alive  # it has ended by itself, and others have another one
            else:
                self._users -= 1
                last = self._users == 0
                if last:
                    self._thread = None
        if last:
            thread.stop()


_SHARED = _SharedLoop()


class Nowait:
    """The accumulator, the loop, and connections of that loop; beside the ``Sender`` of a blocking producer."""

    def __init__(self, config: ProducerConfig, logic: Sender) -> None:
        self._thread = _SHARED.take()
        try:
            opening = self._open(config, logic)
            # The first message of a producer may be sent in a callback of another one: there is nothing to wait for.
            opened = run_sync(opening) if self._thread.is_current else self._thread.run(opening)
            self._remoting, self.accumulator = opened
        except BaseException:
            _SHARED.leave(self._thread)
            raise

    @staticmethod
    async def _open(config: ProducerConfig, logic: Sender) -> tuple[RemotingClient, Accumulator]:
        remoting = RemotingClient(name="producer-nowait", **config.remoting)
        return remoting, Accumulator(logic.beside(remoting, LOOP_BESIDE_THREADS), config)

    @property
    def is_current(self) -> bool:
        """Whether the caller is a callback of a ``SendFuture``, of whichever producer."""
        return self._thread.is_current

    def flush(self) -> None:
        self._thread.run(self.accumulator.drain())
        self.accumulator.tell()

    def close(self, timeout: float | None) -> None:
        try:
            self._thread.run(self._close(timeout))
        finally:
            _SHARED.leave(self._thread)

    async def _close(self, timeout: float | None) -> None:
        try:
            await self.accumulator.close(timeout)
        finally:
            await self._remoting.close()
