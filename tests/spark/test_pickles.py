"""What Spark carries to its tasks: plain values, which any node can have without asking anybody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import StructType

from rocketcore import LocalCluster
from rocketcore.spark.options import SinkOptions, SourceOptions, parse_options
from rocketcore.spark.range_task import Projection
from rocketcore.spark.reader import RocketMQReader
from rocketcore.spark.source import RocketMQDataSource
from rocketcore.spark.write_task import WritePlan
from rocketcore.spark.writer import RocketMQWriter, plan_queues
from tests.spark import unpickling

ROOT = Path(__file__).resolve().parents[2]


def carried(cluster: LocalCluster, topic: str) -> list[object]:
    """Everything that leaves a driver, after use: writers and a message, a reader and its partitions."""
    common = {"nameServer": cluster.namesrv, "topic": topic, "brokerAddressMap": '{"a:1": "b:2"}'}
    secret = {"accessKey": "a", "secretKey": "b"}
    sink = parse_options(SinkOptions, {**common, **secret, "queueSelector": "hash", "properties": '{"a": "b"}'})
    writer = RocketMQWriter(WritePlan(sink, ("body", "shardingKey", None), plan_queues(sink)))
    summary = writer.write(iter([pa.record_batch({"b": ["1", "2"], "k": ["x", "y"], "no": [1, 2]})]))
    offsets = {topic: {"broker-a": {"0": -2}}}
    source = parse_options(SourceOptions, {**common, "minPartitions": "3", "startingOffsets": json.dumps(offsets)})
    reader = RocketMQReader(source, Projection(("body", "tags"), (("BODY", False), ("tags", True))))
    partitions = reader.partitions()
    for partition in partitions:
        list(reader.read(partition))
    assert partitions
    streamed = RocketMQDataSource({**common, "queueSelector": "hash", "checkpointLocation": "checkpoint"})
    stream_writer = streamed.streamWriter(StructType().add("body", "string").add("shardingKey", "string"), False)
    return [writer, summary, stream_writer, reader, *partitions]


def test_only_plain_values_are_carried(cluster: LocalCluster, make_topic: Callable[..., str]) -> None:
    objects = carried(cluster, make_topic(queues=2))
    done = subprocess.run(
        [sys.executable, unpickling.__file__],
        input=CloudPickleSerializer().dumps(objects),
        capture_output=True,
        env={"PYTHONPATH": str(ROOT), "PATH": os.defpath},
        check=False,
    )
    assert not done.returncode, done.stderr.decode()
    assert json.loads(done.stdout) == [unpickling.plain(each) for each in objects]


def test_what_is_not_plain_is_found() -> None:
    with pytest.raises(TypeError, match="lock"):
        unpickling.plain({"a": [threading.Lock()]})
