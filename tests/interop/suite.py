"""Apache RocketMQ's own integration tests (``org.apache.rocketmq:rocketmq-test``) on servers of ours.

They start brokers in their own JVM; ``tests/peers/suite/`` has the class in the place of the one that does, which takes
three brokers of a cluster that runs. What of a broker's parts the tests look at is asked of it, and a setting that they
change is a request to it (25).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.fixtures.processes import SMALL_FILES, Processes
from tests.fixtures.waiting import until
from tests.peers.apache import registered_brokers
from tests.peers.jvm import HERE, PeerError, install, require, tail

VERSION = "5.5.0"
SOURCES = HERE / "suite"
SETTINGS = {
    "ROCKETCORE_ENABLE_PROPERTY_FILTER": "true",
    "ROCKETCORE_RECALL_MESSAGE_ENABLE": "true",
    "ROCKETCORE_TRANSACTION_CHECK_INTERVAL": "10000",
    "ROCKETCORE_TRANSACTION_TIME_OUT": "3000",
    "ROCKETCORE_BROKER_CLUSTER_NAME": "DefaultCluster",
}
"""As the class that starts brokers in the JVM sets them."""

CLASSES = [
    "client.consumer.balance.NormalMsgDynamicBalanceIT",
    "client.consumer.balance.NormalMsgStaticBalanceIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgNotReceiveIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvCrashIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvFailIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvStartLaterIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgTwoDiffGroupRecvIT",
    "client.consumer.broadcast.normal.NormalMsgTwoSameGroupConsumerIT",
    "client.consumer.broadcast.order.OrderMsgBroadcastIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerFilterIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerSubDiffTagIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerSubTagIT",
    "client.consumer.cluster.DynamicAddAndCrashIT",
    "client.consumer.cluster.DynamicAddConsumerIT",
    "client.consumer.cluster.DynamicCrashConsumerIT",
    "client.consumer.filter.SqlFilterIT",
    "client.consumer.pop.BatchAckIT",
    "client.consumer.pop.NotificationIT",
    "client.consumer.pop.PopBigMessageIT",
    "client.consumer.pop.PopMessageAndForwardingIT",
    "client.consumer.pop.PopOrderlyIT",
    "client.consumer.pop.PopPriorityIT",
    "client.consumer.pop.PopSubCheckIT",
    "client.consumer.tag.MulTagSubIT",
    "client.consumer.tag.TagMessageWith1ConsumerIT",
    "client.consumer.tag.TagMessageWithMulConsumerIT",
    "client.consumer.tag.TagMessageWithSameGroupConsumerIT",
    "client.consumer.topic.MulConsumerMulTopicIT",
    "client.consumer.topic.OneConsumerMulTopicIT",
    "client.producer.async.AsyncSendExceptionIT",
    "client.producer.async.AsyncSendWithMessageQueueIT",
    "client.producer.async.AsyncSendWithMessageQueueSelectorIT",
    "client.producer.async.AsyncSendWithOnlySendCallBackIT",
    "client.producer.batch.BatchSendIT",
    "client.producer.exception.msg.ChinaPropIT",
    "client.producer.exception.msg.MessageExceptionIT",
    "client.producer.exception.msg.MessageUserPropIT",
    "client.producer.exception.producer.ProducerGroupAndInstanceNameValidityIT",
    "client.producer.oneway.OneWaySendExceptionIT",
    "client.producer.oneway.OneWaySendIT",
    "client.producer.oneway.OneWaySendWithMQIT",
    "client.producer.oneway.OneWaySendWithSelectorIT",
    "client.producer.order.OrderMsgDynamicRebalanceIT",
    "client.producer.order.OrderMsgIT",
    "client.producer.order.OrderMsgRebalanceIT",
    "client.producer.order.OrderMsgWithTagIT",
    "client.producer.querymsg.QueryMsgByIdExceptionIT",
    "client.producer.querymsg.QueryMsgByIdIT",
    "client.producer.querymsg.QueryMsgByKeyIT",
    "client.producer.transaction.TransactionalMsgIT",
    "delay.NormalMsgDelayIT",
    "offset.LagCalculationIT",
    "offset.OffsetNotFoundIT",
    "offset.OffsetResetForPopIT",
    "offset.OffsetResetIT",
    "recall.RecallWithTraceIT",
    "recall.SendAndRecallDelayMessageIT",
    "retry.PopConsumerRetryIT",
    "route.CreateAndUpdateTopicIT",
    "smoke.NormalMessageSendAndRecvIT",
]
"""The test classes, within ``org.apache.rocketmq.test``, that take the brokers of the class which is replaced."""


class Outcome(NamedTuple):
    """What became of a test: ``passed``, ``failed`` or ``ignored``; seconds; the first line of what failed."""

    test: str
    outcome: str
    seconds: int
    why: str


def installed() -> Path:
    """Fetch the tests with Maven and compile what runs them, unless that is done; returns the folder."""
    folder = install(VERSION).parent / f"suite-{VERSION}"
    sources = sorted(each for each in SOURCES.rglob("*") if each.is_file())
    wanted = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    mark = folder / "installed"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text() != wanted:
            require("javac", "mvn")
            shutil.rmtree(folder / "classes", ignore_errors=True)
            maven = subprocess.run(
                [
                    "mvn", "-B", "-ntp", "-q", "-f", SOURCES / "pom.xml", f"-Dpeers.home={folder}", "compile",
                    "dependency:copy-dependencies",
                ],
                capture_output=True,
                text=True,
            )  # fmt: skip
            if maven.returncode:
                raise PeerError(f"Maven cannot install the tests of RocketMQ {VERSION}:\n{tail(maven.stdout)}")
            mark.write_text(wanted)
    return folder


@contextmanager
def three_brokers(folder: Path) -> Iterator[str]:
    """A name server and three brokers as processes; yields the name server's address."""
    servers = Processes(folder, SMALL_FILES | SETTINGS)
    try:
        namesrv = servers.namesrv().address
        for name in "broker-a", "broker-b", "broker-c":
            servers.start(
                "broker", "start", "--namesrv", namesrv, "--listen", "127.0.0.1:0", "--store", str(folder / name),
                env={"ROCKETCORE_BROKER_NAME": name},
            )  # fmt: skip
        until(lambda: len(registered_brokers(namesrv)) == 3)
        yield namesrv
    finally:
        servers.end()


def run(namesrv: str, folder: Path, classes: Sequence[str], timeout: float) -> list[Outcome]:
    """Run test classes one after the other in one JVM; returns what became of each test, as far as the time went.

    folder   gets ``outcomes.tsv``, a line for each test as it ends, and the log of the JVM
    classes  names within ``org.apache.rocketmq.test``
    """
    home, log, lines = folder / "home", folder / "suite.log", folder / "outcomes.tsv"
    home.mkdir(exist_ok=True)
    tests = installed()
    command = [
        "java", f"@{HERE / 'conf' / 'jvm.options'}", "-Xmx1g", "-Dnet.bytebuddy.experimental=true",
        f"-Dpeers.namesrv={namesrv}", f"-Duser.home={home}", f"-Djava.io.tmpdir={home}", f"-Dpeers.log={log}",
        f"-Drocketmq.home.dir={home}", f"-Dlogback.configurationFile={SOURCES / 'logback.xml'}",
        f"-Drmq.logback.configurationFile={SOURCES / 'logback.xml'}",
        "-cp", f"{tests / 'classes'}:{tests / 'lib'}/*", "peers.Suite",
        *(f"org.apache.rocketmq.test.{name}" for name in classes),
    ]  # fmt: skip
    with log.open("ab") as errors, lines.open("wb") as out, contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, stdout=out, stderr=errors, timeout=timeout, cwd=home)
        if done.returncode:
            said = tail(log.read_text(errors="replace"))
            raise PeerError(f"the JVM of the tests ended with {done.returncode}:\n{said}")
    found = []
    for line in lines.read_text().splitlines():
        name, method, outcome, seconds, why = line.split("\t", 4)
        test = f"{name.removeprefix('org.apache.rocketmq.test.')}.{method}".rstrip(".")
        found.append(Outcome(test, outcome, int(seconds), why))
    return found


def by_class(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return what became of tests by their class."""
    found: dict[str, list[Outcome]] = {}
    for each in outcomes:
        name = each.test if each.test in CLASSES else each.test.rpartition(".")[0]
        found.setdefault(name, []).append(each)
    return found
