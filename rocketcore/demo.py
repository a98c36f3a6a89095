"""The main job, ``rocket demo``: real data through Spark, a broker and two consumers, with every message checked.

A name server and a broker run as processes of their own, in a temporary folder. Spark gets the rows of a file as a
frame and writes them to a topic; two consumers of one group take them; each body is compared with its source by CRC-32,
and lost, repeated and misordered messages are counted. Spark then reads the topic back and answers a question about it.

Without a file of the user's own the shipped samples run: earthquakes of a week, then flights, enough of them for rates.
This process reads the whole file into memory, to compare what comes with it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketcore._fast.crc32 import crc32, crc32_ranges
from rocketcore.errors import ConfigError, RocketError
from rocketcore.files.rows import Row, read_rows
from rocketcore.local import ServerProcess
from rocketcore.message import KEYS, ReceivedMessage
from rocketcore.printable import printable

try:
    import numpy
except ImportError as error:
    raise ConfigError("the main job runs in Spark: pip install 'rocketcore[spark]'") from error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Ledger", "run"]

QUEUES: Final = 8
DELIVERY_TIMEOUT: Final = 60.0
SINGLE_SENDS: Final = 1000
"""Messages that are sent one by one, for latencies."""


class Ledger:
    """What should arrive and what did: key → CRC-32 of the body, and what became of it. Thread-safe.

    ``missing``, ``duplicated``, ``corrupt`` (another body than the source's, or an unknown key) and ``misordered``
    (a queue offset at or below one that its queue delivered before) are counts of messages.
    """

    def __init__(self, expected: Mapping[str, int]) -> None:
        self.expected = expected
        self.duplicated = self.corrupt = self.misordered = self.received = 0
        self.body_bytes = 0
        self.first_at = self.last_at = 0.0
        self.arrivals: dict[str, float] = {}
        self._offsets: dict[object, int] = {}
        self._lock = threading.Lock()
        self._complete = threading.Event()
        if not expected:
            self._complete.set()

    def take(self, message: ReceivedMessage) -> None:
        """Enter a message that a consumer got."""
        now = time.perf_counter()
        key = message.properties.get(KEYS, "")
        sound = self.expected.get(key) == crc32(message.body)
        with self._lock:
            if not self.received:
                self.first_at = now
            self.last_at = now
            self.received += 1
            self.body_bytes += len(message.body)
            if message.offset <= self._offsets.get(message.queue, -1):
                self.misordered += 1
            self._offsets[message.queue] = max(message.offset, self._offsets.get(message.queue, -1))
            if not sound:
                self.corrupt += 1
            elif key in self.arrivals:
                self.duplicated += 1
            else:
                self.arrivals[key] = now
                if len(self.arrivals) == len(self.expected):
                    self._complete.set()

    def wait(self, timeout: float) -> bool:
        """Wait until every expected message has arrived."""
        return self._complete.wait(timeout)

    @property
    def missing(self) -> int:
        return len(self.expected) - len(self.arrivals)

    @property
    def sound(self) -> bool:
        """Whether each expected message arrived once, whole and in order, and nothing else did."""
        return not (self.missing or self.duplicated or self.corrupt or self.misordered)

    @property
    def rate(self) -> float:
        """Messages a second between the first and the last."""
        seconds = self.last_at - self.first_at
        return self.received / seconds if seconds > 0 else float(self.received)

    def __str__(self) -> str:
        text = (
            f"{len(self.arrivals):,} of {len(self.expected):,}, missing {self.missing:,}, "
            f"duplicated {self.duplicated:,}, corrupt {self.corrupt:,}"
        )
        return f"{text}, out of order {self.misordered:,}"


@contextlib.contextmanager
def _server(name: str, *arguments: str, log: Path) -> Iterator[ServerProcess]:
    """Run a server; an error tells what it logged, as the folder is a temporary one."""

    def said() -> str:
        return log.read_text(errors="replace")[-2000:].strip()

    try:
        server = ServerProcess(name, *arguments, "--listen", "127.0.0.1:0", log=log)
    except RocketError as error:
        raise RocketError(f"{error}: {said()}") from error
    try:
        yield server
    finally:
        code = server.end()
    if code:
        raise RocketError(f"the {name} ended with {code}: {said()}")


@dataclass(frozen=True, slots=True)
class Feed:
    """Rows to send: a Spark frame with the columns ``body``, ``keys`` (unique) and ``tags``, and what they are."""

    title: str
    topic: str
    frame: DataFrame
    expected: dict[str, int]
    ask: Callable[[DataFrame], tuple[str, DataFrame]]


def load(spark: SparkSession, path: Path) -> tuple[DataFrame, dict[str, int]]:
    """Return a file's rows to send, and key → CRC-32 of the body for each.

    raises  ConfigError for a file that cannot be read, naming what in it; RocketError where Spark has other rows
    """
    return frame_of(spark, read_rows(path))


def frame_of(spark: SparkSession, rows: Sequence[Row]) -> tuple[DataFrame, dict[str, int]]:
    """Return rows as a frame of Spark's, and key → CRC-32 of the body for each.

    The rows were read by this process: to Spark a path is a pattern, and a file whose name begins with _ is not there.
    What Spark then has is compared with them, row by row.
    """
    import pyarrow

    expected = {str(row.key): crc32(row.body.encode()) for row in rows}
    texts = {"body": [row.body for row in rows], "keys": [row.key for row in rows], "tags": [row.tag for row in rows]}
    frame = spark.createDataFrame(
        pyarrow.table({name: pyarrow.array(column, pyarrow.string()) for name, column in texts.items()})
    )
    if checksums(frame) != (expected, len(rows)):
        raise RocketError("Spark has other rows than the file")
    return frame, expected


def checksums(frame: DataFrame) -> tuple[dict[str, int], int]:
    """Return key → CRC-32 of the body of a frame's rows, and the number of rows."""
    sums: dict[str, int] = {}
    table = frame.select("keys", "body").toArrow()
    for batch in table.to_batches():
        bodies = batch["body"]
        _, offsets, data = bodies.buffers()
        edges = numpy.frombuffer(offsets, dtype=numpy.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
        ranges = numpy.stack([edges[:-1], numpy.diff(edges)], axis=1).astype(numpy.int64)
        found = numpy.zeros(len(bodies), dtype=numpy.int64)
        crc32_ranges(data, ranges, found)
        sums.update(zip(batch["keys"].to_pylist(), found.tolist(), strict=True))
    return sums, table.num_rows


def ask_earthquakes(messages: DataFrame) -> tuple[str, DataFrame]:
    """Return the question that the earthquakes answer, with the answer."""
    from pyspark.sql import functions as f

    events = messages.select(f.from_json(f.col("body").cast("string"), "place string, mag double").alias("event"))
    region = f.element_at(f.split("event.place", ", "), -1)
    answer = (
        events.select(f.when(region == "CA", "California").otherwise(region).alias("region"), "event.mag")
        .groupBy("region")
        .agg(f.count("*").alias("events"), f.max("mag").alias("largest magnitude"))
        .orderBy(f.desc("events"), "region")
        .limit(8)
    )
    return "Where did the earth shake most?", answer


def ask_flights(messages: DataFrame) -> tuple[str, DataFrame]:
    """Return the question that the flights answer, with the answer."""
    from pyspark.sql import functions as f

    flights = messages.select(f.from_json(f.col("body").cast("string"), "delay int, time double").alias("flight"))
    hour = (f.floor(f.col("flight.time") / 4) * 4).cast("int")
    answer = (
        flights.select(f.format_string("%02d:00 to %02d:59", hour, hour + 3).alias("time of day"), "flight.delay")
        .groupBy("time of day")
        .agg(
            f.count("*").alias("flights"),
            f.round(f.avg("delay"), 1).alias("mean delay (min)"),
            f.round(100 * f.avg((f.col("delay") > 15).cast("int")), 1).alias("late by over 15 min (%)"),
        )
        .orderBy("time of day")
    )
    return "When are flights late?", answer


def ask_anything(messages: DataFrame) -> tuple[str, DataFrame]:
    """Return what can be asked of any rows."""
    from pyspark.sql import functions as f

    answer = (
        messages.groupBy(f.coalesce("tags", f.lit("none")).alias("tag"))
        .agg(
            f.count("*").alias("messages"),
            f.countDistinct("msgId").alias("different ids"),
            f.round(f.avg(f.length("body")), 1).alias("mean bytes"),
            f.max(f.length("body")).alias("most bytes"),
        )
        .orderBy(f.desc("messages"), "tag")
        .limit(10)
    )
    return "What is in the topic?", answer


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send what child processes started meanwhile write to standard error, and their children, to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as target:
            os.dup2(target.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def percentiles(seconds: list[float]) -> str:
    """Return p50, p90, p99 and the maximum of some times, in milliseconds."""
    values = [*numpy.percentile(seconds, [50, 90, 99]), max(seconds)]
    named = zip(("p50", "p90", "p99", "max"), values, strict=True)
    return "   ".join(f"{name} {value * 1000:.2f} ms" for name, value in named)


def print_table(frame: DataFrame) -> int:
    """Print a small frame and return the number of its rows."""
    rows = [list(frame.columns)]
    rows += [[f"{value:,}" if isinstance(value, int) else str(value) for value in row] for row in frame.collect()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))]
        print("    " + "  ".join(cells))
    return len(rows) - 1


def line(label: str, text: str) -> None:
    """Print one line of the report."""
    print(f"  {label:<12} {text}", flush=True)


class Group:
    """Two consumers of one group in this process; every message goes to the ledger of its topic."""

    def __init__(self, namesrv: str, topics: list[str]) -> None:
        import rocketcore as rmq

        self.ledgers: dict[str, Ledger] = {}
        self.consumers = [
            rmq.PushConsumer(
                namesrv, group="rocket-demo", start_from="first", ordered=True, threads=1, pull_batch_size=1024
            )
            for _ in range(2)
        ]
        self.taken = [0, 0]
        for number, consumer in enumerate(self.consumers):
            for topic in topics:
                consumer.subscribe(topic)(partial(self._take_message, number))

    def _take_message(self, number: int, message: ReceivedMessage) -> None:
        self.taken[number] += 1
        self.ledgers[message.topic].take(message)


def _create_topics(namesrv: str, topics: list[str]) -> None:
    import rocketcore as rmq

    with rmq.Admin(namesrv) as admin:
        for topic in topics:
            admin.create_topic(topic, queues=QUEUES)


def _exchange(spark: SparkSession, namesrv: str, group: Group, feed: Feed) -> bool:
    """Send a feed through Spark, wait for the consumers, read it back; print that, and return whether all is right."""
    from pyspark.sql import functions as f

    print(f"\n{feed.title}")
    ledger = group.ledgers[feed.topic] = Ledger(feed.expected)
    started = time.perf_counter()
    writer = feed.frame.write.format("rocketmq").mode("append")
    writer.option("nameServer", namesrv).option("topic", feed.topic).save()
    written = time.perf_counter() - started
    count = len(feed.expected)
    line("Spark wrote", f"{count:,} rows to topic {feed.topic} in {written:.2f} s ({count / written:,.0f} rows/s)")
    ledger.wait(DELIVERY_TIMEOUT)
    line("consumers", f"{ledger}")
    line("", f"{ledger.body_bytes / 1e6:,.1f} MB at {ledger.rate:,.0f} messages/s while they came")

    started = time.perf_counter()
    messages = spark.read.format("rocketmq").option("nameServer", namesrv).option("topic", feed.topic).load()
    found = messages.agg(f.count("*"), f.countDistinct("msgId"), f.sum(f.crc32("body"))).first()
    seconds = time.perf_counter() - started
    same = found is not None and tuple(found) == (count, count, sum(feed.expected.values()))
    verdict = "all ids different, sum of CRC-32 equal" if same else f"WRONG: count, ids, sum of CRC-32 are {found}"
    line("Spark read", f"{found[0] if found else 0:,} messages in {seconds:.2f} s; {verdict}")
    question, answer = feed.ask(messages)
    line("and asked", question)
    answered = print_table(answer)
    return ledger.sound and same and answered > 0


def _send_singly(namesrv: str, group: Group, topic: str, bodies: list[bytes]) -> bool:
    """Send messages one at a time and print how long each took to be acknowledged and to reach a consumer."""
    import rocketcore as rmq

    print("\nOne message at a time")
    ledger = group.ledgers[topic] = Ledger({str(number): crc32(body) for number, body in enumerate(bodies)})
    sent_at: dict[str, float] = {}
    acknowledged: list[float] = []
    with rmq.Producer(namesrv, group="rocket-demo-singles") as producer:
        for number, body in enumerate(bodies):
            sent_at[str(number)] = started = time.perf_counter()
            result = producer.send(topic, body, keys=str(number))
            acknowledged.append(time.perf_counter() - started)
            if not result:
                raise RocketError(f"message {number} was stored with status {result.status.value}")
    ledger.wait(DELIVERY_TIMEOUT)
    delivered = [arrived - sent_at[key] for key, arrived in ledger.arrivals.items()]
    line("delivered", f"{ledger}")
    line("acknowledged", f"on disk after   {percentiles(acknowledged)}")
    if delivered:
        line("delivered", f"to a consumer   {percentiles(delivered)}")
    return ledger.sound


def _feeds(spark: SparkSession, file: Path | None, rows: Sequence[Row], sample: Path) -> Iterator[Feed]:
    if file is not None:
        frame, expected = frame_of(spark, rows)
        yield Feed(f"Your file: {printable(file.name)}", "demo-file", frame, expected, ask_anything)
        return
    frame, expected = load(spark, sample / "earthquakes.ndjson")
    title = "A week of earthquakes (USGS, 31 January to 7 February 2018)"
    yield Feed(title, "demo-earthquakes", frame, expected, ask_earthquakes)
    frame, expected = load(spark, sample / "flights-200k.arrow")
    yield Feed("Flights (US Bureau of Transportation Statistics)", "demo-flights", frame, expected, ask_flights)


def run(file: str | Path | None = None) -> int:
    """Run the main job and print what it did; return 0 if every message arrived as it was sent, else 1.

    file    rows of the user's own: ndjson, json, jsonl, csv, parquet, arrow, feather; without it the shipped samples
    raises  ConfigError for a file that cannot be read or without Java; RocketError when a server does not start
    """
    from rocketcore.spark import local_session
    from rocketcore.spark.session import use_installed_spark

    started = time.perf_counter()
    use_installed_spark()  # which may warn, and what a session says goes to a file
    path = Path(file) if file is not None else None
    rows: list[Row] = []
    if path is not None:
        rows = read_rows(path)  # a file that cannot be used is told before servers and Spark have started
    topics = (["demo-earthquakes", "demo-flights"] if path is None else ["demo-file"]) + ["demo-singles"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rocket-demo-")))
        sample = stack.enter_context(as_file(files("rocketcore") / "sample"))
        home, store = str(folder / "namesrv"), str(folder / "store")
        namesrv = stack.enter_context(
            _server("name server", "namesrv", "start", "--home", home, log=folder / "namesrv.log")
        )
        to_namesrv = ("--namesrv", namesrv.address)
        broker = stack.enter_context(
            _server("broker", "broker", "start", *to_namesrv, "--store", store, log=folder / "broker.log")
        )
        _create_topics(namesrv.address, topics)
        group = Group(namesrv.address, topics)
        for consumer in group.consumers:
            stack.enter_context(consumer)
        with _stderr_to(folder / "spark.log"):
            spark = local_session("rocket demo")
        stack.callback(spark.stop)
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        java = jvm.java.lang.System
        print("Where it runs")
        for server in (namesrv, broker):
            line(server.name, f"process {server.pid} at {server.address}, ready after {server.started_in:.2f} s")
        line("Spark", f"{spark.version}, {spark.sparkContext.master}, Java {java.getProperty('java.version')}")
        line("consumers", f"2 of group rocket-demo, in this process ({os.getpid()}), {QUEUES} queues a topic")
        sound = True
        for feed in _feeds(spark, path, rows, sample):
            sound &= _exchange(spark, namesrv.address, group, feed)
            bodies = [bytes(row.body, "utf-8") for row in feed.frame.select("body").limit(SINGLE_SENDS).collect()]
        sound &= _send_singly(namesrv.address, group, "demo-singles", bodies)
        line("", f"the two consumers took {group.taken[0]:,} and {group.taken[1]:,} messages")
        for topic, ledger in group.ledgers.items():
            if not ledger.sound:  # a repeat may have come after the count was shown
                sound = False
                line(topic, f"{ledger}")
    print(
        f"\n{'Every message arrived once, whole and in order' if sound else 'SOMETHING IS WRONG, see above'}"
        f" ({time.perf_counter() - started:.0f} s in all)"
    )
    if sound:
        print(
            "Go on:  rocket demo --file YOURS.parquet    with rows of your own (ndjson, csv, parquet, arrow)\n"
            "        rocket up                           a cluster to keep, on port 9876\n"
            "        rocket topic list                   look at it; rocket --help for the rest"
        )
    return 0 if sound else 1
