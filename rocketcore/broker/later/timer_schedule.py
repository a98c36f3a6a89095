"""What becomes of a message that asks for a time (Java: ``HookUtils.handleScheduleMessage``, 5.5.0)."""

from __future__ import annotations

from dataclasses import replace

from rocketcore.broker.store import StoredMessage
from rocketcore.broker.store.timed import asked_time, timer_out
from rocketcore.codes import TIMER_TOPIC, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.message import REAL_QUEUE_ID, REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS

__all__ = ["delete_key", "schedule"]


def schedule(
    message: StoredMessage, properties: dict[str, str], now: int, max_delay_seconds: int
) -> StoredMessage | None:
    """Return the message for the queue where it waits; None where it is to be stored at once.

    properties  get its real place and the second in which it leaves
    raises      BrokerError for a time that is none, that is too far, or is over already for one that takes back another
    """
    if TIMER_OUT_MS in properties or message.topic == TIMER_TOPIC:
        return None
    try:
        time = asked_time(properties, now)
    except ValueError:
        raise _illegal(max_delay_seconds) from None
    if time is None:
        return None
    if time <= now:
        if TIMER_DEL_UNIQKEY in properties:
            raise _illegal(max_delay_seconds)
        return None
    if time - now > max_delay_seconds * 1000:
        raise _illegal(max_delay_seconds)
    properties |= {
        TIMER_OUT_MS: str(timer_out(time)),
        REAL_TOPIC: message.topic,
        REAL_QUEUE_ID: str(message.queue_id),
    }
    # By a prepared transaction offset, which the commit of a half message brings, it would look like a delivery.
    return replace(message, topic=TIMER_TOPIC, queue_id=0, prepared_transaction_offset=0)


def delete_key(topic: str, unique_key: str) -> str:
    """Return the TIMER_DEL_UNIQKEY that takes a message back (Java: ``TimerMessageStore.buildDeleteKey``)."""
    return f"{topic}+{unique_key}"


def _illegal(max_delay_seconds: int) -> BrokerError:
    return BrokerError.of(
        ResponseCode.MESSAGE_ILLEGAL,
        f"timer message illegal, the delay time should not be bigger than the max delay {max_delay_seconds * 1000}ms; "
        "or if set del msg, the delay time should be bigger than the current time",
    )
