"""``rocket cluster …``: what the name servers know in one request each, and what brokers say in one round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rocketcore.admin.shapes import broker_row
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_admin
from rocketcore.cli.shell.failures import EXIT_NOT_FOUND, CommandFailed
from rocketcore.cli.shell.options import FORMATS, Settings, current
from rocketcore.cli.shell.render import Column, progress, show_object, show_rows
from rocketcore.codes import MASTER_ID
from rocketcore.errors import RouteNotFound, TopicNotExist

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin

__all__ = ["broker_permissions", "broker_row", "describe", "list_clusters", "no_cluster", "topology"]

DRAWINGS: Final = ("dot", "mermaid", "svg")

_BROKER: Final = ("cluster", "broker", Column("broker_id", "ID"), "role", "address", Column("zone", wide=True))
"""The columns that say which broker a row is about."""

EVERYWHERE: Final = "SELF_TEST_TOPIC"
"""A topic that every broker has, ours and Apache's, and that nobody changes: its route shows who is drained."""


@command(help="List clusters with their brokers.")
def list_clusters() -> None:
    with open_admin() as admin:
        info = admin.cluster_info()
    rows = []
    for cluster, names in sorted(info.cluster_addr_table.items()):
        members = [info.broker_addr_table[name] for name in names if name in info.broker_addr_table]
        rows.append(
            {
                "cluster": cluster,
                "brokers": sorted(names),
                "masters": sum(MASTER_ID in data.broker_addrs for data in members),
                "slaves": sum(len(data.broker_addrs.keys() - {MASTER_ID}) for data in members),
            }
        )
    show_rows(rows, ["cluster", "brokers", "masters", "slaves"])


@command(help="Show the brokers of all clusters, or of one, with version, topics and messages per second.")
@click.argument("cluster", required=False)
def describe(cluster: str | None) -> None:
    with open_admin(calls=2) as admin:
        permissions = broker_permissions(admin)
        try:
            members = admin.broker_status(cluster=cluster)
        except RouteNotFound:
            raise no_cluster(cluster) from None
    for member in members:
        if member.error is not None:
            says = "refuses to say" if member.alive else "is registered and says nothing"
            progress(f"broker {member.broker} at {member.address} {says}: {member.error}")
    show_rows(
        [broker_row(member, permissions.get(member.broker)) for member in members],
        [
            *_BROKER,
            "state",
            "version",
            "topics",
            Column("in_tps", "IN/S"),
            Column("out_tps", "OUT/S"),
            Column("started_at", wide=True),
        ],
        name="broker",
    )


def no_cluster(name: str | None) -> CommandFailed:
    return CommandFailed(
        "CLUSTER_NOT_EXIST", f"no broker of cluster {name!r} is registered",
        "see the clusters with rocket cluster list", exit_code=EXIT_NOT_FOUND,
    )  # fmt: skip


def broker_permissions(admin: Admin) -> dict[str, int]:
    """Return what producers and consumers may do at each broker, as a name server tells them; empty where none knows.

    A drain shows here, whether the broker itself was told or only name servers.
    """
    try:
        route = admin.topic_route(EVERYWHERE)
    except TopicNotExist:
        return {}
    return {queues.broker_name: queues.perm for queues in route.queue_datas}


def _choose(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    if value in FORMATS:
        ctx.find_root().ensure_object(Settings).output = value
    return value


@command(help="Show which brokers are registered at which name servers, as a table or a drawing.")
@click.option("-o", "--output", "form", type=click.Choice([*FORMATS, *DRAWINGS]), callback=_choose,
              help="Output format; dot is for Graphviz.")  # fmt: skip
def topology(form: str | None) -> None:
    from rocketcore.cli.cluster import topology as drawing

    with open_admin() as admin:
        found = drawing.Topology.of(admin.cluster_infos())
    for address, error in found.name_servers.items():
        if error is not None:
            progress(f"name server {address} does not answer: {error}")
    if form in DRAWINGS:
        click.echo({"dot": drawing.dot, "mermaid": drawing.mermaid, "svg": drawing.svg}[form](found), nl=False)
    elif current().output in ("json", "jsonl", "yaml"):
        show_object(found.document())
    else:
        show_rows(
            found.rows(),
            [*_BROKER, "registered_at", "missing_at"],
            name="broker",
        )
