"""CPU time of processes, from ``/proc``: what Spark and a broker on this machine pay for a row."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketcore import addresses

__all__ = ["Cost", "cpu_seconds", "listening_process", "measure", "tree"]

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LISTENING: Final = "0A"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job took: seconds, and CPU seconds of Spark and of the brokers; None: these are not on this machine."""

    seconds: float
    spark_cpu: float
    brokers_cpu: float | None


@dataclass(frozen=True, slots=True)
class _Used:
    """A process: its parent, when it started, its CPU seconds, and those of its children that it has waited for."""

    parent: int
    started: str
    own: float
    waited: float


def measure(job: Callable[[], object], clock: Callable[[], float], brokers: Collection[int] | None) -> Cost:
    """Run a job of Spark's and say what it took.

    clock    seconds
    brokers  processes that are charged apart from this one and all below it, which are Spark's; None: unknown
    """
    apart = brokers or ()
    spark, served, began = _tree(os.getpid(), apart), sum(map(cpu_seconds, apart)), clock()
    job()
    seconds = clock() - began
    return Cost(
        seconds,
        _between(spark, _tree(os.getpid(), apart)),
        None if brokers is None else sum(map(cpu_seconds, apart)) - served,
    )


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended."""
    used = _used(pid)
    return used.own + used.waited


def tree(root: int, without: Collection[int] = ()) -> list[int]:
    """Return a process and all below it, but for some of them and what is below these."""
    return list(_tree(root, without))


def _tree(root: int, without: Collection[int]) -> dict[int, _Used]:
    processes: dict[int, _Used] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                pid = int(entry.name)
                processes[pid] = _used(pid)
                children.setdefault(processes[pid].parent, []).append(pid)
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        if pid not in without:
            found[pid] = processes[pid]
            waiting += children.get(pid, [])
    return found


def _between(before: Mapping[int, _Used], after: Mapping[int, _Used]) -> float:
    """Return the CPU seconds between two looks.

    A process that ended in between brings its whole time to a parent that waited for it: what it had used before is
    taken off. Spark's daemon waits for none of its workers; what one used since the first look is then not known.
    """
    total = 0.0
    ended: dict[int, float] = {}
    for pid, used in before.items():
        if pid not in after or after[pid].started != used.started:
            ended[used.parent] = ended.get(used.parent, 0.0) + used.own + used.waited
    for pid, used in after.items():
        was = before.get(pid)
        if was is None or was.started != used.started:
            total += used.own + used.waited
        else:
            total += used.own - was.own + max(0.0, used.waited - was.waited - ended.get(pid, 0.0))
    return total


def listening_process(address: str) -> int | None:
    """Return the process of this machine that listens at ``host:port``; None: another machine's, or another user's."""
    host, port = addresses.split(address)
    if not _is_local(host):
        return None
    inodes = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if any(_target(link) in inodes for link in (entry / "fd").iterdir()):
                    return int(entry.name)
    return None


def _target(link: Path) -> str:
    """Return what a descriptor is; it may be closed by now."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _is_local(host: str) -> bool:
    """Whether a socket of this machine can have the address."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True


def _used(pid: int) -> _Used:
    # The fields of the file from the third on: a name may have spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, waited = (sum(map(int, fields[at : at + 2])) / _TICKS for at in (11, 13))
    return _Used(int(fields[1]), fields[19], own, waited)
