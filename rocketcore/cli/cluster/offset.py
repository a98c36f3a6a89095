"""``rocket offset …``: where groups go on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from rocketcore.admin.offsets import OffsetShift, OffsetsOf
from rocketcore.admin.shapes import move_row, progress_row
from rocketcore.cli.cluster.group import progress_columns
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.confirm import confirm
from rocketcore.cli.shell.connection import open_admin, open_lists
from rocketcore.cli.shell.options import ParamType
from rocketcore.cli.shell.render import UNKNOWN, Column, counted, counted_are, progress, show_rows, timestamp
from rocketcore.cli.shell.times import TIME, parse_time
from rocketcore.codes import DLQ_TOPIC_PREFIX
from rocketcore.message import MessageQueue
from rocketcore.printable import printable

if TYPE_CHECKING:
    from rocketcore.admin.offsets import ResetPlan, ResetTarget

__all__ = ["clone", "locate", "reset", "reset_plan", "reset_target", "show", "skip"]

_NUMBER: Final = re.compile(r"([+-]?)(\d{1,18})")
_QUEUE: Final = re.compile(r"(?:(.+)/)?(\d{1,9})")


@command(help="Show the offsets of a group: in all its topics, or in each queue of TOPIC.")
@click.argument("group")
@click.argument("topic", required=False)
def show(group: str, topic: str | None) -> None:
    with open_lists() as admin:
        rows = admin.offsets(group, topic)
    shown = [progress_row(row) for row in rows]
    for row in shown:
        del row["lag_seconds"]
    show_rows(shown, progress_columns(waiting=False), name="group_offset")
    admin.check_whole()


def reset_target(text: str, now_millis: int) -> ResetTarget:
    """Read ``earliest``, ``latest``, ``@TIME``, ``N``, ``+N`` or ``-N``; raises ValueError."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.startswith("@"):
        return datetime.fromtimestamp(parse_time(text[1:], now_millis) / 1000, UTC)
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a position: give earliest, latest, @TIME, an offset N, or a shift +N or -N")
    return OffsetShift(int(text)) if match[1] else int(text)


class _Target(ParamType["ResetTarget"]):
    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ResetTarget:
        try:
            return reset_target(str(value), round(time.time() * 1000))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@command(
    help="Move a group to other offsets in a topic. The command shows the plan, then asks for the group's "
    "name.\n\nAn offset outside of a queue becomes the nearest valid offset. If an offset has moved since the "
    "plan, the command changes nothing."
)
@click.argument("group")
@click.argument("topic")
@click.option("--to", "target", type=_Target(), required=True, metavar="earliest|latest|@TIME|N|+N|-N",
              help="Where the group continues. Required.")  # fmt: skip
@click.option("--queue", "queues", multiple=True, metavar="[BROKER/]ID",
              help="Only this queue, on one broker or on all. You can repeat this option.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def reset(group: str, topic: str, target: ResetTarget, queues: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    _move(group, topic, target, queues, yes=yes, dry_run=dry_run)


def _move(group: str, topic: str, target: ResetTarget, queues: tuple[str, ...], *, yes: bool, dry_run: bool) -> None:
    """Show what is planned, ask, do it, and show what was done."""
    if topic.startswith(DLQ_TOPIC_PREFIX):
        # A broker of 5.x would take no more commits until a pull, which nobody makes here.
        raise click.UsageError(f"{topic}: this offset marks the progress of redrives and cannot be reset")
    with open_admin(calls=2 + bool(queues)) as admin:
        only = _named(queues, admin.queues(topic)) if queues else None
        plan = admin.plan_reset(group, topic, target, queues=only)
        if not confirm(reset_plan(plan), group, yes=yes, dry_run=dry_run):
            return
        admin.reset_offsets(plan)
    show_rows(
        [move_row(plan, move) for move in plan.moves],
        ["topic", "broker", Column("queue_id", "QUEUE"), "before", "after", "lag"],
        name="after",
    )
    if plan.by_time:
        progress(f"the members of {', '.join(sorted(plan.by_time))} go there themselves, within ten seconds")


@command(
    help="Make a group skip waiting messages of a topic. The command shows the plan, then asks for the group's "
    "name.\n\nIt skips all of them, or with --count this many in each queue. The group never consumes them."
)
@click.argument("group")
@click.argument("topic")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1),
    help="Number of messages to skip in each queue. Default: all waiting messages.",
)
@click.option("--queue", "queues", multiple=True, metavar="[BROKER/]ID",
              help="Only this queue, on one broker or on all. You can repeat this option.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def skip(group: str, topic: str, count: int | None, queues: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    _move(group, topic, "latest" if count is None else OffsetShift(count), queues, yes=yes, dry_run=dry_run)


@command(
    help="Move a group to the offsets of another group in a topic. The command shows the plan, then asks for the "
    "group's name.\n\nQueues in which SOURCE has no offset stay as they are."
)
@click.argument("source")
@click.argument("group")
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def clone(source: str, group: str, topic: str, yes: bool, dry_run: bool) -> None:
    _move(group, topic, OffsetsOf(source), (), yes=yes, dry_run=dry_run)


@command(
    help="Show the offset that each queue of a topic had at a time: the offset of the first message stored then or "
    "later.",
    context_settings={"ignore_unknown_options": True},  # -1h is a time
)
@click.argument("topic")
@click.argument("time", type=TIME)
def locate(topic: str, time: int) -> None:
    with open_lists() as admin:
        found = admin.offsets_at(topic, time)
    show_rows(
        [
            {
                "topic": topic,
                "broker": queue.broker,
                "queue_id": queue.queue_id,
                "offset": offset,
                "min_offset": first,
                "max_offset": end,
                "messages_since": end - offset,
            }
            for queue, (offset, first, end) in found.items()
        ],
        [
            "broker",
            Column("queue_id", "QUEUE"),
            "offset",
            Column("min_offset", "MIN"),
            Column("max_offset", "MAX"),
            "messages_since",
        ],
        name="offset",
    )
    admin.check_whole()


def _named(texts: Iterable[str], queues: Iterable[MessageQueue]) -> set[MessageQueue]:
    """Return the queues that are meant; raises UsageError for one that is not there."""
    found: set[MessageQueue] = set()
    for text in texts:
        match = _QUEUE.fullmatch(text)
        if match is None:
            raise click.UsageError(f"--queue {text}: give a queue as BROKER/ID or ID")
        meant = {each for each in queues if each.queue_id == int(match[2]) and match[1] in (None, each.broker)}
        if not meant:
            raise click.UsageError(f"--queue {text}: the topic has no such queue to read")
        found |= meant
    return found


def reset_plan(plan: ResetPlan) -> str:
    """Say what changes in each queue, and who is connected."""
    again = sum(max(0, move.before - move.after) for move in plan.moves if move.before is not None)
    skipped = sum(max(0, move.after - move.before) for move in plan.moves if move.before is not None)
    lines = [
        f"reset group {plan.group} in topic {plan.topic}: {counted_are(again, 'message')} consumed again, "
        f"{counted(skipped, 'message')} skipped, {counted_are(plan.members, 'member')} connected"
    ]
    for move in plan.moves:
        before = UNKNOWN if move.before is None else str(move.before)
        change = f"{before} → {move.after}" if move.before != move.after else f"{before}, as it is"
        place = f"{move.queue.broker}/{move.queue.queue_id}"
        lines.append(f"  {place}  {change}  (queue holds {move.min_offset} to {move.max_offset})")
    if plan.by_time and plan.millis is not None:
        where = timestamp(plan.millis) or ("the end" if plan.millis < 0 else "the begin")
        lines.append(f"  {', '.join(sorted(plan.by_time))}: the members are told to go to {where}")
    return "\n".join(map(printable, lines))
