"""The list of topics, and a new one."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from rocketcore.admin.shapes import permission_text, topic_kind
from rocketcore.codes import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rocketcore.console.console import Page, Visit, page_of
from rocketcore.console.safety import BadRequest
from rocketcore.errors import TopicExists
from rocketcore.protocol.bodies.topic import TopicConfig

__all__ = ["PERMISSIONS", "create", "creation", "topics"]

KINDS: Final = ("normal", "retry", "dlq", "system", "all")
SORTS: Final = ("topic", "read_queues", "in_tps", "out_tps", "messages", "groups", "last_stored_at")
PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2}
TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


async def topics(visit: Visit) -> Page:
    survey = await visit.admin.survey_topics()
    kind = visit.given("kind", "normal")
    if kind not in KINDS:
        raise BadRequest(f"kind must be one of {', '.join(KINDS)}, got {kind[:40]!r}")
    rows = [_row(name, configs, survey.own, survey.groups.get(name, set())) for name, configs in survey.configs.items()]
    counts = {each: sum(each in ("all", row["kind"]) for row in rows) for each in KINDS}
    rows = [row for row in rows if kind in ("all", row["kind"])]
    counted = await visit.cluster.counts.of(row["topic"] for row in rows)
    rows = [{**row, **visit.cluster.topic_rates.of(row["topic"]), **counted[row["topic"]]} for row in rows]
    shown, state = page_of(rows, visit, SORTS, _matches)
    failed = {name: str(error) for name, error in survey.failed.items()}
    data = {"rows": shown, "state": state, "kind": kind, "kinds": KINDS, "counts": counts, "failed": failed}
    return Page("topics.html", "Topics", data, rows)


def _row(name: str, configs: dict[str, TopicConfig], own: set[str], groups: set[str]) -> dict[str, Any]:
    several = list(configs.values())
    return {
        "topic": name,
        "kind": topic_kind(name, own),
        "type": several[0].attributes.get("message.type"),
        "brokers": sorted(configs),
        "read_queues": sum(each.read_queue_nums for each in several),
        "write_queues": sum(each.write_queue_nums for each in several),
        "perm": ", ".join(sorted({permission_text(each.perm) for each in several})),
        "order": several[0].order,
        "groups": len(groups),
    }


def _matches(row: Any, wanted: str) -> bool:
    return wanted in row["topic"].lower()


async def creation(visit: Visit) -> Page:
    return Page("topic_create.html", "New topic", {"types": TYPES, "permissions": PERMISSIONS})


async def create(visit: Visit) -> Response:
    name = visit.sent("name").strip()
    queues = visit.sent_number("queues", 8, 1, 65535)
    kind, perm = visit.sent("type"), visit.sent("perm", "rw")
    if perm not in PERMISSIONS or kind not in ("", *TYPES):
        raise BadRequest("unknown type or permission")
    if name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
        raise BadRequest("brokers create retry and dead-letter topics when a group needs them")
    attributes = {"message.type": kind} if kind else {}
    try:
        await visit.admin.create_topic(name, queues, perm=PERMISSIONS[perm], attributes=attributes)
    except TopicExists as error:
        raise BadRequest(f"topic {name!r} is on {', '.join(error.brokers)}: nothing was changed") from None
    return visit.done("topic-created", "/topic", name=name)
