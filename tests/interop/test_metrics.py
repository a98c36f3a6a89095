"""The metrics of our broker beside those of Apache's: what has a name of RocketMQ's has its type and labels too."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest

import rocketcore as rmq
from tests.fixtures.processes import Processes
from tests.peers.apache import ApacheCluster, free_port

pytestmark = pytest.mark.interop

UNKNOWN = {"message_type", "otel_scope_name"}
"""Labels that ours does not have: which kind of message it was is not counted; the other is of Apache's library."""
MORE = {"rocketmq_timing_messages", "rocketmq_send_to_dlq_messages_total", "rocketmq_producer_connections"}
"""Families that Apache's has no sample of after so little: no timer, no dead letter, and no producer by then."""
LAST = {"rocketmq_consumer_lag_messages", "rocketmq_messages_out_total", "rocketmq_consumer_connections"}
"""Families that are there when a group has polled, said who it is and committed."""

Described = dict[str, tuple[str, frozenset[str]]]


def describe(text: str) -> Described:
    """Return type and labels of each family of RocketMQ's."""
    kinds = dict(re.findall(r"^# TYPE (rocketmq_\w+) (\w+)$", text, re.MULTILINE))
    found = re.findall(r"^(rocketmq_\w+)\{(.*)\} \S+$", text, re.MULTILINE)
    labels = {name: frozenset(re.findall(r'(\w+)="', text)) - UNKNOWN for name, text in found}
    return {name: (kind, labels[name]) for name, kind in kinds.items() if name in labels}


def metrics_after_traffic(namesrv: str, address: str) -> Described:
    with rmq.Producer(namesrv, group="makers") as producer:
        for _ in range(8):
            producer.send("Metered", b"x")
    with rmq.PullConsumer(namesrv, group="readers", start_from="first") as consumer:
        consumer.subscribe("Metered")
        while True:
            consumer.poll(timeout=1)
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                described = describe(answer.read().decode())
            if described.keys() >= LAST:
                return described


def test_what_has_a_name_of_rocketmqs_is_as_apaches(tmp_path: Path, processes: Processes) -> None:
    port = free_port(set())
    conf = {"metricsExporterType": "PROM", "metricsPromExporterHost": "127.0.0.1", "metricsPromExporterPort": port}
    with ApacheCluster("5.5.0", tmp_path, brokers=1, extra_broker_conf=conf) as cluster:
        apache = metrics_after_traffic(cluster.namesrv, f"127.0.0.1:{port}")
    namesrv = processes.namesrv().address
    broker = processes.broker(namesrv, "--metrics-port", "0")
    ours = metrics_after_traffic(namesrv, broker.ready["metrics"])
    assert {name: ours[name] for name in ours if name not in MORE} == {
        name: apache.get(name, ("missing", frozenset())) for name in ours if name not in MORE
    }
    assert len(ours) > 12
