"""The name server beside Apache's: routes, a storm of registrations, memory, the first answer, idle connections.

Where state or age matters each round has servers of its own. Apache's runs with the heap that the kit gives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.comparison import VERSION, Bench, Target, report
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.bodies.route import TopicRouteData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.blocking.client import BlockingRemotingClient
from tests.fixtures.processes import Processes
from tests.peers.apache import free_port, make_namesrv

__all__ = ["nameserver"]

BROKERS = 10
ROUTE_TOPICS = 100
STORM_TOPICS = 10_000
STORM_ROUNDS = 20
IDLE_CONNECTIONS = 10_000
REST_SECONDS = 3.0
"""After the last registration, before memory at rest is looked at."""
SPARE_FILES = 500
"""Descriptors that a process with all those connections needs besides."""

Start = Callable[[contextlib.ExitStack], Target]


def nameserver(bench: Bench) -> None:
    starts = {"ours": lambda stack: _start_ours(bench, stack), "apache": lambda stack: _start_apache(bench, stack)}
    _routes(bench, starts)
    _fresh_storm(bench, starts)
    _warm_storm(bench, starts)
    _first_answer(bench)
    _idle(bench, starts)


def _start_ours(bench: Bench, stack: contextlib.ExitStack) -> Target:
    processes = Processes(_folder(bench))
    stack.callback(processes.end)
    started = processes.namesrv()
    return Target("ours", int(started.address.rpartition(":")[2]), started.pid)


def _start_apache(bench: Bench, stack: contextlib.ExitStack) -> Target:
    server = make_namesrv(VERSION, _folder(bench), free_port(set()))
    server.start()
    stack.callback(server.stop, graceful=False)
    server.wait(90, lambda: True)
    assert server.pid is not None
    return Target("apache", int(server.address.rpartition(":")[2]), server.pid)


def _folder(bench: Bench) -> Path:
    """Return a new folder: no server finds what another left."""
    folder = bench.folder / f"name-server-{len(list(bench.folder.iterdir()))}"
    folder.mkdir()
    return folder


def _routes(bench: Bench, starts: dict[str, Start]) -> None:
    """Route answers of 100 topics on 10 brokers, at three depths."""
    with contextlib.ExitStack() as stack:
        ours, theirs = (start(stack) for start in starts.values())
        for target in (ours, theirs):
            _preload(bench, stack, target)
        bench.load(theirs, "route", "-c", 16, "-d", 16, "--topics", ROUTE_TOPICS, seconds=bench.warm)
        bench.load(ours, "route", "-c", 16, "-d", 16, "--topics", ROUTE_TOPICS, seconds=1)
        with bench.echo("--body", 2200) as ceiling:
            for connections, depth in ((16, 1), (16, 16), (1, 1)):
                title = f"name server, route, {ROUTE_TOPICS} topics × {BROKERS} brokers, {connections} × {depth}"
                load = ("route", "-c", connections, "-d", depth, "--topics", ROUTE_TOPICS)
                bench.alternate(title, (ours, theirs, ceiling), *load)


def _preload(bench: Bench, stack: contextlib.ExitStack, target: Target, topics: int = ROUTE_TOPICS) -> None:
    """Register the brokers whose routes are asked for, and stay until the stack unwinds."""
    register = ("register", "--brokers", BROKERS, "--topics", topics, "--hold", 3600, "--port", target.port)
    holder = subprocess.Popen([str(bench.frameload), *map(str, register)], stdout=subprocess.DEVNULL)
    stack.callback(holder.wait)
    stack.callback(holder.kill)
    last = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    last.ext_fields = {"topic": f"bench-{topics - 1:05d}"}
    with contextlib.closing(BlockingRemotingClient()) as client:
        _wait(lambda: _brokers(client.invoke(f"127.0.0.1:{target.port}", last, 10.0)) == BROKERS, "the registrations")


def _brokers(answer: RemotingCommand) -> int:
    return len(TopicRouteData.decode(answer.body).broker_datas) if answer.code == ResponseCode.SUCCESS else 0


def _wait(condition: Callable[[], bool], what: str, timeout: float = 300.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(0.01)


def _storm(bench: Bench) -> tuple[tuple[object, ...], str]:
    topics = int(STORM_TOPICS * bench.scale)
    return ("register", "--brokers", BROKERS, "--topics", topics), f"{BROKERS} brokers × {topics:,} topics"


def _fresh_storm(bench: Bench, starts: dict[str, Start]) -> None:
    """All brokers register with a server that has just come up, as after its restart; then its memory.

    That is looked at right after the last of the registrations, and with the brokers still there, at rest.
    """
    register, size = _storm(bench)
    first = bench.row(f"name server just started, first registrations, {size}")
    memory = bench.row(f"name server, memory with {size}, after the last registration; at rest; its growth by them")
    for number in range(bench.rounds):
        for name in bench.order(number, list(starts)):
            with contextlib.ExitStack() as stack:
                target = starts[name](stack)
                empty = _rss_mb(target.pid)
                phases = bench.phases(target, *register, "--rounds", 2)
                # Memory between two phases is half-way and stands in no row.
                first.add(name, {key: value for key, value in phases[0].items() if key != "server_rss_mb"})
                _preload(bench, stack, target, int(STORM_TOPICS * bench.scale))
                time.sleep(REST_SECONDS)
                full = _rss_mb(target.pid)
                at_once = phases[-1]["server_rss_mb"]
                memory.add(name, {"server_rss_mb": at_once, "rss_mb": full, "growth_mb": full - empty})
    report(first)
    report(memory)


def _warm_storm(bench: Bench, starts: dict[str, Start]) -> None:
    """Registrations again and again with warm servers: with a new data version each, and with the one of before."""
    register, size = _storm(bench)
    again = (*register, "--rounds", max(2, int(STORM_ROUNDS * bench.scale)))
    with contextlib.ExitStack() as stack:
        targets = [start(stack) for start in starts.values()]
        for target in targets:
            warm = bench.warm if target.name == "apache" else 1.0
            end = time.monotonic() + warm
            while time.monotonic() < end:
                bench.load(target, *again)
        bench.alternate(f"name server, registrations again, new data version, {size}", targets, *again)
        bench.alternate(f"name server, registrations again, same data version, {size}", targets, *again, "--same")


def _first_answer(bench: Bench) -> None:
    """Process start to the first answer to a route question, and memory then."""
    row = bench.row("name server, process start to first answer")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for number in range(-1, bench.rounds):  # one unmeasured start fills the caches of both
        for name in bench.order(number, ["ours", "apache"]):
            folder, port = _folder(bench), free_port(set())
            if name == "ours":
                command = [sys.executable, "-m", "rocketcore.cli.main", "namesrv", "start"]
                command += ["--listen", f"127.0.0.1:{port}", "--home", str(folder)]
            else:
                command = make_namesrv(VERSION, folder, port)._command
            ask = [str(bench.frameload), "first", "--port", str(port), "--expect", "-1", "--settle", "0"]
            ask += ["--seconds", "90", "--", *command]
            # Apache's process ends when its standard input does.
            with subprocess.Popen(
                ask, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
            ) as process:
                assert process.stdout is not None
                result = json.loads(process.stdout.readline())
            if result["code"] != ResponseCode.TOPIC_NOT_EXIST:
                raise RuntimeError(f"{name}: {' '.join(ask)}: {result}")
            if number >= 0:
                row.add(name, {"first_s": result["first_reply_ms"] / 1000, "rss_mb": result["rss_mb"]})
    report(row)


def _idle(bench: Bench, starts: dict[str, Start]) -> None:
    """What idle connections cost in memory, and what one client notices of them."""
    wanted = int(IDLE_CONNECTIONS * bench.scale)
    connections = min(wanted, _raise_file_limit(wanted + SPARE_FILES) - SPARE_FILES)
    row = bench.row(f"name server, route, 1 × 1, beside {connections:,} idle connections")
    route = ("route", "-c", 1, "-d", 1, "--topics", ROUTE_TOPICS)
    for number in range(bench.rounds):
        for name in bench.order(number, list(starts)):
            with contextlib.ExitStack() as stack:
                target = starts[name](stack)
                _preload(bench, stack, target)
                bench.load(target, *route, seconds=min(3.0, bench.warm))
                before = _rss_mb(target.pid)
                stack.enter_context(_idle_connections(bench, target, connections))
                per_connection = (_rss_mb(target.pid) - before) * 1024 / connections
                result = bench.load(target, *route)
                row.add(name, {"kib_per_connection": per_connection, "lat_us": result["lat_us"]})
    report(row)


@contextlib.contextmanager
def _idle_connections(bench: Bench, target: Target, count: int) -> Iterator[None]:
    command = [str(bench.frameload), "idle", "-c", str(count), "--hold", "3600", "--port", str(target.port)]
    holder = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait(lambda: _sockets(target.pid) >= count or holder.poll() is not None, f"{count} connections")
        if holder.poll() is not None:
            raise RuntimeError(f"{target.name}: {' '.join(command)} ended with {holder.returncode}")
        yield
    finally:
        holder.kill()
        holder.wait()


def _sockets(pid: int) -> int:
    """Return how many sockets a process has open; the few that it had before are no matter among thousands."""
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += str(entry.readlink()).startswith("socket:")
    return found


def _raise_file_limit(wanted: int) -> int:
    """Let this process and its children open as many files as wanted, or as are allowed; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted:
        soft = wanted if hard == unlimited else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == unlimited else soft


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)
