"""The Spark program under the kill test: it starts its queries from their checkpoints, again whenever one fails.

``python -m tests.fault.streams.driver PLAN``, a ``Plan`` as JSON. It says what happens as lines of JSON in the file of
the plan's ``events``: ``ready``; ``failed`` with the query and why; ``drained`` with the rows of the table, when it was
to take what is left and end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketcore.spark import local_session, register

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SHUFFLED: Final = 3
"""Partitions after the shuffle."""

WATCH_SECONDS: Final = 0.2


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the program is to do.

    queries   names out of ``QUERIES``
    folder    the checkpoints, and the table
    attempts  of a task, before its query fails
    drain     take what the topic holds and end, instead of going on for ever
    """

    namesrv: str
    topic: str
    copy: str
    queries: tuple[str, ...]
    folder: str
    events: str
    rows_a_batch: int
    attempts: int = 1
    drain: bool = False

    def checkpoint(self, query: str) -> Path:
        return Path(self.folder, f"{query}-checkpoint")

    @property
    def table(self) -> Path:
        return Path(self.folder, "table")

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def read_topic(spark: SparkSession, plan: Plan) -> DataFrame:
    """Return the stream of the topic."""
    return (
        spark.readStream.format("rocketmq")
        .option("nameServer", plan.namesrv)
        .option("topic", plan.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(plan.rows_a_batch))
        .load()
    )


def to_table(frame: DataFrame, plan: Plan) -> DataStreamWriter:
    """Topic → Parquet. The folder's own log says which of the files count."""
    rows = frame.select("brokerName", "queueId", "queueOffset", "body")
    return rows.writeStream.format("parquet").option("path", str(plan.table))


def to_copy(frame: DataFrame, plan: Plan) -> DataStreamWriter:
    """Topic → shuffle → topic.

    A row's partition follows from its body. Its place there, which its id is made of, follows from the order in which
    the blocks of the shuffle are read: on one machine that of the tasks which wrote them, the same every time. A
    stream may not sort, so a query on several machines that wants the same ids again brings them, as a column msgId.
    """
    rows = frame.select("body").repartition(SHUFFLED, "body")
    return rows.writeStream.format("rocketmq").option("nameServer", plan.namesrv).option("topic", plan.copy)


QUERIES: Final[dict[str, Callable[[DataFrame, Plan], DataStreamWriter]]] = {"table": to_table, "copy": to_copy}


class Program:
    """The session, its queries, and what there is to tell of them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._spark = local_session(
            "kill test",
            driver_memory="768m",
            settings={"spark.master": f"local[2,{plan.attempts}]", "spark.sql.session.timeZone": "UTC"},
        )

    def run(self) -> None:
        """Run the queries; returns once all is drained, or never."""
        running = {name: self._start(name) for name in self._plan.queries}
        self._say("ready")
        while running:
            for name, query in list(running.items()):
                error = ended_with(query, WATCH_SECONDS)
                if query.isActive:
                    continue
                if error is not None:
                    self._say("failed", query=name, error=str(error))
                if error is None and self._plan.drain:
                    del running[name]
                else:
                    running[name] = self._start(name)
        rows = self._spark.read.parquet(str(self._plan.table)).count() if "table" in self._plan.queries else 0
        self._say("drained", rows=rows)

    def _start(self, name: str) -> StreamingQuery:
        # A registration of its own: Spark keeps a map of variables for each, which a query changes when it starts,
        # while another's tasks may be serialized. Seen once in 26 starts, and no task could be read any more.
        register(self._spark)
        writer = QUERIES[name](read_topic(self._spark, self._plan), self._plan)
        writer = writer.queryName(name).option("checkpointLocation", str(self._plan.checkpoint(name)))
        return writer.trigger(availableNow=True).start() if self._plan.drain else writer.start()

    def _say(self, event: str, **details: object) -> None:
        with Path(self._plan.events).open("a") as file:
            file.write(json.dumps({"event": event, **details}) + "\n")


def ended_with(query: StreamingQuery, seconds: float) -> StreamingQueryException | None:
    """Wait for a query for so long; return what it failed with, None if it runs or ended well."""
    from pyspark.errors import StreamingQueryException

    try:
        query.awaitTermination(seconds)  # type: ignore[arg-type]
    except StreamingQueryException as error:
        return error
    return None


def main() -> None:
    values = json.loads(sys.argv[1])
    Program(Plan(**{**values, "queries": tuple(values["queries"])})).run()


if __name__ == "__main__":
    main()
