"""LatencyFaultTolerance: after a late or failed answer a broker is left alone for a while.

The table and the choice are a kernel (``rocketcore._fast.fault``), because they run once per send; here is what a
latency means. Brokers are numbered in the order in which they were met; the numbers never change.

RocketMQ 5.5.0: ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``.
"""

from __future__ import annotations

import bisect
import threading
from typing import Final

from rocketcore._fast.fault import FaultTable
from rocketcore._fast.rotation import QueueRotation
from rocketcore.service import SYSTEM_CLOCK, Clock

__all__ = ["ASSUMED_LATENCY", "BrokerNumbers", "LatencyFaultTolerance", "not_available_duration"]

LATENCY_MAX: Final = (0.05, 0.1, 0.55, 1.8, 3.0, 5.0, 15.0)
NOT_AVAILABLE_DURATION: Final = (0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0)
ASSUMED_LATENCY: Final = 10.0
"""Seconds that a failed attempt counts as."""


def not_available_duration(latency: float) -> float:
    """Return for how many seconds a broker that took ``latency`` seconds is avoided."""
    index = bisect.bisect_right(LATENCY_MAX, latency) - 1
    return NOT_AVAILABLE_DURATION[index] if index >= 0 else 0.0


class BrokerNumbers:
    """Small numbers for broker names, as the kernels want them."""

    __slots__ = ("_lock", "_numbers")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # no number is for two names; a signal's handler may come in
        self._numbers: dict[str, int] = {}

    def number(self, broker: str) -> int:
        """Return the number of a broker; the next free one for a new name."""
        with self._lock:
            return self._numbers.setdefault(broker, len(self._numbers))


class LatencyFaultTolerance:
    """Which brokers to avoid, by how late they answered; switched off, the choice is plain rotation."""

    __slots__ = ("_clock", "_table", "enabled")

    def __init__(self, enabled: bool, clock: Clock = SYSTEM_CLOCK) -> None:
        self.enabled = enabled
        self._clock = clock
        self._table = FaultTable()

    def select(self, rotation: QueueRotation) -> int:
        """Return the index of the queue to send to."""
        return self._table.select(rotation, -1, self._clock.monotonic()) if self.enabled else rotation.next()

    def update(self, broker: int, latency: float, *, reachable: bool = True) -> None:
        """Note how long a broker took; a failure counts as ``ASSUMED_LATENCY``."""
        if self.enabled:
            until = self._clock.monotonic() + not_available_duration(latency)
            self._table.update(broker, until, reachable)
