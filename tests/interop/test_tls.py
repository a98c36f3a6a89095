"""TLS between Apache RocketMQ and us: Java clients on our servers, our clients on theirs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.errors import TransportError
from tests.fixtures.apache import require_java
from tests.fixtures.processes import SMALL_FILES, Processes
from tests.fixtures.tls import CLIENT_CERTIFICATE, FOLDER, client_tls, tls_servers
from tests.peers import ApacheCluster, DriverError, JavaDriver
from tests.peers.jvm import Tls

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

VERSION = "5.5.0"
CERTIFIED = Tls(FOLDER / "server.crt", FOLDER / "server.key", FOLDER / "ca.crt")
MUTUAL = Tls(FOLDER / "server.crt", FOLDER / "server.key", FOLDER / "ca.crt", client_auth="require")


def name(kind: str) -> str:
    return f"{kind}-{uuid4().hex[:12]}"


# Java clients on our servers


@pytest.fixture(scope="module", autouse=True)
def java_is_there() -> None:
    require_java()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module", params=["permissive", "enforcing"])
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A name server and a broker of ours with TLS between them; the mode, and the name server's address."""
    with tls_servers(tmp_path_factory.mktemp(request.param), request.param) as namesrv:
        yield request.param, namesrv


@pytest.fixture(scope="module", params=["5.5.0", "4.9.7"])
def trusting_java(request: pytest.FixtureRequest) -> Iterator[JavaDriver]:
    """Java clients that verify the server's certificate; each test tells them its name server."""
    with JavaDriver(request.param, "127.0.0.1:1", tls=CERTIFIED) as driver:
        yield driver


@pytest.fixture(scope="module")
def plain_java() -> Iterator[JavaDriver]:
    with JavaDriver(VERSION, "127.0.0.1:1") as driver:
        yield driver


def java_round_trip(driver: JavaDriver, namesrv: str, *, tls: bool) -> list[bytes]:
    """Send with a Java producer and return what a Java push consumer gets."""
    driver.call("configure", namesrv=namesrv, tls=tls)
    topic = name("Java")
    producer = driver.call("producer.start", group=name("group"))["handle"]
    for body in (b"small", b"x" * 100_000):
        assert driver.call("producer.send", handle=producer, topic=topic, body=body)["sendStatus"] == "SEND_OK"
    options = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
    consumer = driver.call("push.start", group=name("group"), topic=topic, options=options)["handle"]
    received: list[dict[str, Any]] = []
    while len(received) < 2:
        batch = driver.call("push.consumed", handle=consumer, count=1, timeoutMillis=30_000)
        assert batch, "nothing came"
        received += batch
    driver.call("push.shutdown", handle=consumer)
    driver.call("producer.shutdown", handle=producer)
    return sorted((base64.b64decode(message["body"]) for message in received), key=len)


def test_java_clients_over_tls(ours: tuple[str, str], trusting_java: JavaDriver) -> None:
    assert java_round_trip(trusting_java, ours[1], tls=True) == [b"small", b"x" * 100_000]


def test_plain_java_clients(ours: tuple[str, str], plain_java: JavaDriver) -> None:
    """Served beside the others, or refused."""
    mode, namesrv = ours
    if mode == "permissive":
        assert java_round_trip(plain_java, namesrv, tls=False) == [b"small", b"x" * 100_000]
        return
    plain_java.call("configure", namesrv=namesrv, tls=False)
    producer = plain_java.call("producer.start", group=name("group"))["handle"]
    with pytest.raises(DriverError):
        plain_java.call("producer.send", handle=producer, topic="T", text="refused")
    plain_java.call("producer.shutdown", handle=producer)


def test_a_broker_of_apache_registers_over_tls(ours: tuple[str, str], folder: Path) -> None:
    mode, namesrv = ours
    with (
        ApacheCluster(VERSION, folder / f"broker-of-{mode}", tls=CERTIFIED, namesrv=namesrv) as cluster,
        rmq.Admin(namesrv, tls=client_tls()) as admin,
    ):
        topic = name("Apache")
        admin.create_topic(topic, queues=2, broker="broker-a")
        assert [queue.broker for queue in admin.queues(topic)] == ["broker-a"] * 2
        assert cluster.brokers[0] in admin.topic_route(topic).broker_datas[0].broker_addrs.values()
        with rmq.Producer(namesrv, group=name("group"), tls=client_tls()) as producer:
            assert producer.send(topic, b"to Apache").status is rmq.SendStatus.SEND_OK


# Our clients on Apache's servers


@pytest.fixture(scope="module", params=["its own certificate", "ours", "ours, and of its clients", "ours, 4.9.7"])
def theirs(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[str, str]]:
    """Apache's name server and broker, enforcing TLS; which certificates, and the name server's address."""
    certificates, _, version = request.param.partition(", 4")
    tls = {"its own certificate": Tls(), "ours": CERTIFIED, "ours, and of its clients": MUTUAL}[certificates]
    with ApacheCluster(
        "4.9.7" if version else VERSION, folder / request.param.replace(" ", "-").replace(",", ""), tls=tls
    ) as cluster:
        yield certificates, cluster.namesrv


def test_our_clients_over_tls(theirs: tuple[str, str]) -> None:
    certificates, namesrv = theirs
    tls = {
        "its own certificate": rmq.TlsConfig(verify=False),
        "ours": client_tls(),
        "ours, and of its clients": client_tls(**CLIENT_CERTIFICATE),
    }[certificates]
    topic = name("Ours")
    with rmq.Admin(namesrv, tls=tls) as admin:
        admin.create_topic(topic, queues=4)
    with rmq.Producer(namesrv, group=name("group"), tls=tls) as producer:
        assert producer.send(topic, b"blocking").status is rmq.SendStatus.SEND_OK
        producer.send(topic, b"x" * 100_000)
        futures = [producer.send_nowait(rmq.Message(topic, b"nowait %d" % i)) for i in range(100)]
        producer.flush()
        assert all(future.result(10).status is rmq.SendStatus.SEND_OK for future in futures)
    received: list[bytes] = []

    async def asynchronously() -> None:
        complete = asyncio.Event()
        async with asyncio.timeout(90), aio.Producer(namesrv, group=name("group"), tls=tls) as producer:
            await producer.send(topic, b"asyncio")
            async with aio.PushConsumer(namesrv, group=name("group"), start_from="first", tls=tls) as consumer:

                async def keep(message: rmq.ReceivedMessage) -> None:
                    received.append(message.body)
                    if len(received) == 103:
                        complete.set()

                await consumer.subscribe(topic, handler=keep)
                await complete.wait()

    asyncio.run(asynchronously())
    assert sorted(received) == sorted(
        [b"blocking", b"asyncio", b"x" * 100_000, *(b"nowait %d" % i for i in range(100))]
    )
    pulled: list[rmq.ReceivedMessage] = []
    with rmq.PullConsumer(namesrv, group=name("group"), start_from="first", tls=tls) as consumer:
        consumer.subscribe(topic)
        while len(pulled) < 103:
            batch = consumer.poll(timeout=10.0)
            assert batch, f"{len(pulled)} of 103 messages came"
            pulled += batch


def test_our_clients_refuse_and_are_refused(theirs: tuple[str, str]) -> None:
    certificates, namesrv = theirs
    for tls in (False, True) if certificates != "ours, and of its clients" else (False, client_tls()):
        with rmq.Admin(namesrv, tls=tls) as admin, pytest.raises(TransportError):
            admin.topics()


def test_java_on_a_server_with_a_certificate_of_its_own(folder: Path) -> None:
    """With the settings that both sides of RocketMQ have by default: nobody looks at the certificate."""
    servers = Processes(folder, SMALL_FILES)
    try:
        server = servers.start(
            "namesrv", "start", "--listen", "127.0.0.1:0", "--home", str(folder / "made-up"),
            env={"ROCKETCORE_TLS_SERVER_MODE": "enforcing", "ROCKETCORE_TLS_TEST_MODE_ENABLE": "true"},
        )  # fmt: skip
        with JavaDriver(VERSION, server.address, tls=Tls()) as java:
            assert "clusterTest" in java.mqadmin("getNamesrvConfig", "-n", server.address).stdout
    finally:
        servers.end()
