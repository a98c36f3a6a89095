"""Spark's source and sink where name server and broker take TLS connections only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store.config import StoreConfig
from rocketcore.client.loop_thread import LoopThread
from rocketcore.errors import TransportError
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.spark.options import SinkOptions, SourceOptions, parse_options
from rocketcore.spark.range_task import Projection
from rocketcore.spark.reader import RocketMQReader
from rocketcore.spark.writer import plan_queues
from tests.fixtures.tls import CLIENT_CERTIFICATE, FOLDER, client_tls, server_tls
from tests.spark.rows import planned

TRUST = {"tls": "true", "tlsCaFile": str(FOLDER / "ca.crt")}
OWN = {"tlsCertFile": str(CLIENT_CERTIFICATE["cert_file"]), "tlsKeyFile": str(CLIENT_CERTIFICATE["key_file"])}


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """The address of a name server with a broker; both ask for the client's certificate."""
    loop = LoopThread("tls-cluster")
    tls = server_tls("enforcing", client_auth="require", verify_clients=True, ca_file=FOLDER / "ca.crt")

    async def start() -> tuple[NameServer, Broker]:
        server = NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=tmp_path), tls=tls)
        await server.start()
        store = StoreConfig(store_path_root_dir=tmp_path / "store", mapped_file_size_commit_log=1 << 24)
        config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, namesrv_addr=server.address)
        broker = Broker(config, store, tls=tls, client_tls=client_tls(**CLIENT_CERTIFICATE))
        await broker.start()
        return server, broker

    server, broker = loop.run(start())
    yield server.address
    loop.run(broker.stop())
    loop.run(server.stop())
    loop.stop()


def test_rows_there_and_back(name_server: str) -> None:
    options = {"nameServer": name_server, "topic": "T", **TRUST, **OWN}
    written = parse_options(SinkOptions, {**options, "createTopic": "true"})
    planned(written).write(iter([pa.record_batch({"body": ["a", "b", "c"]})]))
    source = RocketMQReader(parse_options(SourceOptions, options), Projection(("body",)))
    found = [body for part in source.partitions() for batch in source.read(part) for body in batch["body"].to_pylist()]
    assert sorted(found) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("tls", [{}, {"tls": "true"}, TRUST])
def test_who_may_not_connect_is_told_in_the_driver(name_server: str, tls: dict[str, str]) -> None:
    options = {"nameServer": name_server, "topic": "T", "requestTimeoutMs": "2000", **tls}
    with pytest.raises(TransportError):
        plan_queues(parse_options(SinkOptions, options))
    with pytest.raises(TransportError):
        RocketMQReader(parse_options(SourceOptions, options), Projection(("body",))).partitions()
