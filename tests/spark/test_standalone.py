"""Writes and reads on a standalone cluster: executors in JVMs of their own, two brokers, two name servers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import rocketcore as rmq
from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store.config import StoreConfig
from rocketcore.client.loop_thread import LoopThread
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.spark.connection import KEPT_CONNECTIONS
from tests.fixtures.standalone import Driver, SparkCluster
from tests.spark import jobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Servers:
    """Two name servers, and two brokers that register with both, under an address of their own or another one."""

    def __init__(self, folder: Path, registered: str = "") -> None:
        self._folder = folder
        self._registered = registered
        self._loop = LoopThread("two-by-two")
        self._name_servers: list[Any] = [self._loop.run(self._name_server(number)) for number in range(2)]
        self.addresses = [server.address for server in self._name_servers]
        self.namesrv = ";".join(self.addresses)
        self._brokers: list[Any] = [self._loop.run(self._broker(name)) for name in ("broker-a", "broker-b")]

    @property
    def ports(self) -> list[int]:
        """Those of the name servers, then those of the brokers."""
        return [int(server.address.rpartition(":")[2]) for server in (*self._name_servers, *self._brokers)]

    async def _name_server(self, number: int, port: int = 0) -> NameServer:
        home = self._folder / f"namesrv-{number}"
        server = NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=port, rocketmq_home=home))
        await server.start()
        return server

    async def _broker(self, name: str) -> Broker:
        store = StoreConfig(store_path_root_dir=self._folder / name, mapped_file_size_commit_log=1 << 24)
        config = BrokerConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            broker_name=name,
            broker_ip1=self._registered,
            namesrv_addr=self.namesrv,
        )
        broker = Broker(config, store)
        await broker.start()
        return broker

    def stop_name_server(self, number: int) -> None:
        self._loop.run(self._name_servers[number].stop())

    def start_name_server(self, number: int) -> None:
        """Start it anew on its old port; return when both brokers have registered again."""
        port = int(self.addresses[number].rpartition(":")[2])
        self._name_servers[number] = self._loop.run(self._name_server(number, port))
        with rmq.Admin(self.addresses[number]) as admin:
            while len(admin.cluster_info().broker_addr_table) < len(self._brokers):
                time.sleep(0.05)

    def stop(self) -> None:
        for server in (*self._brokers, *self._name_servers):
            self._loop.run(server.stop())
        self._loop.stop()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    running = Servers(tmp_path_factory.mktemp("servers"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def driver(spark_cluster: SparkCluster, servers: Servers) -> Iterator[Driver]:
    """A driver whose environment names the name servers; that of its executors names one that is not there."""
    running = spark_cluster.driver(env={"NAMESRV_ADDR": servers.namesrv})
    yield running
    running.stop()


@pytest.fixture
def topic(servers: Servers) -> str:
    """A topic with two queues on each broker."""
    name = f"T-{uuid4().hex[:12]}"
    with rmq.Admin(servers.namesrv) as admin:
        admin.create_topic(name, queues=2)
    return name


def test_rows_there_and_back(driver: Driver, topic: str) -> None:
    """Without ``nameServer`` the driver's environment counts, not that of the executors."""
    count = 20_000
    driver.run(jobs.write, {"topic": topic, "batchBytes": "16k"}, range(count))
    found = driver.run(jobs.read, {"topic": topic})
    assert 0 < found.pop("of_broker_b") < count
    assert found == {"rows": count, "ids": count, "sum": sum(range(count))}
    places = driver.run(jobs.places_of_read, {"topic": topic})
    assert sum(rows for _, rows in places) == count
    assert len({folder for folder, _ in places}) == 2, "one executor did everything"


def test_a_worker_keeps_few_connections(
    driver: Driver, spark_cluster: SparkCluster, servers: Servers, topic: str
) -> None:
    """The Python worker of an executor serves task after task, and keeps the connections of the last few settings."""
    options = {"topic": topic, "nameServer": servers.namesrv}
    for _ in range(2):
        driver.run(jobs.write, options, range(1000))
        driver.run(jobs.read, options)
    workers = spark_cluster.sockets(servers.ports)
    assert len(workers) >= 2, "executors have workers of their own"
    for connected in workers.values():
        assert max(connected.values()) == 1
    for number in range(2 * KEPT_CONNECTIONS + 1):  # one of two workers gets more of them than it keeps
        driver.run(jobs.skim, {**options, "requestTimeoutMs": f"{20_000 + number}"}, "body binary")
    name_servers = servers.ports[:2]
    asked = []
    for connected in spark_cluster.sockets(servers.ports).values():
        assert all(count <= KEPT_CONNECTIONS for count in connected.values())
        asked.append(sum(connected[port] for port in name_servers))
    assert max(asked) == KEPT_CONNECTIONS, "each connection has asked one name server"


def test_a_name_server_goes_and_comes_back(driver: Driver, servers: Servers, topic: str) -> None:
    options = {"topic": topic, "nameServer": servers.namesrv}
    for number in range(2):
        servers.stop_name_server(number)
        driver.run(jobs.write, options, range(1000 * number, 1000 * (number + 1)))
        assert driver.run(jobs.read, options)["sum"] == sum(range(1000 * (number + 1)))
        servers.start_name_server(number)


def test_brokers_behind_other_addresses(driver: Driver, tmp_path: Path) -> None:
    """Their own is one of RFC 5737, which lead nowhere."""
    servers = Servers(tmp_path, "192.0.2.1")
    try:
        addresses = {f"192.0.2.1:{port}": f"127.0.0.1:{port}" for port in servers.ports[2:]}
        with rmq.Admin(servers.namesrv, broker_address_map=addresses) as admin:
            admin.create_topic("T", queues=2)
        options = {"nameServer": servers.namesrv, "topic": "T", "brokerAddressMap": json.dumps(addresses)}
        driver.run(jobs.write, {**options, "batchBytes": "4k"}, range(2000))
        found = driver.run(jobs.read, options)
        assert (found["rows"], found["sum"]) == (2000, sum(range(2000)))
        assert 0 < found["of_broker_b"] < 2000
    finally:
        servers.stop()


def test_a_stream_goes_on_at_its_checkpoint(driver: Driver, servers: Servers, topic: str, tmp_path: Path) -> None:
    copied = f"{topic}-copied"
    with rmq.Admin(servers.namesrv) as admin:
        admin.create_topic(copied, queues=2)
    target = {"topic": copied, "nameServer": servers.namesrv, "checkpointLocation": str(tmp_path / "checkpoint")}
    for number in range(2):
        driver.run(jobs.write, {"topic": topic}, range(3000 * number, 3000 * (number + 1)))
        driver.run(jobs.copy, {"topic": topic}, target)
        count = 3000 * (number + 1)
        found = driver.run(jobs.read, {"topic": copied})
        assert (found["rows"], found["ids"], found["sum"]) == (count, count, sum(range(count)))
