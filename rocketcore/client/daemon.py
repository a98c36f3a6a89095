"""The application's plain functions, called for an event loop on daemon threads.

``asyncio.to_thread`` uses the loop's executor, for whose threads both ``asyncio.run()`` and the end of the interpreter
wait: a checker or a handler that hangs would keep the program from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["call_on_daemon"]

T = TypeVar("T")


async def call_on_daemon(name: str, function: Callable[..., T], *arguments: object) -> T:
    """Call a function on a daemon thread of its own and return what it returns; who is cancelled leaves it running."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(function, *arguments)
        except StopIteration as error:  # no future of asyncio takes that
            failure = RuntimeError(f"{function!r} raised StopIteration")
            failure.__cause__ = error
            done.set_exception(failure)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await asyncio.wrap_future(done)
