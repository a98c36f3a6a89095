"""Groups whose members do not agree: they subscribe to different things, or two of them have one client id.

RocketMQ takes both as they come. Of unlike members each gets a part of what it wants: queues are shared out among all,
and subscriptions are the newest heartbeat's. Two members of one id both take the queues of that id.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

from rocketcore.codes import RETRY_TOPIC_PREFIX
from rocketcore.naming import is_system_group
from rocketcore.printable import printable
from rocketcore.protocol.bodies.heartbeat import SubscriptionData
from rocketcore.transport.channel import Channel

__all__ = ["Discord", "wants_of"]

logger = logging.getLogger(__name__)

MOST_GROUPS: Final = 1000
SHOWN: Final = 200
"""Characters of what a member wants, as it is told."""

Wants = frozenset[tuple[str, str]]


class Member(Protocol):
    """A connected member of a group, and what it subscribes to."""

    channel: Channel
    client_id: str
    wants: Wants


def wants_of(offered: Iterable[SubscriptionData]) -> Wants:
    """Return topics and expressions of a member; its group's retry topic is the broker's affair."""
    return frozenset(
        (each.topic, f"{each.expression_type}:{each.sub_string}")
        for each in offered
        if not each.topic.startswith(RETRY_TOPIC_PREFIX)
    )


class Discord:
    """What is wrong now, by group, in a sentence; a WARNING says so when it begins.

    unlike  groups of members that subscribe to different things
    shared  groups in which one client id has two connections
    """

    def __init__(self) -> None:
        self.unlike: dict[str, str] = {}
        self.shared: dict[str, str] = {}

    def look(self, group: str, members: Collection[Member]) -> None:
        """Look at the members of a group that changed."""
        unlike = "" if is_system_group(group) else _unlike(members)
        self._note(self.unlike, group, unlike, "members of a group subscribe to different things")
        self._note(self.shared, group, _shared(members), "one client id has two connections in a group")

    def _note(self, found: dict[str, str], name: str, what: str, text: str) -> None:
        if not what:
            found.pop(name, None)
        elif name in found:
            found[name] = what
        elif len(found) < MOST_GROUPS:
            found[name] = what
            logger.warning("%s group=%s %s", text, printable(name), printable(what))


def _unlike(members: Iterable[Member]) -> str:
    found: dict[Wants, str] = {}
    for each in members:
        if each.wants:
            found.setdefault(each.wants, each.client_id)
    if len(found) < 2:
        return ""
    return "; ".join(f"{client} wants {_shown(wants)}" for wants, client in list(found.items())[:2])


def _shown(wants: Wants) -> str:
    texts = [topic + expression.partition(":")[2].join(("[", "]")) for topic, expression in sorted(wants)]
    return ", ".join(texts)[:SHOWN]


def _shared(members: Iterable[Member]) -> str:
    first: dict[str, str] = {}
    for each in members:
        address = each.channel.remote_address
        if each.client_id in first:
            return f"{each.client_id} at {first[each.client_id]} and {address}"
        first[each.client_id] = address
    return ""


def told(found: Mapping[str, str]) -> dict[str, str]:
    """Return what there is to tell an administrator: no more than fits."""
    return dict(list(found.items())[:100])
