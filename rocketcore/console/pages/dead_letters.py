"""Dead letters: which groups have some, one group's, and their way back, out or away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from rocketcore.admin.dead_letters import DeadLetterQueue
from rocketcore.admin.shapes import dead_letter_row
from rocketcore.codes import DLQ_TOPIC_PREFIX
from rocketcore.console.console import Page, Visit, json_bytes, page_of
from rocketcore.console.safety import BadRequest
from rocketcore.errors import PlanOutdated, TopicNotExist
from rocketcore.message import ReceivedMessage
from rocketcore.message_queue import MessageQueue

__all__ = ["dead_letter_groups", "dead_letters", "export", "purge", "purging", "redrive"]

PAGE: Final = 32
MOST_CHOSEN: Final = 32
"""Dead letters that one redrive takes."""


async def dead_letter_groups(visit: Visit) -> Page:
    """List the groups; how many messages each has is what was counted lately."""
    names = await visit.admin.dead_letter_groups()
    counted = await visit.cluster.counts.of(DLQ_TOPIC_PREFIX + name for name in names)
    rows = [{"group": name, **counted[DLQ_TOPIC_PREFIX + name]} for name in names]
    shown, state = page_of(rows, visit, ("group", "messages", "last_stored_at"), _matches)
    return Page("dead_letters.html", "Dead letters", {"rows": shown, "state": state}, rows)


def _matches(row: Any, wanted: str) -> bool:
    return wanted in row["group"].lower()


async def dead_letters(visit: Visit) -> Page:
    """Show the newest dead letters of a group, those before an offset of a queue with ``queue`` and ``before``."""
    name = visit.needed("name")
    return Page("dead_letters_group.html", "Dead letters", *await _list(visit, name))


async def _list(visit: Visit, name: str) -> tuple[dict[str, Any], Any]:
    redrive = visit.cluster.redrives.of(name)  # before its queues: what is shown as done has nothing left behind it
    queues = await _queues(visit, name)
    rows: list[dict[str, Any]] = []
    queues_shown = queues[:8]
    place = visit.given("queue")
    if place:
        queues_shown = [each for each in queues if _place(each.queue) == place]
    older = {}
    for each in queues_shown:
        end = min(each.end, visit.number("before", each.end) if place else each.end)
        start = max(each.start, end - PAGE)
        if start < end:
            page = await visit.admin.dead_letters(each.queue, start, end - start)
            rows += [_row(message, each) for message in page if message.offset < end]
        if start > each.start:
            older[_place(each.queue)] = start
    rows.sort(key=lambda row: row["stored_at"] or "", reverse=True)
    wanted = visit.given("q").strip().lower()
    matching = [row for row in rows if not wanted or wanted in _searched(row)]
    data = {
        "name": name,
        "rows": matching,
        "q": visit.given("q").strip(),
        "older": older,
        "messages": sum(each.end - each.start for each in queues),
        "left": sum(each.end - each.redriven for each in queues),
        "results": None,
        "redrive": redrive,
    }
    return data, matching


async def _queues(visit: Visit, name: str) -> list[DeadLetterQueue]:
    try:
        return await visit.admin.dead_letter_queues(name)
    except TopicNotExist:
        return []


def _place(queue: MessageQueue) -> str:
    return f"{queue.broker}/{queue.queue_id}"


def _row(message: ReceivedMessage, of: DeadLetterQueue) -> dict[str, Any]:
    return {**dead_letter_row(message, of.redriven), "place": f"{_place(of.queue)}/{message.offset}"}


def _searched(row: dict[str, Any]) -> str:
    parts = (row["msg_id"], row["topic"], row["tag"], *row["keys"], row.get("body"))
    return " ".join(str(part) for part in parts if part).lower()


# Writes


async def redrive(visit: Visit) -> Page:
    """Take the chosen ones back, each with what became of it."""
    name = visit.needed("name")
    places = list(dict.fromkeys(visit.all_sent("place")))
    if not 1 <= len(places) <= MOST_CHOSEN:
        raise BadRequest(f"choose 1 to {MOST_CHOSEN} dead letters, got {len(places)}")
    queues = {_place(each.queue): each for each in await _queues(visit, name)}
    chosen: dict[str, list[int]] = {}
    for place in places:
        queue, _, offset = place.rpartition("/")
        if queue not in queues or not offset.isdecimal() or len(offset) > 18:
            raise BadRequest(f"invalid position of a dead letter of {name!r}: {place[:80]!r}")
        chosen.setdefault(queue, []).append(int(offset))
    found: list[ReceivedMessage] = []
    for queue, offsets in chosen.items():
        found += await _messages(visit, queues[queue].queue, sorted(offsets))
    known = {f"{_place(each.queue)}/{each.offset}" for each in found}
    results = [
        {"place": f"{_place(each.message.queue)}/{each.message.offset}", "msg_id": each.message.msg_id,
         "state": each.state, "error": None if each.error is None else str(each.error)}
        for each in await visit.admin.redrive_each(name, found)
    ]  # fmt: skip
    results += [
        {"place": place, "msg_id": None, "state": "failed", "error": "the message is not there any more"}
        for place in places if place not in known
    ]  # fmt: skip
    visit.tell(name, after={each["place"]: each["state"] for each in results})
    data, _ = await _list(visit, name)
    data["results"] = results
    return Page("dead_letters_group.html", "Dead letters", data, results)


async def _messages(visit: Visit, queue: MessageQueue, offsets: list[int]) -> list[ReceivedMessage]:
    """Return the messages at these offsets; those that are near each other come with one request."""
    wanted, found = set(offsets), []
    at = offsets[0]
    while wanted:
        page = await visit.admin.dead_letters(queue, at, min(32, offsets[-1] - at + 1))
        found += [message for message in page if message.offset in wanted]
        if not page:
            break
        wanted = {offset for offset in wanted if offset > page[-1].offset}
        at = min(wanted, default=0)
    return found


async def export(visit: Visit) -> Response:
    """Answer every dead letter of a group as a line of JSON, read as the browser takes it."""
    name = visit.needed("name")
    queues = await visit.admin.dead_letter_queues(name)

    async def lines() -> AsyncIterator[bytes]:
        for each in queues:
            at = each.start
            while at < each.end:
                page = await visit.admin.dead_letters(each.queue, at)
                if not page:
                    break
                for message in page:
                    if message.offset < each.end:
                        yield json_bytes(dead_letter_row(message, each.redriven))
                at = page[-1].offset + 1

    headers = {"content-disposition": 'attachment; filename="dead-letters.jsonl"'}
    return StreamingResponse(lines(), media_type="application/jsonl", headers=headers)


def _seen(queues: list[DeadLetterQueue]) -> list[list[Any]]:
    return [[each.queue.broker, each.queue.queue_id, each.start, each.end] for each in queues]


async def purging(visit: Visit) -> Page:
    """Show what a purge takes away."""
    name = visit.needed("name")
    queues = await visit.admin.dead_letter_queues(name)
    data = {
        "name": name,
        "messages": sum(each.end - each.start for each in queues),
        "left": sum(each.end - each.redriven for each in queues),
        "brokers": sorted({each.queue.broker for each in queues}),
        "plan": visit.seal("purge", {"group": name, "seen": _seen(queues)}),
    }
    return Page("dead_letters_purge.html", "Delete dead letters", data)


async def purge(visit: Visit) -> Response:
    """Delete the topic of dead letters; refused where one came since the plan was shown."""
    plan = visit.unseal("purge")
    name = plan["group"]
    visit.tell(name, before=plan["seen"])
    visit.check_typed(name)
    if _seen(await visit.admin.dead_letter_queues(name)) != plan["seen"]:
        raise PlanOutdated(f"group {name!r} has other dead letters than when the plan was shown: nothing was deleted")
    await visit.admin.delete_topic(DLQ_TOPIC_PREFIX + name)
    return visit.done("purged", "/dead-letters")
