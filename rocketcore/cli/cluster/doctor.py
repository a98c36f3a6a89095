"""``rocket doctor``: what may be wrong, here and in the cluster, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click

from rocketcore import __version__, addresses
from rocketcore.cli.cluster.doctor_groups import look_at_groups
from rocketcore.cli.cluster.doctor_topics import look_at_topics
from rocketcore.cli.cluster.finding import Finding
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_admin
from rocketcore.cli.shell.failures import EXIT_FAILED
from rocketcore.cli.shell.render import show_rows
from rocketcore.codes import MASTER_ID
from rocketcore.disk import used_ratio
from rocketcore.errors import ConnectError, RocketError

if TYPE_CHECKING:
    from rocketcore.admin.cluster import BrokerStatus
    from rocketcore.admin.statistics import Echo
    from rocketcore.protocol.bodies.route import ClusterInfo

__all__ = ["doctor"]

DESCRIPTORS: Final = 65536
"""Open files and connections that a busy server wants."""
DISK_WARN, DISK_FULL = 0.75, 0.90
"""RocketMQ deletes old files from 0.75 on, and refuses messages at 0.90."""
SKEW_WARN, SKEW_FAIL = 1.0, 30.0
SLOW: Final = 0.5
_RENAME: Final = "each gets a part of the messages: give one of them another brokerName, or stop it"
_ADVERTISE: Final = "set brokerIP1 to an address that clients can reach"


@command(
    help="Look for problems: limits and disk of this machine, name servers, brokers at their advertised addresses, "
    "clocks, versions, topics and consumer groups. It also sends a small message through each broker.\n\nIf a check "
    "fails, the exit code is 1."
)
@click.option("--no-message", is_flag=True, help="Do not send messages.")
def doctor(no_message: bool) -> int:
    findings = [*_here()]
    with open_admin(calls=8) as admin:
        views = admin.cluster_infos()
        findings += _name_servers(views)
        known = {address: view for address, view in views.items() if not isinstance(view, RocketError)}
        if known:
            findings += _registrations(known)
        if any(view.broker_addr_table for view in known.values()):
            members = admin.broker_status()
            findings += _brokers(members, list(views))
            masters = [each for each in members if each.broker_id == MASTER_ID]
            if masters and not no_message:
                findings += _echoes(admin.echo())
            if any(each.alive for each in masters):
                findings += look_at_topics(admin, members)
                findings += look_at_groups(admin, members)
    show_rows(
        [
            {
                "check": each.check,
                "target": each.target,
                "state": each.state,
                "detail": each.detail,
                "hint": each.hint,
            }
            for each in findings
        ],
        ["state", "check", "target", "detail", "hint"],
        name="check",
    )
    return EXIT_FAILED if any(each.state == "fail" for each in findings) else 0


def _here() -> Iterator[Finding]:
    import resource

    yield Finding("version", "rocketcore", "ok", __version__)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    enough = hard == resource.RLIM_INFINITY or hard >= DESCRIPTORS
    yield Finding(
        "ulimit", "this machine", "ok" if enough else "warn", f"{soft} open files, servers take up to {most}",
        None if enough else f"for servers on this machine, set LimitNOFILE={DESCRIPTORS} in the unit, or ulimit -Hn",
    )  # fmt: skip
    yield _disk("this folder", used_ratio("."))


def _disk(target: str, ratio: float) -> Finding:
    state = "fail" if ratio >= DISK_FULL else "warn" if ratio >= DISK_WARN else "ok"
    hint = None if state == "ok" else (
        "free some space, or start the broker with a smaller fileReservedTime: at 90 % it refuses messages"
    )  # fmt: skip
    return Finding("disk", target, state, f"{ratio:.0%} used", hint)


def _name_servers(views: Mapping[str, ClusterInfo | RocketError]) -> Iterator[Finding]:
    for address, view in views.items():
        if not isinstance(view, RocketError):
            yield Finding("name server", address, "ok", f"answers, knows {len(view.broker_addr_table)} brokers")
        elif isinstance(view, ConnectError):
            yield Finding(
                "name server", address, "fail", str(view), "nothing listens there: run rocket up, or give --namesrv"
            )
        else:
            yield Finding(
                "name server", address, "fail", str(view), "the server accepts connections but does not answer"
            )


def _registrations(views: Mapping[str, ClusterInfo]) -> Iterator[Finding]:
    everyone = {name for view in views.values() for name in view.broker_addr_table}
    if not everyone:
        yield Finding("brokers", "cluster", "fail", "no broker is registered", "rocket broker start --namesrv …")
    for name in sorted(everyone):
        yield from _rivals(name, views)
        missing = [address for address, view in views.items() if name not in view.broker_addr_table]
        if missing:
            yield Finding(
                "registration", name, "fail", f"not known at {', '.join(missing)}",
                "name every name server in its namesrvAddr",
            )  # fmt: skip
        elif all(MASTER_ID not in view.broker_addr_table[name].broker_addrs for view in views.values()):
            yield Finding("registration", name, "fail", "has no master", "start its master: clients cannot send to it")


def _rivals(name: str, views: Mapping[str, ClusterInfo]) -> Iterator[Finding]:
    """Yield an id that name servers know at different addresses."""
    seen: dict[int, dict[str, None]] = {}
    for view in views.values():
        if (data := view.broker_addr_table.get(name)) is not None:
            for broker_id, address in data.broker_addrs.items():
                seen.setdefault(broker_id, {})[address] = None
    for broker_id, found in seen.items():
        if len(found) > 1:
            detail = f"name servers know it at different addresses: {', '.join(found)}"
            yield Finding("two brokers", f"{name}/{broker_id}", "fail", detail, _RENAME)


def _brokers(members: list[BrokerStatus], name_servers: list[str]) -> Iterator[Finding]:
    far = any(not _is_here(address) for address in name_servers)
    versions: dict[str, list[str]] = {}
    for each in members:
        who = f"{each.broker}/{each.broker_id}"
        advertised = _is_here(each.address) and far
        if not each.alive:
            hint = (
                "set brokerIP1 to an address that clients can reach"
                if advertised
                else "check that the broker runs, and that its port is open"
            )
            yield Finding("broker", who, "fail", f"{each.address}: {each.error}", hint)
            continue
        if advertised:
            yield Finding(
                "advertised address", who, "warn", f"{each.address} is reachable on its own machine only", _ADVERTISE
            )  # fmt: skip
        if each.error is not None:
            yield Finding("broker", who, "warn", f"{each.address}: {each.error}")
        else:
            yield Finding("broker", who, "ok", f"answers at {each.address}")
        runtime = each.runtime or {}
        if rival := runtime.get("brokerOfSameName"):
            yield Finding("two brokers", who, "fail", rival, _RENAME)
        version = runtime.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".")
        versions.setdefault(version or "unknown", []).append(who)
        try:
            ratio = float(runtime.get("commitLogDiskRatio", "nan"))
        except ValueError:
            ratio = float("nan")
        if 0 <= ratio <= 1:
            yield _disk(who, ratio)
        else:
            yield Finding("disk", who, "unknown", "the broker does not report how full its disk is")
    if versions:
        text = "; ".join(f"{version}: {', '.join(names)}" for version, names in sorted(versions.items()))
        one = len(versions) == 1
        yield Finding("versions", "brokers", "ok" if one else "warn", text, None if one else "upgrade the others too")


def _is_here(address: str) -> bool:
    from rocketcore.transport.networks import is_loopback

    try:
        return is_loopback(addresses.split(address)[0])
    except ValueError:  # a name
        return False


def _echoes(echoes: Mapping[str, Echo | RocketError]) -> Iterator[Finding]:
    for name, echo in echoes.items():
        if isinstance(echo, RocketError):
            yield Finding(
                "message", name, "fail", str(echo), "see rocket broker describe; a drained broker refuses messages"
            )
            continue
        slow = echo.seconds > SLOW
        yield Finding(
            "message", name, "warn" if slow else "ok", f"there and back in {echo.seconds * 1000:.1f} ms",
            "the disk syncs slowly, or the network is far" if slow else None,
        )  # fmt: skip
        skew = abs(echo.clock_skew)
        state = "fail" if skew >= SKEW_FAIL else "warn" if skew >= SKEW_WARN else "ok"
        way = "ahead of" if echo.clock_skew > 0 else "behind"
        detail = f"{skew:.1f} s {way} this machine's" if skew else "as this machine's"
        yield Finding("clock", name, state, detail, None if state == "ok" else "synchronise clocks (chrony, ntpd)")
