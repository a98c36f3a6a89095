"""Our servers and clients beside Apache RocketMQ's, in one run, on one machine, with the same load.

    python -m bench.side_by_side [--rounds 5] [--seconds 3] [--warm 30] [--only nameserver,broker-async,…] [--json FILE]

Each suite starts the servers it compares, warms the JVM, then alternates rounds (A B C, C B A, …) so that drifts of
the machine hit all alike, and prints the median and the spread of each figure with the ratio to the peer. Servers are
loaded by ``frameload`` (C); its ``echo`` mode is the ceiling: one epoll thread that parses a header and answers from a
template. Clients are loaded by as many callers on both sides (``peers/load.py``, ``peers/java/Load.java``) against one
Apache broker.

With less than a second of measuring, as in CI, the large questions to name servers take a tenth of their topics and
connections; the titles say what was taken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.cold_readers import cold
from bench.comparison import HERE, VERSION, Bench, Target, report
from bench.name_server import nameserver
from bench.spark_rows import spark, spark_apart, spark_discarding
from bench.spark_streams import spark_streams
from tests.fixtures.processes import Processes
from tests.peers.apache import ApacheCluster, room
from tests.peers.jvm import install

QUEUES = 4
BUSY_SECONDS = 3.0
"""What a broker that said SYSTEM_BUSY has to write what it holds."""

PULLED_MESSAGES = 200_000
"""Of 1 KiB, in the topic that is pulled again and again: more than a processor's cache holds."""


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
        for target in (ours, theirs):  # as much on both sides, whatever was sent before
            arguments = ("--create", "--topic", "tpull", "--count", round(PULLED_MESSAGES * bench.scale))
            bench.load(target, *send, *arguments, "-c", 16, "-d", 16)
        pull = ("pull", "--topic", "tpull", "--queues", QUEUES, "-c", 4, "--loop")
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

        def run(name: str, mode: str, *options: object, attempts: int = 3) -> dict[str, Any]:
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
                time.sleep(BUSY_SECONDS)  # the broker is a JVM, and has a disk to write to
                return run(name, mode, *options, attempts=attempts - 1)
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


SUITES = {
    "nameserver": nameserver,
    "broker-async": lambda bench: broker(bench, "async"),
    "broker-sync": lambda bench: broker(bench, "sync"),
    "cold": cold,
    "clients": clients,
    "spark": spark,
    "spark-apart": spark_apart,
    "spark-discarding": spark_discarding,
    "spark-streams": spark_streams,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm", type=float, default=30.0, help="seconds of unmeasured load on a fresh JVM")
    parser.add_argument("--only", default=",".join(SUITES), help=f"of {', '.join(SUITES)}")
    parser.add_argument("--cold-gib", type=float, default=2.0, help="how long the log of the suite cold is")
    parser.add_argument("--peers", default="apache", help="whom the suite cold has beside ours; empty: nobody")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    arguments = parser.parse_args()
    if not shutil.which("cc"):
        parser.error("no C compiler (cc)")
    machine = f"{platform.platform()} · {os.cpu_count()} cores"
    print(f"{machine} · Python {platform.python_version()} · {time.strftime('%F')}")
    disk = Path(tempfile.gettempdir())
    place = room(disk)
    if place != disk:
        print(
            f"the disk of {disk} is nearly full, and Apache's broker would take no messages: all files are in {place}"
        )
    with tempfile.TemporaryDirectory(prefix="rocketcore-bench-", dir=place) as folder:
        bench = Bench(arguments, Path(folder))
        for name in arguments.only.split(","):
            with bench.suite(name):
                SUITES[name](bench)
        if arguments.json:
            arguments.json.write_text(json.dumps([vars(row) for row in bench.rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
