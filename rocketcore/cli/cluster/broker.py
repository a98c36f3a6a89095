"""``rocket broker list``, ``describe``, ``drain``, ``undrain``, ``clean``; ``broker start`` is with the servers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from rocketcore.admin.shapes import broker_figures, broker_row, permission_text, topic_kind, whole
from rocketcore.cli.cluster.clusters import broker_permissions
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.confirm import confirm
from rocketcore.cli.shell.connection import answered, open_admin
from rocketcore.cli.shell.failures import EXIT_NOT_FOUND, EXIT_UNREACHABLE, CommandFailed, failure_of
from rocketcore.cli.shell.options import current
from rocketcore.cli.shell.render import Column, counted, progress, show_object, show_rows, timestamp
from rocketcore.codes import MASTER_ID, Permission
from rocketcore.errors import RocketError, RouteNotFound
from rocketcore.printable import printable

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin
    from rocketcore.protocol.bodies.route import ClusterInfo
    from rocketcore.protocol.bodies.topic import TopicConfig

__all__ = ["clean", "clean_plan", "describe", "drain", "drain_plan", "list_brokers", "undrain", "view_with"]

PERMISSION = "brokerPermission"
READ_ONLY, READ_WRITE = "4", "6"
REGISTRATION_SECONDS = 2.0
REFRESH = 30
"""Seconds after which a client asks for its routes again, if nobody told it otherwise."""


def _not_found(name: str, broker_id: int | None = None) -> CommandFailed:
    member = "" if broker_id is None else f" with id {broker_id}"
    return CommandFailed(
        "BROKER_NOT_EXIST", f"broker {name!r}{member} is not registered",
        "see the registered brokers with rocket broker list", exit_code=EXIT_NOT_FOUND,
    )  # fmt: skip


@command(help="List the brokers that are registered.")
def list_brokers() -> None:
    with open_admin(calls=2) as admin:
        info = admin.cluster_info()
        permissions = broker_permissions(admin)
    rows = [
        {
            "broker": name,
            "cluster": data.cluster,
            "broker_id": broker_id,
            "role": "master" if broker_id == MASTER_ID else "slave",
            "address": address,
            "perm": permission_text(permissions[name]) if name in permissions else None,
            "zone": data.zone_name,
        }
        for name, data in sorted(info.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]
    show_rows(
        rows,
        ["broker", "cluster", Column("broker_id", "ID"), "role", "address", "perm"],
        wide=["zone"],
    )


@command(
    help="Show the state of a broker: of the master, or of another member with --id. -o json shows everything "
    "that the broker reports."
)
@click.argument("broker")
@click.option("--id", "broker_id", type=click.IntRange(0), help="Id of the member; 0 is the master.")
def describe(broker: str, broker_id: int | None) -> int:
    with open_admin(calls=2) as admin:
        permissions = broker_permissions(admin)
        try:
            members = admin.broker_status(broker=broker)
        except RouteNotFound:
            raise _not_found(broker) from None
    found = [member for member in members if broker_id in (None, member.broker_id)]
    if not found:
        raise _not_found(broker, broker_id)
    member = found[0]
    runtime = dict(sorted((member.runtime or {}).items()))
    row = {
        "broker": member.broker,
        **broker_row(member, permissions.get(broker)),
        **broker_figures(runtime),
    }
    if current().output in ("table", "csv"):
        show_object(row)
    else:
        show_object({**row, "runtime": runtime})
    if not member.alive:
        return EXIT_UNREACHABLE
    return 0 if member.error is None else failure_of(member.error, current()).exit_code


@command(help="Make a broker read-only, so that producers leave it and consumers read on. It stays read-only, also "
              "after a restart, until undrain.")  # fmt: skip
@click.argument("broker")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show which topics would lose their write queues.")
def drain(broker: str, yes: bool, dry_run: bool) -> None:
    with open_admin(calls=5) as admin:
        info = view_with(admin, broker)
        topics = _topics_of(admin, info, broker)
        if topics is not None and _is_drained(admin, info, broker):
            show_object({"broker": broker, "topics": len(topics), "writable": False, "until": "undrain"})
            progress(f"{broker} was drained before: nothing was changed")
            return
        if not confirm(drain_plan(info, broker, topics), broker, yes=yes, dry_run=dry_run):
            return
        holds = _permit(admin, info, broker, READ_ONLY)
        count = admin.wipe_write_permission(broker)
    if count == 0:
        raise _not_found(broker)
    until = "undrain" if holds else "the broker registers anew"
    show_object({"broker": broker, "topics": count, "writable": False, "until": until})
    progress(f"{broker} is now read-only; producers move within {REFRESH} s")


def _is_drained(admin: Admin, info: ClusterInfo, broker: str) -> bool:
    """Whether the broker itself is read-only already, and the name server says so."""
    address = info.broker_addr_table[broker].master_address
    if address is None or broker_permissions(admin).get(broker, Permission.WRITE) & Permission.WRITE:
        return False
    try:
        own = admin.broker_config(address).get(PERMISSION, "")
    except RocketError:
        return False
    return own.isdecimal() and not int(own) & Permission.WRITE


def _permit(admin: Admin, info: ClusterInfo, broker: str, permission: str) -> bool:
    """Set the permission of the broker itself, which it registers for all its topics; whether it took it.

    The mark that name servers can make for it is gone when the broker restarts or registers a change of a topic.
    """
    address = info.broker_addr_table[broker].master_address
    if address is None:
        return False
    try:
        admin.update_broker_config(address, {PERMISSION: permission})
    except RocketError as error:
        progress(f"{broker} at {address} did not take {PERMISSION}={permission}: {error}")
        return False
    return True


def view_with(admin: Admin, broker: str) -> ClusterInfo:
    """Return what a name server says that knows a broker: perhaps not all do."""
    for view in answered(admin.cluster_infos())[0].values():
        if broker in view.broker_addr_table:
            return view
    raise _not_found(broker)


def _topics_of(admin: Admin, info: ClusterInfo, broker: str) -> dict[str, TopicConfig] | None:
    """Ask the master for its topics; None where there is no master, or it does not answer."""
    address = info.broker_addr_table[broker].master_address
    if address is None:
        return None
    try:
        return admin.broker_topics(address)
    except RocketError as error:
        progress(f"{broker} at {address} does not say which topics it has: {error}")
        return None


def drain_plan(info: ClusterInfo, broker: str, topics: dict[str, TopicConfig] | None) -> str:
    """Say which topics lose how many write queues; None where the broker did not say which it has."""
    cluster = info.broker_addr_table[broker].cluster
    lead = f"drain broker {broker} of {cluster}"
    lines = [f"{lead}: the write queues of all its topics go"]
    if topics is not None:
        own = {*info.cluster_addr_table, *info.broker_addr_table}
        losing = [each for each in topics.values() if each.perm & Permission.WRITE and each.write_queue_nums]
        made = [each for each in losing if topic_kind(each.topic_name, own) == "normal"]
        queues = sum(each.write_queue_nums for each in made)
        lines = [f"{lead}: {counted(queues, 'write queue')} of {counted(len(made), 'topic')} go"]
        lines += [f"  {each.topic_name}  {each.write_queue_nums}" for each in made]
        if len(losing) > len(made):
            lines.append(f"  and {counted(len(losing) - len(made), 'system, retry or dead-letter topic')}")
    members = info.cluster_addr_table.get(cluster, ())
    others = [info.broker_addr_table[name] for name in members if name != broker and name in info.broker_addr_table]
    if not any(data.master_address for data in others):
        lines.append(f"  {cluster} has no other master: its producers will find no queue")
    return "\n".join(map(printable, lines))


@command(help="Make a broker writable again. Its topics get back their own permissions.")
@click.argument("broker")
def undrain(broker: str) -> None:
    with open_admin(calls=4) as admin:
        info = view_with(admin, broker)
        topics = _topics_of(admin, info, broker)
        if topics is not None and _permit(admin, info, broker, READ_WRITE):
            count = len(topics)
            _await_writable(admin, broker, topics)
        else:
            topics, count = None, admin.add_write_permission(broker)
    if count == 0:
        raise _not_found(broker)
    show_object({"broker": broker, "topics": count, "writable": True})
    refused = [name for name, config in (topics or {}).items() if not config.perm & Permission.WRITE]
    if refused:
        progress(f"{broker} takes no messages to {', '.join(refused)}: see rocket topic update --perm")
    progress(f"{broker} is writable again; producers find it within {REFRESH} s")


def _await_writable(admin: Admin, broker: str, topics: dict[str, TopicConfig]) -> None:
    """Wait a little until name servers show a topic as writable again: the broker registers right after its answer."""
    topic = next((name for name, config in topics.items() if config.perm & Permission.WRITE), None)
    end = time.monotonic() + REGISTRATION_SECONDS
    while topic is not None and time.monotonic() < end:
        routes = [route for route in admin.topic_routes(topic).values() if not isinstance(route, RocketError)]
        perms = [queues.perm for route in routes for queues in route.queue_datas if queues.broker_name == broker]
        if all(perm & Permission.WRITE for perm in perms):
            return
        time.sleep(0.05)


@command(help="Make a broker delete files older than fileReservedTime now, without waiting for the hour deleteWhen. "
              "It deletes the oldest log files and the queue files that point to them.")  # fmt: skip
@click.argument("broker")
@click.option("--unused-topics", is_flag=True, help="Also delete queues of topics that the broker has no settings for.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted, as far as the broker can tell.")
def clean(broker: str, unused_topics: bool, yes: bool, dry_run: bool) -> None:
    with open_admin(calls=4) as admin:
        members = view_with(admin, broker).broker_addr_table[broker].broker_addrs
        addresses = [address for _, address in sorted(members.items())]
        plan = clean_plan(broker, _kept(admin, broker, addresses), round(time.time() * 1000), unused_topics)
        if not confirm(plan, broker, yes=yes, dry_run=dry_run):
            return
        for address in addresses:
            admin.clean_broker(address, unused_topics=unused_topics)
    show_object({"broker": broker, "members": len(members), "unused_topics": unused_topics})
    progress(f"{broker} deletes old files from now on, some every few seconds")


def _kept(admin: Admin, broker: str, addresses: Sequence[str]) -> dict[str, tuple[int | None, int | None]]:
    """Return what each member keeps: for how many hours, and since when it has messages; None where it does not say."""
    runtimes: dict[str, Mapping[str, str]] = {}
    with contextlib.suppress(RocketError):
        runtimes = {member.address: member.runtime or {} for member in admin.broker_status(broker=broker)}
    kept = {}
    for address in addresses:
        hours = None
        if runtimes.get(address):  # one that did not answer is not waited for again
            with contextlib.suppress(RocketError):
                hours = whole(admin.broker_config(address).get("fileReservedTime"))
        kept[address] = hours, whole(runtimes.get(address, {}).get("earliestMessageTimeStamp"))
    return kept


def clean_plan(
    broker: str, kept: Mapping[str, tuple[int | None, int | None]], now_millis: int, unused_topics: bool
) -> str:
    """Say what is deleted, as far as brokers tell.

    kept  address → hours of ``fileReservedTime``, time of the first message; None where it is not known
    """
    lines = [f"clean broker {broker}: the oldest files of its log go, and what of queues and index leads there"]
    for address, (hours, first) in kept.items():
        text = f"  {address}  files whose messages "
        if hours is None:
            lines.append(f"{text}are all older than its fileReservedTime; it does not say more")
            continue
        before = now_millis - hours * 3_600_000
        text += f"were all stored before {timestamp(before)} (fileReservedTime={hours})"
        if first is not None and (stored := timestamp(first)):
            text += f"; its first message is of {stored}{': none goes' if first >= before else ''}"
        lines.append(text)
    if unused_topics:
        lines.append("  and every topic that it has no settings for, with all its messages: it does not say which")
    return "\n".join(map(printable, lines))
