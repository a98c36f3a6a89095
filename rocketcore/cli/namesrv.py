"""``rocket namesrv config …`` and ``rocket namesrv kv …``."""

from __future__ import annotations

from typing import Any

import click

from rocketcore.cli.confirm import confirm
from rocketcore.cli.failures import EXIT_NOT_FOUND, CommandFailed
from rocketcore.cli.options import command, current
from rocketcore.cli.render import Column, show_object, show_rows

__all__ = ["delete_kv", "get_config", "list_kv", "set_config", "set_kv"]


def _admin() -> Any:
    from rocketcore.admin.client import Admin

    return Admin(current().namesrv, timeout=current().timeout)


@command(help="Show the settings of the name server that answers first, or one of them.")
@click.argument("name", required=False)
def get_config(name: str | None) -> None:
    with _admin() as admin:
        properties = admin.namesrv_config()
    if name is not None:
        if name not in properties:
            raise CommandFailed("NOT_FOUND", f"the name server has no setting {name!r}", exit_code=EXIT_NOT_FOUND)
        properties = {name: properties[name]}
    show_rows([{"name": key, "value": value} for key, value in properties.items()], [Column("name"), Column("value")])


@command(help="Change a setting on every name server.")
@click.argument("name")
@click.argument("value")
def set_config(name: str, value: str) -> None:
    with _admin() as admin:
        before = admin.namesrv_config().get(name)
        if before is None:
            raise CommandFailed("NOT_FOUND", f"the name server has no setting {name!r}", exit_code=EXIT_NOT_FOUND)
        admin.update_namesrv_config({name: value})
        after = admin.namesrv_config().get(name)
    if after != value:
        raise CommandFailed("REFUSED", f"the name server kept {name}={after}", "check the form of the value")
    show_object({"name": name, "before": before, "value": after})


@command(help="List the keys and values of a namespace.")
@click.argument("namespace")
def list_kv(namespace: str) -> None:
    with _admin() as admin:
        table = admin.list_kv(namespace)
    show_rows([{"key": key, "value": value} for key, value in sorted(table.items())], [Column("key"), Column("value")])


@command(help="Set a value on every name server.")
@click.argument("namespace")
@click.argument("key")
@click.argument("value")
def set_kv(namespace: str, key: str, value: str) -> None:
    with _admin() as admin:
        before = admin.get_kv(namespace, key)
        admin.put_kv(namespace, key, value)
    show_object({"namespace": namespace, "key": key, "before": before, "value": value})


@command(help="Delete a value on every name server.")
@click.argument("namespace")
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
def delete_kv(namespace: str, key: str, yes: bool, dry_run: bool) -> None:
    with _admin() as admin:
        before = admin.get_kv(namespace, key)
        if before is None:
            raise CommandFailed(
                "NOT_FOUND", f"namespace {namespace!r} has no key {key!r}", exit_code=EXIT_NOT_FOUND
            )
        if not confirm(f"delete {key} = {before} in namespace {namespace}", key, yes=yes, dry_run=dry_run):
            return
        admin.delete_kv(namespace, key)
    show_object({"namespace": namespace, "key": key, "deleted": before})
