"""CPU time of processes, from ``/proc``: what Spark and a broker on this machine pay for a row."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketcore import addresses

__all__ = ["Cost", "cpu_of_tree", "cpu_seconds", "listening_process", "measure", "tree"]

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LISTENING: Final = "0A"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job took: seconds, and CPU seconds of Spark and of the brokers; None: these are not on this machine."""

    seconds: float
    spark_cpu: float
    brokers_cpu: float | None


def measure(job: Callable[[], object], clock: Callable[[], float], brokers: Collection[int] | None) -> Cost:
    """Run a job of Spark's and say what it took.

    clock    seconds
    brokers  processes that are charged apart from this one and all below it, which are Spark's; None: unknown
    """
    apart = brokers or ()
    spark, served, began = cpu_of_tree(os.getpid(), apart), sum(map(cpu_seconds, apart)), clock()
    job()
    seconds = clock() - began
    return Cost(
        seconds,
        cpu_of_tree(os.getpid(), apart) - spark,
        None if brokers is None else sum(map(cpu_seconds, apart)) - served,
    )


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended."""
    return sum(map(int, _stat(pid)[11:15])) / _TICKS


def cpu_of_tree(root: int, without: Collection[int] = ()) -> float:
    """CPU time of a process and all below it, but for some of them and what is below these."""
    total = 0.0
    for pid in tree(root, without):
        with contextlib.suppress(OSError):
            total += cpu_seconds(pid)
    return total


def tree(root: int, without: Collection[int] = ()) -> list[int]:
    """Return a process and all below it, but for some of them and what is below these."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        if pid not in without:
            found.append(pid)
            waiting += children.get(pid, [])
    return found


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


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
