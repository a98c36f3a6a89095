"""Rows that tests write without Spark."""

from __future__ import annotations

import pyarrow as pa

from rocketcore import LocalCluster
from rocketcore.spark.options import SinkOptions, parse_options
from rocketcore.spark.write_task import WritePlan
from rocketcore.spark.writer import RocketMQWriter, plan_queues
from tests.peers.apache import ApacheCluster

__all__ = ["planned", "write_bodies"]


def planned(options: SinkOptions) -> RocketMQWriter:
    """Return a writer for rows whose columns have the names that they mean."""
    return RocketMQWriter(WritePlan(options, queues=plan_queues(options)))


def write_bodies(cluster: LocalCluster | ApacheCluster, topic: str, bodies: list[str], **options: str) -> None:
    """Write bodies, to all queues in turn."""
    sink = parse_options(SinkOptions, {"nameServer": cluster.namesrv, "topic": topic, **options})
    RocketMQWriter(WritePlan(sink)).write(iter([pa.record_batch({"body": bodies})]))
