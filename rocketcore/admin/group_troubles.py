"""What may be wrong with a consumer group, each in a sentence with what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from rocketcore.codes import DEFAULT_CONSUMER_GROUP, DEFAULT_PRODUCER_GROUP
from rocketcore.message import MessageQueue

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.client import ConsumerConnection

__all__ = ["GroupCondition", "Trouble", "shared_client_ids", "told_by_brokers", "troubles"]

STUCK_SECONDS: Final = 600.0
QUICK_SECONDS: Final = 60.0
"""A queue is stuck that waits longer than the first, while another of its topic waits less than the second."""


class QueueWait(Protocol):
    """For how many seconds the first message of a queue waits for a group; None where that is not known."""

    @property
    def queue(self) -> MessageQueue: ...

    @property
    def waiting(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing; ``state`` is ``fail`` where messages go astray, and ``warn`` where somebody should look."""

    check: str
    state: str
    detail: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCondition:
    """What is known of a group.

    members, lag, dead_letters  how many; None where that is not known
    rate                        messages a second that it consumes; None where that is not known
    unlike, shared              how members differ, and which client id is there twice; "" for nothing
    queues                      how far it is in each, where that was asked for
    unanswered                  brokers that did not say what they know
    """

    group: str
    members: int | None = None
    lag: int | None = None
    rate: float | None = None
    dead_letters: int | None = None
    unlike: str = ""
    shared: str = ""
    queues: Sequence[QueueWait] = ()
    unanswered: Sequence[str] = ()


def troubles(state: GroupCondition) -> list[Trouble]:
    """Return what is wrong with a group, the worst first."""
    group = state.group
    named = f"-- {group}" if group.startswith("-") else group
    found = []
    if state.unanswered:
        found.append(
            Trouble(
                "unanswered", "warn", f"{', '.join(state.unanswered)} did not answer: members and queues are missing",
                "rocket doctor looks at each broker",
            )
        )  # fmt: skip
    if state.unlike:
        found.append(
            Trouble(
                "subscriptions", "fail", f"its members subscribe to different things: {state.unlike}",
                "give members with other topics or tags a group of their own, or all of them the same",
            )
        )  # fmt: skip
    if state.shared:
        found.append(
            Trouble(
                "client id", "fail", f"two members have one client id: {state.shared}",
                "each handles what the other does: leave instance_name out, or give each process its own",
            )
        )  # fmt: skip
    if group in (DEFAULT_CONSUMER_GROUP, DEFAULT_PRODUCER_GROUP) and (state.members or state.lag is not None):
        found.append(
            Trouble(
                "default group", "warn", "consumers that name no group share its messages",
                "give each application a group of its own",
            )
        )  # fmt: skip
    if state.members == 0 and state.lag:
        found.append(
            Trouble(
                "stopped group", "warn", f"it has no member, and {state.lag} messages wait",
                f"start its consumers, or rocket group delete {named}",
            )
        )  # fmt: skip
    elif state.members and state.lag and state.rate == 0:
        found.append(
            Trouble(
                "stuck group", "warn", f"its {state.members} members consume none of {state.lag} messages",
                f"rocket group describe {named}; what do their handlers wait for?",
            )
        )  # fmt: skip
    if state.members and (stuck := _stuck(state.queues)):
        texts = ", ".join(f"{each.queue.topic} {each.queue.broker}/{each.queue.queue_id}" for each in stuck[:5])
        found.append(
            Trouble(
                "stuck queue", "warn", f"{texts}: more than {STUCK_SECONDS:g} s behind, and others are not",
                "a handler that never returns, or a message that always fails in order: rocket client describe",
            )
        )  # fmt: skip
    if state.dead_letters:
        found.append(
            Trouble(
                "dead letters", "warn", f"{state.dead_letters} messages failed for the last time",
                f"rocket dlq show {named}; rocket dlq redrive {named}",
            )
        )  # fmt: skip
    return found


def _stuck(rows: Iterable[QueueWait]) -> list[QueueWait]:
    rows = list(rows)
    quick = {row.queue.topic for row in rows if row.waiting is not None and row.waiting < QUICK_SECONDS}
    return [row for row in rows if row.queue.topic in quick and row.waiting is not None and row.waiting > STUCK_SECONDS]


def shared_client_ids(seen: Iterable[ConsumerConnection]) -> str:
    """Return a client id that has two connections at one broker, and their addresses; "" where none has."""
    for each in seen:
        first: dict[str, str] = {}
        for connection in each.connection_set:
            if connection.client_id in first:
                return f"{connection.client_id} at {first[connection.client_id]} and {connection.client_addr}"
            first[connection.client_id] = connection.client_addr
    return ""


def told_by_brokers(runtimes: Iterable[Mapping[str, str]], name: str) -> dict[str, str]:
    """Return what brokers say of groups in their runtime information; Apache's say nothing."""
    found: dict[str, str] = {}
    for table in runtimes:
        try:
            said = json.loads(table.get(name, "{}"))
        except ValueError:
            continue
        if isinstance(said, dict):
            found |= {str(group): str(text) for group, text in said.items()}
    return found
