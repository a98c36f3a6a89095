"""One of two brokers takes connections and answers nothing: each send ends well, in time, at the other."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import rocketcore as rmq
import rocketcore.aio as aio
from rocketcore.local import LocalCluster

TIMEOUT = 4.0
"""Seconds of a send; what hangs has half of them."""


@pytest.fixture
def hung(cluster: LocalCluster) -> Iterator[dict[str, str]]:
    """``broker_address_map`` by which the second broker is one that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {cluster.broker_addresses[1]: f"127.0.0.1:{server.getsockname()[1]}"}


def in_time(began: float) -> None:
    assert time.monotonic() - began < TIMEOUT + 2


def test_blocking_sends(cluster: LocalCluster, make_topic: Callable[..., str], hung: dict[str, str]) -> None:
    topic, other = make_topic(), cluster.broker_names[0]
    options: dict[str, Any] = {"checker": lambda half: rmq.TransactionState.COMMIT, "broker_address_map": hung}
    with rmq.Producer(cluster.namesrv, group="hung", timeout=TIMEOUT, **options) as producer:

        def transaction() -> rmq.SendResult:
            with producer.transaction(rmq.Message(topic, b"1")) as begun:
                assert begun.result is not None
                return begun.result

        calls: list[Callable[[], rmq.SendResult]] = [
            lambda: producer.send(topic, b"1"),
            lambda: producer.send_batch([rmq.Message(topic, b"1"), rmq.Message(topic, b"2")]),  # type: ignore[list-item, return-value]
            lambda: producer.send_nowait(topic, b"1").result(),
            transaction,
        ]
        began = time.monotonic()
        with ThreadPoolExecutor(3 * len(calls)) as threads:
            results = [future.result() for future in [threads.submit(call) for call in calls * 3]]
        assert {(result.status.name, result.queue.broker) for result in results} == {("SEND_OK", other)}
        in_time(began)


def test_asyncio_sends(cluster: LocalCluster, make_topic: Callable[..., str], hung: dict[str, str]) -> None:
    topic, other = make_topic(), cluster.broker_names[0]

    async def main() -> None:
        options: dict[str, Any] = {"group": "hung", "timeout": TIMEOUT, "broker_address_map": hung}
        async with aio.Producer(cluster.namesrv, **options) as producer:
            batch = [rmq.Message(topic, b"1"), rmq.Message(topic, b"2")]
            began = time.monotonic()
            results = await asyncio.gather(
                *(producer.send(topic, b"1") for _ in range(4)), *(producer.send_batch(batch) for _ in range(4))
            )
            assert {(result.status.name, result.queue.broker) for result in results} == {("SEND_OK", other)}
            in_time(began)

    asyncio.run(main())
