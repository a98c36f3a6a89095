"""``rocket client …``."""

from __future__ import annotations

import click

from rocketcore.admin.shapes import member_row, producer_row
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_lists
from rocketcore.cli.shell.render import Column, show_rows

__all__ = ["list_clients"]


@command(
    help="List connected producers; of one group with --group, and its connected consumers too.\n\nBrokers tell "
    "consumers only of a group that is named."
)
@click.option("-g", "--group", help="Only this group of producers, and of consumers.")
def list_clients(group: str | None) -> None:
    with open_lists(calls=1 if group is None else 2) as admin:
        producers = admin.producers(group)
        consumers = [] if group is None else admin.group_members(group)
    rows = [producer_row(each) for each in producers]
    rows += [{"kind": "consumer", "group": group, **member_row(each), "seen_at": None} for each in consumers]
    show_rows(
        rows,
        ["kind", "group", "client_id", "address", "language", "version", "brokers", Column("seen_at", wide=True)],
        name="client_id",
    )
    admin.check_whole()
