"""All dead letters of a group back to it: the plan first, then a redrive behind the pages that can be stopped."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from rocketcore.admin.dead_letters import DeadLetterQueue
from rocketcore.console.console import Page, Visit
from rocketcore.errors import PlanOutdated
from rocketcore.message_queue import MessageQueue

__all__ = ["plan", "start", "stop"]

RATE: Final = 100
MOST_RATE: Final = 10_000
"""Dead letters a second, unless told otherwise, and at most."""


async def plan(visit: Visit) -> Page:
    """Show how many would be redriven of each queue, and how long that takes; nothing is changed."""
    name, rate = visit.needed("name"), visit.number("rate", RATE, 1, MOST_RATE)
    redrive = visit.cluster.redrives.of(name)  # before its queues: what is shown as done has nothing left behind it
    queues = await visit.admin.dead_letter_queues(name)
    count = sum(each.end - each.redriven for each in queues)
    api = {
        "group": name,
        "messages": count,
        "rate": rate,
        "seconds": round(count / rate, 1),
        "queues": [_row(each) for each in queues],
        "redrive": None if redrive is None else redrive.row(),
    }
    sealed = visit.seal("redrive", {"group": name, "rate": rate, "queues": _packed(queues)})
    data = {**api, "name": name, "most": MOST_RATE, "plan": sealed}
    return Page("dead_letters_redrive.html", "Redrive all", data, api)


def _row(each: DeadLetterQueue) -> dict[str, Any]:
    return {
        "broker": each.queue.broker,
        "queue_id": each.queue.queue_id,
        "messages": each.end - each.start,
        "redriven": each.redriven - each.start,
        "left": each.end - each.redriven,
    }


def _packed(queues: list[DeadLetterQueue]) -> list[list[Any]]:
    return [[each.queue.topic, each.queue.broker, each.queue.queue_id, each.start, each.redriven, each.end]
            for each in queues]  # fmt: skip


async def start(visit: Visit) -> Response:
    """Begin what the plan says; refused where dead letters were redriven or deleted since it was shown."""
    sealed = visit.unseal("redrive")
    name, rate = sealed["group"], sealed["rate"]
    queues = [
        DeadLetterQueue(MessageQueue(topic, broker, number), *offsets)
        for topic, broker, number, *offsets in sealed["queues"]
    ]
    visit.tell(name, {f"{row[1]}/{row[2]}": row[4:] for row in sealed["queues"]}, f"{rate} msg/s")
    visit.check_typed(name)
    marks = {each.queue: each.redriven for each in await visit.admin.dead_letter_queues(name)}
    if any(marks.get(each.queue) != each.redriven for each in queues):
        raise PlanOutdated(f"dead letters of group {name!r} were redriven or deleted since the plan was shown: "
                           "nothing was redriven")  # fmt: skip
    visit.cluster.redrives.start(name, queues, rate)
    return visit.done("redrive-started", "/dead-letters/group", name=name)


async def stop(visit: Visit) -> Response:
    """End a redrive; what it has redriven stays so."""
    name = visit.needed("name")
    await visit.cluster.redrives.stop(name)
    redrive = visit.cluster.redrives.of(name)
    visit.tell(name, after="" if redrive is None else f"{redrive.state} {redrive.done}/{redrive.count}")
    return visit.done("redrive-stopped", "/dead-letters/group", name=name)
