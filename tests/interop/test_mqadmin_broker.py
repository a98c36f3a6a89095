"""The verbs of mqadmin that a broker answers, of 4.9.7 and 5.5.0, on our servers, with clients of ours online."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from tests.fixtures.topics import new_group, new_topic
from tests.peers import JavaDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


@dataclass(frozen=True)
class Scene:
    """A topic with four messages, a producer of theirs, and a consumer that has committed all of them."""

    driver: JavaDriver
    version: str
    namesrv: str
    broker: str
    topic: str
    producer: rmq.Producer
    consumer: rmq.PushConsumer
    sent: list[rmq.SendResult]

    @property
    def group(self) -> str:
        return self.consumer.config.group

    @property
    def queue_id(self) -> str:
        return str(self.sent[0].queue.queue_id)

    def run(self, verb: str, *options: str) -> str:
        """Run a verb that must succeed and return what it printed."""
        done = self.driver.mqadmin(verb, "-n", self.namesrv, *options)
        assert (done.exit_code, done.stderr) == (0, ""), done
        return done.stdout

    def refused(self, verb: str, *options: str) -> str:
        """Run a verb that must fail and return the code and text of the broker's answer."""
        done = self.driver.mqadmin(verb, "-n", self.namesrv, *options)
        found = re.search(r"CODE: (\d+) +DESC: (.*)", done.stderr)
        assert found is not None, done
        return f"{found[1]} {found[2].strip()}"

    def rows(self, verb: str, *options: str) -> list[list[str]]:
        """The lines that a verb prints below its head, in words."""
        return [line.split() for line in self.run(verb, *options).splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture(params=["5.5.0", "4.9.7"])
def scene(
    request: pytest.FixtureRequest, cluster: LocalCluster, java: Callable[[str, str], JavaDriver]
) -> Iterator[Scene]:
    topic = new_topic(cluster.namesrv)
    with (
        rmq.Producer(cluster.namesrv, group=new_group(), heartbeat_interval=0.2) as producer,
        rmq.PushConsumer(cluster.namesrv, group=new_group(), start_from="first", persist_interval=0.2) as consumer,
        rmq.Admin(cluster.namesrv) as admin,
    ):
        sent = [producer.send(topic, b"m%d" % number, tag="a", keys=f"k{number}") for number in range(4)]
        consumer.subscribe(topic, handler=lambda message: None)
        consumer.wait_ready()
        [broker] = next(iter(admin.cluster_info().broker_addr_table.values())).broker_addrs.values()
        wait_until_known(admin, producer.config.group, consumer.config.group, topic)
        version, namesrv = request.param, cluster.namesrv
        yield Scene(java(version, namesrv), version, namesrv, broker, topic, producer, consumer, sent)


def wait_until_known(admin: rmq.Admin, producers: str, consumers: str, topic: str) -> None:
    """Wait until a producer has said that it is there, and a group has committed four messages."""
    for _ in range(600):
        committed = sum(admin.consumer_offset(consumers, queue) or 0 for queue in admin.queues(topic))
        if committed == 4 and admin.producers(producers):
            return
        threading.Event().wait(0.05)
    pytest.fail(f"{committed} were committed")


def test_statistics(scene: Scene) -> None:
    topic, group = scene.topic, scene.group
    [row] = scene.rows("statsAll", "-t", topic)
    assert row[:3] == [topic, group, "0"]
    assert (float(row[3]) > 0, float(row[4]) > 0) == (True, True)
    assert row[5:] == ["4", "4"]
    rows = [row for row in scene.rows("brokerConsumeStats", "-b", scene.broker) if row[:2] == [topic, group]]
    assert rows
    assert sum(int(row[4]) for row in rows) == sum(int(row[5]) for row in rows) == 4
    told = scene.run("consumerProgress", "-g", group)
    assert "Consume Diff Total: 0" in told or "Diff Total: 0" in told
    status = scene.run("brokerStatus", "-b", scene.broker)
    for name in ("putTps", "getTransferredTps", "commitLogMaxOffset", "putLatency99", "remainHowManyDataToFlush"):
        assert re.search(rf"^{name} +: ", status, re.MULTILINE), name
    assert scene.broker in scene.run("clusterList")
    assert scene.run("clusterList", "-m")


def test_the_entries_of_a_queue(scene: Scene) -> None:
    options = ("-t", scene.topic, "-q", scene.queue_id, "-b", scene.broker, "-i", "0", "-c", "1")
    assert "ConsumeQueueData{physicOffset=" in scene.run("queryCq", *options)
    told = scene.run("queryCq", *options, "-g", scene.group)
    assert '"subString":"*"' in told.replace(" ", "")


def test_who_is_connected(scene: Scene) -> None:
    client = scene.consumer.client_id
    told = scene.run("consumerConnection", "-g", scene.group)
    assert client in told
    assert "PYTHON" in told
    assert scene.topic in told
    assert scene.producer.client_id in scene.run(
        "producerConnection", "-g", scene.producer.config.group, "-t", scene.topic
    )
    if scene.version == "5.5.0":
        listed = scene.run("producer", "-b", scene.broker)
        assert f"clientId={scene.producer.client_id},remoteIP=/127.0.0.1:" in listed
    info = scene.run("consumerStatus", "-g", scene.group, "-i", client, "-s")
    for part in ("PROP_CONSUME_TYPE", scene.topic, "#Consumer Offset#", "TID: "):
        assert part in info, part
    assert "Rebalance OK" in scene.run("consumerStatus", "-g", scene.group)


def test_offsets_are_moved_and_copied(scene: Scene) -> None:
    topic, group, copy = scene.topic, scene.group, f"G{uuid4().hex[:8]}"
    scene.run("updateSubGroup", "-b", scene.broker, "-g", copy)
    scene.run("cloneGroupOffset", "-s", group, "-d", copy, "-t", topic)
    with rmq.Admin(scene.namesrv) as admin:
        copied = [admin.consumer_offset(copy, queue) or 0 for queue in admin.queues(topic)]
        assert sum(copied) == 4
        scene.run("resetOffsetByTime", "-g", copy, "-t", topic, "-s", "0")
        assert [admin.consumer_offset(copy, queue) for queue in admin.queues(topic)] == [0] * len(copied)
        scene.run("skipAccumulatedMessage", "-g", copy, "-t", topic)
        assert [admin.consumer_offset(copy, queue) or 0 for queue in admin.queues(topic)] == copied
    assert scene.refused("resetOffsetByTime", "-g", f"No{copy}", "-t", topic, "-s", "0").startswith("26 ")


def test_single_messages(scene: Scene) -> None:
    topic, sent = scene.topic, scene.sent[0]
    assert sent.msg_id in scene.run("queryMsgByKey", "-t", topic, "-k", "k0")
    by_id = ("-i", sent.offset_msg_id) if scene.version == "4.9.7" else ("-t", topic, "-i", sent.offset_msg_id)
    assert f"Topic:               {topic}" in scene.run("queryMsgById", *by_id)
    told = scene.run("queryMsgById", *by_id, "-g", scene.group, "-d", scene.consumer.client_id)
    assert "consumeResult=CR_SUCCESS" in told
    assert "m0" in scene.run("printMsg", "-t", topic)


def test_messages_by_their_places(scene: Scene) -> None:
    topic, sent = scene.topic, scene.sent[0]
    assert f"Topic:               {topic}" in scene.run("queryMsgByUniqueKey", "-t", topic, "-i", sent.msg_id)
    place = ("-b", "broker-a", "-i", scene.queue_id, "-o", "0")
    assert sent.offset_msg_id in scene.run("queryMsgByOffset", "-t", topic, *place)
    told = scene.run("printMsgByQueue", "-t", topic, "-a", "broker-a", "-i", scene.queue_id, "-p", "true", "-d", "true")
    assert "m0" in told
    assert sent.msg_id in scene.run("consumeMessage", "-t", topic, *place, "-c", "1")
    assert scene.run("consumeMessage", "-t", topic, "-c", "9").count("MSGID: ") == 4


def test_it_sends(scene: Scene) -> None:
    topic = scene.topic
    [row] = scene.rows("sendMessage", "-t", topic, "-p", "hello", "-k", "k9", "-c", "a")
    assert (row[0], row[2]) == ("broker-a", "SEND_OK")
    told = scene.run("checkMsgSendRT", "-t", topic, "-a", "3", "-s", "16")
    assert len(re.findall(r"^broker-a .* true ", told, re.MULTILINE)) == 3
    assert scene.run("sendMsgStatus", "-b", "broker-a", "-s", "16", "-c", "2").count("sendStatus=SEND_OK") == 2
    with rmq.Admin(scene.namesrv) as admin:
        assert sum(admin.max_offset(queue) for queue in admin.queues(topic)) == 4 + 1 + 3


def test_topics_and_groups_change(scene: Scene) -> None:
    topic, group = scene.topic, f"G{uuid4().hex[:8]}"
    for perm in (4, 6):
        scene.run("updateTopicPerm", "-b", scene.broker, "-t", topic, "-p", str(perm))
        assert f'"perm":{perm}' in scene.run("topicRoute", "-t", topic).replace(" ", "")
    told = json.loads(scene.run("allocateMQ", "-t", topic, "-i", "10.0.0.1@1,10.0.0.2@2"))
    assert [len(queues) for queues in told["result"].values()] == [2, 2]
    scene.run("updateSubGroup", "-b", scene.broker, "-g", group)
    if scene.version == "5.5.0":
        told = scene.run("setConsumeMode", "-b", scene.broker, "-t", topic, "-g", group, "-m", "POP", "-q", "4")
        assert "consume mode[POP]" in told
    scene.run("deleteSubGroup", "-b", scene.broker, "-g", group)
    assert f"groupName={group}," not in scene.run("getConsumerConfig", "-g", group)
    assert "success" in scene.run("deleteExpiredCommitLog", "-b", scene.broker)


def test_settings(scene: Scene, tmp_path: Path) -> None:
    told = scene.run("getBrokerConfig", "-b", scene.broker)
    for name in ("brokerRole", "flushDiskType", "brokerPermission", "useTLS"):
        assert re.search(rf"^{name} +=", told, re.MULTILINE), name
    scene.run("updateBrokerConfig", "-b", scene.broker, "-k", "enablePropertyFilter", "-v", "true")
    assert re.search(r"^enablePropertyFilter += +true", scene.run("getBrokerConfig", "-b", scene.broker), re.MULTILINE)
    refusal = scene.refused("updateBrokerConfig", "-b", scene.broker, "-k", "storePathRootDir", "-v", "/tmp")
    assert refusal.startswith("16 Can not update config in black list.")
    assert scene.group in scene.run("getConsumerConfig", "-g", scene.group)
    for verb, file in (("exportMetadata", "metadata"), ("exportConfigs", "configs"), ("exportMetrics", "metrics")):
        scene.run(verb, "-c", "DefaultCluster", "-f", str(tmp_path))
        assert json.loads((tmp_path / f"{file}.json").read_text())
    for verb in ("cleanExpiredCQ", "cleanUnusedTopic"):
        assert "success" in scene.run(verb, "-b", scene.broker)


def test_lists_of_topics_and_groups(scene: Scene, tmp_path: Path) -> None:
    if scene.version != "5.5.0":
        pytest.skip("4.9 has no such verbs")
    topics, groups = (f"L{uuid4().hex[:8]}" for _ in range(2))
    (tmp_path / "topics").write_text(json.dumps([{"topicName": topics, "readQueueNums": 2, "writeQueueNums": 2}]))
    (tmp_path / "groups").write_text(json.dumps([{"groupName": groups}]))
    scene.run("updateTopicList", "-b", scene.broker, "-f", str(tmp_path / "topics"))
    scene.run("updateSubGroupList", "-b", scene.broker, "-f", str(tmp_path / "groups"))
    assert topics in scene.run("topicList").split()
    assert groups in scene.run("getConsumerConfig", "-g", groups)


def test_what_this_broker_has_none_of(scene: Scene) -> None:
    if scene.version != "5.5.0":
        pytest.skip("4.9 has no such verbs")
    told = scene.run("haStatus", "-b", scene.broker)
    assert re.search(r"#SlaveNum\s+0", told), told
    told = scene.run("getColdDataFlowCtrInfo", "-b", scene.broker)
    assert '"configTable":{}' in told.replace(" ", "")
    scene.run("updateColdDataFlowCtrGroupConfig", "-b", scene.broker, "-g", scene.group, "-v", "1")
    told = scene.run("getColdDataFlowCtrInfo", "-b", scene.broker)
    assert f'"{scene.group}":1' in told.replace(" ", "")
    scene.run("removeColdDataFlowCtrGroupConfig", "-b", scene.broker, "-g", scene.group)
    assert scene.group not in scene.run("getColdDataFlowCtrInfo", "-b", scene.broker)
    scene.run("setCommitLogReadAheadMode", "-b", scene.broker, "-m", "1")
    told = scene.run("getBrokerConfig", "-b", scene.broker)
    assert re.search(r"^dataReadAheadEnable += +false", told, re.MULTILINE), told
    assert "fail" not in scene.run("exportPopRecord", "-b", scene.broker, "-d", "true").lower()
