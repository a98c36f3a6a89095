"""A client whose requests go on by themselves while the program computes: its loop runs in a thread."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from rocketcore.client.config import ClientConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.loop_thread import InPlace, LoopThread
from rocketcore.client.runtime import ASYNCIO
from rocketcore.transport.client import RemotingClient

__all__ = ["LoopClient"]

T = TypeVar("T")


class LoopClient(AbstractContextManager["LoopClient"]):
    """A client of one cluster, from threads that are not a loop's.

    loop  that others use too; None: one of its own, which ends with it
    """

    def __init__(self, config: ClientConfig, loop: LoopThread | None = None) -> None:
        self.config = config
        self._own_loop = loop is None
        self._loop = loop if loop is not None else LoopThread("rocketcore-client")
        self._remoting, self.instance = self.run(self._open())

    async def _open(self) -> tuple[RemotingClient, ClientInstance]:
        remoting = RemotingClient(**self.config.remoting)
        return remoting, ClientInstance(self.config, remoting, ASYNCIO)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; tasks that it leaves behind go on meanwhile."""
        return self._loop.run(coroutine)

    def run_here(self, coroutine: Coroutine[Any, Any, T], place: InPlace) -> T:
        """Run a coroutine to its end, on this thread as far as that goes; see ``LoopThread``."""
        try:
            return self._loop.run_here(coroutine, place)
        except BaseException as error:
            if not isinstance(error, Exception):
                # What a signal's handler raised may have come in the middle of a frame: no connection is used again.
                self._loop.loop.call_soon_threadsafe(self._remoting.abort)
            raise

    def close(self) -> None:
        """End the sockets; nothing of this client may be used any more."""
        try:
            self.run(self._remoting.close())
        finally:
            if self._own_loop:
                self._loop.stop()

    def __exit__(self, *_: object) -> None:
        self.close()
