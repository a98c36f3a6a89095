"""``rocket cluster export`` and ``import``: the settings of topics and groups as a file, and back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rocketcore.cli.cluster.clusters import no_cluster
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.confirm import confirm
from rocketcore.cli.shell.connection import open_admin
from rocketcore.cli.shell.failures import EXIT_PARTLY, CommandFailed
from rocketcore.cli.shell.options import current
from rocketcore.cli.shell.render import Column, cell, counted, json_text, progress, reader_may_leave, show_rows
from rocketcore.errors import ConfigError, NoBrokerRegistered, RouteNotFound
from rocketcore.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketcore.admin.metadata import ClusterMetadata, MetadataChange, MetadataPlan, Settings

__all__ = ["export_metadata", "import_metadata"]

_MOST_BYTES: Final = 256 << 20
"""Of a file: a hundred times what ten thousand topics and groups take."""

_NAMED: Final = 5
"""Topics and groups that an error names."""

_cluster = click.option("--cluster", help="Name of the cluster, if there are several.")


@command(help="Print the settings of all topics and groups of a cluster as a JSON object, which import can "
              "read.\n\nSystem topics and groups are left out, and so are retry and dead-letter topics.")  # fmt: skip
@_cluster
def export_metadata(cluster: str | None) -> None:
    from rocketcore.admin.metadata import metadata_document

    form = current().output
    if form in ("yaml", "csv", "name"):
        raise click.UsageError(f"-o {form}: the output is a JSON object for rocket cluster import")
    with open_admin() as admin:
        try:
            found = admin.export_metadata(cluster)
        except RouteNotFound as error:
            raise _no_cluster(error, cluster) from None
    with reader_may_leave():
        print(json_text(metadata_document(found), indent=None if form == "jsonl" else 2), flush=True)


@command(help="Create the topics and groups of a file, and change those with other settings. The command shows the "
              "plan, then asks for the cluster's name.\n\nImport deletes nothing: topics and groups outside of the "
              "file stay as they are.")  # fmt: skip
@click.argument("file", type=click.Path(), metavar="FILE|-")
@_cluster
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def import_metadata(file: str, cluster: str | None, yes: bool, dry_run: bool) -> None:
    metadata = _read(file)
    left: Sequence[MetadataChange] = ()
    with open_admin(calls=2) as admin:
        try:
            plan = admin.plan_import(metadata, cluster)
        except RouteNotFound as error:
            raise _no_cluster(error, cluster) from None
        if plan.changes or dry_run:
            if not confirm("\n".join(map(printable, _lines(plan))), plan.cluster, yes=yes, dry_run=dry_run):
                return
            left = admin.import_metadata(plan).rows
        else:
            progress(printable(_lines(plan)[0]))
    show_rows(
        [_row(row) for row in plan.rows],
        ["kind", "name", "broker", "action", Column("settings", text=_changes)],
        name="name",
    )
    if left:
        what = [f"{row.kind} {row.name} on {row.broker}: {', '.join(row.differences())}" for row in left[:_NAMED]]
        more = f"; and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        raise CommandFailed(
            "PARTLY_DONE", f"brokers did not keep the settings: {'; '.join(what)}{more}",
            "an older broker does not have every setting", exit_code=EXIT_PARTLY,
        )  # fmt: skip


def _no_cluster(error: RouteNotFound, cluster: str | None) -> Exception:
    return error if cluster is None or isinstance(error, NoBrokerRegistered) else no_cluster(cluster)


def _read(file: str) -> ClusterMetadata:
    """Read a file, or stdin; raises UsageError for one that is not there, or says what is not so."""
    from rocketcore.admin.metadata import read_metadata

    try:
        if file == "-":
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as source:
                data = source.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"it has more than {_MOST_BYTES} bytes")
        return read_metadata(data)
    except OSError as error:
        raise click.UsageError(printable(f"{file}: {error.strerror}")) from None
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def _row(row: MetadataChange) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "name": row.name,
        "broker": row.broker,
        "action": _DONE[row.action],
        "settings": {key: {"before": before, "after": after} for key, (before, after) in row.differences().items()},
    }


_SAID: Final = {"create": "create", "change": "change", "keep": "unchanged:"}
_DONE: Final = {"create": "created", "change": "changed", "keep": "unchanged"}


def _changes(settings: dict[str, dict[str, Any]]) -> str | None:
    return ", ".join(_change(key, each["before"], each["after"]) for key, each in settings.items()) or None


def _change(key: str, before: Any, after: Any) -> str:
    name = key.replace("_", " ")
    return f"{name} {cell(after)}" if before is None else f"{name} {cell(before)} → {cell(after)}"


def _warnings(before: Settings, after: Settings) -> list[str]:
    """Say what users lose by a change."""
    from rocketcore.admin.metadata import settings_row

    was, now = settings_row(before), settings_row(after)
    lines = []
    if "read_queues" in was and now["read_queues"] < was["read_queues"]:
        lines.append("    messages in its queues beyond these cannot be read any more")
    if "consume_enabled" in was and was["consume_enabled"] and not now["consume_enabled"]:
        lines.append("    its members receive nothing any more")
    return lines


def _lines(plan: MetadataPlan) -> list[str]:
    """Say what would be done: the counts, then a line for each topic or group that changes at a broker."""
    counts = []
    for action in _SAID:
        rows = plan.of_action(action)
        kinds = [
            counted(len({row.name for row in rows if row.kind == kind}), kind)
            for kind in ("topic", "group")
            if any(row.kind == kind for row in rows)
        ]
        if kinds:
            counts.append(f"{_SAID[action]} {' and '.join(kinds)}")
    lines = [f"import into cluster {plan.cluster}: {', '.join(counts) or 'the file has nothing'}"]
    for row in plan.changes:
        what = ", ".join(_change(key, *pair) for key, pair in row.differences().items())
        lines.append(f"  {row.action} {row.kind} {row.name} on {row.broker}" + (f": {what}" if what else ""))
        if row.before is not None:
            lines += _warnings(row.before, row.after)
    return lines
