"""A query as Spark's driver runs it, without Spark: batch after batch of a reader, from a checkpoint on."""

from __future__ import annotations

import json
from typing import TypeAlias

from rocketcore import LocalCluster
from rocketcore.admin.client import Admin
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.spark import stream_reader
from rocketcore.spark.options import StreamSourceOptions, parse_options
from rocketcore.spark.range_task import Projection, RangePartition
from rocketcore.spark.stream_reader import Json
from tests.peers.apache import ApacheCluster
from tests.spark.rows import write_bodies

__all__ = ["Query", "committed", "fill", "options_of"]

Cluster: TypeAlias = LocalCluster | ApacheCluster


def options_of(cluster: Cluster, topic: str, **options: str) -> StreamSourceOptions:
    chosen = {} if {"subscribePattern", "assign"} & options.keys() else {"topic": topic}
    # A timeout of its own makes a connection of its own: another's writes would bring routes up to date.
    common = {"nameServer": cluster.namesrv, "requestTimeoutMs": "9000"}
    return parse_options(StreamSourceOptions, {**common, **chosen, **options})


def fill(cluster: Cluster, topic: str, numbers: range) -> None:
    """Send bodies that are numbers, to all queues in turn."""
    write_bodies(cluster, topic, [f"{number}" for number in numbers], batchBytes="1k")


def committed(cluster: Cluster, topic: str, group: str) -> int:
    """Return how far a group is, over all queues."""
    with Admin(cluster.namesrv) as admin:
        offsets = [admin.consumer_offset(group, queue) for queue in admin.queues(topic)]
    return sum(offset or 0 for offset in offsets)


class Query:
    """Calls a reader as Spark's driver calls it: batch after batch, from a checkpoint on."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        checkpoint: Json | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: str,
    ) -> None:
        settings = options_of(cluster, topic, **options)
        self.source = stream_reader.RocketMQStreamReader(settings, Projection(("body",)), clock)
        self.limit = self.source.getDefaultReadLimit()
        self._began = checkpoint is not None
        # As text, like a checkpoint.
        self.end: Json = json.loads(json.dumps(checkpoint or self.source.initialOffset()))

    def latest(self) -> Json:
        end: Json = json.loads(json.dumps(self.source.latestOffset(self.end, self.limit)))
        return end

    def read(self, start: Json, end: Json) -> list[int]:
        """Run the tasks of a batch; return the numbers that they yield, in order."""
        numbers: list[int] = []
        for partition in self.source.partitions(start, end):
            assert isinstance(partition, RangePartition)
            for batch in self.source.read(partition):
                numbers += [int(body) for body in batch["body"].to_pylist()]
        return sorted(numbers)

    def batch(self) -> list[int]:
        """Run a batch, if there is anything new."""
        end = self.latest()
        if end == self.end and not self._began:
            end = self.latest()  # Spark makes a first batch, even of nothing
        self._began = True
        numbers = [] if end == self.end else self.read(self.end, end)
        self.end = end
        return numbers

    def batches(self) -> list[int]:
        """Run batches until one is empty."""
        numbers: list[int] = []
        while found := self.batch():
            numbers += found
        return sorted(numbers)
