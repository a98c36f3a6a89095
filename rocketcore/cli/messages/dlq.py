"""``rocket dlq …``: messages that a group failed for too often."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from rocketcore.admin.dead_letters import RedrivePace
from rocketcore.admin.shapes import dead_letter_row
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.confirm import confirm
from rocketcore.cli.shell.connection import open_admin, open_lists
from rocketcore.cli.shell.options import ParamType
from rocketcore.cli.shell.render import Column, counted, progress, show_object, show_rows
from rocketcore.codes import DLQ_TOPIC_PREFIX
from rocketcore.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketcore.admin.dead_letters import DeadLetterQueue

__all__ = ["list_groups", "purge", "redrive", "show"]


@command(help="List the groups that have dead letters, or had some.")
def list_groups() -> None:
    with open_admin() as admin:
        groups = admin.dead_letter_groups()
    show_rows([{"group": group, "topic": DLQ_TOPIC_PREFIX + group} for group in groups], ["group", "topic"])


@command(help="Show the newest dead letters of a group, and list the oldest of them first.")
@click.argument("group")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Show at most this many messages of each broker.",
)
def show(group: str, count: int) -> None:
    rows: list[dict[str, Any]] = []
    with open_lists() as lists:
        queues = lists.dead_letter_queues(group)
    for each in queues:
        with open_admin() as admin:
            offset = max(each.start, each.end - count)
            while offset < each.end and (page := admin.dead_letters(each.queue, offset)):
                rows += [dead_letter_row(message, each.redriven) for message in page if message.offset < each.end]
                offset = page[-1].offset + 1
    show_rows(
        rows,
        [
            "broker",
            "offset",
            "topic",
            "msg_id",
            "keys",
            Column("reconsume_times", "FAILED"),
            "stored_at",
            "redriven",
            Column("body", wide=True),
        ],
        name="msg_id",
    )
    lists.check_whole()


class _Rate(ParamType[float]):
    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            rate = float(str(value).removesuffix("/s"))
        except ValueError:
            rate = 0.0
        if not 0 < rate < float("inf"):
            self.fail(f"{value!r} is not a rate such as 100/s", param, ctx)
        return rate


@command(
    help="Deliver dead letters to their group again, but to no other group. Letters redriven before are left out. "
    "The command shows the number, then asks for the group's name.\n\nThe group tries each letter once more. If "
    "it fails, it becomes a dead letter again. --timeout applies to each 32 letters."
)
@click.argument("group")
@click.option("--rate", type=_Rate(), metavar="N/s", help="Redrive at most this many letters per second.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show how many would be redriven.")
def redrive(group: str, rate: float | None, yes: bool, dry_run: bool) -> None:
    with open_admin() as admin:
        queues = admin.dead_letter_queues(group)
    plan = _plan(f"redrive the dead letters of group {group}", queues, left=True)
    if not confirm(plan, group, yes=yes, dry_run=dry_run):
        return
    count = 0
    began = time.monotonic()
    pace = RedrivePace(rate)
    try:
        for each in queues:
            offset = each.redriven
            while offset < each.end:
                with open_admin(calls=2) as admin:
                    page = admin.dead_letters(each.queue, offset, min(pace.page, each.end - offset))
                    if not page:
                        break
                    count += admin.redrive(group, page)
                offset = page[-1].offset + 1
                time.sleep(pace.pause(count, time.monotonic() - began))
    except BaseException:
        progress(f"{counted(count, 'dead letter')} redriven so far: run the command again for the rest")
        raise
    show_object({"group": group, "redriven": count})


@command(
    help="Delete all dead letters of a group, redriven or not. Brokers create the dead-letter topic again when "
    "they need it."
)
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
def purge(group: str, yes: bool, dry_run: bool) -> None:
    with open_admin(calls=2) as admin:
        queues = admin.dead_letter_queues(group)
        plan = _plan(f"delete the dead letters of group {group}", queues, left=False)
        if not confirm(plan, group, yes=yes, dry_run=dry_run):
            return
        brokers = admin.delete_topic(DLQ_TOPIC_PREFIX + group)
    show_object({"group": group, "deleted_on": brokers, "messages": sum(each.end - each.start for each in queues)})


def _plan(what: str, queues: Sequence[DeadLetterQueue], *, left: bool) -> str:
    """Say how many dead letters are meant: all, or those that were not redriven yet."""
    counts = {each: each.end - (each.redriven if left else each.start) for each in queues}
    lines = [f"{what}: {counted(sum(counts.values()), 'message')}"]
    for each, count in counts.items():
        before = each.redriven - each.start
        lines.append(f"  {each.queue.broker}/{each.queue.queue_id}  {count}; redriven before: {before}")
    return "\n".join(map(printable, lines))
