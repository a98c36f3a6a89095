"""One topic: its messages, queues, groups, route and settings; what changes and deletes it, and sends to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from rocketcore.admin.groups import waiting_count
from rocketcore.admin.shapes import message_object, permission_text, queue_row, route_rows, topic_kind
from rocketcore.admin.timestamps import timestamp
from rocketcore.codes import Permission
from rocketcore.console.console import Page, Visit
from rocketcore.console.pages.topics import PERMISSIONS
from rocketcore.console.safety import BadRequest, Forbidden
from rocketcore.console.samples import by_python, by_shell
from rocketcore.console.spans import time_bar
from rocketcore.errors import PlanOutdated
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.bodies.stats import TopicOffset
from rocketcore.protocol.bodies.topic import TopicConfig

__all__ = ["config_rows", "delete", "deletion", "publish", "topic", "update"]

TABS: Final = ("messages", "tail", "queues", "groups", "route", "config", "publish")
MESSAGES: Final = 20
SKEWED_FROM: Final = 1000
SKEWED_TIMES: Final = 4
"""Messages from which on a queue is called skewed, and how many times those of a queue in the mean."""
MOST_SPANS: Final = 24
"""Queues that are asked when their first message was stored."""


async def topic(visit: Visit) -> Page:
    name = visit.needed("name")
    tab = visit.given("tab", "messages")
    if tab not in TABS:
        raise BadRequest(f"tab must be one of {', '.join(TABS)}, got {tab[:40]!r}")
    (data, api), frame = await asyncio.gather(_LOADERS[tab](visit, name), _frame(visit, name, tab))
    return Page(f"topic_{tab}.html", name, {**frame, **data}, api)


async def _frame(visit: Visit, name: str, tab: str) -> dict[str, Any]:
    """Return what stands above every tab: what is known of the topic without asking more than a count."""
    counted = (await visit.cluster.counts.of([name]))[name]
    figures = {**visit.cluster.topic_rates.of(name), **counted}
    return {"name": name, "tab": tab, "tabs": TABS, "kind": topic_kind(name, ()), "figures": figures}


async def _messages(visit: Visit, name: str) -> tuple[dict[str, Any], Any]:
    newest = await visit.admin.newest_messages(name, visit.number("count", MESSAGES, 1, 200))
    rows = [message_object(message) for message in newest.messages]
    filled = sum(each.max_offset > each.min_offset for each in newest.bounds.values())
    total = sum(each.max_offset - each.min_offset for each in newest.bounds.values())
    return {"rows": rows, "looked": newest.looked, "filled": filled, "total": total}, rows


async def _tail(visit: Visit, name: str) -> tuple[dict[str, Any], Any]:
    route = await visit.admin.topic_route(name)
    return {"tag": visit.given("tag"), "text": visit.given("text")}, route_rows(name, route)


async def _queues(visit: Visit, name: str) -> tuple[dict[str, Any], Any]:
    stats = await visit.admin.topic_stats(name)
    rows = [queue_row(queue, bounds) for queue, bounds in stats.items()]
    filled = [queue for queue, bounds in stats.items() if bounds.max_offset > bounds.min_offset][:MOST_SPANS]
    firsts = await visit.admin.earliest_store_times(filled)
    begin = min((first for first in firsts.values() if first is not None), default=0)
    now = round(time.time() * 1000)
    spans = {
        f"{queue.broker}/{queue.queue_id}": {
            "first": timestamp(first or 0),
            "bar": time_bar(first, stats[queue].last_update_timestamp, begin, now),
        }
        for queue, first in firsts.items()
    }
    data = {"rows": rows, "spans": spans, "begin": timestamp(begin), "total": sum(row["messages"] for row in rows)}
    return data, rows


async def _groups(visit: Visit, name: str) -> tuple[dict[str, Any], Any]:
    stats, offsets = await asyncio.gather(visit.admin.topic_stats(name), visit.admin.group_offsets(name))
    rows = [_group(group, stats, table) for group, table in offsets.items()]
    return {"rows": rows}, rows


def _group(
    group: str, bounds: Mapping[MessageQueue, TopicOffset], offsets: Mapping[MessageQueue, int]
) -> dict[str, Any]:
    """Return how far a group is: what waits, and how many messages were deleted before it saw them."""
    known = {queue: offset for queue, offset in offsets.items() if queue in bounds}
    return {
        "group": group,
        "queues": len(known),
        "lag": sum(waiting_count(bounds[queue].max_offset, max(offset, 0)) for queue, offset in known.items()),
        "overtaken": sum(max(0, bounds[queue].min_offset - offset) for queue, offset in known.items()),
    }


async def _route(visit: Visit, name: str) -> tuple[dict[str, Any], Any]:
    route, info, stats = await asyncio.gather(
        visit.admin.topic_route(name), visit.admin.cluster_info(), visit.admin.topic_stats(name), return_exceptions=True
    )
    for answer in (route, info):
        if isinstance(answer, BaseException):
            raise answer
    assert not isinstance(route, BaseException)
    assert not isinstance(info, BaseException)
    rows = route_rows(name, route)
    masters = sum(each.master_address is not None for each in info.broker_addr_table.values())
    # A route can be looked at while a broker of it does not answer.
    stored = {} if isinstance(stats, BaseException) else {
        queue: each.max_offset - each.min_offset for queue, each in stats.items()
    }  # fmt: skip
    return {"rows": rows, "problems": _problems(rows, masters, stored)}, rows


def _problems(
    rows: list[dict[str, Any]], masters: int, stored: Mapping[MessageQueue, int]
) -> list[tuple[str, str, str]]:
    """Return what is odd about a route in a cluster of so many masters: what, at which broker, what to do.

    stored  messages of each queue
    """
    found = []
    if len(rows) == 1 and masters > 1:
        found.append(("All queues are on one broker.", rows[0]["broker"], "rocket topic create --broker"))
    for row in rows:
        if row["master"] is None:
            found.append(("No master is registered: nothing can be sent there.", row["broker"], "Start its master."))
        if "w" not in row["perm"]:
            found.append(("The broker takes no messages of this topic.", row["broker"], "rocket broker undrain"))
        if row["read_queues"] != row["write_queues"]:
            found.append(("Read and write queues differ.", row["broker"], "rocket topic update --queues"))
    if len({row["write_queues"] for row in rows}) > 1:
        found.append(("Brokers have different numbers of queues.", "", "rocket topic update --queues"))
    fullest = max(stored, key=lambda queue: stored[queue], default=None)
    if fullest is not None and stored[fullest] >= SKEWED_FROM:
        share = stored[fullest] * len(stored) / sum(stored.values())
        if share >= SKEWED_TIMES:
            place = f"{fullest.broker}/{fullest.queue_id}"
            found.append(("A queue holds far more messages than the others.", place, "message_group="))
    return found


async def _config(visit: Visit, name: str) -> tuple[dict[str, Any], Any]:
    configs = await visit.admin.topic_configs(name)
    rows = config_rows(name, configs)
    seal = visit.seal("update-topic", {"topic": name, "seen": rows})
    return {"rows": rows, "plan": seal, "permissions": PERMISSIONS}, rows


def config_rows(name: str, configs: Mapping[str, TopicConfig]) -> list[dict[str, Any]]:
    return [
        {
            "topic": name,
            "broker": broker,
            "read_queues": each.read_queue_nums,
            "write_queues": each.write_queue_nums,
            "perm": permission_text(each.perm),
            "order": each.order,
            "attributes": dict(each.attributes),
        }
        for broker, each in configs.items()
    ]


async def _publish(visit: Visit, name: str) -> tuple[dict[str, Any], Any]:
    route = await visit.admin.topic_route(name)
    writable = any(each.perm & Permission.WRITE for each in route.queue_datas)
    return {"writable": writable, "sent": None, **_form(visit, name)}, route_rows(name, route)


def _form(visit: Visit, name: str) -> dict[str, Any]:
    """Return what the form holds, empty or as it was sent, and the same for a shell and in Python."""
    form = {field: visit.sent(field) for field in ("body", "tag", "keys", "properties")}
    servers = visit.cluster.settings.name_servers
    message = (form["body"] or "hello", form["tag"].strip(), form["keys"].split(), _properties(form["properties"]))
    return {"form": form, "shell": by_shell(servers, name, *message), "python": by_python(servers, name, *message)}


def _properties(text: str) -> dict[str, str]:
    """Read a property a line; raises BadRequest."""
    properties = {}
    for line in filter(None, map(str.strip, text.split("\n"))):
        key, separator, value = line.partition("=")
        if not separator:
            raise BadRequest(f"a property must be NAME=VALUE, got {line[:40]!r}")
        properties[key.strip()] = value.strip()
    return properties


_LOADERS: Final = {
    "messages": _messages,
    "tail": _tail,
    "queues": _queues,
    "groups": _groups,
    "route": _route,
    "config": _config,
    "publish": _publish,
}


# Writes


async def update(visit: Visit) -> Response:
    """Change queues and permission; refused where the topic changed since its form was shown."""
    plan = visit.unseal("update-topic")
    name = plan["topic"]
    before = await visit.admin.topic_configs(name)
    if config_rows(name, before) != plan["seen"]:
        raise PlanOutdated(f"topic {name!r} has changed since this form was shown: nothing was changed")
    reads = visit.sent_number("read_queues", None, 1, 65535)
    writes = visit.sent_number("write_queues", None, 1, 65535)
    perm = visit.sent("perm")
    if perm not in PERMISSIONS:
        raise BadRequest(f"a permission is one of {', '.join(PERMISSIONS)}")
    if any(reads < config.read_queue_nums for config in before.values()):
        await _check_nothing_hidden(visit, name, reads)
    now = [[row["broker"], row["read_queues"], row["write_queues"], row["perm"]] for row in plan["seen"]]
    visit.tell(name, now, [reads, writes, perm])
    await visit.admin.update_topic(name, read_queues=reads, write_queues=writes, perm=PERMISSIONS[perm])
    return visit.done("topic-updated", "/topic", name=name, tab="config")


async def _check_nothing_hidden(visit: Visit, name: str, reads: int) -> None:
    stats = await visit.admin.topic_stats(name)
    lost = sum(each.max_offset - each.min_offset for queue, each in stats.items() if queue.queue_id >= reads)
    if lost:
        raise BadRequest(f"{lost} messages in queues from {reads} on could not be read any more: nothing was changed")


async def deletion(visit: Visit) -> Page:
    """Show what a deletion takes away."""
    name = visit.needed("name")
    configs, stats, offsets = await asyncio.gather(
        visit.admin.topic_configs(name), visit.admin.topic_stats(name), visit.admin.group_offsets(name)
    )
    await _check_deletable(visit, name)
    rows = config_rows(name, configs)
    data = {
        "name": name,
        "brokers": sorted(configs),
        "messages": sum(each.max_offset - each.min_offset for each in stats.values()),
        "queues": len(stats),
        "groups": sorted(offsets),
        "plan": visit.seal("delete-topic", {"topic": name, "seen": rows}),
    }
    return Page("topic_delete.html", "Delete a topic", data)


async def _check_deletable(visit: Visit, name: str) -> None:
    info = await visit.admin.cluster_info()
    if topic_kind(name, {*info.cluster_addr_table, *info.broker_addr_table}) == "system":
        raise Forbidden(f"{name} is a system topic, which brokers need")


async def delete(visit: Visit) -> Response:
    plan = visit.unseal("delete-topic")
    name = plan["topic"]
    visit.tell(name)
    visit.check_typed(name)
    if config_rows(name, await visit.admin.topic_configs(name)) != plan["seen"]:
        raise PlanOutdated(f"topic {name!r} has changed since the plan was shown: nothing was deleted")
    await visit.admin.delete_topic(name)
    return visit.done("topic-deleted", "/topics")


async def publish(visit: Visit) -> Page:
    """Send a message; show where it lies."""
    name = visit.needed("name")
    producer = await visit.cluster.producer()
    result = await producer.send(
        name,
        visit.sent("body"),
        tag=visit.sent("tag").strip() or None,
        keys=visit.sent("keys").split() or None,
        properties=_properties(visit.sent("properties")),
    )
    visit.tell(name, after=result.msg_id)
    sent = {
        "topic": name,
        "broker": result.queue.broker,
        "queue_id": result.queue.queue_id,
        "offset": result.offset,
        "msg_id": result.msg_id,
        "status": result.status.value,
    }
    data = {**await _frame(visit, name, "publish"), "writable": True, "sent": sent, **_form(visit, name)}
    return Page("topic_publish.html", name, data, sent)
