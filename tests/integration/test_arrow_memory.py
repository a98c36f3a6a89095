"""The memory of a reader does not grow with what it reads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import rocketcore as rmq
from rocketcore import LocalCluster

ROOT = Path(__file__).parents[2]

READ = """
import json, os, sys
from rocketcore.client.arrow_ranges import find_ranges
from rocketcore.client.arrow_reader import RangeReader, ReadSettings
from rocketcore.client.attempts import Retries
from rocketcore.client.config import ClientConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.loop_thread import LoopThread
from rocketcore.client.runtime import ASYNCIO
from rocketcore.transport.client import RemotingClient

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def make():
    instance = ClientInstance(config, RemotingClient(**config.remoting), ASYNCIO)
    route = await instance.route(sys.argv[2])
    ranges = await find_ranges(instance, route.subscribe, "first", "last", Retries(10, instance.clock), 10)
    return instance, RangeReader(instance, ranges * int(sys.argv[3]), ReadSettings())

config = ClientConfig(namesrv=(sys.argv[1],))
loop = LoopThread("read")
instance, reader = loop.run(make())
rows, seen = 0, []
for batch in reader.record_batches(loop.run):
    rows += batch.num_rows
    seen.append((rows, resident_bytes()))
loop.run(instance.remoting.close())
loop.stop()
# What is in flight, and what an allocator keeps of it, settles within the first third.
early = max(size for at, size in seen if rows / 3 <= at <= rows * 2 / 3)
late = max(size for at, size in seen if at >= rows * 2 / 3)
print(json.dumps({"rows": rows, "early": early, "late": late}))
"""


@pytest.mark.parametrize("compressed", [False, True])
def test_a_long_read(cluster: LocalCluster, make_topic: Callable[..., str], compressed: bool) -> None:
    topic = make_topic(queues=1)
    with rmq.Producer(cluster.namesrv, group="memory") as producer:
        if compressed:
            rows, times = 1000, 50
            for number in range(rows):
                producer.send(topic, b"%04d" % number * 1500)
        else:
            rows, times = 100_000, 20
            body = pa.array([b"%d" % number for number in range(rows)], pa.binary())
            producer.send_arrow(topic, pa.record_batch({"body": body}), body="body")
    command = [sys.executable, "-c", READ, cluster.namesrv, topic, str(times)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == rows * times
    assert found["late"] < found["early"] + (4 << 20), f"{found['early'] >> 20} MiB, later {found['late'] >> 20} MiB"
