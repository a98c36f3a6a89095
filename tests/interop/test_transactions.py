"""Transactions: Java's producers on our broker, ours on Apache's, and one store that both have open in turn."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.codes import RequestCode
from rocketcore.protocol.command import RemotingCommand
from tests.fixtures.apache import require_java
from tests.fixtures.processes import SMALL_FILES, Processes
from tests.fixtures.topics import new_group, new_topic
from tests.interop.test_stores import Store
from tests.peers import ApacheCluster, JavaDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

COMMIT, UNKNOWN = rmq.TransactionState.COMMIT, rmq.TransactionState.UNKNOWN
OURS = {"transactionCheckInterval": "300", "transactionTimeOut": "300"}
APACHE = {"transactionCheckInterval": 1000, "transactionTimeOut": 500}
VERSIONS = ["5.5.0", "4.9.7"]
SECONDS = 60.0
SOON = {"transactionOpBatchInterval": 100}
SLOWLY = SOON | APACHE | {"transactionCheckInterval": 4000}
OP_SECONDS = 1.0
"""Apache's op messages are up to ``transactionOpBatchInterval`` late, for its own checks and for a stop too."""


class Lossy:
    """A hook that loses the outcomes that a producer tells unasked."""

    def before_request(self, address: str, command: RemotingCommand) -> None:
        asked = (command.ext_fields or {}).get("fromTransactionCheck") == "true"
        if command.code == RequestCode.END_TRANSACTION and not asked:
            raise rmq.RequestTimeout("the end was lost")

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        pass


def received(namesrv: str, topic: str, count: int) -> list[bytes]:
    """Wait for so many different messages; return all that are there, sorted."""
    bodies: list[bytes] = []
    with rmq.PullConsumer(namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic)
        consumer.wait_ready(SECONDS)
        while len(set(bodies)) < count and (messages := consumer.poll(timeout=SECONDS)):
            bodies += [message.body for message in messages]
        bodies += [message.body for message in consumer.poll(timeout=0.5)]
    return sorted(bodies)


@pytest.fixture(scope="module")
def ours() -> Iterator[LocalCluster]:
    with LocalCluster(properties=OURS) as running:
        yield running


@pytest.mark.parametrize("version", VERSIONS)
def test_java_producers_on_our_broker(ours: LocalCluster, java: Callable[[str, str], JavaDriver], version: str) -> None:
    driver, topic = java(version, ours.namesrv), new_topic(ours.namesrv)
    local = {"good": "commit", "bad": "rollback", "late": "unknown", "failed": "unknown"}
    checks = {"late": ["unknown", "commit"], "failed": ["rollback"]}
    handle = driver.call("transaction.start", group=new_group(), local=local, checks=checks)["handle"]
    sent = {
        key: driver.call("transaction.send", handle=handle, topic=topic, text=key, keys=key, tags="t") for key in local
    }
    assert {each["sendStatus"] for each in sent.values()} == {"SEND_OK"}
    assert received(ours.namesrv, topic, 2) == [b"good", b"late"]
    asked: list[dict[str, Any]] = []
    deadline = time.monotonic() + SECONDS
    while len(asked) < 3 and time.monotonic() < deadline:
        asked += driver.call("transaction.checks", handle=handle)
    outcomes = sorted((each["message"]["properties"]["KEYS"], each["outcome"]) for each in asked)
    assert outcomes == [("failed", "ROLLBACK_MESSAGE"), ("late", "COMMIT_MESSAGE"), ("late", "UNKNOW")]
    for each in asked:
        message = each["message"]
        assert (message["topic"], message["transactionId"]) == (
            topic,
            sent[message["properties"]["KEYS"]]["transactionId"],
        )
    driver.call("transaction.shutdown", handle=handle)


@pytest.mark.parametrize("version", VERSIONS)
def test_our_producers_on_apaches_broker(version: str, tmp_path: Path) -> None:
    require_java()
    asked: queue.Queue[rmq.ReceivedMessage] = queue.Queue()

    def check(message: rmq.ReceivedMessage) -> rmq.TransactionState:
        asked.put(message)
        return UNKNOWN if asked.qsize() == 1 else COMMIT

    with ApacheCluster(version, tmp_path, extra_broker_conf=APACHE) as cluster:
        topic = new_topic(cluster.namesrv)
        with rmq.Producer(cluster.namesrv, group=new_group(), checker=check) as producer:
            with producer.transaction(rmq.Message(topic, b"good")) as good:
                pass
            with pytest.raises(ZeroDivisionError), producer.transaction(rmq.Message(topic, b"bad")) as bad:
                raise ZeroDivisionError
            assert good.told
            assert bad.told
        with rmq.Producer(cluster.namesrv, group=new_group(), checker=check, hooks=[Lossy()]) as lossy:
            with lossy.transaction(rmq.Message(topic, b"late", keys="k")) as late:
                pass
            assert not late.told
            messages = [asked.get(timeout=SECONDS) for _ in range(2)]
            assert received(cluster.namesrv, topic, 2) == [b"good", b"late"]
    assert late.result is not None
    assert {(each.topic, each.keys, each.msg_id) for each in messages} == {(topic, ("k",), late.result.msg_id)}


def test_a_store_that_both_have_open_in_turn(tmp_path: Path) -> None:
    """After a clean stop and after a kill, side by side: brokers start, end and wait to ask."""
    require_java()
    with contextlib.ExitStack() as ends, ThreadPoolExecutor() as threads:
        checks = []
        for end in ("stop", "kill"):
            (tmp_path / end).mkdir()
            processes = Processes(tmp_path / end, SMALL_FILES)
            ends.callback(processes.end)
            checks.append(threads.submit(check_store, Store(processes, tmp_path / end), end))
        for check in checks:
            check.result()


def check_store(store: Store, end: str) -> None:
    """What is decided in one is decided in the other, and what is not is asked about.

    Apache saves how far its checks came every few seconds: what it had asked about before a kill is asked about again.
    Ours is told to check every 300 ms: what is answered later than that is asked about again too.
    """
    topic, group = "Tx", new_group()
    env = {"ROCKETCORE_TRANSACTION_CHECK_INTERVAL": "300", "ROCKETCORE_TRANSACTION_TIME_OUT": "300"}
    patient = {"ROCKETCORE_TRANSACTION_CHECK_INTERVAL": "3600000"}
    asked: list[str] = []

    def check(message: rmq.ReceivedMessage) -> rmq.TransactionState:
        asked.append(message.keys[0])
        return COMMIT

    def send(prefix: str) -> None:
        with rmq.Producer(store.namesrv, group=group, checker=check) as producer:
            with producer.transaction(rmq.Message(topic, f"{prefix} good", keys=f"{prefix} good".replace(" ", "-"))):
                pass
            for key in ("open", "other"):
                producer.transaction(rmq.Message(topic, f"{prefix} {key}", keys=f"{prefix}-{key}")).begin()
            with pytest.raises(ZeroDivisionError), producer.transaction(rmq.Message(topic, b"bad", keys="bad")):
                raise ZeroDivisionError

    with store.ours(end, patient):
        send("ours")
    with store.apache("5.5.0", end, **SLOWLY), rmq.Producer(store.namesrv, group=group, checker=check):
        first = [b"ours good", b"ours open", b"ours other"]
        assert received(store.namesrv, topic, 3) == first
        time.sleep(OP_SECONDS)
    assert set(asked) == {"ours-open", "ours-other"}
    with store.apache("5.5.0", end, **SOON, transactionCheckInterval=3_600_000):
        send("apache")
        assert received(store.namesrv, topic, 4) == [b"apache good", *first]
        time.sleep(OP_SECONDS)
    asked.clear()
    with store.ours(end, env), rmq.Producer(store.namesrv, group=group, checker=check):
        bodies = received(store.namesrv, topic, 6)
    again = set[str]()
    if end == "kill":
        bodies, again = sorted(set(bodies)), {"ours-open", "ours-other"}
    assert bodies == [b"apache good", b"apache open", b"apache other", *first]
    assert set(asked) - again == {"apache-open", "apache-other"}
