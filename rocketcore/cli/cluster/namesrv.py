"""``rocket namesrv config …`` and ``rocket namesrv kv …``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from rocketcore.cli.cluster.settings import means
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.confirm import confirm
from rocketcore.cli.shell.connection import answered, open_admin
from rocketcore.cli.shell.failures import EXIT_NOT_FOUND, CommandFailed
from rocketcore.cli.shell.render import Column, progress, show_object, show_rows
from rocketcore.errors import PartlyDone
from rocketcore.printable import printable

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin

__all__ = ["delete_kv", "get_config", "get_kv", "list_kv", "set_config", "set_kv"]


@command(
    help="Show all settings, or one, of the first name server that answers. With --all, show them for each name server."
)
@click.argument("name", required=False)
@click.option("--all", "each", is_flag=True, help="Show every name server, side by side.")
@click.option("--diff", is_flag=True, help="Show only settings that differ between name servers; implies --all.")
def get_config(name: str | None, each: bool, diff: bool) -> None:
    with open_admin() as admin:
        if each or diff:
            _compare(admin, name, diff)
            return
        properties = admin.namesrv_config()
    if name is not None:
        if name not in properties:
            raise _no_setting(name)
        properties = {name: properties[name]}
    show_rows([{"name": key, "value": value} for key, value in properties.items()], ["name", "value"])


def _no_setting(name: str) -> CommandFailed:
    return CommandFailed(
        "NOT_FOUND", f"no name server has a setting {name!r}",
        "see all settings with rocket namesrv config get", exit_code=EXIT_NOT_FOUND,
    )  # fmt: skip


def _compare(admin: Admin, name: str | None, diff: bool) -> None:
    """Show a row a setting with its value at each name server; None where one does not have it or does not answer.

    raises  PartlyDone, after that, where some did not answer
    """
    answers = admin.namesrv_configs()
    configs, failures = answered(answers)
    names = sorted({key for config in configs.values() for key in config if name in (None, key)})
    if name is not None and not names:
        raise _no_setting(name)
    rows = []
    for key in names:
        values = {address: configs[address].get(key) if address in configs else None for address in answers}
        differs = len({values[address] for address in configs}) > 1
        if differs or not diff:
            rows.append({"name": key, "differs": differs, "values": values})

    def value_at(address: str) -> Callable[[Mapping[str, str | None]], str | None]:
        return lambda values: values[address]

    show_rows(rows, ["name", "differs",
                     *(Column("values", address, text=value_at(address)) for address in answers)])  # fmt: skip
    if failures:
        raise PartlyDone("reading the settings", configs, failures)


@command(help="Change a setting on every name server.")
@click.argument("name")
@click.argument("value")
def set_config(name: str, value: str) -> None:
    with open_admin(calls=3) as admin:
        before, _ = answered(admin.namesrv_configs())
        if not any(name in config for config in before.values()):
            raise _no_setting(name)
        admin.update_namesrv_config({name: value})
        after, failures = answered(admin.namesrv_configs())
    now = {address: config.get(name) for address, config in after.items()}
    kept: list[str] = []
    other: list[str] = []
    for address, said in now.items():
        if not means(value, said):
            unchanged = address in before and before[address].get(name) == said
            (kept if unchanged else other).append(f"{said} at {address}")
    if other:
        where = ", ".join([*other, *kept])
        raise CommandFailed("TAKEN_OTHERWISE", f"{name}={value} was taken as {where}", "check the format of the value")
    if kept:
        raise CommandFailed("REFUSED", f"name servers kept {name}={', '.join(kept)}", "check the format of the value")
    for address, error in failures.items():
        progress(f"name server {address} does not say what it took: {error}")
    values = {config.get(name) for config in before.values()}
    show_object({"name": name, "before": values.pop() if len(values) == 1 else None, "value": value})


@command(help="List the keys and values of a namespace.")
@click.argument("namespace")
def list_kv(namespace: str) -> None:
    with open_admin() as admin:
        table = admin.list_kv(namespace)
    show_rows([{"key": key, "value": value} for key, value in sorted(table.items())], ["key", "value"])


@command(help="Show one value.")
@click.argument("namespace")
@click.argument("key")
def get_kv(namespace: str, key: str) -> None:
    with open_admin() as admin:
        value = admin.get_kv(namespace, key)
    if value is None:
        raise _no_key(namespace, key)
    show_object({"namespace": namespace, "key": key, "value": value})


def _no_key(namespace: str, key: str) -> CommandFailed:
    return CommandFailed(
        "NOT_FOUND", f"namespace {namespace!r} has no key {key!r}",
        f"rocket namesrv kv list {namespace} shows its keys", exit_code=EXIT_NOT_FOUND,
    )  # fmt: skip


@command(help="Set a value on every name server.")
@click.argument("namespace")
@click.argument("key")
@click.argument("value")
def set_kv(namespace: str, key: str, value: str) -> None:
    if not namespace or not key:  # a variable that was not set, hardly a name
        raise click.UsageError("a name is empty: give NAMESPACE and KEY")
    with open_admin(calls=2) as admin:
        before = admin.get_kv(namespace, key)
        admin.put_kv(namespace, key, value)
    show_object({"namespace": namespace, "key": key, "before": before, "value": value})


@command(help="Delete a value on every name server.")
@click.argument("namespace")
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
def delete_kv(namespace: str, key: str, yes: bool, dry_run: bool) -> None:
    with open_admin(calls=2) as admin:
        before = admin.get_kv(namespace, key)
        if before is None:
            raise _no_key(namespace, key)
        if not confirm(printable(f"delete {key} = {before} in namespace {namespace}"), key, yes=yes, dry_run=dry_run):
            return
        admin.delete_kv(namespace, key)
    show_object({"namespace": namespace, "key": key, "deleted": before})
