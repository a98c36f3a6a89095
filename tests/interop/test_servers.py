"""Servers side by side: a Java broker on our NameServer, our broker on Apache's, mqadmin on both of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from tests.fixtures.apache import require_java
from tests.fixtures.processes import Processes
from tests.peers import ApacheCluster, JavaDriver, registered_brokers

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_java_broker_registers_with_our_name_server(
    version: str, processes: Processes, tmp_path: Path, java: Callable[[str, str], JavaDriver]
) -> None:
    require_java()
    namesrv = processes.namesrv()
    with ApacheCluster(version, tmp_path / "apache", namesrv=namesrv.address) as cluster:
        assert registered_brokers(namesrv.address) == set(cluster.brokers)
        topic = f"OnApache-{uuid4().hex[:12]}"
        with rmq.Admin(namesrv.address) as admin:
            admin.create_topic(topic, queues=2)
        with rmq.Producer(namesrv.address, group="java-broker") as producer:
            sent = {producer.send(topic, f"m{i}").msg_id for i in range(6)}
        with rmq.PullConsumer(namesrv.address, group="java-broker-readers", start_from="first") as consumer:
            consumer.subscribe(topic)
            received: set[str] = set()
            while len(received) < 6:
                batch = consumer.poll(timeout=20.0)
                assert batch
                received |= {message.msg_id for message in batch}
        assert received == sent
        driver = java(version, namesrv.address)
        assert cluster.brokers[0] in driver.mqadmin("clusterList").stdout
        cluster.kill_broker(0)
        assert registered_brokers(namesrv.address) == set()


def test_our_broker_registers_with_apache_and_java_uses_it(
    apache: ApacheCluster, processes: Processes, java: Callable[[str, str], JavaDriver]
) -> None:
    broker = processes.broker(apache.namesrv, "--name", "ours", "--cluster", "OurCluster")
    assert broker.address in registered_brokers(apache.namesrv)
    topic = f"OnOurs-{uuid4().hex[:12]}"
    driver = java("5.5.0", apache.namesrv)
    driver.call("admin.createTopic", topic=topic, queues=2, broker=broker.address)
    handle = driver.call("producer.start", group=f"g-{uuid4().hex[:8]}")["handle"]
    results = [driver.call("producer.send", handle=handle, topic=topic, text=f"m{i}") for i in range(6)]
    assert {result["messageQueue"]["brokerName"] for result in results} == {"ours"}
    with rmq.PullConsumer(apache.namesrv, group=f"g-{uuid4().hex[:8]}", start_from="first") as consumer:
        consumer.subscribe(topic)
        received = []
        while len(received) < 6:
            batch = consumer.poll(timeout=10.0)
            assert batch
            received += batch
    assert sorted(message.text() for message in received) == [f"m{i}" for i in range(6)]
    driver.call("producer.shutdown", handle=handle)
    assert broker.stop() == 0
    assert broker.address not in registered_brokers(apache.namesrv)


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_mqadmin_reads_our_cluster(version: str, java: Callable[[str, str], JavaDriver]) -> None:
    with LocalCluster() as cluster, rmq.Admin(cluster.namesrv) as admin:
        admin.create_topic("AdminTopic", queues=3)
        with rmq.Producer(cluster.namesrv, group="admin-test") as producer:
            producer.send("AdminTopic", b"one")
        driver = java(version, cluster.namesrv)
        assert "AdminTopic" in driver.mqadmin("topicList").stdout.split()
        route = driver.mqadmin("topicRoute", "-t", "AdminTopic").stdout
        assert cluster.broker_addresses[0] in route
        listed = driver.mqadmin("clusterList")
        assert cluster.broker_addresses[0] in listed.stdout, listed
        status = driver.mqadmin("topicStatus", "-t", "AdminTopic").stdout
        assert "AdminTopic" not in driver.mqadmin("topicStatus", "-t", "AdminTopic").stderr
        assert status.count("broker") >= 3, status
