"""The latency-fault table, plainly: Java's ``LatencyFaultToleranceImpl`` and ``MQFaultStrategy`` over dicts."""

from __future__ import annotations

from tests.reference.rotation import QueueRotation


class FaultTable:
    """Faults by broker index; an unknown broker has none."""

    def __init__(self) -> None:
        self.until: dict[int, float] = {}
        self.reachable: dict[int, bool] = {}

    def update(self, broker: int, not_available_until: float, reachable: bool) -> None:
        """Note what the last attempt showed."""
        self.until[broker] = not_available_until
        self.reachable[broker] = reachable

    def is_available(self, broker: int, now: float) -> bool:
        """Return whether the time of not being available is over."""
        return broker not in self.until or now >= self.until[broker]

    def is_reachable(self, broker: int) -> bool:
        """Return whether the last attempt got through."""
        return self.reachable.get(broker, True)

    def select(self, rotation: QueueRotation, last_broker: int, now: float) -> int:
        """Return an available queue elsewhere than last time, or a reachable one, or any."""
        queue = rotation.find(lambda broker: broker != last_broker and self.is_available(broker, now))
        if queue is None:
            queue = rotation.find(lambda broker: broker != last_broker and self.is_reachable(broker))
        return rotation.next() if queue is None else queue
