"""The list of groups, one group, and where it goes on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from rocketcore.admin.clients import QueueOwners
from rocketcore.admin.groups import GroupMember
from rocketcore.admin.offsets import OffsetMove, OffsetShift, ResetPlan, ResetTarget
from rocketcore.admin.shapes import group_document, group_row, move_row
from rocketcore.admin.timestamps import timestamp
from rocketcore.codes import DLQ_TOPIC_PREFIX
from rocketcore.console.console import Page, Visit, page_of
from rocketcore.console.pages.messages import read_time
from rocketcore.console.safety import BadRequest
from rocketcore.console.spans import lag_map, mark_bar
from rocketcore.message_queue import MessageQueue

__all__ = ["group", "groups", "reset", "reset_form"]

TABS: Final = ("queues", "members", "config")
MOST_MARKED: Final = 4
"""Topics of a group whose queues are asked for what they hold."""
MOST_OWNERS: Final = 16
"""Members that are asked which queues they hold."""
OWNER_SECONDS: Final = 0.4
"""That they have for an answer; of one that is slower nothing is known."""
STUCK_SECONDS: Final = 60.0
"""For which the first message waits in a queue that has an owner and moves no further."""


async def groups(visit: Visit) -> Page:
    survey = await visit.admin.survey_groups()
    kind = visit.given("kind", "normal")
    if kind not in ("normal", "all"):
        raise BadRequest(f"kind must be normal or all, got {kind[:40]!r}")
    rows = []
    for name, config in survey.configs.items():
        total = survey.total(name)
        rows.append(
            {
                **group_row(name, config),
                "topics": sorted(survey.traffic.get(name, ())),
                "lag": None if total is None else total.lag,
                "out_tps": None if total is None else round(total.rate, 2),
                "consumed_at": None if total is None else timestamp(total.consumed_at),
            }
        )
    rows = [row for row in rows if kind == "all" or row["kind"] == "normal"]
    shown, state = page_of(rows, visit, ("group", "lag", "out_tps", "consumed_at"), _matches)
    failed = {name: str(error) for name, error in survey.failed.items()}
    return Page("groups.html", "Groups", {"rows": shown, "state": state, "kind": kind, "failed": failed}, rows)


def _matches(row: Any, wanted: str) -> bool:
    return wanted in row["group"].lower() or any(wanted in topic.lower() for topic in row["topics"])


async def group(visit: Visit) -> Page:
    name = visit.needed("name")
    tab = visit.given("tab", "queues")
    if tab not in TABS:
        raise BadRequest(f"tab must be one of {', '.join(TABS)}, got {tab[:40]!r}")
    found = await visit.admin.describe_group(name)
    document = group_document(found, await visit.admin.dead_letter_count(name))
    topics = sorted({row["topic"] for row in document["queues"] if not row["topic"].startswith("%")})
    settings = [(broker, group_row(name, config)) for broker, config in found.configs.items()]
    data: dict[str, Any] = {
        "name": name,
        "tab": tab,
        "tabs": TABS,
        "group": document,
        "topics": topics,
        "settings": settings,
    }
    data["stuck"] = [
        row for row in document["queues"]
        if found.members and row["lag"] and (row["lag_seconds"] or 0) >= STUCK_SECONDS
    ]  # fmt: skip
    marks, overtaken = await _marks(visit, document["queues"]) if tab == "queues" else ({}, [])
    owners = await _owners(visit, name, found.members) if tab == "queues" else None
    data |= {"marks": marks, "overtaken": overtaken, "owners": owners}
    data["map"] = lag_map(document["queues"])
    return Page("group.html", name, data, document if owners is None else {**document, **owners})


async def _owners(visit: Visit, name: str, members: Sequence[GroupMember]) -> dict[str, Any]:
    """Return the ids of the members that hold each queue, by topic/broker/id, and how many members said so."""
    # One request is for where the brokers are.
    asked = members[: max(0, min(MOST_OWNERS, visit.requests_left() - 1))]
    found = await visit.admin.queue_owners(name, asked, within=OWNER_SECONDS) if asked else QueueOwners({}, ())
    owners = {f"{queue.topic}/{queue.broker}/{queue.queue_id}": ids for queue, ids in sorted(found.owners.items())}
    return {"owners": owners, "members_asked": len(asked) - len(found.silent)}


async def _marks(visit: Visit, rows: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a bar for each queue of the first topics, and the queues of which messages were deleted unseen."""
    topics = list(dict.fromkeys(row["topic"] for row in rows))[:MOST_MARKED]
    tables = await asyncio.gather(*map(visit.admin.topic_stats, topics), return_exceptions=True)
    bounds = {queue: each for table in tables if not isinstance(table, BaseException) for queue, each in table.items()}
    bars: dict[str, Any] = {}
    overtaken = []
    for row in rows:
        held = bounds.get(MessageQueue(row["topic"], row["broker"], row["queue_id"]))
        mark = row["group_offset"]
        if held is None:
            continue
        bars[f"{row['topic']}/{row['broker']}/{row['queue_id']}"] = mark_bar(held.min_offset, held.max_offset, mark)
        if mark is not None and 0 <= mark < held.min_offset:
            overtaken.append({**row, "lost": held.min_offset - mark})
    return bars, overtaken


# Resets


_NUMBER: Final = re.compile(r"([+-]?)(\d{1,18})")


def _target(text: str) -> ResetTarget:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.startswith("@"):
        return read_time(text[1:])
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise BadRequest(
            f"{text[:40]!r} is not a position: give earliest, latest, @TIME, an offset N, or a shift +N or -N"
        )
    return OffsetShift(int(text)) if match[1] else int(text)


async def reset_form(visit: Visit) -> Page:
    """Show what a reset would do, once its topic and target are named."""
    name, topic, to = visit.needed("name"), visit.given("topic"), visit.given("to").strip()
    data: dict[str, Any] = {"name": name, "topic": topic, "to": to, "rows": None, "plan": "", "moves": {}}
    rows = await visit.admin.offsets(name)
    data["topics"] = sorted({row.queue.topic for row in rows if not row.queue.topic.startswith("%")})
    if topic and to:
        _check_topic(topic)
        plan = await visit.admin.plan_reset(name, topic, _target(to))
        data["rows"] = [{**move_row(plan, move), **_limits(move)} for move in plan.moves]
        data["moves"] = _sums(plan)
        data["plan"] = visit.seal("reset", _packed(plan))
    return Page("group_reset.html", "Reset offsets", data, data["rows"])


def _check_topic(topic: str) -> None:
    if topic.startswith(DLQ_TOPIC_PREFIX):
        raise BadRequest(f"{topic}: this offset marks the progress of redrives and cannot be reset")


def _limits(move: OffsetMove) -> dict[str, Any]:
    change = None if move.before is None else move.after - move.before
    return {"min_offset": move.min_offset, "max_offset": move.max_offset, "change": change}


def _sums(plan: ResetPlan) -> dict[str, Any]:
    known = [(move.before, move.after) for move in plan.moves if move.before is not None]
    return {
        "again": sum(max(0, before - after) for before, after in known),
        "skipped": sum(max(0, after - before) for before, after in known),
        "unknown": len(plan.moves) - len(known),
        "members": plan.members,
        "by_time": sorted(plan.by_time),
    }


def _packed(plan: ResetPlan) -> dict[str, Any]:
    moves = [
        [move.queue.broker, move.queue.queue_id, move.before, move.after, move.min_offset, move.max_offset]
        for move in plan.moves
    ]
    return {
        "group": plan.group, "topic": plan.topic, "moves": moves, "members": plan.members,
        "by_time": sorted(plan.by_time), "millis": plan.millis,
    }  # fmt: skip


def _unpacked(packed: dict[str, Any]) -> ResetPlan:
    moves = tuple(
        OffsetMove(MessageQueue(packed["topic"], broker, queue_id), *offsets)
        for broker, queue_id, *offsets in packed["moves"]
    )
    return ResetPlan(
        packed["group"], packed["topic"], moves, packed["members"], frozenset(packed["by_time"]), packed["millis"]
    )


async def reset(visit: Visit) -> Response:
    """Do what the plan says; the admin client refuses it where the group has moved since."""
    plan = _unpacked(visit.unseal("reset"))
    moved = [(f"{each.queue.broker}/{each.queue.queue_id}", each.before, each.after) for each in plan.moves]
    before, after = ({place: offsets[end] for place, *offsets in moved} for end in (0, 1))
    visit.tell(f"{plan.group} {plan.topic}", before, after)
    visit.check_typed(plan.group)
    await visit.admin.reset_offsets(plan)
    return visit.done("offsets-reset", "/group", name=plan.group)
