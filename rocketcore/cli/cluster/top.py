"""``rocket top``: brokers with their rates and groups with their lag, again and again."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from rocketcore.cli.cluster.clusters import broker_permissions, broker_row
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_lists
from rocketcore.cli.shell.options import current
from rocketcore.cli.shell.render import (
    UNKNOWN,
    cell,
    json_text,
    print_line,
    show_object,
    show_rows,
    show_title,
    timestamp,
)
from rocketcore.codes import SYSTEM_GROUPS
from rocketcore.errors import BrokerError
from rocketcore.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rocketcore.admin.statistics import GroupTraffic

__all__ = ["top"]

_BROKERS: Final = ("broker", "broker_id", "state", "in_tps", "out_tps")
_GROUPS: Final = ("group", "topic", "lag", "in_per_second", "out_per_second")

Seen = Mapping[tuple[str, str], "GroupTraffic"]


@command(
    help="Watch brokers and the groups with the most messages waiting, until Ctrl-C.\n\n-o json prints each look as "
    "one line. Rates are known from the second look on."
)
@click.option("--once", is_flag=True, help="Show the state once and exit.")
@click.option("--interval", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, metavar="SECONDS",
              help="Time between two looks.")  # fmt: skip
@click.option("-n", "--rows", type=click.IntRange(1), default=20, show_default=True, help="Number of groups to show.")
@click.option("--looks", type=click.IntRange(1), help="Stop after this many looks.")
def top(once: bool, interval: float, rows: int, looks: int | None) -> None:
    output = current().output
    looks = 1 if once else looks
    people = output in ("table", "wide")
    if looks != 1 and output not in ("table", "wide", "json", "jsonl"):
        raise click.UsageError(f"-o {output} is for --once")
    if people and looks is None and not sys.stdout.isatty():
        looks = 1
    if people and looks != 1:
        _watch(_looks(interval, rows, looks))
        return
    for look in _looks(interval, rows, looks):
        if looks == 1:
            _show_once(look)
        elif not print_line(json_text(look)):
            return


def _looks(interval: float, rows: int, looks: int | None) -> Iterator[dict[str, Any]]:
    """Look so many times, or for ever; between two looks is the pause that the user asks for."""
    before: Seen = {}
    since = 0.0
    for count in itertools.count() if looks is None else range(looks):
        if count:
            time.sleep(interval)
        now = time.monotonic()
        look, before = _ask_cluster(before, now - since, rows)
        since = now
        yield look


def _ask_cluster(before: Seen, seconds: float, rows: int) -> tuple[dict[str, Any], Seen]:
    """Ask once; return what is shown, and what the next look compares with."""
    with open_lists(calls=4) as admin:
        permissions = broker_permissions(admin)
        members = admin.broker_status()
        traffic = [each for each in admin.group_traffic() if each.group not in SYSTEM_GROUPS]
        try:
            producers: int | None = len(admin.producers())
        except BrokerError:  # an old one does not say
            producers = None
    seen = {(each.group, each.topic): each for each in traffic}
    first = sorted(traffic, key=lambda each: (-each.lag, each.group, each.topic))[:rows]
    groups = [
        {
            "group": each.group,
            "topic": each.topic,
            "lag": each.lag,
            "in_per_second": _rate(each, before.get((each.group, each.topic)), seconds),
            "out_per_second": round(each.per_second, 2),
        }
        for each in first
    ]
    brokers = [broker_row(member, permissions.get(member.broker)) for member in members]
    return {
        "at": timestamp(round(time.time() * 1000)),
        "brokers": [{key: row[key] for key in (*_BROKERS, "address", "version", "error")} for row in brokers],
        "groups": groups,
        "groups_in_all": len(traffic),
        "lag_in_all": sum(each.lag for each in traffic),
        "producers": producers,
    }, seen


def _rate(now: GroupTraffic, before: GroupTraffic | None, seconds: float) -> float | None:
    return None if before is None or seconds <= 0 else round((now.written - before.written) / seconds, 2)


def _summary(look: Mapping[str, Any]) -> dict[str, Any]:
    return {key: look[key] for key in ("at", "groups_in_all", "lag_in_all", "producers")}


def _show_once(look: Mapping[str, Any]) -> None:
    if current().output not in ("table", "wide"):
        show_object(look, name="at")
        return
    show_object(_summary(look))
    show_title("brokers")
    show_rows(look["brokers"], list(_BROKERS), wide=["address", "version", "error"])
    show_title("groups")
    show_rows(look["groups"], list(_GROUPS))


def _watch(looks: Iterable[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(emoji=False, highlight=False, markup=False), auto_refresh=False, screen=False) as live:
        for look in looks:
            live.update(_drawn(look), refresh=True)


def _drawn(look: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [
        Text("  ".join(f"{key.replace('_', ' ')} {_text(value)}" for key, value in _summary(look).items()))
    ]
    for columns, found in ((_BROKERS, look["brokers"]), (_GROUPS, look["groups"])):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in columns:
            number = name.startswith("lag") or name.endswith(("tps", "second", "_id"))
            table.add_column(name.replace("_", " ").upper(), justify="right" if number else "left", no_wrap=True)
        for row in found:
            table.add_row(*(Text(_text(row[name])) for name in columns))
        parts += [Text(""), table]
    return Group(*parts)


def _text(value: Any) -> str:
    return UNKNOWN if value is None else printable(cell(value))
