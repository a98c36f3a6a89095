"""What a broker tells monitors over HTTP: its metrics, and whether it is ready."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker import metrics
from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.codes import RequestCode
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.headers.consumer import UpdateConsumerOffsetRequestHeader
from rocketcore.transport.client import RemotingClient
from tests.integration.broker_client import BrokerClient, running_broker, store_config
from tests.integration.test_http_port import ask
from tests.reference.exposition import Samples, read_exposition

NODE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
OUT = {"topic": "T", "consumer_group": "readers", "is_system": "false"}
PAIR = OUT | {"is_retry": "false"}


def port_of(client: BrokerClient) -> int:
    return int(str(client.broker.ready()["metrics"]).rpartition(":")[2])


async def get(client: BrokerClient, path: str) -> tuple[int, str]:
    status, body = await ask(port_of(client), f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return status, body.decode()


async def scrape(client: BrokerClient) -> Samples:
    status, text = await get(client, "/metrics")
    assert status == 200, text
    return read_exposition(text)[1]


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset((NODE | labels).items())))


def play(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), running_broker(folder, metrics_port=0, **settings) as client:
            await scenario(client)

    asyncio.run(run())


async def commit(client: BrokerClient, topic: str, offset: int) -> None:
    header = UpdateConsumerOffsetRequestHeader(consumer_group="readers", topic=topic, queue_id=0, commit_offset=offset)
    assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


def test_messages_in_and_out_and_what_lies_between(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(8):
            await client.send("T", b"x" * 100)
        await client.heartbeat("T")
        assert len(await client.records("T", max_count=5)) == 5
        await commit(client, "T", 2)
        samples = await scrape(client)
        topic = {"topic": "T", "is_system": "false"}
        assert value(samples, "rocketmq_messages_in_total", **topic) == 8
        assert (value(samples, "rocketmq_throughput_in_total", **topic) or 0) > 800
        assert value(samples, "rocketmq_messages_out_total", **OUT) == 5
        assert (value(samples, "rocketmq_throughput_out_total", **OUT) or 0) > 500
        assert value(samples, "rocketmq_consumer_lag_messages", **PAIR) == 6
        assert value(samples, "rocketmq_consumer_inflight_messages", **PAIR) == 3
        assert value(samples, "rocketmq_consumer_ready_messages", **PAIR) == 3
        assert 0 <= (value(samples, "rocketmq_consumer_lag_latency_milliseconds", **PAIR) or 0) < 60_000
        assert 0 <= (value(samples, "rocketmq_storage_message_reserve_time_milliseconds", **DISK) or 0) < 60_000
        assert value(samples, "rocketcore_put_latency_seconds_count") == 8
        assert value(samples, "rocketcore_put_latency_seconds_bucket", le="+Inf") == 8
        await commit(client, "T", 8)
        samples = await scrape(client)
        assert value(samples, "rocketmq_consumer_lag_messages", **PAIR) == 0
        assert value(samples, "rocketmq_consumer_lag_latency_milliseconds", **PAIR) == 0

    play(tmp_path, scenario)


DISK = {"storage_type": "local", "storage_medium": "disk"}


def test_state_of_a_broker(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        await client.heartbeat("T")
        samples = await scrape(client)
        assert value(samples, "rocketmq_broker_permission") == 6
        assert value(samples, "rocketmq_topic_number") == len(client.broker._topics.table)
        assert value(samples, "rocketmq_consumer_group_number") == len(client.broker._groups.table)
        assert value(samples, "rocketmq_processor_watermark", processor="send") == 0
        assert value(samples, "rocketmq_processor_watermark", processor="pull") == 0
        assert (value(samples, "rocketmq_storage_size_bytes", **DISK) or 0) > 0
        assert value(samples, "rocketmq_storage_flush_behind_bytes", **DISK) == 0
        assert value(samples, "rocketmq_storage_dispatch_behind_bytes", **DISK) == 0
        assert value(samples, "rocketcore_metrics_left_out") == 0
        connections = [(dict(labels), count) for (name, labels), count in samples.items() if name == CONNECTIONS]
        assert len(connections) == 1
        labels, count = connections[0]
        assert (labels["consumer_group"], labels["consume_mode"], labels["protocol_type"]) == (
            "readers", "push", "remoting",
        )  # fmt: skip
        assert count == 1

    play(tmp_path, scenario)


CONNECTIONS = "rocketmq_consumer_connections"


def test_there_is_no_port_unless_it_is_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_broker(tmp_path) as client:
            assert "metrics" not in client.broker.ready()

    asyncio.run(run())


def test_ready_is_who_takes_messages_and_is_registered(tmp_path: Path) -> None:
    async def run() -> None:
        config = NameServerConfig(rocketmq_home=tmp_path, listen_port=0)
        async with asyncio.timeout(60), NameServer(config) as server:
            folder = tmp_path / "store"
            async with running_broker(folder, namesrv=server.address, metrics_port=0) as client:
                assert await get(client, "/readyz") == (200, "ok\n")
                store = client.broker._store
                store._refuse("disk", "the disk is full")
                assert await get(client, "/readyz") == (503, "the store takes no messages: the disk is full\n")
                assert await get(client, "/livez") == (200, "ok\n")
                store._refuse("disk", "")
                assert await get(client, "/readyz") == (200, "ok\n")

    asyncio.run(run())


def test_who_is_registered_nowhere_is_not_ready(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        assert await get(client, "/readyz") == (503, "registered at none of 1 name servers\n")
        assert (await get(client, "/metrics"))[0] == 200

    play(tmp_path, scenario, namesrv="127.0.0.1:1")


def test_a_broker_that_recovers_its_store_lives_and_is_not_ready(tmp_path: Path) -> None:
    async def run() -> None:
        broker = Broker(BrokerConfig(broker_name="broker-a", listen_port=0, metrics_port=0), store_config(tmp_path))
        load, recovering, may_go_on = broker._store.load, asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow_load() -> object:
            loop.call_soon_threadsafe(recovering.set)
            assert may_go_on.wait(30)
            return load()

        broker._store.load = slow_load  # type: ignore[method-assign, assignment]
        async with RemotingClient() as client, asyncio.timeout(60):
            asking = BrokerClient(broker, client)
            starting = asyncio.create_task(broker.start())
            try:
                await recovering.wait()
                assert await get(asking, "/livez") == (200, "ok\n")
                assert await get(asking, "/readyz") == (503, "starting\n")
                assert await get(asking, "/metrics") == (503, "starting\n")
            finally:
                may_go_on.set()
                await starting
            assert await get(asking, "/readyz") == (200, "ok\n")
            await broker.stop()
            assert broker._monitoring.phase == "stopping"
            with pytest.raises(OSError):
                await get(asking, "/livez")

    asyncio.run(run())


def test_a_thousand_topics_hold_nobody_up(tmp_path: Path) -> None:
    """The longest time between two turns of the loop while it makes a scrape; the machine may be busy with others."""

    async def scenario(client: BrokerClient) -> None:
        await asyncio.gather(*(client.send(f"T{number}") for number in range(1000)))
        spent = []
        for _ in range(8):
            before = time.thread_time()
            await client.broker._metrics()
            spent.append(time.thread_time() - before)
        assert min(spent) < 0.002, "the second one has the lines of the first"
        await client.heartbeat("T0")
        for number in range(1000):
            client.broker._context.offsets.commit("readers", f"T{number}", 0, 0)
        longest = []
        for _ in range(5):
            scraping = asyncio.create_task(client.broker._metrics())
            slices, before = [], time.thread_time()
            while not scraping.done():
                await asyncio.sleep(0)  # a turn, whose length is what is measured
                now = time.thread_time()
                slices.append(now - before)
                before = now
            longest.append(max(slices))
            parts = scraping.result()
        samples = read_exposition(b"".join(parts).decode())[1]
        lags = [labels for name, labels in samples if name == "rocketmq_consumer_lag_latency_milliseconds"]
        assert sum(("consumer_group", "readers") in labels for labels in lags) == 1000
        assert len(slices) > 10
        assert min(longest) < 0.002

    play(tmp_path, scenario)


def test_a_scrape_has_a_bound_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_SAMPLES", 10)

    async def scenario(client: BrokerClient) -> None:
        for number in range(8):
            await client.send(f"T{number}")
        samples = await scrape(client)
        counters = ("rocketmq_messages_in_total", "rocketmq_throughput_in_total")
        assert [sum(name == each for name, _ in samples) for each in counters] == [8, 2]
        assert value(samples, "rocketcore_metrics_left_out") == 6 + 2 * 4  # the broker's own group is in two

    play(tmp_path, scenario)


def test_times_that_cannot_be_read_in_time_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "READ_SECONDS", 0.0)

    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        client.broker._context.offsets.commit("readers", "T", 0, 0)
        samples = await scrape(client)
        assert value(samples, "rocketmq_consumer_lag_messages", **PAIR) == 1
        assert value(samples, "rocketmq_consumer_lag_latency_milliseconds", **PAIR) is None
        assert value(samples, "rocketmq_storage_message_reserve_time_milliseconds", **DISK) is None

    play(tmp_path, scenario)


def test_labels_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape of many topics costs what it writes: about a microsecond a sample."""
    made: list[object] = []
    label_text = metrics.label_text  # type: ignore[attr-defined]
    monkeypatch.setattr(metrics, "label_text", lambda labels: made.append(labels) or label_text(labels))

    async def scenario(client: BrokerClient) -> None:
        for number in range(50):
            await client.send(f"T{number}")
        first = await scrape(client)
        assert len([each for each in made if isinstance(each, dict) and "topic" in each]) >= 50
        made.clear()
        second = await scrape(client)
        assert len(made) < 10
        assert first.keys() == second.keys()
        made.clear()
        await client.send("another")
        assert set(await scrape(client)) - set(second)
        assert len(made) < 10, "and what is counted anew makes only its own"

    play(tmp_path, scenario)


def test_slow_requests_are_counted_by_a_setting_that_counts_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(client: BrokerClient) -> None:
        slow = client.broker._context.slow
        assert slow.seconds == 0.5
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"slowRequestMillis=60000")).code == 0
        assert slow.seconds == 60
        slow.seconds = 0.0
        await client.send("T")
        samples = await scrape(client)
        assert (value(samples, "rocketcore_slow_requests_total") or 0) >= 2, "the handler's, and that of the disk"

    play(tmp_path, scenario)
    told = [record.getMessage() for record in caplog.records if record.name == "rocketcore.slow"]
    assert told
    assert " topic=T group=" in told[0]
