"""Who may consume a queue in order: leases that clients renew every 20 s (Java: ``RebalanceLockManager``, 5.5.0).

A lease ends a minute after it was renewed for the last time; sooner where the connection of its client has closed
since: clients that only make another connection renew in their turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rocketcore.message import MessageQueue
from rocketcore.naming import is_legal_group, is_legal_topic
from rocketcore.service import SYSTEM_CLOCK, Clock

CAPACITY = 500_000
"""Leases that are kept, of all groups."""
LOCK_MAX_LIVE_SECONDS = 60.0
LOST_LOCK_SECONDS = 25.0
"""Of a client whose connection has closed: its turn to renew, and what that may be late."""


@dataclass(slots=True)
class _Lease:
    client_id: str
    renewed: float
    lost: bool = False
    """Whether the client's last connection closed after that."""


class QueueLocks:
    """Leases by group and queue; time is monotonic, so that a clock jump frees nothing."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._leases: dict[str, dict[MessageQueue, _Lease]] = {}
        self._count = 0

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> list[MessageQueue]:
        """Take or renew the leases of these queues; return the ones that the client holds now.

        There is no lease where there is no room, or for names that no group and no topic can have.
        """
        if not is_legal_group(group):
            return []
        now = self._clock.monotonic()
        leases = self._leases.setdefault(group, {})
        held = []
        for queue in queues:
            lease = leases.get(queue)
            if lease is not None and lease.client_id != client_id and not self._expired(lease, now):
                continue
            if lease is None:
                if self._count >= CAPACITY or not is_legal_topic(queue.topic):
                    continue
                self._count += 1
            leases[queue] = _Lease(client_id, now)
            held.append(queue)
        if not leases:
            del self._leases[group]
        return held

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Give back leases; those of other clients stay."""
        leases = self._leases.get(group)
        if leases is None:
            return
        for queue in queues:
            lease = leases.get(queue)
            if lease is not None and lease.client_id == client_id:
                del leases[queue]
                self._count -= 1
        if not leases:
            del self._leases[group]

    def connection_lost(self, group: str, client_id: str) -> None:
        """Note that a client has no connection any more; it may be gone without a word."""
        for lease in self._leases.get(group, {}).values():
            if lease.client_id == client_id:
                lease.lost = True

    def is_locked(self, group: str) -> bool:
        """Say whether any lease of the group is alive: its messages are then consumed in order."""
        now = self._clock.monotonic()
        return any(not self._expired(lease, now) for lease in self._leases.get(group, {}).values())

    def expire(self) -> None:
        """Forget dead leases, so that groups that went away leave nothing behind."""
        now = self._clock.monotonic()
        for group, leases in list(self._leases.items()):
            alive = {queue: lease for queue, lease in leases.items() if not self._expired(lease, now)}
            if alive:
                self._leases[group] = alive
            else:
                del self._leases[group]
        self._count = sum(map(len, self._leases.values()))

    def _expired(self, lease: _Lease, now: float) -> bool:
        return now - lease.renewed > (LOST_LOCK_SECONDS if lease.lost else LOCK_MAX_LIVE_SECONDS)
