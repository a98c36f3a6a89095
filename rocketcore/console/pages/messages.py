"""The search for messages, and one message."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from rocketcore.admin.shapes import message_object
from rocketcore.console.console import Page, Visit
from rocketcore.console.drawing import way
from rocketcore.console.pages.history import history_of
from rocketcore.console.safety import BadRequest
from rocketcore.errors import QueryNotFound
from rocketcore.ids import is_offset_id
from rocketcore.message import ReceivedMessage
from rocketcore.message_queue import MessageQueue

__all__ = ["download", "message", "read_time", "search"]

_PLACE: Final = re.compile(r"(.+)/(\d{1,9})/(\d{1,18})")
MOST_FOUND: Final = 64
TIME_QUEUES: Final = 8
"""In which a time is looked for, at most."""
SHOWN_BYTES: Final = 64 * 1024
"""Of a body; all of it can be downloaded."""


async def search(visit: Visit) -> Page:
    """Find messages by one box: an id, a key, ``tag:``, ``@time``, ``broker/queue/offset``."""
    text, topic = visit.given("q").strip(), visit.given("topic").strip()
    data: dict[str, Any] = {"q": text, "topic": topic, "rows": None, "note": "", "next": ""}
    if not text:
        return Page("search.html", "Message search", data, [])
    found, data["note"], data["next"] = await _found(visit, text, topic)
    data["rows"] = [message_object(each) for each in found]
    return Page("search.html", "Message search", data, data["rows"])


async def _found(visit: Visit, text: str, topic: str) -> tuple[list[ReceivedMessage], str, str]:
    """Return messages, a note on how they were looked for, and the address of the next ones."""
    admin = visit.admin
    if is_offset_id(text) and not topic:
        return [await admin.view_message(None, text)], "", ""
    if not topic:
        raise BadRequest("name the topic: only an offset id says by itself where its message lies")
    if text.startswith("tag:"):
        found = await admin.query_messages(topic, tag=text[4:].strip(), max_messages=MOST_FOUND)
        return found[::-1], "by tag brokers before 5.5 find none", ""
    if text.startswith("@"):
        return await _since(visit, topic, text[1:])
    place = _PLACE.fullmatch(text)
    if place is not None:
        queue, offset = MessageQueue(topic, place[1], int(place[2])), int(place[3])
        found = await admin.messages_from(queue, offset)
        after = visit.url("/search", topic=topic, q=f"{place[1]}/{place[2]}/{found[-1].offset + 1}") if found else ""
        return found, "", after
    by_key = await admin.query_messages(topic, text, max_messages=MOST_FOUND)
    if by_key:
        return by_key[::-1], "", ""
    try:
        return [await admin.view_message(topic, text)], "", ""
    except QueryNotFound:
        return [], "", ""


async def _since(visit: Visit, topic: str, text: str) -> tuple[list[ReceivedMessage], str, str]:
    """Return the first messages that were stored at a time or later."""
    moment = read_time(text)
    queues = await visit.admin.queues(topic)

    async def read(queue: MessageQueue) -> list[ReceivedMessage]:
        offset = await visit.admin.search_offset(queue, moment)
        return await visit.admin.messages_from(queue, offset, 8)

    several = await asyncio.gather(*map(read, queues[:TIME_QUEUES]))
    found = sorted((each for part in several for each in part), key=lambda each: each.store_timestamp)
    found = [each for each in found if each.store_timestamp >= moment.timestamp() * 1000 - 1]
    note = "" if len(queues) <= TIME_QUEUES else f"looked in {TIME_QUEUES} of {len(queues)} queues"
    return found[:MOST_FOUND], note, ""


def read_time(text: str) -> datetime:
    """Read a time as the command line takes it: RFC 3339, a date, milliseconds, or ``10m`` for so long ago."""
    ago = re.fullmatch(r"-?(\d{1,6})(s|m|h|d)", text)
    if ago is not None:
        seconds = int(ago[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[ago[2]]
        return datetime.fromtimestamp(max(0.0, time.time() - seconds), UTC)
    if re.fullmatch(r"\d{13}", text):
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"{text[:40]!r} is not a time such as 2030-01-31T12:00:00Z, 2030-01-31 or 10m") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


async def _wanted(visit: Visit) -> ReceivedMessage:
    topic = visit.needed("topic")
    if visit.given("id"):
        return await visit.admin.view_message(topic, visit.given("id"))
    queue = MessageQueue(topic, visit.needed("broker"), visit.number("queue", 0, 0, 65535))
    return await visit.admin.message_at(queue, visit.number("offset", 0))


async def message(visit: Visit) -> Page:
    """Show a message, and what happened to it."""
    found = await _wanted(visit)
    states, traces = await history_of(visit, found)
    body = found.body[:SHOWN_BYTES]
    try:
        text = codecs.utf_8_decode(body, "strict", len(found.body) <= SHOWN_BYTES)[0]
    except UnicodeDecodeError:
        text = None
    row = message_object(found)
    data = {
        "row": row,
        "size": len(found.body),
        "cut": len(found.body) > SHOWN_BYTES,
        "pretty": _pretty(found.body) if len(found.body) <= SHOWN_BYTES else None,
        "text": text,
        "hex": _hex(body[:4096]),
        "born_host": found.born_host,
        "store_host": found.store_host,
        "store_size": found.store_size,
        "offset_id": found.offset_msg_id,
        "states": states,
        "events": events_of(row, found, traces or []),
        "traces": traces,
        "drawing": way(visit.url, row, traces or [], states),
    }
    return Page(
        "message.html", "Message", data, {**row, "size_bytes": len(found.body), "groups": states, "traces": traces}
    )


def events_of(row: dict[str, Any], found: ReceivedMessage, traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is known to have happened, in order: what the message says itself, and what clients traced."""
    unsaid = {"group": None, "success": None, "retry_times": None, "seconds": None}
    own = [
        {**unsaid, "at": row["born_at"], "event": "born", "who": found.born_host},
        {**unsaid, "at": row["stored_at"], "event": "stored", "who": found.store_host},
    ]
    told = [{**each, "who": each["client"] or each["broker_address"]} for each in traces]
    return [*own, *told]


def _pretty(body: bytes) -> str | None:
    """Return JSON with an indent; None for what is not an object or a list."""
    import json

    if body[:1] not in (b"{", b"["):
        return None
    try:
        return json.dumps(json.loads(body), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return None


def _hex(body: bytes) -> str:
    lines = []
    for at in range(0, len(body), 16):
        part = body[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  {text}")
    return "\n".join(lines)


async def download(visit: Visit) -> Response:
    """Answer the body as it is, never as something that a browser would run."""
    found = await _wanted(visit)
    name = f"{re.sub(r'[^A-Za-z0-9_-]', '_', found.queue.topic)}-{found.queue.queue_id}-{found.offset}.bin"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(found.body, media_type="application/octet-stream", headers=headers)
