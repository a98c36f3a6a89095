"""``rocket broker config get`` and ``set``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from rocketcore.apache_settings import FROM_THE_NEXT_START_ON, NEXT_START_KEY, WITHOUT_EFFECT_HERE
from rocketcore.cli.cluster.settings import means
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_admin
from rocketcore.cli.shell.failures import EXIT_NOT_FOUND, CommandFailed
from rocketcore.cli.shell.render import show_object, show_rows
from rocketcore.codes import MASTER_ID

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin

__all__ = ["get_config", "set_config"]

_member = click.option(
    "--id", "broker_id", type=click.IntRange(0), default=MASTER_ID, help="Id of the member; 0 is the master."
)


def _address(admin: Admin, broker: str, broker_id: int) -> str:
    from rocketcore.cli.cluster.broker import view_with

    members = view_with(admin, broker).broker_addr_table[broker].broker_addrs
    if broker_id not in members:
        raise CommandFailed(
            "BROKER_NOT_EXIST", f"broker {broker!r} with id {broker_id} is not registered",
            "see the registered brokers with rocket broker list", exit_code=EXIT_NOT_FOUND,
        )  # fmt: skip
    return members[broker_id]


def _no_setting(broker: str, name: str) -> CommandFailed:
    return CommandFailed(
        "NOT_FOUND", f"broker {broker} has no setting {name!r}",
        f"rocket broker config get {broker} shows them all", exit_code=EXIT_NOT_FOUND,
    )  # fmt: skip


@command(help="Show all settings of a running broker, or one of them.")
@click.argument("broker")
@click.argument("name", required=False)
@_member
def get_config(broker: str, name: str | None, broker_id: int) -> None:
    with open_admin(calls=2) as admin:
        properties = admin.broker_config(_address(admin, broker, broker_id))
    pending = json.loads(properties.pop(NEXT_START_KEY, "{}"))
    if name is not None:
        if name not in properties:
            raise _no_setting(broker, name)
        properties = {name: properties[name]}
    rows: list[dict[str, str]] = [{"name": key, "value": properties[key]} for key in sorted(properties)]
    columns = ["name", "value"]
    if any(row["name"] in pending for row in rows):
        columns.append("next_start")
        rows = [row | {"next_start": pending.get(row["name"], "")} for row in rows]
    show_rows(rows, columns)


@command(
    help="Change a setting of a running broker, and show the old value.\n\nOur broker keeps the change after a "
    "restart. If the change takes effect only at the next start, or never, it says so."
)
@click.argument("broker")
@click.argument("name")
@click.argument("value")
@_member
def set_config(broker: str, name: str, value: str, broker_id: int) -> None:
    with open_admin(calls=4) as admin:
        address = _address(admin, broker, broker_id)
        before = admin.broker_config(address)
        if name not in before:
            raise _no_setting(broker, name)
        remark = admin.update_broker_config(address, {name: value}) or ""
        now = admin.broker_config(address).get(name)
    result = {"broker": broker, "name": name, "before": before[name], "value": value}
    if remark.startswith((FROM_THE_NEXT_START_ON, WITHOUT_EFFECT_HERE)):
        click.echo(f"note: {remark}", err=True)
        show_object(result | {"remark": remark})
        return
    if not means(value, now):
        code, what = ("REFUSED", "kept") if now == before[name] else ("TAKEN_OTHERWISE", "took it as")
        raise CommandFailed(
            code, f"{name}={value}: broker {broker} {what} {now}",
            "check the format of the value, and whether the setting takes effect only at the next start",
        )  # fmt: skip
    show_object(result | {"value": now})
