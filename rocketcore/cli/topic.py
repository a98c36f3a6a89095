"""``rocket topic …``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rocketcore.cli.cluster import no_cluster
from rocketcore.cli.confirm import confirm
from rocketcore.cli.connection import open_admin
from rocketcore.cli.failures import EXIT_NOT_FOUND, CommandFailed
from rocketcore.cli.options import command
from rocketcore.cli.render import Column, show_object, show_rows, timestamp
from rocketcore.codes import (
    DLQ_TOPIC_PREFIX,
    REPLY_TOPIC_SUFFIX,
    RETRY_TOPIC_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    Permission,
)
from rocketcore.errors import RocketError, RouteNotFound, TopicNotExist
from rocketcore.printable import printable

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin

__all__ = ["create", "delete", "describe", "list_topics", "permission_text", "route", "topic_kind"]

LISTS: Final = ("system", "unit", "unit-sub", "unit-sub-ununit")

PERMISSIONS = {"rw": Permission.READ | Permission.WRITE, "r": Permission.READ, "w": Permission.WRITE}


def permission_text(perm: int) -> str:
    """Return ``rw``, ``r``, ``w`` or ``none``."""
    return f"{'r' if perm & Permission.READ else ''}{'w' if perm & Permission.WRITE else ''}" or "none"


@command(help="List the topics of the cluster; system, retry and dead-letter topics with --all.")
@click.option("-a", "--all", "everything", is_flag=True, help="Also topics that no user made.")
@click.option("--cluster", help="Only topics of this cluster.")
@click.option("--only", "only", type=click.Choice(LISTS), help="Only system topics, those of a unit, those that a unit "
              "subscribes to, or of these the ones of no unit.")  # fmt: skip
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
    show_rows(shown, [Column("topic"), Column("kind", wide=not everything)])


def _listed(admin: Admin, only: str) -> list[str]:
    asks = {
        "system": admin.system_topics,
        "unit": admin.unit_topics,
        "unit-sub": admin.unit_sub_topics,
        "unit-sub-ununit": admin.unit_sub_ununit_topics,
    }
    return asks[only]()


def topic_kind(topic: str, own: set[str]) -> str:
    """Return normal, system, retry or dlq; ``own`` are the names of clusters and brokers, which name topics too."""
    if topic.startswith(RETRY_TOPIC_PREFIX):
        return "retry"
    if topic.startswith(DLQ_TOPIC_PREFIX):
        return "dlq"
    reply = topic.endswith(REPLY_TOPIC_SUFFIX) and topic.removesuffix(REPLY_TOPIC_SUFFIX) in own
    if topic in SYSTEM_TOPICS or topic in own or reply or topic.startswith(SYSTEM_TOPIC_PREFIX):
        return "system"
    return "normal"


@command(help="Show the queues of a topic with their offsets.")
@click.argument("topic")
def describe(topic: str) -> None:
    with open_admin() as admin:
        stats = admin.topic_stats(topic)
    show_rows(
        [
            {
                "topic": topic,
                "broker": queue.broker,
                "queue_id": queue.queue_id,
                "min_offset": bounds.min_offset,
                "max_offset": bounds.max_offset,
                "messages": bounds.max_offset - bounds.min_offset,
                "last_stored_at": timestamp(bounds.last_update_timestamp),
            }
            for queue, bounds in stats.items()
        ],
        [
            Column("broker"),
            Column("queue_id", "QUEUE"),
            Column("min_offset", "MIN"),
            Column("max_offset", "MAX"),
            Column("messages"),
            Column("last_stored_at"),
        ],
        name="queue_id",
    )


@command(help="Create a topic on every broker, or change it.")
@click.argument("topic")
@click.option("--queues", type=click.IntRange(1, 65535), default=8, show_default=True, help="Queues on each broker.")
@click.option("--read-queues", type=click.IntRange(1, 65535), help="Readable queues, where the number differs.")
@click.option("--write-queues", type=click.IntRange(1, 65535), help="Writable queues, where the number differs.")
@click.option("--perm", type=click.Choice(list(PERMISSIONS)), default="rw", show_default=True, help="Permission.")
@click.option("--order", is_flag=True, help="Keep the order of queues while a broker is away.")
@click.option("--cluster", help="Only on the brokers of this cluster.")
@click.option("--broker", help="Only on this broker.")
@click.option("--attribute", "attributes", multiple=True, metavar="K=V", help="A 5.x attribute; may be repeated.")
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
) -> None:
    pairs = [attribute.partition("=") for attribute in attributes]
    if any(not name or not separator for name, separator, _ in pairs):
        raise click.BadParameter("give it as NAME=VALUE", param_hint="--attribute")
    with open_admin() as admin:
        try:
            created = admin.create_topic(
                topic,
                queues,
                read_queues=read_queues,
                write_queues=write_queues,
                perm=PERMISSIONS[perm],
                order=order,
                cluster=cluster,
                broker=broker,
                attributes={name: value for name, _, value in pairs},
            )
        except RouteNotFound as error:
            raise CommandFailed(
                "BROKER_NOT_EXIST", str(error), "rocket broker list shows who is", exit_code=EXIT_NOT_FOUND
            ) from None
    show_object(
        {
            "topic": created.topic,
            "read_queues": created.read_queues,
            "write_queues": created.write_queues,
            "perm": perm,
            "brokers": list(created.brokers),
        }
    )


@command(help="Delete a topic and its messages.")
@click.argument("topic")
@click.option("--cluster", help="Only on the brokers of this cluster.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
def delete(topic: str, cluster: str | None, yes: bool, dry_run: bool) -> None:
    with open_admin(calls=3) as admin:
        brokers = _owners(admin, topic, cluster)
        try:
            stats = admin.topic_stats(topic)
        except TopicNotExist:  # its messages are deleted already, and a name server has missed that
            messages, lost = None, "only name servers know it still"
        else:
            lost_queues = [bounds for queue, bounds in stats.items() if queue.broker in brokers]
            messages = sum(bounds.max_offset - bounds.min_offset for bounds in lost_queues)
            lost = f"{messages} messages in {len(lost_queues)} queues"
        plan = printable(f"delete topic {topic}: {lost} on {', '.join(brokers)}")
        if not confirm(plan, topic, yes=yes, dry_run=dry_run):
            return
        deleted = admin.delete_topic(topic, cluster=cluster)
    show_object({"topic": topic, "deleted_on": deleted, "messages": messages})


def _owners(admin: Admin, topic: str, cluster: str | None) -> list[str]:
    """Return the brokers that any name server names for a topic, sorted; raises the error of one where none does."""
    views = admin.topic_routes(topic).values()
    routes = [view for view in views if not isinstance(view, RocketError)]
    if not routes:
        errors = [view for view in views if isinstance(view, RocketError)]
        raise next((error for error in errors if isinstance(error, TopicNotExist)), errors[0])
    found = {data.broker_name for route in routes for data in route.broker_datas if cluster in (None, data.cluster)}
    if not found:
        raise CommandFailed(
            "TOPIC_NOT_EXIST", f"topic {topic!r} is not in cluster {cluster!r}",
            "rocket topic route shows where it is", exit_code=EXIT_NOT_FOUND,
        )  # fmt: skip
    return sorted(found)


@command(help="Show which brokers serve a topic.")
@click.argument("topic")
def route(topic: str) -> None:
    with open_admin() as admin:
        found = admin.topic_route(topic)
    brokers = {data.broker_name: data for data in found.broker_datas}
    rows = []
    for queues in sorted(found.queue_datas, key=lambda each: str(each.broker_name)):
        broker = brokers.get(queues.broker_name)
        addresses = {} if broker is None else broker.broker_addrs
        rows.append(
            {
                "topic": topic,
                "cluster": None if broker is None else broker.cluster,
                "broker": queues.broker_name,
                "master": addresses.get(0),
                "slaves": [address for broker_id, address in sorted(addresses.items()) if broker_id],
                "perm": permission_text(queues.perm),
                "read_queues": queues.read_queue_nums,
                "write_queues": queues.write_queue_nums,
                "zone": None if broker is None else broker.zone_name,
                "order_conf": found.order_topic_conf or None,
            }
        )
    show_rows(
        rows,
        [
            Column("cluster"),
            Column("broker"),
            Column("master"),
            Column("slaves"),
            Column("perm"),
            Column("read_queues"),
            Column("write_queues"),
            Column("zone", wide=True),
            Column("order_conf", wide=True),
        ],
        name="broker",
    )
