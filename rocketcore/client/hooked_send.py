"""A send that hooks see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rocketcore._fast.properties import decode_properties
from rocketcore.client.hooks import SendContext, SendHook, call_hooks
from rocketcore.client.outgoing import Outgoing, with_added
from rocketcore.client.send_command import SendTarget
from rocketcore.message import SendResult
from rocketcore.service import Clock

__all__ = ["seen_by_hooks"]

T = TypeVar("T")


async def seen_by_hooks(
    hooks: Sequence[SendHook],
    clock: Clock,
    group: str,
    target: SendTarget,
    outgoing: Outgoing,
    send: Callable[[SendContext, Outgoing], Awaitable[T]],
    *,
    oneway: bool = False,
) -> T:
    """Return what ``send`` returns, which hooks see before and after."""
    context = SendContext(
        group=group,
        queue=target.queue,
        address=target.address,
        msg_id=outgoing.msg_id,
        body=outgoing.body,
        properties=decode_properties(outgoing.properties.encode()),
        batch=outgoing.batch,
        begun_at=clock.time_millis(),
        oneway=oneway,
    )
    call_hooks([hook.before_send for hook in hooks], context)
    begun = clock.monotonic()
    try:
        if context.added and not outgoing.batch:
            text = with_added(outgoing.properties, target.queue.topic, context.added)
            outgoing = outgoing._replace(properties=text)
        result = await send(context, outgoing)
        if isinstance(result, SendResult):
            context.result = result
        return result
    except BaseException as error:
        context.error = error
        raise
    finally:
        context.seconds = clock.monotonic() - begun
        call_hooks([hook.after_send for hook in hooks], context)
