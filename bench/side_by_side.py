"""Our servers and clients beside Apache RocketMQ's, in one run, on one machine, with the same load.

    python -m bench.side_by_side [--rounds 5] [--seconds 3] [--warm 30] [--only nameserver,broker-async,…] [--json FILE]

Each suite starts the servers it compares, warms the JVM, then alternates rounds (A B C, C B A, …) so that drifts of
the machine hit all alike, and prints the median and the spread of each figure with the ratio to the peer. Servers are
loaded by ``frameload`` (C); its ``echo`` mode is the ceiling: one epoll thread that parses a header and answers from a
template. Clients are loaded by as many callers on both sides (``peers/load.py``, ``peers/java/Load.java``) against one
Apache broker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rocketcore as rmq
from tests.fixtures.processes import Processes
from tests.peers.apache import ApacheCluster, free_port, make_namesrv
from tests.peers.jvm import install

HERE = Path(__file__).resolve().parent
VERSION = "5.5.0"
QUEUES = 4


@dataclass(frozen=True)
class Target:
    """A server under load: how the table calls it, where it listens, which process to charge."""

    name: str
    port: int
    pid: int


@dataclass
class Row:
    """One question: a title, and what each target answered in each round."""

    title: str
    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, name: str, result: dict[str, Any]) -> None:
        self.results.setdefault(name, []).append(result)

    def figure(self, name: str, path: str) -> tuple[float, float, float] | None:
        """Return median, least and greatest of a figure such as ``lat_us.p50``."""
        values = []
        for result in self.results.get(name, ()):
            value: Any = result
            for key in path.split("."):
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                values.append(float(value))
        return (statistics.median(values), min(values), max(values)) if values else None


FIGURES = (
    ("msgs_s", "msg/s"),
    ("ops_s", "ops/s"),
    ("lat_us.p50", "p50 µs"),
    ("lat_us.p99", "p99 µs"),
    ("server_us_per_op", "server µs/op"),
    ("server_us_per_msg", "server µs/msg"),
    ("client_us_per_msg", "client µs/msg"),
    ("server_rss_mb", "server MB"),
    ("ready_s", "ready s"),
    ("first_s", "first answer s"),
    ("rss_mb", "MB"),
)


class Bench:
    """A folder, a built load generator, and the rows measured so far."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.rounds: int = arguments.rounds
        self.seconds: float = arguments.seconds
        self.warm: float = arguments.warm
        self.folder = folder
        self.rows: list[Row] = []
        self.frameload = folder / "frameload"
        command = ["cc", "-std=c11", "-O2", "-o", str(self.frameload), str(HERE / "peers" / "frameload.c")]
        subprocess.run(command, check=True)

    def row(self, title: str) -> Row:
        row = Row(title)
        self.rows.append(row)
        return row

    def load(
        self, target: Target, *arguments: object, seconds: float | None = None, attempts: int = 2
    ) -> dict[str, Any]:
        """Run the load generator; a wrong or missing answer is an error, but a cold JVM that is busy is asked again."""
        command = [str(self.frameload), *map(str, arguments), "--port", str(target.port), "--pid", str(target.pid)]
        command += ["--seconds", str(seconds or self.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if not done.stdout.strip():
            raise RuntimeError(f"{target.name}: {' '.join(command)}: {done.stderr}")
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        wrong = {key: result[key] for key in ("errors", "mismatch", "bad", "closed", "unanswered") if result.get(key)}
        if wrong and target.name == "apache" and attempts > 1:
            return self.load(target, *arguments, seconds=seconds, attempts=attempts - 1)
        if wrong:
            raise RuntimeError(f"{target.name}: {' '.join(command)}: {wrong}")
        return result

    def alternate(self, title: str, targets: Sequence[Target], *arguments: object) -> Row:
        row = self.row(title)
        for number in range(self.rounds):
            for target in targets if number % 2 == 0 else reversed(targets):
                row.add(target.name, self.load(target, *arguments))
        report(row)
        return row

    @contextlib.contextmanager
    def echo(self, *options: object) -> Iterator[Target]:
        """The ceiling: a minimal C server on a free port."""
        port = free_port(set())
        command = [str(self.frameload), "echo", "--port", str(port), *map(str, options)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for_port(port)
            yield Target("ceiling", port, process.pid)
        finally:
            process.kill()
            process.wait()


def wait_for_port(port: int, timeout: float = 10.0) -> None:
    import socket

    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def report(row: Row) -> None:
    """Print one row as lines of text."""
    print(f"\n## {row.title}")
    for name in row.results:
        cells = []
        for path, title in FIGURES:
            figure = row.figure(name, path)
            if figure is None or not figure[2] or (path == "msgs_s" and figure == row.figure(name, "ops_s")):
                continue  # not measured, or nothing new next to the figure per request
            median, least, greatest = figure
            peer_name = "apache" if "apache" in row.results else "ceiling"
            peer = row.figure(peer_name, path)
            ratio = f" {median / peer[0]:.2f}x" if peer and peer[0] and name != peer_name else ""
            cells.append(f"{title} {median:.4g} [{least:.4g}–{greatest:.4g}]{ratio}")
        print(f"{name:>8}: " + " · ".join(cells), flush=True)


def nameserver(bench: Bench) -> None:
    """Route answers of 100 topics on 10 brokers, at three depths; memory after the load; time to the first answer."""
    with contextlib.ExitStack() as stack:
        processes = Processes(bench.folder)
        stack.callback(processes.end)
        started = processes.namesrv()
        ours = Target("ours", int(started.address.rpartition(":")[2]), started.pid)
        apache = make_namesrv(VERSION, bench.folder / "apache-namesrv", free_port(set()))
        apache.start()
        stack.callback(apache.stop, graceful=False)
        apache.wait(90, lambda: True)
        assert apache.pid is not None
        theirs = Target("apache", int(apache.address.rpartition(":")[2]), apache.pid)
        for target in (ours, theirs):
            preload = ("register", "--brokers", "10", "--topics", "100", "--hold", "3600", "--port", str(target.port))
            holder = subprocess.Popen([str(bench.frameload), *preload], stdout=subprocess.DEVNULL)
            stack.callback(holder.wait)
            stack.callback(holder.kill)
        time.sleep(2.0)  # the registrations of both are in
        bench.load(theirs, "route", "-c", 16, "-d", 16, "--topics", 100, seconds=bench.warm)
        bench.load(ours, "route", "-c", 16, "-d", 16, "--topics", 100, seconds=1)
        with bench.echo("--body", 2200) as ceiling:
            for connections, depth in ((16, 1), (16, 16), (1, 1)):
                title = f"name server, route, 100 topics × 10 brokers, {connections} × {depth}"
                bench.alternate(
                    title, (ours, theirs, ceiling), "route", "-c", connections, "-d", depth, "--topics", 100
                )
    startup = bench.row("name server, process start to ready")
    for number in range(bench.rounds):
        processes = Processes(bench.folder)
        try:
            startup.add("ours", {"ready_s": processes.namesrv().started_in})
        finally:
            processes.end()
        apache = make_namesrv(VERSION, bench.folder / f"apache-start-{number}", free_port(set()))
        apache.start()
        apache.wait(90, lambda: True)
        startup.add("apache", {"ready_s": apache.started_in})
        apache.stop(graceful=False)
    report(startup)


def broker(bench: Bench, flush: str) -> None:
    """Sends and pulls of one broker with asynchronous or synchronous flush, fresh stores."""
    java = ["-Xms2g", "-Xmx2g"]
    conf = {"flushDiskType": f"{flush.upper()}_FLUSH", "mappedFileSizeCommitLog": 1 << 30}
    with contextlib.ExitStack() as stack:
        processes = Processes(bench.folder)
        stack.callback(processes.end)
        namesrv = processes.namesrv()
        started = processes.broker(namesrv.address, "--flush", flush, store=bench.folder / f"store-{flush}")
        ours = Target("ours", int(started.address.rpartition(":")[2]), started.pid)
        cluster = stack.enter_context(
            ApacheCluster(VERSION, bench.folder / f"apache-{flush}", extra_broker_conf=conf, java_options=java)
        )
        startup = bench.row(f"broker, {flush} flush, process start to ready, empty store")
        startup.add("ours", {"ready_s": started.started_in})
        startup.add("apache", {"ready_s": cluster.servers["broker-a"].started_in})
        report(startup)
        theirs = Target("apache", int(cluster.brokers[0].rpartition(":")[2]), cluster.pids["broker-a"])
        for target in (ours, theirs):
            for topic in ("warm", "t1k", "t128", "tbatch"):
                arguments = ("send", "--create", "--topic", topic, "--queues", QUEUES, "--count", 64, "--warmup", 0)
                bench.load(target, *arguments, "-c", 1, "-d", 1)
        send = ("send", "--queues", QUEUES)
        bench.load(theirs, *send, "--topic", "warm", "-c", 16, "-d", 16, seconds=bench.warm)
        bench.load(ours, *send, "--topic", "warm", "-c", 16, "-d", 16, seconds=1)
        log = bench.folder / f"ceiling-{flush}"
        sync = ("--sync", "group") if flush == "sync" else ()
        with bench.echo("--file", log, *sync) as ceiling:
            targets = (ours, theirs, ceiling)
            for size, topic, connections, depth in ((1024, "t1k", 16, 1), (1024, "t1k", 16, 16), (128, "t128", 16, 16)):
                title = f"broker, {flush} flush, send {size} B, {connections} × {depth}"
                load = ("--topic", topic, "--size", size, "-c", connections, "-d", depth)
                bench.alternate(title, targets, *send, *load)
            title = f"broker, {flush} flush, send batches of 32 × 1 KiB, 4 × 1"
            bench.alternate(title, targets, *send, "--topic", "tbatch", "--batch", 32, "-c", 4, "-d", 1)
            bench.alternate(
                f"broker, {flush} flush, send 1 KiB, 1 × 1", targets, *send, "--topic", "t1k", "-c", 1, "-d", 1
            )
        log.unlink(missing_ok=True)
        pull = ("pull", "--topic", "t1k", "--queues", QUEUES, "-c", 4, "--loop")
        bench.load(theirs, *pull, seconds=min(10.0, bench.warm))
        bench.alternate(f"broker, {flush} flush, pull 1 KiB, 32 a pull, 4 connections", (ours, theirs), *pull)


def clients(bench: Bench) -> None:
    """Our clients and the Java client against one Apache broker, as many callers on both sides."""
    folder = install(VERSION)
    classes = bench.folder / "load-classes"
    jars = f"{folder / 'lib'}/*"
    subprocess.run(["javac", "-d", str(classes), "-cp", jars, str(HERE / "peers" / "java" / "Load.java")], check=True)
    with ApacheCluster(VERSION, bench.folder / "apache-clients", java_options=["-Xms2g", "-Xmx2g"]) as cluster:
        port = int(cluster.brokers[0].rpartition(":")[2])
        target = Target("apache", port, cluster.pids["broker-a"])
        for topic in ("c1024", "c128"):
            arguments = ("send", "--create", "--topic", topic, "--queues", QUEUES, "-c", 16, "-d", 16)
            bench.load(target, *arguments, "--size", topic[1:], seconds=bench.warm / 2)

        def run(name: str, mode: str, *options: object, attempts: int = 2) -> dict[str, Any]:
            common = [mode, "--ns", cluster.namesrv, *map(str, options)]
            if name == "ours":
                command = [sys.executable, "-m", "bench.peers.load", *common]
            else:
                opens = f"@{HERE.parent / 'tests' / 'peers' / 'conf' / 'jvm.options'}"
                command = ["java", opens, "-Xms1g", "-Xmx1g", "-cp", f"{classes}:{jars}", "Load", *common]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if not done.stdout.strip():
                raise RuntimeError(f"{name}: {' '.join(command)}: {done.stderr[-2000:]}")
            result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
            if result["errors"] and attempts > 1:
                return run(name, mode, *options, attempts=attempts - 1)  # the broker is a JVM, and may be busy
            if result["errors"]:
                raise RuntimeError(f"{name}: {' '.join(command)}: {result['errors']}")
            return result

        time_ = ("--seconds", max(1, round(bench.seconds)))  # Load.java takes whole seconds
        # title, our mode, Java's mode, options of both
        questions: list[tuple[str, str, str, tuple[object, ...]]] = [
            *(
                (
                    f"producer, blocking send of 1 KiB, {n} thread(s)",
                    "sync",
                    "sync",
                    ("--topic", "c1024", "--threads", n),
                )
                for n in (1, 8, 64)
            ),
            ("producer, asynchronous send of 1 KiB, window 1,000", "async", "async", ("--topic", "c1024")),
            *(
                (f"producer, auto-batch, {size} B", "nowait", "autoasync", ("--topic", f"c{size}", "--size", size))
                for size in (128, 1024)
            ),
            (
                "producer, explicit batches of 32 × 1 KiB, 4 threads",
                "batch",
                "batch",
                ("--topic", "c1024", "--threads", 4),
            ),
            ("consumer, pull and poll of 1 KiB", "pull", "litepull", ("--topic", "c1024")),
            (
                "consumer, push, a handler a message",
                "push",
                "push",
                ("--topic", "c1024", "--count", 60000, "--skip", 10000),
            ),
        ]
        for title, our_mode, java_mode, options in questions:
            row = bench.row(title)
            extra = () if "--count" in options else (*time_, "--window", 1000)
            for number in range(bench.rounds):
                order = ("ours", "apache") if number % 2 == 0 else ("apache", "ours")
                for name in order:
                    warm = ("--warmup", 1 if name == "ours" else 5) if extra else ()
                    mode = our_mode if name == "ours" else java_mode
                    row.add(name, run(name, mode, *options, *extra, *warm))
            report(row)


def spark(bench: Bench) -> None:
    """Our sink and source in one JVM with a sink that takes all and a source that has its batches ready."""
    from bench.peers.ceilings import Nowhere, Prebuilt
    from rocketcore.spark import local_session, register

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    with contextlib.ExitStack() as stack:
        processes = Processes(bench.folder)
        stack.callback(processes.end)
        namesrv = processes.namesrv()
        processes.broker(namesrv.address, "--flush", "async", store=bench.folder / "store-spark")
        session = local_session("side by side", driver_memory="2g")
        stack.callback(session.stop)
        register(session)
        session.dataSource.register(Nowhere)
        session.dataSource.register(Prebuilt)
        ours = {"nameServer": namesrv.address}
        for size, rows in ((100, 1_000_000), (1024, 200_000)):
            written, kept = f"written{size}", f"kept{size}"
            with rmq.Admin(namesrv.address) as admin:
                for topic in (written, kept):
                    admin.create_topic(topic, queues=QUEUES)
            body = f"cast(lpad(cast(id as string), {size}, 'x') as binary) body"
            frame = session.range(0, rows, 1, 4).selectExpr(body)

            def write(to: str, frame: Any = frame, topic: str = written) -> None:
                writer = frame.write.mode("append")
                if to == "ours":
                    writer.format("rocketmq").options(**ours, topic=topic).save()
                else:
                    writer.format("nowhere").save()

            def read(source: str, size: int = size, rows: int = rows, topic: str = kept) -> None:
                if source == "ours":
                    read = session.read.format("rocketmq").schema("body binary").options(**ours, topic=topic).load()
                else:
                    read = session.read.format("prebuilt").options(rows=str(rows), size=str(size)).load()
                [(total,)] = read.selectExpr("sum(length(body))").collect()
                if source == "ours" and total != rows * size:
                    raise RuntimeError(f"{topic}: {total} bytes were read, {rows * size} were written")

            write("ours", topic=kept)

            for title, job in ((f"Spark, sink, {size} B", write), (f"Spark, source, {size} B", read)):
                row = bench.row(f"{title}, {rows:,} rows, local[2]")
                for number in range(-2, bench.rounds):  # two rounds of warm-up
                    for name in ("ours", "ceiling") if number % 2 == 0 else ("ceiling", "ours"):
                        began = time.perf_counter()
                        job(name)
                        if number >= 0:
                            row.add(name, {"ops_s": rows / (time.perf_counter() - began)})
                report(row)


SUITES = {
    "nameserver": nameserver,
    "broker-async": lambda bench: broker(bench, "async"),
    "broker-sync": lambda bench: broker(bench, "sync"),
    "clients": clients,
    "spark": spark,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm", type=float, default=30.0, help="seconds of unmeasured load on a fresh JVM")
    parser.add_argument("--only", default=",".join(SUITES), help=f"of {', '.join(SUITES)}")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    arguments = parser.parse_args()
    if not shutil.which("cc"):
        parser.error("no C compiler (cc)")
    machine = f"{platform.platform()} · {os.cpu_count()} cores"
    print(f"{machine} · Python {platform.python_version()} · {time.strftime('%F')}")
    with tempfile.TemporaryDirectory(prefix="rocketcore-bench-") as folder:
        bench = Bench(arguments, Path(folder))
        for name in arguments.only.split(","):
            SUITES[name](bench)
        if arguments.json:
            arguments.json.write_text(json.dumps([vars(row) for row in bench.rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
