"""When messages that wait are due: those of a delay level, and those for a time.

A message that waits is in a queue whose units say in the place of the tags code when it is due. So a start knows that
of every message without reading one.

level  the tags code of a message in SCHEDULE_TOPIC_XXXX is its store time and the delay of its level
time   a message in rmq_sys_wheel_timer says as TIMER_OUT_MS at which second it leaves, as Apache's timer rounds it: the
       last whole second before the time that was asked for. The tags code is that time, and a check of it: a start
       believes a unit that says that its time is over (``_fast/timer_heap.pyx``)

RocketMQ  schedule/ScheduleMessageService.java, util/HookUtils.java ``transformTimerMessage``, 5.5.0
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from typing import Final

from rocketcore._fast.commit_log import (
    DELAY_LEVEL,
    PHYSICAL_OFFSET,
    PROPERTIES_LENGTH,
    PROPERTIES_START,
    SIZE,
    STORE_TIMESTAMP,
    TAGS_CODE,
)
from rocketcore._fast.properties import decode_properties
from rocketcore._fast.timer_heap import timer_code
from rocketcore.codes import SCHEDULE_TOPIC, TIMER_TOPIC
from rocketcore.message import TIMER_DEL_UNIQKEY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TIMER_OUT_MS

__all__ = ["TIMED_TOPICS", "asked_time", "delivery_time", "timed_tags_code", "timer_due", "timer_out"]

TIMED_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
"""Topics whose tags codes are times."""

PRECISION_MILLIS: Final = 1000
"""Java: ``timerPrecisionMs``."""

_LATEST: Final = 1 << 42
"""The year 2109."""

_LONG = re.compile(r"[+-]?[0-9]{1,18}")


def delivery_time(store_timestamp: int, delay_level: int, levels: tuple[int, ...]) -> int:
    """Return the tags code of a message in SCHEDULE_TOPIC_XXXX: when it is due, in milliseconds since the epoch."""
    return store_timestamp + (levels[min(delay_level, len(levels)) - 1] if delay_level > 0 else 1000)


def timed_tags_code(topic: str, row: array[int], levels: tuple[int, ...], read: Callable[[int, int], bytes]) -> int:
    """Return the tags code of a message in one of ``TIMED_TOPICS``: when it is due, or that of its tags.

    row     of a walk over the log
    read    returns bytes of what was walked over, or raises OSError
    """
    if topic == SCHEDULE_TOPIC:
        level = row[DELAY_LEVEL]
        return delivery_time(row[STORE_TIMESTAMP], level, levels) if level > 0 else row[TAGS_CODE]
    properties = decode_properties(read(row[PROPERTIES_START], row[PROPERTIES_LENGTH]))
    due = timer_due(properties, row[STORE_TIMESTAMP])
    return row[TAGS_CODE] if due is None else timer_code(due, row[PHYSICAL_OFFSET], row[SIZE])


def asked_time(properties: Mapping[str, str], now: int) -> int | None:
    """Return the time for which a message asks, in milliseconds since the epoch; None where it asks for none.

    raises  ValueError for what is no number
    """
    for name, unit in ((TIMER_DELAY_SEC, 1000), (TIMER_DELAY_MS, 1)):
        if name in properties:
            return now + _number(properties[name]) * unit
    return _number(properties[TIMER_DELIVER_MS]) if TIMER_DELIVER_MS in properties else None


def timer_out(time: int) -> int:
    """Return the TIMER_OUT_MS of a time."""
    return (time - 1) // PRECISION_MILLIS * PRECISION_MILLIS


def timer_due(properties: Mapping[str, str], store_timestamp: int) -> int | None:
    """Return when a message in rmq_sys_wheel_timer is due; None where its TIMER_OUT_MS is no time.

    That is the time it asked for, within the second that its TIMER_OUT_MS begins. A message of Apache's that was put
    there again has asked before its store time: it comes at the end of that second. A message that takes others of its
    second back is due in the second's first millisecond, and none of those is.
    """
    try:
        out = _number(properties.get(TIMER_OUT_MS, ""))
    except ValueError:
        return None
    if not 0 <= out < _LATEST:
        return None
    if TIMER_DEL_UNIQKEY in properties:
        return out + 1
    end = out + PRECISION_MILLIS
    try:
        asked = asked_time(properties, store_timestamp)
    except ValueError:
        asked = None
    return end if asked is None else min(max(asked, out + 2), end)


def _number(text: str) -> int:
    if not _LONG.fullmatch(text):
        raise ValueError(f"not a number: {text!r}")
    return int(text)
