"""``rocket group …``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from rocketcore.admin.groups import lag_of
from rocketcore.cli.connection import open_admin
from rocketcore.cli.options import command, current
from rocketcore.cli.render import Column, show_object, show_rows, show_title, timestamp
from rocketcore.naming import is_system_group

if TYPE_CHECKING:
    from rocketcore.admin.groups import GroupMember, QueueProgress

__all__ = ["describe", "lag", "list_groups", "progress_columns", "progress_row"]

LAG_INTERVAL: Final = 2.0
"""Seconds between two looks of ``--watch``."""

MEMBER_COLUMNS: Final = ("client_id", "address", "language", "version", "brokers")


@command(help="List the consumer groups of all brokers; those that every broker has with --all.")
@click.option("-a", "--all", "everything", is_flag=True, help="Also groups that no user made.")
def list_groups(everything: bool) -> None:
    with open_admin() as admin:
        groups = admin.groups()
    rows = [
        {
            "group": name,
            "kind": "system" if is_system_group(name) else "normal",
            "consume_enabled": config.consume_enable,
            "broadcast_enabled": config.consume_broadcast_enable,
            "orderly": config.consume_message_orderly,
            "max_retries": config.retry_max_times,
            "retry_queues": config.retry_queue_nums,
        }
        for name, config in groups.items()
    ]
    show_rows(
        [row for row in rows if everything or row["kind"] == "normal"],
        [
            "group",
            Column("kind", wide=not everything),
            "consume_enabled",
            "broadcast_enabled",
            "orderly",
            "max_retries",
            Column("retry_queues", wide=True),
        ],
    )


def progress_row(row: QueueProgress) -> dict[str, Any]:
    """Return what ``-o json`` shows of a queue."""
    return {
        "topic": row.queue.topic,
        "broker": row.queue.broker,
        "queue_id": row.queue.queue_id,
        "broker_offset": row.broker_offset,
        "group_offset": row.group_offset,
        "lag": row.lag,
        "lag_seconds": row.waiting,
        "consumed_at": timestamp(row.consumed_at),
    }


def progress_columns(*, waiting: bool) -> Sequence[Column | str]:
    """Return the columns of queues, with or without the time for which messages wait."""
    return [
        "topic",
        "broker",
        Column("queue_id", "QUEUE"),
        "broker_offset",
        "group_offset",
        "lag",
        *(["lag_seconds"] if waiting else []),
        "consumed_at",
    ]


def member_row(member: GroupMember) -> dict[str, Any]:
    """Return what ``-o json`` shows of a member."""
    return {
        "client_id": member.client_id,
        "address": member.address,
        "language": member.language,
        "version": member.release,
        "brokers": list(member.brokers),
    }


@command(help="Show a group: its settings, members, subscriptions, and how far it is in each queue.")
@click.argument("group")
def describe(group: str) -> None:
    with open_admin() as admin:
        found = admin.describe_group(group)
    config = next(iter(found.configs.values()), None)
    head: dict[str, Any] = {
        "group": group,
        "state": "online" if found.members else "offline",
        "brokers": list(found.configs),
        "consume_type": found.consume_type,
        "message_model": found.message_model,
        "starts_from": found.consume_from_where,
        "consume_enabled": None if config is None else config.consume_enable,
        "orderly": None if config is None else config.consume_message_orderly,
        "max_retries": None if config is None else config.retry_max_times,
        "lag": lag_of(found.progress),
        "lag_seconds": _longest(found.progress),
    }
    members = [member_row(member) for member in found.members]
    subscriptions = [
        {"topic": topic, "expression_type": each.expression_type, "expression": each.sub_string}
        for topic, each in found.subscriptions.items()
    ]
    queues = [progress_row(row) for row in found.progress]
    if current().output not in ("table", "wide"):
        show_object({**head, "members": members, "subscriptions": subscriptions, "queues": queues})
        return
    show_object(head)
    if members:
        show_title("members")
        show_rows(members, MEMBER_COLUMNS)
    if subscriptions:
        show_title("subscriptions")
        show_rows(subscriptions, ["topic", "expression_type", "expression"])
    if queues:
        show_title("queues")
        show_rows(queues, progress_columns(waiting=True))


def _longest(rows: Iterable[QueueProgress]) -> float | None:
    """Return for how long the message that waits longest has waited; None where that is unknown for a queue."""
    waiting = [row.waiting for row in rows]
    known = [seconds for seconds in waiting if seconds is not None]
    return max(known) if known and len(known) == len(waiting) else None


@command(help="Show how many messages wait for a group in each queue, and since when the first of them waits.")
@click.argument("group")
@click.option("--topic", help="Only this topic.")
@click.option("-w", "--watch", is_flag=True, help="Again every two seconds, until Ctrl-C.")
def lag(group: str, topic: str | None, watch: bool) -> None:
    while True:
        with open_admin() as admin:
            rows = admin.group_lag(group, topic)
        show_rows([progress_row(row) for row in rows], progress_columns(waiting=True), name="lag")
        if not watch:
            return
        time.sleep(LAG_INTERVAL)
