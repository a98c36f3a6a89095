"""Apache RocketMQ's own integration tests, on our name server and brokers: which pass, and why the others do not.

``make apache-tests`` runs all; the usual run a few that take seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.apache import require_java
from tests.interop import suite

QUICK = (
    "client.producer.exception.msg.ChinaPropIT",
    "client.consumer.pop.PopBigMessageIT",
)
"""One of producers and one of consumers. The others of POP wait for 15 s in each test, or run for no other test."""

JVM = "takes a part of the broker's for an object of its own JVM"
NO_BATCH_QUEUES = "makes a topic of batches (queue.type=BatchCQ), which our broker refuses"
KNOWN: dict[str, dict[str, str]] = {
    "client.consumer.pop.PopOrderlyIT": {
        "testPopMessageOrderlyThenChangeInvisibleTimeMidMessage": (
            "waits for acknowledged messages to come again; here they do not (docs/pop.md)"
        ),
    },
    "client.producer.batch.BatchSendIT": {
        "testBatchSend_ViewMessage": JVM,
        "testBatchSend_SysInnerBatch": NO_BATCH_QUEUES,
        "testBatchSend_SysOuterBatch": JVM,
    },
    "route.CreateAndUpdateTopicIT": {
        "testStaticTopicNotAffected": "static topics are not there; it looks for a name server in its JVM, too",
    },
    "offset.LagCalculationIT": {"testCalculateLag": JVM, "testEstimateLag": JVM},
    "offset.OffsetResetForPopIT": {
        "testResetOffsetThenAckOldForPopOrderly": JVM,
        "testRestOffsetToSkipMsgForPopOrderly": JVM,
    },
    "offset.OffsetNotFoundIT": {
        "testConsumeStopAndResume": "registers a hook in the broker's JVM, which has it refuse request 14",
    },
}
"""By class, the tests that do not pass, and why."""
NOT_RUN = {
    "client.consumer.pop.PopPriorityIT": "messages have no priorities here",
    "smoke.NormalMessageSendAndRecvIT": "starts brokers in its own JVM",
}
"""Classes that are left out. Those of containers, DLedger, the proxy, TLS and static topics start servers, too."""


def classes() -> list[str]:
    """The classes of the package that take the brokers that are there."""
    return suite.CLASSES


def test_every_class_that_is_spoken_of_is_there() -> None:
    assert {*KNOWN, *NOT_RUN, *QUICK} <= {*classes()}
    assert len(classes()) == 60


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[suite.Outcome]]]:
    """What became of all, class by class."""
    require_java()
    folder = tmp_path_factory.mktemp("apache-tests")
    with suite.three_brokers(folder) as namesrv:
        yield suite.by_class(suite.run(namesrv, folder, [each for each in classes() if each not in NOT_RUN], 3000))


def check(name: str, found: list[suite.Outcome]) -> None:
    """A class has run, and what fails is what is known to, no more and no less."""
    assert found
    failed = {each.test.rpartition(".")[2]: each.why for each in found if each.outcome == "failed"}
    assert failed.keys() == KNOWN.get(name, {}).keys(), failed


@pytest.mark.apache_tests
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [each for each in classes() if each not in NOT_RUN])
def test_a_class(outcomes: dict[str, list[suite.Outcome]], name: str) -> None:
    check(name, outcomes.get(name, []))


@pytest.mark.interop
@pytest.mark.timeout(400)
def test_some_that_are_quick(tmp_path: Path) -> None:
    require_java()
    with suite.three_brokers(tmp_path) as namesrv:
        found = suite.by_class(suite.run(namesrv, tmp_path, QUICK, 300))
    for name in QUICK:
        check(name, found.get(name, []))
