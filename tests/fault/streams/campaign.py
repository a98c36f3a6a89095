"""Kills in turn of a stream's driver, a worker of it, a broker and the name server; then the account of every message.

``python -m tests.fault.streams.campaign KILLS --on ours --query table --query copy --seed 1``
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet

import rocketcore
from rocketcore.admin.client import Admin
from tests.fault.ledger import Verdict
from tests.fault.streams.account import Ledger, judge_copy, judge_table, judge_topic
from tests.fault.streams.driver import QUERIES, Plan
from tests.fault.streams.processes import POLL_SECONDS, DriverProcess, Progress, progress, table_files
from tests.fault.streams.producer import Load
from tests.fault.streams.servers import ApacheServers, OurServers, Servers
from tests.fixtures import java  # noqa: F401 - JVMs that live for seconds, as in all tests

logger = logging.getLogger(__name__)

TOPIC: Final = "KillTest"
COPY: Final = "KillTestCopy"
QUEUES: Final = 3
ROWS_A_BATCH: Final = 10_000
VICTIMS: Final = ("driver", "worker", "broker", "namesrv")
PATIENCE: Final = 400.0
"""Seconds without a batch after which a query counts as stuck: twice what a stream waits for its brokers."""

SEED: Final = int(os.environ.get("ROCKETCORE_FAULT_SEED", "20261123"))
DRAIN_SECONDS: Final = 600.0
LONGEST_ABSENCE: Final = 3.0


class Stuck(AssertionError):
    """Nothing went on for so long that nothing will."""


@dataclass(slots=True)
class Report:
    """What a campaign came to: the kills, what the program said of failed queries, and the account."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    inside: Counter[str] = field(default_factory=Counter)
    """Kills that hit while at least one query was in the middle of a batch."""
    failed: Counter[str] = field(default_factory=Counter)
    """Queries that failed, by what had been killed last."""
    unexpected: list[str] = field(default_factory=list)
    """Failures that no worker's death explains."""
    longest_recovery: dict[str, float] = field(default_factory=lambda: dict.fromkeys(VICTIMS, 0.0))
    """Seconds from a kill, or from the end of an absence, until each query had done a batch more."""
    batches: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    acknowledged: int = 0
    stored: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    rows_by_spark: int = 0
    """Rows of the table as Spark counts them; the account reads the files that the table's log names."""
    repeated: int = 0
    most_copies: int = 0
    seconds: float = 0.0
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    @property
    def wrong(self) -> dict[str, dict[str, str]]:
        return {name: verdict.examples for name, verdict in self.verdicts.items() if not verdict}

    def __str__(self) -> str:
        rows: list[tuple[str, object]] = [
            ("seed", self.seed),
            ("kills", self.kills.total()),
            *(
                (
                    f"  of {victim}: inside a batch, queries failed, longest recovery in s",
                    f"{self.kills[victim]}: {self.inside[victim]}, {self.failed[victim]}, "
                    f"{self.longest_recovery[victim]:.0f}",
                )
                for victim in VICTIMS
            ),
            ("failures that no worker's death explains", len(self.unexpected)),
            ("messages sent", self.sent),
            ("acknowledged", self.acknowledged),
            ("in the topic", self.stored),
            *((f"batches of {name}", count) for name, count in self.batches.items()),
            *((f"rows of {name}", count) for name, count in self.rows.items()),
            ("repeated in the copy, under the same id", self.repeated),
            ("most copies of one message", self.most_copies),
        ]
        for name, verdict in self.verdicts.items():
            kinds = ("lost", "duplicated", "corrupt", "phantom", "moved", "renamed", "shared")
            rows += [(f"{name}: {kind}", verdict.counts[kind]) for kind in kinds]
        rows.append(("seconds", f"{self.seconds:.0f}"))
        return "\n".join(f"{words:<72}{value!s:>24}" for words, value in rows)


class Campaign:
    """Servers, a load, and a driver that dies; the seed decides who is killed when."""

    def __init__(self, folder: Path, servers: Servers, seed: int, queries: tuple[str, ...]) -> None:
        self.report = Report(seed)
        self._folder = folder
        self._servers = servers
        self._rng = random.Random(seed)
        self._plan = Plan(
            namesrv=servers.namesrv,
            topic=TOPIC,
            copy=COPY,
            queries=queries,
            folder=str(folder),
            events="",
            rows_a_batch=ROWS_A_BATCH,
        )
        self._lives = 0
        self._driver: DriverProcess | None = None
        self._last_victim = "nobody"

    def run(self, kills: int, seconds: float = math.inf) -> Report:
        """Kill so many times, or for so long, drain, and judge."""
        began = time.monotonic()
        with Admin(self._servers.namesrv) as admin:
            for topic in (TOPIC, COPY):
                created = admin.create_topic(topic, QUEUES)
                assert len(created.brokers) == self._servers.brokers, created
        load = Load(self._servers.namesrv, TOPIC, self.report.seed)
        try:
            with load.running():
                self._start_driver()
                self._await_batches(self._progress())
                for number in range(kills):
                    if time.monotonic() - began > seconds:
                        break
                    self._kill(VICTIMS[number % len(VICTIMS)])
            self._drain()
        finally:
            if self._driver is not None:
                self._driver.end()
        self._judge(load.ledger)
        self.report.seconds = time.monotonic() - began
        return self.report

    # Kills

    def _kill(self, victim: str) -> None:
        self._await_moment()
        before = self._progress()
        self.report.kills[victim] += 1
        self.report.inside[victim] += any(each.is_inside for each in before.values())
        self._last_victim = victim
        logger.info("kill=%d victim=%s progress=%s", self.report.kills.total(), victim, before)
        match victim:
            case "driver":
                self._kill_driver()
            case "worker":
                self._kill_worker()
            case "broker":
                self._kill_broker()
            case _:
                self._kill_namesrv()
        # Every other time the next kill comes before this one is overcome. A worker's death, the one that a query may
        # fail of, is waited for: a failure after the next kill would be blamed on that. A source that is dead is missed
        # only when the batch under way is done.
        if victim == "worker" or self._rng.random() < 0.5:
            since = time.monotonic()
            self._await_batches(self._progress(), 2 if victim == "worker" else 1)
            took = time.monotonic() - since
            self.report.longest_recovery[victim] = max(self.report.longest_recovery[victim], took)

    def _kill_driver(self) -> None:
        assert self._driver is not None
        self._driver.kill()
        self._hear()
        self._start_driver()

    def _kill_worker(self) -> None:
        def has_died() -> bool:
            assert self._driver is not None
            return self._driver.kill_busy_worker(self._rng)

        self._await(has_died, "Python worker")

    def _kill_broker(self) -> None:
        index = self._rng.randrange(self._servers.brokers)
        self._servers.kill_broker(index)
        self._stay_away()
        self._servers.start_broker(index)

    def _kill_namesrv(self) -> None:
        self._servers.kill_namesrv()
        self._stay_away()
        self._servers.start_namesrv()

    def _stay_away(self) -> None:
        time.sleep(self._rng.uniform(0.0, LONGEST_ABSENCE))

    def _await_moment(self) -> None:
        """Wait until a batch has just been planned, or done, or for no reason, and a moment more."""
        name = self._rng.choice(self._plan.queries)
        checkpoint = self._plan.checkpoint(name)
        begin = progress(checkpoint)
        match self._rng.randrange(3):
            case 0:
                self._await(lambda: progress(checkpoint).planned > begin.planned, f"batch of {name} that begins")
                time.sleep(self._rng.uniform(0.0, 0.4))
            case 1:
                self._await(lambda: progress(checkpoint).done > begin.done, f"batch of {name} that ends")
                time.sleep(self._rng.uniform(0.0, 0.05))
            case _:
                time.sleep(self._rng.uniform(0.0, 1.0))

    # The driver

    def _start_driver(self) -> None:
        plan = self._plan if self._rng.random() < 0.5 else replace(self._plan, attempts=4)
        self._driver = DriverProcess(plan, self._lives)
        self._lives += 1

    def _hear(self) -> list[dict[str, Any]]:
        """Note which queries failed; returns what the program said."""
        assert self._driver is not None
        events = self._driver.events()
        for event in events:
            if event["event"] == "failed":
                self.report.failed[self._last_victim] += 1
                if self._last_victim != "worker":
                    self.report.unexpected.append(f"{self._last_victim}, {event['query']}: {event['error']}")
        return events

    def _progress(self) -> dict[str, Progress]:
        return {name: progress(self._plan.checkpoint(name)) for name in self._plan.queries}

    def _await_batches(self, since: dict[str, Progress], count: int = 1) -> None:
        """Wait until each query has done so many batches more."""

        def have_moved() -> bool:
            return all(now.done >= since[name].done + count for name, now in self._progress().items())

        self._await(have_moved, f"{count} batches of each query after {since}")
        self._hear()

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self._driver is not None
            self._hear()
            if self._driver.has_ended:
                self.report.unexpected.append(f"{self._last_victim}: the driver ended, see {self._driver.log}")
                self._start_driver()
            if time.monotonic() > deadline:
                raise Stuck(f"seed {self.report.seed}: no {what} within {PATIENCE:g} s; {self.report}")
            time.sleep(POLL_SECONDS)

    def _drain(self) -> None:
        """Kill the driver once more, and have another one take what is left."""
        assert self._driver is not None
        self._last_victim = "drain"
        self._driver.kill()
        self._hear()
        self._driver = DriverProcess(replace(self._plan, drain=True), self._lives)
        self._driver.wait(DRAIN_SECONDS)
        drained = [event for event in self._hear() if event["event"] == "drained"]
        assert drained, f"the drain ended, see {self._driver.log}"
        self.report.rows_by_spark = drained[0]["rows"]

    # The account

    def _judge(self, ledger: Ledger) -> None:
        report, namesrv = self.report, self._servers.namesrv
        topic = read_topic(namesrv, TOPIC)
        report.verdicts["topic"], messages = judge_topic(ledger, topic)
        report.sent, report.acknowledged = len(ledger.sent), len(ledger.acknowledged)
        report.stored = len(topic)
        report.batches = {name: now.done + 1 for name, now in self._progress().items()}
        if "table" in self._plan.queries:
            table = pa.concat_tables(map(pyarrow.parquet.read_table, table_files(self._plan.table)))
            report.verdicts["table"] = judge_table(messages, table)
            report.rows["table"] = len(table)
            if report.rows_by_spark != len(table):
                report.verdicts["table"].blame("phantom", f"Spark counts {report.rows_by_spark} rows, not {len(table)}")
        if "copy" in self._plan.queries:
            copies = judge_copy(messages, read_topic(namesrv, COPY))
            report.verdicts["copy"] = copies.verdict
            report.rows["copy"], report.repeated, report.most_copies = copies.rows, copies.repeated, copies.most


def read_topic(namesrv: str, topic: str) -> pa.Table:
    """Return all messages of a topic."""
    columns = ("brokerName", "queueId", "queueOffset", "msgId", "body")
    return rocketcore.read_arrow(namesrv, topic=topic, columns=columns, timeout=30.0)


def run_campaign(
    folder: Path, on: str, seed: int, queries: tuple[str, ...], kills: int, seconds: float = math.inf
) -> Report:
    """Run a campaign in a folder of its own. ``on``: ``ours``, or a version of Apache RocketMQ."""
    (store := folder / "servers").mkdir(parents=True)
    (work := folder / "streams").mkdir()
    servers: Servers = OurServers(store) if on == "ours" else ApacheServers(store, on)
    try:
        return Campaign(work, servers, seed, queries).run(kills, seconds)
    finally:
        servers.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.streams.campaign", description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("--on", default="ours", help="ours, or a version of Apache RocketMQ, for example 5.5.0")
    parser.add_argument("--query", action="append", choices=tuple(QUERIES), help="by default all, at once")
    parser.add_argument("--seconds", type=float, default=math.inf, help="then no more kills")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--folder", type=Path, help="new; by default a temporary one, which is left where it is")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logger.setLevel(logging.INFO)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="kills-"))
    queries = tuple(options.query or QUERIES)
    report = run_campaign(folder.resolve(), options.on, options.seed, queries, options.kills, options.seconds)
    print(report)
    for line in (*report.unexpected, *(f"{name}: {examples}" for name, examples in report.wrong.items())):
        print(line)
    print(f"everything is in {folder}")
    return bool(report.wrong or report.unexpected)


if __name__ == "__main__":
    sys.exit(main())
