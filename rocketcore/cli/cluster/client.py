"""``rocket client …``."""

from __future__ import annotations

import click

from rocketcore.admin.shapes import member_row, producer_row
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_lists
from rocketcore.cli.shell.render import Column, show_rows

__all__ = ["list_clients"]


@command(
    help="List connected producers. With --group, list the producers and the consumers of that group.\n\nBrokers "
    "list consumers only for a named group."
)
@click.option("-g", "--group", help="Only clients of this group.")
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
