"""What an application is told about its queues: ``on_assign`` when it has got some, ``on_revoke`` before some go.

RocketMQ 5.5.0: ``MessageQueueListener``, which is told afterwards.
"""

from __future__ import annotations

import asyncio
import inspect
import logging

from rocketcore.client.config import QueueListener
from rocketcore.client.daemon import call_on_daemon
from rocketcore.client.runtime import ends_this_task, returns_coroutine
from rocketcore.message import MessageQueue
from rocketcore.warning import warn

__all__ = ["tell_queues"]

logger = logging.getLogger(__name__)


async def tell_queues(
    what: str, listener: QueueListener, queues: list[MessageQueue], group: str, seconds: float, *, on_thread: bool
) -> None:
    """Call a listener and wait for it, for so many seconds at most; what it raises is a warning, and nothing stops.

    on_thread  call a plain function on a thread of its own: it may call a blocking consumer, which waits for the loop
    """
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
