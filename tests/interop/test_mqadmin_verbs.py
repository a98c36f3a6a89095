"""Every verb of mqadmin, of 4.9.7 and 5.5.0: run on our servers somewhere in this folder, refused here, or not run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from tests.fixtures.topics import new_topic
from tests.peers import JavaDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

VERSIONS = ("5.5.0", "4.9.7")
ON_BROKER = ("-b", "BROKER")
USER = ("-u", "someone")
RULE = ("-s", "User:someone", "-r", "Topic:*", "-a", "Pub", "-d", "Allow")
COPY = ("-f", "BROKER", "-t", "BROKER")

NOT_SERVED: dict[str, tuple[int, tuple[str, ...]]] = {
    "updateAclConfig": (50, (*ON_BROKER, "-a", "someone-known", "-s", "a-secret-key")),
    "deleteAclConfig": (51, (*ON_BROKER, "-a", "someone-known")),
    "clusterAclConfigVersion": (52, ON_BROKER),
    "updateGlobalWhiteAddr": (53, (*ON_BROKER, "-g", "10.0.0.1")),
    "getAclConfig": (54, ON_BROKER),
    "checkRocksdbCqWriteProgress": (354, ("-c", "DefaultCluster", "-t", "TOPIC")),
    "rocksDBConfigToJson": (355, ("-c", "DefaultCluster", "-t", "topics")),
    "addBroker": (902, ("-c", "BROKER", "-b", "/etc/broker.conf")),
    "removeBroker": (903, ("-c", "BROKER", "-b", "DefaultCluster:broker-a:0")),
    "resetMasterFlushOffset": (908, (*ON_BROKER, "-o", "0")),
    "getBrokerEpoch": (1007, ("-b", "broker-a")),
    "createUser": (3001, (*ON_BROKER, *USER, "-p", "a-secret-key")),
    "updateUser": (3002, (*ON_BROKER, *USER, "-p", "a-secret-key")),
    "deleteUser": (3003, (*ON_BROKER, *USER)),
    "getUser": (3004, (*ON_BROKER, *USER)),
    "listUser": (3005, ON_BROKER),
    "copyUser": (3005, COPY),
    "createAcl": (3006, (*ON_BROKER, *RULE)),
    "updateAcl": (3007, (*ON_BROKER, *RULE)),
    "deleteAcl": (3008, (*ON_BROKER, "-s", "User:someone")),
    "getAcl": (3009, (*ON_BROKER, "-s", "User:someone")),
    "listAcl": (3010, ON_BROKER),
    "copyAcl": (3010, COPY),
    "switchTimerEngine": (5001, (*ON_BROKER, "-e", "F")),
    "getBrokerLiteInfo": (200074, ON_BROKER),
}
"""Verbs whose request our brokers do not serve: its code, and options that have the tool send it."""

LITE = {
    "getParentTopicInfo": ("-p", "TOPIC"),
    "getLiteTopicInfo": ("-p", "TOPIC", "-l", "lite"),
    "getLiteClientInfo": ("-p", "TOPIC", "-g", "group", "-c", "client"),
    "getLiteGroupInfo": ("-p", "TOPIC", "-g", "group"),
    "triggerLiteDispatch": ("-p", "TOPIC", "-g", "group"),
}
"""Verbs of lite topics, which our brokers do not serve either: the tool prints no more than that there was an error."""

ENDLESS = "goes on until it is ended"
FILES = "reads files that only Apache's broker writes"
STATIC = "static topics are not there"
CONTROLLER = "asks a controller, which is not there"
NOT_RUN = {
    "clusterRT": ENDLESS,
    "startMonitoring": ENDLESS,
    "dumpCompactionLog": FILES,
    "exportMetadataInRocksDB": FILES,
    "updateStaticTopic": STATIC,
    "remappingStaticTopic": STATIC,
    "getSyncStateSet": CONTROLLER,
    "getControllerMetaData": CONTROLLER,
    "getControllerConfig": CONTROLLER,
    "updateControllerConfig": CONTROLLER,
    "electMaster": CONTROLLER,
    "cleanBrokerMetadata": CONTROLLER,
}
"""Verbs that no test runs, and why."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture(params=VERSIONS)
def driver(request: pytest.FixtureRequest, cluster: LocalCluster, java: Callable[[str, str], JavaDriver]) -> JavaDriver:
    return java(request.param, cluster.namesrv)


def verbs(driver: JavaDriver) -> list[str]:
    """The verbs that the tool lists."""
    return re.findall(r"^ {3}(\w+) +\S", driver.mqadmin().stdout, re.MULTILINE)


def test_every_verb_is_run_or_named(driver: JavaDriver) -> None:
    sources = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
    listed = verbs(driver)
    assert len(listed) > 50
    named = NOT_SERVED.keys() | LITE.keys() | NOT_RUN.keys()
    assert [verb for verb in listed if verb not in named and f'"{verb}"' not in sources] == []
    assert [verb for verb in named if f'"{verb}"' in sources] == []


def test_what_is_not_served_is_told(driver: JavaDriver, cluster: LocalCluster) -> None:
    topic, [broker] = new_topic(cluster.namesrv), cluster.broker_addresses
    listed = verbs(driver)

    def told(verb: str, options: tuple[str, ...]) -> str:
        words = [each.replace("BROKER", broker).replace("TOPIC", topic) for each in options]
        done = driver.mqadmin(verb, "-n", cluster.namesrv, *words)
        return done.stdout + done.stderr

    for verb, (code, options) in NOT_SERVED.items():
        if verb in listed:
            said = told(verb, options)
            assert f"request type {code} not supported" in said, (verb, said)
    for verb, options in LITE.items():
        if verb in listed:
            said = told(verb, options)
            assert re.search(r"broker-a\W* +error", said), (verb, said)
    with rmq.Admin(cluster.namesrv) as admin:
        assert topic in admin.topics()
