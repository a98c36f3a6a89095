"""What an application is told about its queues: ``on_assign`` when it has got some, ``on_revoke`` before some go.

RocketMQ 5.5.0: ``MessageQueueListener``, which is told afterwards.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging

from rocketcore.client.config import QueueListener
from rocketcore.client.daemon import call_on_daemon
from rocketcore.client.runtime import ends_this_task, returns_coroutine
from rocketcore.errors import ConfigError
from rocketcore.message import MessageQueue
from rocketcore.warning import warn

__all__ = ["is_listener", "refuse_in_listener", "tell_queues"]

logger = logging.getLogger(__name__)


class _Telling:
    """A call of a listener, and whether the consumer still waits for it; what it has begun may go on later."""

    __slots__ = ("consumer", "task", "waits", "what")

    def __init__(self, consumer: object, what: str) -> None:
        self.consumer = consumer
        self.what = what
        self.task = asyncio.current_task()
        self.waits = True


_telling: contextvars.ContextVar[_Telling | None] = contextvars.ContextVar("telling", default=None)


def is_listener(consumer: object, *, this_task: bool = False) -> bool:
    """Say whether a listener of a consumer calls, which that waits for.

    this_task  only one that runs in the task that waits, as one of asyncio's does
    """
    telling = _telling.get()
    if telling is None or telling.consumer is not consumer or not telling.waits:
        return False
    return not this_task or asyncio.current_task() is telling.task


def refuse_in_listener(consumer: object, call: str, *listeners: str) -> None:
    """Raise ConfigError where a listener of a consumer calls what waits for that listener.

    listeners  which ones; none for both
    """
    telling = _telling.get()
    if telling is not None and is_listener(consumer) and (not listeners or telling.what in listeners):
        what = telling.what
        raise ConfigError(f"{call}() in {what} would wait for {what} itself: call it when {what} has returned")


async def tell_queues(
    consumer: object,
    what: str,
    listener: QueueListener,
    queues: list[MessageQueue],
    group: str,
    seconds: float,
    *,
    on_thread: bool,
) -> None:
    """Call a listener and wait for it, for so many seconds at most; what it raises is a warning, and nothing stops.

    on_thread  call a plain function on a thread of its own: it may call a blocking consumer, which waits for the loop
    """
    telling = _Telling(consumer, what)
    token = _telling.set(telling)
    try:
        async with asyncio.timeout(seconds):
            result: object
            if on_thread and not returns_coroutine(listener):
                result = await call_on_daemon(f"consumer-{what}", listener, queues)
            else:
                result = listener(queues)
            while inspect.isawaitable(result):
                result = await result
    except TimeoutError:
        warn(logger, "%s has not returned within %g s, and is not waited for group=%s", what, seconds, group)
    except BaseException as error:
        if ends_this_task(error):
            raise
        warn(logger, "%s failed group=%s queues=%d error=%r", what, group, len(queues), error, traceback=True)
    finally:
        telling.waits = False
        _telling.reset(token)
