"""``rocket topic stats`` and ``rocket broker stats``: what brokers counted in the last minute, hour and day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rocketcore.cli.cluster.topic import brokers_named
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_lists
from rocketcore.cli.shell.render import Column, show_rows

if TYPE_CHECKING:
    from rocketcore.admin.statistics import Counted

__all__ = ["broker_stats", "topic_stats"]


def _counted(what: str, counted: Counted | None) -> dict[str, Any]:
    return {
        f"{what}_minute": None if counted is None else counted.minute,
        f"{what}_hour": None if counted is None else counted.hour,
        f"{what}_day": None if counted is None else counted.day,
        f"{what}_per_second": None if counted is None else round(counted.per_second, 3),
    }


def _columns(what: str, title: str) -> list[Column]:
    return [
        Column(f"{what}_per_second", f"{title}/S"),
        Column(f"{what}_minute", f"{title}/MIN"),
        Column(f"{what}_hour", f"{title}/H"),
        Column(f"{what}_day", f"{title}/DAY"),
    ]


@command(
    help="Show how many messages and bytes each broker stored in a topic in the last minute, hour and day.\n\n– "
    "means that the broker has not counted yet: a counter begins with the first message after its start."
)
@click.argument("topic")
def topic_stats(topic: str) -> None:
    with open_lists() as admin:
        found = admin.topic_traffic(topic)
    show_rows(
        [
            {"topic": topic, "broker": name, **_counted("messages", each.first), **_counted("bytes", each.second)}
            for name, each in found.items()
        ],
        ["broker", *_columns("messages", "MSGS"), *_columns("bytes", "BYTES")],
        name="broker",
    )
    admin.check_whole()


@command(help="Show messages in and out in the last minute, hour and day, of BROKER or of all brokers.")
@click.argument("broker", required=False)
@click.option("--cluster", help="Only the brokers of this cluster.")
def broker_stats(broker: str | None, cluster: str | None) -> None:
    with open_lists() as admin, brokers_named():
        found = admin.broker_traffic(cluster=cluster, broker=broker)
    show_rows(
        [
            {"broker": name, **_counted("messages_in", each.first), **_counted("messages_out", each.second)}
            for name, each in found.items()
        ],
        ["broker", *_columns("messages_in", "IN"), *_columns("messages_out", "OUT")],
    )
    admin.check_whole()
