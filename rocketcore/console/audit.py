"""Audit: what this console changed, for whom, and what came of it: a line of the log each, the newest kept."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rocketcore.admin.timestamps import timestamp
from rocketcore.console.console import Page, Visit, page_of

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["audit", "record"]

logger = logging.getLogger(__name__)


def record(visit: Visit, millis: int, answer: Page | Response) -> None:
    """Keep one line about a write: never a body or a secret."""
    refused = isinstance(answer, Page) and answer.template == "error.html"
    line = {
        "at": timestamp(millis),
        "cluster": visit.cluster.name,
        "action": visit.request.url.path.strip("/"),
        "name": (visit.given("name") or visit.sent("name") or visit.subject)[:300],
        "who": None if visit.who is None else visit.who.name,
        "address": None if visit.request.client is None else visit.request.client.host,
        "before": visit.before,
        "after": visit.after,
        "result": "refused" if refused else "done",
        "error": answer.data["message"] if isinstance(answer, Page) and refused else None,
    }
    visit.console.audit.append(line)
    logger.info(
        "write action=%s name=%s by=%s from=%s result=%s before=%s after=%s",
        *(line[key] for key in ("action", "name", "who", "address", "result", "before", "after")),
    )


async def audit(visit: Visit) -> Page:
    """List what was changed in this cluster since the console started, the newest first."""
    rows = [line for line in reversed(visit.console.audit) if line["cluster"] == visit.cluster.name]
    shown, state = page_of(
        rows, visit, ("-at", "at", "action", "name", "result"),
        lambda row, wanted: any(wanted in str(row[key]).lower() for key in ("action", "name", "who", "address")),
    )  # fmt: skip
    return Page("audit.html", "Audit", {"rows": shown, "state": state}, rows)
