"""``rocket topic …``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from rocketcore.admin.shapes import permission_text, queue_row, route_rows, topic_kind
from rocketcore.cli.cluster.clusters import no_cluster
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.confirm import confirm
from rocketcore.cli.shell.connection import answered, open_admin, open_lists
from rocketcore.cli.shell.failures import EXIT_NOT_ALLOWED, EXIT_NOT_FOUND, CommandFailed
from rocketcore.cli.shell.options import named_values
from rocketcore.cli.shell.render import Column, cell, counted, progress, show_object, show_rows
from rocketcore.codes import (
    DLQ_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    Permission,
)
from rocketcore.errors import NoBrokerRegistered, RouteNotFound, TopicExists, TopicNotExist
from rocketcore.printable import printable

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin
    from rocketcore.admin.topic_troubles import QueueCounts
    from rocketcore.protocol.bodies.route import TopicRouteData
    from rocketcore.protocol.bodies.topic import TopicConfig

__all__ = [
    "arrow",
    "brokers_named",
    "create",
    "delete",
    "describe",
    "list_topics",
    "permission_text",
    "route",
    "topic_kind",
    "update",
]

_QUEUES: Final = click.IntRange(1, 65535)
LISTS: Final = ("system", "unit", "unit-sub", "unit-sub-ununit")

PERMISSIONS = {"rw": Permission.READ | Permission.WRITE, "r": Permission.READ, "w": Permission.WRITE}


@command(help="List the topics of the cluster. With --all, also list system, retry and dead-letter topics.")
@click.option("-a", "--all", "everything", is_flag=True, help="Also list system, retry and dead-letter topics.")
@click.option("--cluster", help="Only topics of this cluster.")
@click.option(
    "--only",
    "only",
    type=click.Choice(LISTS),
    help="Only one kind: system topics, topics of a unit, "
    "topics that a unit subscribes to, or such topics "
    "that belong to no unit.",
)
def list_topics(everything: bool, cluster: str | None, only: str | None) -> None:
    with open_admin(calls=2 if only is None or cluster is None else 3) as admin:
        names = admin.topics(cluster) if only is None or cluster is not None else _listed(admin, only)
        if only is not None and cluster is not None:
            names = sorted({*names} & {*_listed(admin, only)})
        info = admin.cluster_info()
    if cluster is not None and cluster not in info.cluster_addr_table:
        raise no_cluster(cluster)
    own = {*info.cluster_addr_table, *info.broker_addr_table}
    everything = everything or only is not None
    rows = [{"topic": name, "kind": "system" if only == "system" else topic_kind(name, own)} for name in names]
    shown = [row for row in rows if everything or row["kind"] == "normal"]
    show_rows(shown, ["topic", Column("kind", wide=not everything)])


def _listed(admin: Admin, only: str) -> list[str]:
    asks = {
        "system": admin.system_topics,
        "unit": admin.unit_topics,
        "unit-sub": admin.unit_sub_topics,
        "unit-sub-ununit": admin.unit_sub_ununit_topics,
    }
    return asks[only]()


def _tell_troubles(topic: str, counts: Mapping[str, QueueCounts]) -> None:
    from rocketcore.admin.topic_troubles import topic_troubles

    for each in topic_troubles(topic, counts):
        progress(printable(f"note: {each.detail}; {each.hint}"))


@command(help="Show the queues of a topic with their offsets.")
@click.argument("topic")
def describe(topic: str) -> None:
    with open_lists() as admin:
        stats = admin.topic_stats(topic)
        _tell_troubles(topic, {data.broker_name: data for data in admin.topic_route(topic).queue_datas})
    show_rows(
        [queue_row(queue, bounds) for queue, bounds in stats.items()],
        [
            "broker",
            Column("queue_id", "QUEUE"),
            Column("min_offset", "MIN"),
            Column("max_offset", "MAX"),
            "messages",
            "last_stored_at",
        ],
        name="queue_id",
    )
    admin.check_whole()


_read_queues = click.option("--read-queues", type=_QUEUES, help="Number of readable queues, if it differs.")
_write_queues = click.option("--write-queues", type=_QUEUES, help="Number of writable queues, if it differs.")
_attributes = click.option("--attribute", "attributes", multiple=True, metavar="K=V",
                           help="Set a 5.x attribute. You can repeat this option.")  # fmt: skip
_cluster = click.option("--cluster", help="Only on the brokers of this cluster.")
_broker = click.option("--broker", help="Only on this broker.")


@command(help="Create a topic on every broker. If the topic exists, it stays as it is, and the exit code is 1.")
@click.argument("topic")
@click.option("--queues", type=_QUEUES, default=8, show_default=True, help="Queues on each broker.")
@_read_queues
@_write_queues
@click.option("--perm", type=click.Choice(list(PERMISSIONS)), default="rw", show_default=True, help="Permission.")
@click.option("--order", is_flag=True, help="Keep the order of queues while a broker is offline.")
@_cluster
@_broker
@_attributes
@click.option("--if-not-exists", is_flag=True, help="If the topic exists, show it and exit with 0.")
def create(
    topic: str,
    queues: int,
    read_queues: int | None,
    write_queues: int | None,
    perm: str,
    order: bool,
    cluster: str | None,
    broker: str | None,
    attributes: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    named = named_values(attributes, "--attribute")
    if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
        raise click.UsageError(f"{topic}: brokers create retry and dead-letter topics when a group needs them")
    with open_admin(calls=3) as admin, brokers_named():
        try:
            made = admin.create_topic(
                topic,
                queues,
                read_queues=read_queues,
                write_queues=write_queues,
                perm=PERMISSIONS[perm],
                order=order,
                cluster=cluster,
                broker=broker,
                attributes=named,
                exist_ok=if_not_exists,
            )
        except TopicExists as error:
            raise CommandFailed(
                "TOPIC_EXISTS", f"topic {topic!r} is on {', '.join(error.brokers)}: nothing was changed",
                "change it with rocket topic update, or create it on one more broker with --broker",
            ) from None  # fmt: skip
    from rocketcore.protocol.bodies.topic import TopicConfig

    config = TopicConfig(topic, made.read_queues, made.write_queues, made.perm)
    _tell_troubles(topic, dict.fromkeys(made.brokers, config))
    if not made.created:
        progress(f"topic {topic} is there: nothing was changed")
    show_object(
        {
            "topic": topic,
            "read_queues": made.read_queues,
            "write_queues": made.write_queues,
            "perm": permission_text(made.perm),
            "brokers": list(made.brokers),
        }
    )


@contextmanager
def brokers_named() -> Iterator[None]:
    """A broker or cluster that is not registered is not found."""
    try:
        yield
    except RouteNotFound as error:
        if isinstance(error, NoBrokerRegistered):
            raise
        raise CommandFailed(
            "BROKER_NOT_EXIST",
            str(error),
            "see the registered brokers with rocket broker list",
            exit_code=EXIT_NOT_FOUND,
        ) from None


@command(help="Change the named settings of a topic on every broker that has it, and show the difference. If this "
              "would hide queues with messages, the command asks first.")  # fmt: skip
@click.argument("topic")
@click.option("--queues", type=_QUEUES, help="Readable and writable queues on each broker.")
@_read_queues
@_write_queues
@click.option("--perm", type=click.Choice(list(PERMISSIONS)), help="Permission.")
@click.option("--order/--no-order", default=None, help="Whether to keep the order of queues while a broker is offline.")
@_cluster
@_broker
@_attributes
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def update(
    topic: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: str | None,
    order: bool | None,
    cluster: str | None,
    broker: str | None,
    attributes: tuple[str, ...],
    yes: bool,
    dry_run: bool,
) -> None:
    wanted: dict[str, Any] = {
        "read_queue_nums": read_queues or queues,
        "write_queue_nums": write_queues or queues,
        "perm": None if perm is None else PERMISSIONS[perm],
        "order": order,
    }
    named = {name: value for name, value in wanted.items() if value is not None}
    added = named_values(attributes, "--attribute")
    if not named and not added:
        raise click.UsageError("name at least one setting to change")
    with open_admin(calls=3) as admin, brokers_named():
        before = admin.topic_configs(topic, cluster=cluster, broker=broker)
        after = {name: replace(config, **named) for name, config in before.items()}
        changed = {name: replace(config, attributes=config.attributes | added) for name, config in after.items()}
        changes = {name: _change(before[name], changed[name]) for name in before}
        hidden = _hidden(admin, topic, before, after)
        if dry_run:
            confirm("\n".join([*_plan(topic, changes), *hidden]), topic, yes=yes, dry_run=True)
            return
        if hidden:
            confirm("\n".join(hidden), topic, yes=yes, dry_run=False)
        change = admin.update_topic(
            topic,
            queues,
            read_queues=read_queues,
            write_queues=write_queues,
            perm=named.get("perm"),
            order=order,
            cluster=cluster,
            broker=broker,
            attributes=added,
        )
        changes = {name: _change(change.before[name], change.after[name]) for name in change.before}
    _tell_troubles(topic, change.after)
    show_rows(
        [{"topic": topic, "broker": name, **change} for name, change in changes.items()],
        ["broker", *(Column(key, text=arrow) for key in _change_keys)],
        name="broker",
    )


_change_keys: Final = ("read_queues", "write_queues", "perm", "order", "attributes")


def _change(before: TopicConfig, after: TopicConfig) -> dict[str, dict[str, Any]]:
    """Return each setting as it was and as it is."""

    def values(config: TopicConfig) -> tuple[Any, ...]:
        perm = permission_text(config.perm)
        return config.read_queue_nums, config.write_queue_nums, perm, config.order, dict(config.attributes)

    pairs = zip(_change_keys, values(before), values(after), strict=True)
    return {key: {"before": old, "after": new} for key, old, new in pairs}


def arrow(change: Mapping[str, Any]) -> str:
    """Return a setting as it was and as it is."""
    old, new = cell(change["before"]), cell(change["after"])
    return old if old == new else f"{old} → {new}"


def _plan(topic: str, changes: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Say what would change, a line a broker."""
    lines = []
    for name, change in changes.items():
        changed = {key: pair for key, pair in change.items() if pair["before"] != pair["after"]}
        parts = [f"{key.replace('_', ' ')} {arrow(pair)}" for key, pair in changed.items()]
        lines.append(printable(f"update topic {topic} on {name}: {', '.join(parts) or 'nothing changes'}"))
    return lines


def _hidden(admin: Admin, topic: str, before: dict[str, TopicConfig], after: dict[str, TopicConfig]) -> list[str]:
    """Say which messages nobody could read any more, a line a broker: those of queues beyond the read queues."""
    fewer = {name for name in before if after[name].read_queue_nums < before[name].read_queue_nums}
    if not fewer:
        return []
    lines = []
    stats = admin.topic_stats(topic)
    for name in sorted(fewer):
        count = after[name].read_queue_nums
        lost = [
            bounds.max_offset - bounds.min_offset
            for queue, bounds in stats.items()
            if queue.broker == name and queue.queue_id >= count and bounds.max_offset > bounds.min_offset
        ]
        if lost:
            lines.append(
                f"read queues of topic {topic} on {name} from {before[name].read_queue_nums} to {count}: "
                f"{counted(sum(lost), 'message')} in {counted(len(lost), 'queue')} cannot be read any more"
            )
    return [printable(line) for line in lines]


@command(help="Delete a topic and its messages.")
@click.argument("topic")
@click.option("--cluster", help="Only on the brokers of this cluster.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
def delete(topic: str, cluster: str | None, yes: bool, dry_run: bool) -> None:
    with open_admin(calls=3) as admin:
        routes = list(answered(admin.topic_routes(topic), TopicNotExist)[0].values())
        own = {name for route in routes for data in route.broker_datas for name in (data.broker_name, data.cluster)}
        if topic_kind(topic, own) == "system":
            raise CommandFailed(
                "NO_PERMISSION", f"{topic} is a system topic, which brokers need", exit_code=EXIT_NOT_ALLOWED
            )
        brokers = _owners(routes, topic, cluster)
        try:
            stats = admin.topic_stats(topic)
        except TopicNotExist:  # its messages are deleted already, and a name server has missed that
            messages, lost = None, "only name servers know it still"
        else:
            lost_queues = [bounds for queue, bounds in stats.items() if queue.broker in brokers]
            messages = sum(bounds.max_offset - bounds.min_offset for bounds in lost_queues)
            lost = f"{counted(messages, 'message')} in {counted(len(lost_queues), 'queue')}"
        plan = printable(f"delete topic {topic}: {lost} on {', '.join(brokers)}")
        if not confirm(plan, topic, yes=yes, dry_run=dry_run):
            return
        deleted = admin.delete_topic(topic, cluster=cluster)
    show_object({"topic": topic, "deleted_on": deleted, "messages": messages})


def _owners(routes: list[TopicRouteData], topic: str, cluster: str | None) -> list[str]:
    """Return the brokers that any name server names for a topic, sorted; raises CommandFailed for none."""
    found = {data.broker_name for route in routes for data in route.broker_datas if cluster in (None, data.cluster)}
    if not found:
        raise CommandFailed(
            "TOPIC_NOT_EXIST", f"topic {topic!r} is not in cluster {cluster!r}",
            "see its brokers with rocket topic route", exit_code=EXIT_NOT_FOUND,
        )  # fmt: skip
    return sorted(found)


@command(help="Show which brokers serve a topic.")
@click.argument("topic")
def route(topic: str) -> None:
    with open_admin() as admin:
        found = admin.topic_route(topic)
    show_rows(
        route_rows(topic, found),
        ["cluster", "broker", "master", "slaves", "perm", "read_queues", "write_queues"],
        wide=["zone", "order_conf"],
        name="broker",
    )
