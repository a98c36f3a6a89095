"""``rocket group …``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from rocketcore.admin.group_settings import changed
from rocketcore.admin.shapes import group_document, group_row, lag_of, member_row, progress_row
from rocketcore.cli.cluster.topic import arrow, brokers_named
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.confirm import confirm
from rocketcore.cli.shell.connection import open_admin, open_lists
from rocketcore.cli.shell.failures import EXIT_NOT_ALLOWED, CommandFailed
from rocketcore.cli.shell.options import current
from rocketcore.cli.shell.render import (
    UNKNOWN,
    Column,
    counted,
    counted_are,
    progress,
    show_object,
    show_rows,
    show_title,
    tell,
    timestamp,
)
from rocketcore.errors import GroupExists
from rocketcore.naming import is_system_group
from rocketcore.printable import printable

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.group import SubscriptionGroupConfig

__all__ = [
    "clients",
    "create",
    "delete",
    "describe",
    "lag",
    "list_groups",
    "member_row",
    "progress_columns",
    "progress_row",
    "update",
]

LAG_INTERVAL: Final = 2.0
"""Seconds between two looks of ``--watch``."""

MEMBER_COLUMNS: Final = ("client_id", "address", "language", "version", "brokers")


@command(help="List the consumer groups of all brokers. With --all, also list the groups that every broker has.")
@click.option("-a", "--all", "everything", is_flag=True, help="Also list system groups.")
def list_groups(everything: bool) -> None:
    with open_lists() as admin:
        groups = admin.groups()
    rows = [group_row(name, config) for name, config in groups.items()]
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
    admin.check_whole()


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


@command(help="Show a group: its settings, members, subscriptions, and progress in each queue.")
@click.argument("group")
def describe(group: str) -> None:
    with open_lists(calls=2) as admin:
        found = admin.describe_group(group)
        document = group_document(found, admin.dead_letter_count(group))
    if current().output not in ("table", "wide"):
        show_object(document)
        admin.check_whole()
        return
    wrong, members, subscriptions, queues = (
        document.pop(part) for part in ("troubles", "members", "subscriptions", "queues")
    )
    show_object(document)
    if wrong:
        show_title("troubles")
        show_rows(wrong, ["state", "check", "detail", "hint"])
    if members:
        show_title("members")
        show_rows(members, MEMBER_COLUMNS)
    if subscriptions:
        show_title("subscriptions")
        show_rows(subscriptions, ["topic", "expression_type", "expression"])
    if queues:
        show_title("queues")
        show_rows(queues, progress_columns(waiting=True))
    admin.check_whole()


@command(help="Show how many messages wait for a group in each queue, and how long the oldest has waited.")
@click.argument("group")
@click.option("--topic", help="Only this topic.")
@click.option("-w", "--watch", is_flag=True, help="Refresh every two seconds, until Ctrl-C.")
def lag(group: str, topic: str | None, watch: bool) -> None:
    while True:
        with open_lists() as admin:
            rows = admin.group_lag(group, topic)
        if watch:
            progress(f"at {timestamp(round(time.time() * 1000))}")
        read = show_rows([progress_row(row) for row in rows], progress_columns(waiting=True), name="lag")
        if not watch:
            admin.check_whole()
            return
        if not read:
            return
        if lacking := admin.lacking():
            tell(lacking)
        time.sleep(LAG_INTERVAL)


@command(help="List the connected members of a group, and the brokers of each.")
@click.argument("group")
def clients(group: str) -> None:
    with open_lists(calls=2) as admin:
        members = admin.group_members(group)
        if not members:
            admin.group_configs(group)  # which says that there is no such group
    show_rows([member_row(member) for member in members], MEMBER_COLUMNS)
    admin.check_whole()


_max_retries = click.option(
    "--max-retries",
    type=click.IntRange(-1, 2**31 - 1),
    help="How often to deliver a failed message again before it becomes a dead letter. -1 leaves this to the client.",
)
_retry_queues = click.option(
    "--retry-queues", type=click.IntRange(1, 65535), help="Number of queues of its retry topic."
)
_broadcast = click.option("--broadcast/--no-broadcast", default=None, help="Whether members may use broadcasting.")
_orderly = click.option("--orderly/--no-orderly", default=None, help="Whether POP delivers each queue in order.")


def _settings(
    max_retries: int | None, retry_queues: int | None, broadcast: bool | None, orderly: bool | None
) -> dict[str, Any]:
    """Return the settings that are named, as ``create_group`` and ``update_group`` call them."""
    wanted = {
        "retry_max_times": max_retries,
        "retry_queues": retry_queues,
        "broadcast": broadcast,
        "orderly": orderly,
    }
    return {name: value for name, value in wanted.items() if value is not None}


@command(help="Create a group on every broker. If the group exists, it stays as it is, and the exit code is 1.")
@click.argument("group")
@_max_retries
@_retry_queues
@_broadcast
@_orderly
@click.option("--if-not-exists", is_flag=True, help="If the group exists, show it and exit with 0.")
def create(
    group: str,
    max_retries: int | None,
    retry_queues: int | None,
    broadcast: bool | None,
    orderly: bool | None,
    if_not_exists: bool,
) -> None:
    named = _settings(max_retries, retry_queues, broadcast, orderly)
    with open_admin(calls=3) as admin:
        try:
            made = admin.create_group(group, **named, exist_ok=if_not_exists)
        except GroupExists as error:
            raise CommandFailed(
                "GROUP_EXISTS", f"group {group!r} is on {', '.join(error.brokers)}: nothing was changed",
                "change it with rocket group update",
            ) from None  # fmt: skip
        found = admin.group_configs(group)
    if not made.created:
        progress(f"group {group} is there: nothing was changed")
    first = next(iter(found.values()))
    show_object({"group": group, **_setting_values(first), "brokers": list(found)})


def _setting_values(config: SubscriptionGroupConfig) -> dict[str, Any]:
    return {
        "consume_enabled": config.consume_enable,
        "broadcast_enabled": config.consume_broadcast_enable,
        "orderly": config.consume_message_orderly,
        "max_retries": config.retry_max_times,
        "retry_queues": config.retry_queue_nums,
    }


@command(help="Change the named settings of a group on every broker that has it, and show the difference. If members "
              "would stop receiving, the command asks first.")  # fmt: skip
@click.argument("group")
@_max_retries
@_retry_queues
@_broadcast
@_orderly
@click.option("--consume/--no-consume", default=None, help="Whether members may receive messages.")
@click.option(
    "--pop",
    "popped",
    metavar="TOPIC",
    multiple=True,
    help="Make members that ask their brokers read this topic by POP. You can repeat this option.",
)
@click.option("--pull", "pulled", metavar="TOPIC", multiple=True, help="Make them read this topic by pull again.")
@click.option(
    "--pop-share",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    help="With --pop: with how many further members a member shares its queues. With 0, each member pops all queues.",
)
@click.option("--broker", help="Only on this broker. --pop and --pull always apply to all brokers.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def update(
    group: str,
    max_retries: int | None,
    retry_queues: int | None,
    broadcast: bool | None,
    orderly: bool | None,
    consume: bool | None,
    popped: tuple[str, ...],
    pulled: tuple[str, ...],
    pop_share: int,
    broker: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    named = _settings(max_retries, retry_queues, broadcast, orderly)
    if consume is not None:
        named["consume"] = consume
    modes: dict[str, Literal["pull", "pop"]] = dict.fromkeys(popped, "pop")
    if both := modes.keys() & set(pulled):
        raise click.UsageError(
            f"--pop and --pull exclude each other for {', '.join(sorted(both))}: a group reads a topic in one way"
        )
    modes |= dict.fromkeys(pulled, "pull")
    if broker is not None and modes:
        raise click.UsageError("--pop and --pull are for every broker of the topic, not for one (--broker)")
    if not named and not modes:
        raise click.UsageError("name at least one setting to change")
    with open_admin(calls=2 + 2 * len(modes)) as admin, brokers_named():
        before = admin.group_configs(group, broker=broker)
        read_before = {topic: admin.request_modes(group, topic) for topic in modes}
        after = {name: changed(config, **named) for name, config in before.items()}
        changes = {name: _pairs(before[name], after[name]) for name in before}
        for topic, mode in modes.items():
            for name, was in read_before[topic].items():
                changes.setdefault(name, {})[f"mode of {topic}"] = {"before": was, "after": mode}
        stops = any(before[name].consume_enable and not after[name].consume_enable for name in before)
        plan = "\n".join(_update_plan(group, changes, stops=stops))
        if (dry_run or stops) and not confirm(plan, group, yes=yes, dry_run=dry_run):
            return
        if named:
            change = admin.update_group(group, broker=broker, **named)
            changes |= {name: changes[name] | _pairs(change.before[name], change.after[name]) for name in change.before}
        for topic, mode in modes.items():
            admin.set_request_mode(group, topic, mode, share_queues=pop_share)
    keys = dict.fromkeys(key for change in changes.values() for key in change)
    show_rows(
        [{"group": group, "broker": name, **dict.fromkeys(keys), **change} for name, change in changes.items()],
        ["broker", *(Column(key, text=arrow) for key in keys)],
        name="broker",
    )


def _pairs(before: SubscriptionGroupConfig, after: SubscriptionGroupConfig) -> dict[str, dict[str, Any]]:
    """Return each setting as it was and as it is."""
    now = _setting_values(after)
    return {key: {"before": value, "after": now[key]} for key, value in _setting_values(before).items()}


def _update_plan(group: str, changes: Mapping[str, dict[str, dict[str, Any]]], *, stops: bool) -> list[str]:
    lines = []
    for name, change in changes.items():
        changed = {key: pair for key, pair in change.items() if pair["before"] != pair["after"]}
        parts = [f"{key if ' ' in key else key.replace('_', ' ')} {arrow(pair)}" for key, pair in changed.items()]
        lines.append(printable(f"update group {group} on {name}: {', '.join(parts) or 'nothing changes'}"))
    if stops:
        lines.append("  its members receive nothing any more")
    return lines


@command(help="Delete a group and its offsets on every broker. Its retry and dead-letter topics stay.")
@click.argument("group")
@click.option("--keep-offsets", is_flag=True, help="Keep its offsets: a new group of this name continues there.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
def delete(group: str, keep_offsets: bool, yes: bool, dry_run: bool) -> None:
    if is_system_group(group):
        raise CommandFailed(
            "NO_PERMISSION", f"{group} is a system group, which brokers need", exit_code=EXIT_NOT_ALLOWED
        )
    with open_admin(calls=4) as admin:
        brokers = list(admin.group_configs(group))
        rows = admin.offsets(group)
        members = len(admin.group_members(group))
        behind = lag_of(rows)
        waiting = f"{UNKNOWN} messages wait" if behind is None else f"{counted(behind, 'message')} not consumed"
        offsets = "its offsets stay" if keep_offsets else f"its offsets in {counted(len(rows), 'queue')} go"
        lines = [f"delete group {group} on {', '.join(brokers)}: {offsets}, {waiting}"]
        if members:
            lines.append(f"  {counted_are(members, 'member')} connected: brokers that create groups make it again")
        if not confirm("\n".join(map(printable, lines)), group, yes=yes, dry_run=dry_run):
            return
        deleted = admin.delete_group(group, offsets=not keep_offsets)
    show_object({"group": group, "deleted_on": deleted, "offsets_deleted": not keep_offsets})
