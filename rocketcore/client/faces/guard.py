"""Methods of the asyncio clients, made of those that they call, and the one check that all of them begin with.

A client belongs to the event loop on which it was used first: its connections and tasks are there. ``send =
guarded(Sender.send)`` in a class is a method that refuses any other loop, and any thread without one, with one clear
error. Type checkers and ``help()`` see the arguments of the method that it calls, its overloads too.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import warnings
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from rocketcore.client.blocking import of_method
from rocketcore.client.stopping import Leaving, exit_by
from rocketcore.client.tracebacks import SHORTENED, shortened
from rocketcore.errors import ConfigError, ForkedClient
from rocketcore.warning import warn

__all__ = ["Face", "Guard", "guarded", "guarded_call", "soon"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")


class Guarded(Protocol):
    """What belongs to a loop."""

    @property
    def is_open(self) -> bool:
        """Whether it has started, and not ended."""

    async def close(self) -> None:
        """Finish."""


class Logic(Guarded, Protocol):
    """What a face calls."""

    async def start(self) -> None:
        """Begin."""


LogicT = TypeVar("LogicT", bound=Logic)
_running_loop = asyncio._get_running_loop


class Guard:
    """Lets one event loop use a client; what has not started, or has ended, belongs to none.

    name  of the client, for errors
    """

    __slots__ = ("_logic", "_name", "_pid", "loop")

    def __init__(self, name: str, logic: Guarded) -> None:
        self._name = name
        self._logic = logic
        self._pid = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> bool:
        """Let the running loop use the client from now on; return whether it did not before.

        raises  ConfigError on any loop but the client's own; ForkedClient in a child of the process that started it
        """
        running = _running_loop()
        if running is not None and running is self.loop:
            return False
        if self.loop is not None and self._logic.is_open:
            raise self._refusal(running)
        if running is None:
            raise ConfigError(f"{self._name} needs a running event loop: call it in a coroutine, by asyncio.run()")
        self.loop = running
        self._pid = os.getpid()
        return True

    def check(self) -> None:
        """Refuse a call that does not wait where it is not made on the client's loop; raises as ``enter``."""
        if not self.is_here:
            raise self._refusal(_running_loop())

    @property
    def is_here(self) -> bool:
        """Whether the client may be used here: on its loop, or anywhere where it has none."""
        running = _running_loop()
        return self.loop is None or running is self.loop or not self._logic.is_open

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process whose loop the client belongs to."""
        return self.loop is not None and self._pid != os.getpid()

    def _refusal(self, running: asyncio.AbstractEventLoop | None) -> ConfigError | ForkedClient:
        assert self.loop is not None
        if self.is_forked:
            return ForkedClient(f"{self._name} was started by the parent process: make one after fork()")
        if self.loop.is_closed():
            return ConfigError(f"{self._name}: its event loop was closed; make a client in each asyncio.run()")
        if running is None:
            return ConfigError(
                f"{self._name} was called outside of its event loop: "
                "from another thread, use asyncio.run_coroutine_threadsafe()"
            )
        return ConfigError(f"{self._name} belongs to another event loop: make a client for each loop")

    def forgotten(self) -> None:
        """Complain that nobody refers to the client any more, which is open, and close it on its loop."""
        loop = self.loop
        if loop is None or self.is_forked or not self._logic.is_open:
            return
        try:
            warnings.warn(
                f"unclosed {self._name}: await close(), or use it with 'async with'", ResourceWarning, stacklevel=2
            )
        finally:
            try:
                loop.call_soon_threadsafe(_close, self._name, self._logic)
            except RuntimeError:  # the loop was closed: nothing of it can be sent any more
                _tell_unsent(self._name, self._logic)


def soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Have a loop call a function, if it is not closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def _close(name: str, logic: Guarded) -> None:
    ending = asyncio.get_running_loop().create_task(logic.close(), name="close-forgotten")
    if not _ENDING:
        atexit.register(_tell_of_the_rest)
    _ENDING[ending] = name, logic
    ending.add_done_callback(_forget_ending)


def _forget_ending(task: asyncio.Task[None]) -> None:
    name, logic = _ENDING.pop(task)
    if not _ENDING:
        atexit.unregister(_tell_of_the_rest)
    if task.cancelled():  # as asyncio.run() does with what its main function leaves behind
        _tell_unsent(name, logic)


_ENDING: Final[dict[asyncio.Task[None], tuple[str, Guarded]]] = {}
"""The loop itself holds its tasks weakly, and may be closed before they end."""


def _tell_of_the_rest() -> None:
    for name, logic in _ENDING.values():
        _tell_unsent(name, logic)


def _tell_unsent(name: str, logic: Guarded) -> None:
    if unsent := getattr(logic, "unfinished", 0):
        warn(logger, "%d messages of send_nowait were not sent: %s was not closed before its loop ended", unsent, name)


class Face(Generic[LogicT]):
    """A client of one event loop. What works for it there knows its logic and not this, which may so be forgotten."""

    def __init__(self, logic: LogicT, name: str) -> None:
        self._logic = logic
        self._guard = Guard(f"aio.{type(self).__name__} {name}", logic)
        self._finalizer = weakref.finalize(self, self._guard.forgotten)

    async def __aenter__(self) -> Self:
        self._guard.enter()
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        self._leaving = Leaving(exit_by if task is None else lambda: soon(loop, task.cancel))
        self._leaving.__enter__()
        try:
            try:
                await self._logic.start()
            except BaseException:
                await self._logic.close()
                raise
        except BaseException:
            self._leaving.restore()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; a block that SIGTERM has ended becomes the SystemExit of it."""
        self._guard.enter()
        try:
            await self._close_after(error)
        finally:
            self._leaving.restore()
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and self._leaving.signal is not None and task is not None:
            task.uncancel()
            exit_by(self._leaving.signal)

    async def _close_after(self, error: BaseException | None) -> None:
        """Close after a block that has ended with an error, or None."""
        await self._logic.close()

    def __repr__(self) -> str:
        return repr(self._logic)


def guarded(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a coroutine method that runs the one of this name of the logic, on the client's loop."""
    name = method.__name__

    async def call(self: Face[Any], /, *arguments: P.args, **options: P.kwargs) -> T:
        try:
            guard = self._guard
            running = _running_loop()
            if running is None or running is not guard.loop:  # each send comes by here: most need no call to know
                guard.enter()
            try:
                coroutine: Coroutine[Any, Any, T] = getattr(self._logic, name)(*arguments, **options)
            except TypeError as error:
                raise of_method(error, type(self), name) from None
            return await coroutine
        except SHORTENED as error:
            raise shortened(error)  # noqa: B904 (it is the same error)

    functools.update_wrapper(call, method)
    return call


def guarded_call(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the plain one of this name of the logic, on the client's loop."""
    name = method.__name__

    def call(self: Face[Any], /, *arguments: P.args, **options: P.kwargs) -> T:
        try:
            self._guard.check()
            try:
                result: T = getattr(self._logic, name)(*arguments, **options)
            except TypeError as error:
                raise of_method(error, type(self), name) from None
            return result
        except SHORTENED as error:
            raise shortened(error)  # noqa: B904 (it is the same error)

    functools.update_wrapper(call, method)
    return call
