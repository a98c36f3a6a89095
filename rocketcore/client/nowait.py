"""What sends the messages of ``send_nowait`` in a blocking program: an accumulator, on a loop in a thread."""

from __future__ import annotations

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.config import ProducerConfig
from rocketcore.client.loop_thread import LoopThread
from rocketcore.client.runtime import LOOP_BESIDE_THREADS
from rocketcore.client.sender import Sender
from rocketcore.transport.client import RemotingClient

__all__ = ["Nowait"]


class Nowait:
    """The accumulator, its loop, and connections of that loop; beside the ``Sender`` of a blocking producer."""

    def __init__(self, config: ProducerConfig, logic: Sender) -> None:
        self._thread = LoopThread("producer-nowait")
        try:
            self._remoting, self.accumulator = self._thread.run(self._open(config, logic))
        except BaseException:
            self._thread.stop()
            raise

    @staticmethod
    async def _open(config: ProducerConfig, logic: Sender) -> tuple[RemotingClient, Accumulator]:
        remoting = RemotingClient(name="producer-nowait", **config.remoting)
        return remoting, Accumulator(logic.beside(remoting, LOOP_BESIDE_THREADS), config)

    @property
    def is_current(self) -> bool:
        """Whether the caller is a callback of a ``SendFuture``."""
        return self._thread.is_current

    def flush(self) -> None:
        self._thread.run(self.accumulator.drain())
        self.accumulator.tell()

    def close(self, timeout: float | None) -> None:
        try:
            self._thread.run(self._close(timeout))
        finally:
            self._thread.stop()

    async def _close(self, timeout: float | None) -> None:
        try:
            await self.accumulator.close(timeout)
        finally:
            await self._remoting.close()
