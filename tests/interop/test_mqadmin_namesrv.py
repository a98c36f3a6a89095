"""The verbs of mqadmin that a name server answers, of 4.9.7 and 5.5.0, on our servers and on Apache's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from tests.peers import ApacheCluster, JavaDriver
from tests.peers.driver import Completed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

CLUSTER, BROKER = "DefaultCluster", "broker-a"


@dataclass(frozen=True)
class Shell:
    """mqadmin of one version, pointed at the name server of one cluster."""

    driver: JavaDriver
    namesrv: str
    broker: str

    def run(self, verb: str, *options: str) -> str:
        """Run a verb that must succeed and return what it printed, with addresses and counts made equal."""
        done = self._run(verb, *options)
        assert done.exit_code == 0
        assert done.stderr == "", done
        text = re.sub(r"OK, \d+", "OK, N", done.stdout.replace(self.namesrv, "NAMESRV").replace(self.broker, "BROKER"))
        return text.strip()

    def fail(self, verb: str, *options: str) -> str:
        """Run a verb that must fail and return the code and text of the server's answer."""
        done = self._run(verb, *options)
        found = re.search(r"CODE: (\d+) +DESC: (.*)", done.stderr)
        assert found is not None, done
        return f"{found[1]} {found[2].strip()}"

    def _run(self, verb: str, *options: str) -> Completed:
        return self.driver.mqadmin(verb, "-n", self.namesrv, *options)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture(params=["5.5.0", "4.9.7"])
def driver(request: pytest.FixtureRequest, cluster: LocalCluster, java: Callable[[str, str], JavaDriver]) -> JavaDriver:
    return java(request.param, cluster.namesrv)


@pytest.fixture
def shells(driver: JavaDriver, cluster: LocalCluster, apache: ApacheCluster) -> tuple[Shell, Shell]:
    """The tool on our cluster, and on Apache's."""
    return (
        Shell(driver, cluster.namesrv, cluster.broker_addresses[0]),
        Shell(driver, apache.namesrv, apache.brokers[0]),
    )


@pytest.fixture
def topic(shells: tuple[Shell, Shell]) -> str:
    """A topic of four queues on both clusters."""
    name = f"Admin-{uuid4().hex[:12]}"
    for shell in shells:
        shell.run("updateTopic", "-c", CLUSTER, "-t", name, "-r", "4", "-w", "4")
    return name


def on_both(shells: tuple[Shell, Shell], verb: str, *options: str) -> str:
    """Run a verb on both clusters, which must print the same; returns it."""
    ours, apaches = (shell.run(verb, *options) for shell in shells)
    assert ours == apaches
    return ours


def test_cluster_list(shells: tuple[Shell, Shell], request: pytest.FixtureRequest) -> None:
    """On Apache's 5.5.0 broker the tool of 4.9.7 fails: it wants getTransferedTps, which only ours still says."""
    old_tool = request.node.callspec.params["driver"] == "4.9.7"
    for shell in shells[:1] if old_tool else shells:
        header, line = shell.run("clusterList").splitlines()
        assert header.split()[:3] == ["#Cluster", "Name", "#Broker"]
        assert line.split()[:4] == [CLUSTER, BROKER, "0", "BROKER"]
        assert re.match(r"V\d_\d", line.split()[4])
    ours, apaches = (re.sub(r" \d+", " 0", shell.run("clusterList", "-m")) for shell in shells)
    assert re.sub(" +", " ", ours) == re.sub(" +", " ", apaches)  # but for the messages that other tests have sent


def test_topic_list_and_delete_topic(shells: tuple[Shell, Shell], topic: str) -> None:
    for shell in shells:
        names = shell.run("topicList").split()
        assert {topic, "TBW102", CLUSTER, BROKER, "SCHEDULE_TOPIC_XXXX"} <= set(names)
        assert topic in shell.run("topicList", "-c").split()
    assert on_both(shells, "topicClusterList", "-t", topic) == CLUSTER
    on_both(shells, "deleteTopic", "-c", CLUSTER, "-t", topic)
    for shell in shells:
        assert topic not in shell.run("topicList").split()
        assert shell.fail("topicRoute", "-t", topic).startswith("17 No topic route info in name server for the topic:")


def test_topic_route(shells: tuple[Shell, Shell], topic: str) -> None:
    route = on_both(shells, "topicRoute", "-t", topic)
    assert '"BROKER"' in route
    assert '"readQueueNums":4' in route
    on_both(shells, "topicRoute", "-t", topic, "-l")


def test_key_values(shells: tuple[Shell, Shell], cluster: LocalCluster) -> None:
    namespace = f"ns-{uuid4().hex[:8]}"
    on_both(shells, "updateKvConfig", "-s", namespace, "-k", "key", "-v", "a value")
    with rmq.Admin(cluster.namesrv) as admin:
        assert admin.list_kv(namespace) == {"key": "a value"}
        on_both(shells, "deleteKvConfig", "-s", namespace, "-k", "key")
        assert admin.list_kv(namespace) == {}
    on_both(shells, "deleteKvConfig", "-s", namespace, "-k", "key")


def test_order_configuration(shells: tuple[Shell, Shell], topic: str) -> None:
    on_both(shells, "updateOrderConf", "-m", "put", "-t", topic, "-v", f"{BROKER}:4")
    assert f"{BROKER}:4" in on_both(shells, "updateOrderConf", "-m", "get", "-t", topic)
    on_both(shells, "updateOrderConf", "-m", "delete", "-t", topic)


def test_write_permission(shells: tuple[Shell, Shell], topic: str) -> None:
    on_both(shells, "wipeWritePerm", "-b", BROKER)
    assert '"perm":4' in on_both(shells, "topicRoute", "-t", topic)
    on_both(shells, "addWritePerm", "-b", BROKER)
    assert '"perm":6' in on_both(shells, "topicRoute", "-t", topic)
    on_both(shells, "wipeWritePerm", "-b", "nobody")


def test_name_server_settings(shells: tuple[Shell, Shell]) -> None:
    for shell in shells:
        shown = dict(re.findall(r"^(\w+) += +(.*)$", shell.run("getNamesrvConfig"), re.MULTILINE))
        assert {"kvConfigPath", "configStorePath", "enableTopicList", "waitSecondsForService"} <= shown.keys()
    on_both(shells, "updateNamesrvConfig", "-k", "waitSecondsForService", "-v", "46")
    for shell in shells:
        assert re.search(r"waitSecondsForService += +46$", shell.run("getNamesrvConfig"), re.MULTILINE)
    on_both(shells, "updateNamesrvConfig", "-k", "waitSecondsForService", "-v", "45")
    for key in ("kvConfigPath", "configStorePath", "rocketmqHome", "configBlackList"):
        for shell in shells:
            refusal = shell.fail("updateNamesrvConfig", "-k", key, "-v", "/tmp/elsewhere")
            assert refusal.startswith("16 Can not update config in black list.")


def test_broker_status(shells: tuple[Shell, Shell]) -> None:
    """The tool prints what the broker says; these names are read by the tools and dashboards around it."""
    read_by_others = {
        "bootTimestamp", "brokerActive", "brokerVersionDesc", "commitLogDirCapacity",
        "commitLogDiskRatio", "commitLogMaxOffset", "commitLogMinOffset", "consumeQueueDiskRatio",
        "dispatchBehindBytes", "earliestMessageTimeStamp", "getFoundTps", "getMissTps", "getTotalTps",
        "getTransferredTps", "msgGetTotalTodayMorning", "msgGetTotalTodayNow", "msgGetTotalYesterdayMorning",
        "msgPutTotalTodayMorning", "msgPutTotalTodayNow", "msgPutTotalYesterdayMorning", "pageCacheLockTimeMills",
        "pullThreadPoolQueueCapacity", "pullThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueSize",
        "putMessageAverageSize", "putMessageSizeTotal", "putMessageTimesTotal", "putTps", "runtime",
        "sendThreadPoolQueueCapacity", "sendThreadPoolQueueHeadWaitTimeMills", "sendThreadPoolQueueSize",
    }  # fmt: skip
    for shell in shells:
        lines = shell.run("brokerStatus", "-b", shell.broker).splitlines()
        shown = {name.strip() for name, _, _ in (line.partition(":") for line in lines)}
        assert read_by_others <= shown, read_by_others - shown
