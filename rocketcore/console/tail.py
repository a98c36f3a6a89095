"""Live tail: what is stored in a topic from now on, as server-sent events of finished rows.

A look every half second; of what has come, the newest rows up to a bound are shown and the others counted as dropped,
so that a topic of thousands of messages a second freezes neither the browser nor the brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from markupsafe import escape
from starlette.responses import Response, StreamingResponse

from rocketcore.admin.shapes import message_object
from rocketcore.console.console import Visit
from rocketcore.console.show import Shown
from rocketcore.errors import Overloaded, RocketError
from rocketcore.message import ReceivedMessage
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.bodies.stats import TopicOffset

__all__ = ["Tail", "events"]

MOST_TAILS: Final = 8
"""At the same time."""
LOOK_SECONDS: Final = 0.5
MOST_ROWS: Final = 40
"""Shown of one look."""
MOST_QUEUES: Final = 16
"""Read from in one look."""


class Tail:
    """Goes along with one topic.

    dropped  messages that were not looked at
    """

    def __init__(self, visit: Visit, topic: str) -> None:
        self._admin = visit.admin
        self._topic = topic
        self._tag = visit.given("tag").strip()
        self._text = visit.given("text").strip().lower()
        self._marks: dict[MessageQueue, int] | None = None
        self.seen = 0
        self.dropped = 0

    async def look(self) -> list[ReceivedMessage]:
        """Return what has come since the last look and fits, oldest first; nothing at the first."""
        stats = await self._admin.topic_stats(self._topic)
        marks = self._marks
        self._marks = {queue: each.max_offset for queue, each in stats.items()}
        if marks is None:
            return []
        came = {queue: (marks.get(queue, each.min_offset), each) for queue, each in stats.items()}
        fresh = {queue: each for queue, each in came.items() if each[0] < each[1].max_offset}
        total = sum(bounds.max_offset - mark for mark, bounds in fresh.values())
        found = await self._read(fresh)
        self.seen += total
        self.dropped += total - len(found)
        fitting = sorted(filter(self._fits, found), key=lambda each: (each.store_timestamp, each.physical_offset))
        self.dropped += max(0, len(fitting) - MOST_ROWS)
        return fitting[-MOST_ROWS:]

    async def _read(self, fresh: dict[MessageQueue, tuple[int, TopicOffset]]) -> list[ReceivedMessage]:
        queues = list(fresh)[:MOST_QUEUES]

        async def read(queue: MessageQueue) -> list[ReceivedMessage]:
            mark, bounds = fresh[queue]
            start = max(mark, bounds.min_offset, bounds.max_offset - 32)
            page = await self._admin.messages_from(queue, start)
            return [each for each in page if each.offset < bounds.max_offset]

        return [each for page in await asyncio.gather(*map(read, queues)) for each in page]

    def _fits(self, message: ReceivedMessage) -> bool:
        if self._tag and message.tag != self._tag:
            return False
        return not self._text or self._text in message.body.decode("utf-8", "replace").lower()


async def events(visit: Visit) -> Response:
    """Answer the events ``rows`` and ``count``, finished HTML both, until the browser or the console leaves."""
    topic = visit.needed("name")
    console = visit.console
    too_many = f"{MOST_TAILS} live tails are open: close one"
    if console.tails >= MOST_TAILS:
        raise Overloaded(too_many)
    tail = Tail(visit, topic)
    await tail.look()
    template = console.templates.get_template("tail_rows.html")
    shown = Shown(visit.language)

    async def stream() -> AsyncIterator[bytes]:
        if console.tails >= MOST_TAILS:  # others looked while this one did
            yield _event("trouble", too_many)
            return
        console.tails += 1
        try:
            while not console.leaving.is_set():
                yield _event("count", f"{visit.text('seen')} {tail.seen:,} · {visit.text('dropped')} {tail.dropped:,}")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(console.leaving.wait(), LOOK_SECONDS)
                    return
                try:
                    rows = [message_object(each) for each in reversed(await tail.look())]
                except RocketError as error:
                    yield _event("trouble", str(escape(str(error))))
                    continue
                if rows:
                    yield _event("rows", template.render(rows=rows, url=visit.url, f=shown, t=visit.text))
        finally:
            console.tails -= 1

    return StreamingResponse(stream(), media_type="text/event-stream")


def _event(name: str, text: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() if line.strip())
    return f"event: {name}\n{lines}\n".encode("utf-8", "replace")
