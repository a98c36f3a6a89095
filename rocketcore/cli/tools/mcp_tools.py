"""What ``rocket mcp`` offers to agents: questions over ``AsyncAdmin`` with bounded answers, and changes in two steps.

A change is planned first: the plan says what would happen and has a token, with which it is done, once, within five
minutes, and only if what it is about has not changed since. Nothing here knows the protocol.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rocketcore.cli.cluster.group import member_row, progress_row
from rocketcore.cli.messages.forms import message_object
from rocketcore.cli.shell.render import timestamp
from rocketcore.codes import DLQ_TOPIC_PREFIX
from rocketcore.errors import ConfigError
from rocketcore.service import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from rocketcore.admin.client import AsyncAdmin

__all__ = ["MOST_ROWS", "ReadTools", "WriteTools", "tools_of"]

MOST_ROWS: Final = 200
BODY_BYTES: Final = 4096
PLAN_SECONDS: Final = 300.0
MOST_PLANS: Final = 32

Answer = dict[str, Any]


def bounded(rows: Iterable[Answer], limit: int, name: str = "rows") -> Answer:
    """Return the first rows, and how many there are in all."""
    every = list(rows)
    count = max(1, min(limit, MOST_ROWS))
    return {name: every[:count], "total": len(every), "truncated": len(every) > count}


class ReadTools:
    """Questions; each is one tool, and its docstring is what a program is told of it."""

    def __init__(self, admin: AsyncAdmin) -> None:
        self._admin = admin

    async def cluster_status(self) -> Answer:
        """Registered brokers: role, address, version, messages per second, and why a broker does not answer."""
        from rocketcore.cli.cluster.clusters import broker_row

        return bounded((broker_row(member) for member in await self._admin.broker_status()), MOST_ROWS, "brokers")

    async def list_topics(self, containing: str = "", limit: int = 50) -> Answer:
        """Names of topics that contain a text; system, retry and dead-letter topics are left out."""
        from rocketcore.cli.cluster.topic import topic_kind

        info = await self._admin.cluster_info()
        own = {*info.cluster_addr_table, *info.broker_addr_table}
        names = [
            name for name in await self._admin.topics() if containing in name and topic_kind(name, own) == "normal"
        ]
        return bounded(({"topic": name} for name in names), limit, "topics")

    async def describe_topic(self, topic: str, limit: int = 50) -> Answer:
        """Queues of a topic: first and next offset, messages, when the last one was stored."""
        stats = await self._admin.topic_stats(topic)
        rows = [
            {
                "broker": queue.broker,
                "queue_id": queue.queue_id,
                "min_offset": each.min_offset,
                "max_offset": each.max_offset,
                "messages": each.max_offset - each.min_offset,
                "last_stored_at": timestamp(each.last_update_timestamp),
            }
            for queue, each in stats.items()
        ]
        return {"topic": topic, "messages": sum(row["messages"] for row in rows), **bounded(rows, limit, "queues")}

    async def list_groups(self, containing: str = "", limit: int = 50) -> Answer:
        """Names of consumer groups that contain a text."""
        names = [name for name in await self._admin.groups() if containing in name]
        return bounded(({"group": name} for name in names), limit, "groups")

    async def describe_group(self, group: str, limit: int = 50) -> Answer:
        """Members of a consumer group, what they subscribe to, and how many messages wait in each queue."""
        found = await self._admin.describe_group(group)
        lags = [row.lag for row in found.progress if row.lag is not None]
        return {
            "group": group,
            "consume_type": found.consume_type,
            "message_model": found.message_model,
            "members": [member_row(member) for member in found.members[:MOST_ROWS]],
            "subscriptions": {topic: each.sub_string for topic, each in found.subscriptions.items()},
            "lag": sum(lags),
            **bounded((progress_row(row) for row in found.progress), limit, "queues"),
        }

    async def groups_behind(self, limit: int = 20) -> Answer:
        """Consumer groups and topics with the most messages waiting, the most first."""
        traffic = sorted(await self._admin.group_traffic(), key=lambda each: (-each.lag, each.group, each.topic))
        rows = ({"group": each.group, "topic": each.topic, "lag": each.lag} for each in traffic if each.lag > 0)
        return bounded(rows, limit, "groups")

    async def find_messages(
        self, topic: str, key: str | None = None, tag: str | None = None, with_body: bool = False, limit: int = 20
    ) -> Answer:
        """Newest messages of a topic with a key (or unique id), or a tag; bodies only with with_body."""
        found = await self._admin.query_messages(topic, key, tag=tag, max_messages=max(1, min(limit, 64)))
        return bounded((_message(each, with_body) for each in found), limit, "messages")

    async def get_message(self, message_id: str, topic: str | None = None, with_body: bool = False) -> Answer:
        """One message by its id; a unique id needs its topic. Its body (4 KiB at most) only with with_body."""
        return _message(await self._admin.view_message(topic, message_id), with_body)

    async def message_status(self, message_id: str, topic: str | None = None, limit: int = 50) -> Answer:
        """State of a message in each group: not_yet, consumed, retry, dead_letter or unknown."""
        message = await self._admin.view_message(topic, message_id)
        rows = (
            {"group": each.group, "state": each.state.value, "failed": each.failed, "members": each.members}
            for each in await self._admin.message_states(message)
        )
        return {"msg_id": message.msg_id, "topic": message.topic, **bounded(rows, limit, "groups")}

    async def dead_letters(self, group: str, with_body: bool = False, limit: int = 20) -> Answer:
        """How many dead letters a group has at each broker, and the newest of them."""
        queues = await self._admin.dead_letter_queues(group)
        count = max(1, min(limit, 64))
        letters = [
            _message(message, with_body)
            for each in queues
            if each.end > each.start
            for message in await self._admin.dead_letters(each.queue, max(each.start, each.end - count), count)
        ]
        waiting = sum(each.end - each.redriven for each in queues)
        return {"group": group, "not_redriven": waiting, **bounded(letters, count, "messages")}

    async def broker_settings(self, broker: str, containing: str = "", limit: int = 50) -> Answer:
        """Settings of a broker's master whose name contains a text."""
        data = (await self._admin.cluster_info()).broker_addr_table.get(broker)
        if data is None or data.master_address is None:
            raise ConfigError(f"no broker {broker!r} with a master is registered")
        settings = await self._admin.broker_config(data.master_address)
        secret = ("password", "secret", "credential")
        rows = (
            {"name": name, "value": "******" if any(word in name.lower() for word in secret) else value}
            for name, value in sorted(settings.items())
            if containing.lower() in name.lower()
        )
        return bounded(rows, limit, "settings")


def _message(message: Any, with_body: bool) -> Answer:
    row = message_object(message)
    row["body_bytes"] = len(message.body)
    for name in ("body", "body_base64"):
        if name not in row:
            continue
        if not with_body:
            del row[name]
        elif len(row[name]) > BODY_BYTES:
            row[name] = row[name][:BODY_BYTES]
            row["body_truncated"] = True
    return row


@dataclass(frozen=True, slots=True)
class _Plan:
    what: str
    until: float
    do: Callable[[], Awaitable[Answer]]


class WriteTools:
    """Changes: ``plan_…`` says what would happen and gives a token, ``confirm`` does it."""

    def __init__(self, admin: AsyncAdmin, clock: Clock = SYSTEM_CLOCK) -> None:
        self._admin = admin
        self._clock = clock
        self._plans: dict[str, _Plan] = {}

    async def plan_create_topic(self, topic: str, queues: int = 8) -> Answer:
        """Plan to create a topic with this number of queues on each broker. Nothing changes before confirm."""
        if topic in await self._admin.topics():
            raise ConfigError(f"topic {topic!r} is there")

        async def do() -> Answer:
            created = await self._admin.create_topic(topic, queues)
            return {"topic": created.topic, "queues": created.read_queues, "brokers": list(created.brokers)}

        return self._planned(f"create topic {topic} with {queues} queues on each broker", do)

    async def plan_delete_topic(self, topic: str) -> Answer:
        """Plan to delete a topic and its messages. Nothing changes before confirm."""
        from rocketcore.cli.cluster.topic import topic_kind

        info = await self._admin.cluster_info()
        if topic_kind(topic, {*info.cluster_addr_table, *info.broker_addr_table}) == "system":
            raise ConfigError(f"{topic} is a system topic, which brokers need")
        before = await self._admin.topic_stats(topic)
        messages = sum(each.max_offset - each.min_offset for each in before.values())

        async def do() -> Answer:
            now = await self._admin.topic_stats(topic)
            if {queue: each.max_offset for queue, each in now.items()} != {
                queue: each.max_offset for queue, each in before.items()
            }:
                raise ConfigError(f"topic {topic!r} has changed since the plan: nothing was deleted")
            return {"topic": topic, "deleted_on": await self._admin.delete_topic(topic), "messages": messages}

        return self._planned(f"delete topic {topic} with {messages} messages in {len(before)} queues", do)

    async def plan_reset_offsets(self, group: str, topic: str, to: str) -> Answer:
        """Plan to move a group to other offsets in a topic: earliest, latest, @TIME, N, +N or -N."""
        from rocketcore.cli.cluster.offset import reset_plan, reset_target

        if topic.startswith(DLQ_TOPIC_PREFIX):
            raise ConfigError(f"{topic}: this offset marks the progress of redrives and cannot be reset")
        try:
            target = reset_target(to, self._clock.time_millis())
        except ValueError as error:
            raise ConfigError(str(error)) from None
        plan = await self._admin.plan_reset(group, topic, target)

        async def do() -> Answer:
            await self._admin.reset_offsets(plan)
            return {"group": group, "topic": topic, "queues": len(plan.moves)}

        return self._planned(reset_plan(plan), do)

    async def plan_redrive(self, group: str) -> Answer:
        """Plan to deliver dead letters to their group again, up to 1,000 of each broker."""
        queues = await self._admin.dead_letter_queues(group)
        ends = {each.queue: min(each.end, each.redriven + 1000) for each in queues}
        count = sum(end - each.redriven for each, end in zip(queues, ends.values(), strict=True))

        async def do() -> Answer:
            now = {each.queue: each.redriven for each in await self._admin.dead_letter_queues(group)}
            if now != {each.queue: each.redriven for each in queues}:
                raise ConfigError(f"dead letters of {group!r} were redriven since the plan: nothing was done")
            done = 0
            for each in queues:
                offset = each.redriven
                while offset < ends[each.queue]:
                    page = await self._admin.dead_letters(each.queue, offset, min(32, ends[each.queue] - offset))
                    if not page:
                        break
                    done += await self._admin.redrive(group, page)
                    offset = page[-1].offset + 1
            return {"group": group, "redriven": done}

        return self._planned(f"redrive {count} dead letters of group {group}", do)

    async def confirm(self, token: str) -> Answer:
        """Carry out a plan. A token works once, for five minutes."""
        plan = self._plans.pop(token, None)
        if plan is None or plan.until < self._clock.monotonic():
            raise ConfigError("unknown token: the plan is done, or older than five minutes; plan again")
        return {"done": plan.what, **await plan.do()}

    def _planned(self, what: str, do: Callable[[], Awaitable[Answer]]) -> Answer:
        now = self._clock.monotonic()
        self._plans = {token: plan for token, plan in self._plans.items() if plan.until >= now}
        if len(self._plans) >= MOST_PLANS:
            del self._plans[next(iter(self._plans))]
        token = secrets.token_urlsafe(16)
        self._plans[token] = _Plan(what, now + PLAN_SECONDS, do)
        return {"plan": what, "token": token, "seconds": PLAN_SECONDS}


def tools_of(*providers: object) -> Sequence[Callable[..., Awaitable[Answer]]]:
    """Return the tools, by their public coroutine methods."""
    return [
        getattr(provider, name)
        for provider in providers
        for name in vars(type(provider))
        if not name.startswith("_") and callable(getattr(provider, name))
    ]
