"""What happened to one message: what clients traced, how far each group is with it, and once more to one consumer."""

from __future__ import annotations

from typing import Any, Final

from rocketcore.admin.shapes import CONSUMED, directly_row, member_row, message_object, state_row, trace_row
from rocketcore.console.console import Page, Visit
from rocketcore.console.safety import BadRequest
from rocketcore.errors import RequestTimeout, RocketError, TopicNotExist
from rocketcore.message import ReceivedMessage
from rocketcore.message_queue import MessageQueue

__all__ = ["history_of", "resend", "resend_form"]

MOST_GROUPS: Final = 6
"""Of which a page asks for retries and dead letters, three requests each; of more it shows what their offsets say."""


async def history_of(visit: Visit, found: ReceivedMessage) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Return the state of each group, and the events of a message in order; traces are None where they are unknown.

    An event has the keys of a trace's row.
    """
    states = await _states(visit, found)
    try:
        traces: list[dict[str, Any]] | None = [
            trace_row(each) for each in await visit.admin.message_traces(found.msg_id)
        ]
    except TopicNotExist:
        traces = []
    except RocketError:
        traces = None
    return states, traces


async def _states(visit: Visit, found: ReceivedMessage) -> list[dict[str, Any]]:
    offsets = await visit.admin.group_offsets(found.queue.topic)
    if len(offsets) <= MOST_GROUPS:
        rows = [state_row(each) for each in await visit.admin.message_states(found)]
    else:
        rows = [_by_offset(group, table.get(found.queue), found.offset) for group, table in offsets.items()]
    for row in rows:
        mark = row["group_offset"]
        row["messages_before"] = found.offset - mark if row["state"] == "not_yet" and mark is not None else None
    return rows


def _by_offset(group: str, mark: int | None, offset: int) -> dict[str, Any]:
    state = "unknown" if mark is None else "consumed" if mark > offset else "not_yet"
    return {"group": group, "state": state, "group_offset": mark, "failed": None, "members": None}


# One more time


def _place(message: ReceivedMessage) -> str:
    return f"{message.queue.broker}/{message.queue.queue_id}/{message.offset}"


async def resend_form(visit: Visit) -> Page:
    """Show who of a group could be given a message."""
    queue = MessageQueue(visit.needed("topic"), visit.needed("broker"), visit.number("queue", 0, 0, 65535))
    found = await visit.admin.message_at(queue, visit.number("offset", 0))
    return await _form(visit, found, visit.needed("group"), None)


async def _form(visit: Visit, found: ReceivedMessage, group: str, result: dict[str, Any] | None) -> Page:
    members = [member_row(each) for each in await visit.admin.group_members(group)]
    data = {
        "row": message_object(found),
        "place": _place(found),
        "group": group,
        "members": [each for each in members if found.queue.broker in each["brokers"]],
        "result": result,
        "plan": visit.seal("resend", {
            "topic": found.queue.topic, "broker": found.queue.broker, "queue": found.queue.queue_id,
            "offset": found.offset, "msg_id": found.msg_id, "group": group,
        }),
    }  # fmt: skip
    return Page("message_resend.html", "Resend a message", data, result)


async def resend(visit: Visit) -> Page:
    """Have one member consume the message now; what came of it is done, failed, or unknown where no answer came."""
    plan = visit.unseal("resend")
    client_id = visit.sent("client")
    if not client_id:
        raise BadRequest("choose the member that is to consume the message")
    found = await visit.admin.message_at(MessageQueue(plan["topic"], plan["broker"], plan["queue"]), plan["offset"])
    if found.msg_id != plan["msg_id"]:
        raise BadRequest("another message is there now: nothing was sent")
    group = plan["group"]
    result: dict[str, Any]
    try:
        row = directly_row(found, group, client_id, await visit.admin.consume_directly(group, client_id, found))
        result = {**row, "state": "done" if row["result"] in CONSUMED else "failed"}
    except RequestTimeout as error:
        result = {"client_id": client_id, "state": "unknown", "result": None, "remark": str(error), "seconds": None}
    visit.tell(f"{group} {found.msg_id}", after=f"{client_id}: {result['state']}")
    return await _form(visit, found, group, result)
