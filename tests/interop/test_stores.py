"""One store, opened in turn by our broker and Apache's, after a clean stop and after kill -9: every message is served.

Apache's broker runs with ``forceVerifyPropCRC`` where all records have their checksum: it then cuts the log off at the
first record that has none or a wrong one.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import rocketcore as rmq
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.notes.checkpoint import Checkpoint
from rocketcore.cli.main import run
from tests.fixtures.apache import require_java
from tests.fixtures.processes import Processes, RocketProcess
from tests.peers import ApacheCluster, JavaDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

TOPIC = "OneStore"
KEYS = [f"key-{number}" for number in range(60)]
PLAIN = {"ROCKETCORE_ENABLED_APPEND_PROP_CRC": "false"}


class Store:
    """A store folder, the messages sent to it, and a name server for whoever has it open."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self.processes = processes
        self.folder = folder
        self.root = folder / "store"
        self.namesrv = processes.namesrv().address
        self.sent: list[bytes] = []
        self._brokers = 0

    @contextmanager
    def ours(self, end: str, env: dict[str, str] | None = None) -> Iterator[RocketProcess]:
        options = ("--name", "broker-a", "--cluster", "DefaultCluster", "--store", str(self.root))
        broker = self.processes.start(
            "broker", "start", "--namesrv", self.namesrv, "--listen", "127.0.0.1:0", *options, env=env
        )
        yield broker
        if end == "kill":
            broker.kill()
        else:
            assert broker.stop() == 0

    @contextmanager
    def apache(self, version: str, end: str, **settings: object) -> Iterator[None]:
        self._brokers += 1
        paths = {"storePathRootDir": self.root, "storePathCommitLog": self.root / "commitlog"}
        # The store's folders of consume queues and index are where the root is.
        paths |= {"storePathConsumeQueue": self.root / "consumequeue", "storePathIndex": self.root / "index"}
        with ApacheCluster(
            version,
            self.folder / f"apache-{self._brokers}",
            namesrv=self.namesrv,
            extra_broker_conf={**paths, "flushDiskType": "SYNC_FLUSH", **settings},
        ) as cluster:
            yield
            cluster.kill_broker(0, graceful=end == "stop")

    def send(self, count: int = 60) -> None:
        """Send messages of many sizes, singly and as batches, with properties and tags."""
        with rmq.Producer(self.namesrv, group="one-store") as producer:
            for number in range(count):
                body = b"%06d" % len(self.sent) + b"\xa5" * (number * 337 % 9000)
                message = rmq.Message(TOPIC, body, tag="Tag", keys=[f"key-{number}"], properties={"name": "välue"})
                producer.send(message)
                self.sent.append(body)
            bodies = [b"%06d in a batch" % (len(self.sent) + number) for number in range(20)]
            producer.send_batch([rmq.Message(TOPIC, body, properties={"b": "1"}) for body in bodies])
            self.sent += bodies

    def receive(self) -> list[bytes]:
        """Return every message of the topic, in order; stops when there are as many as were sent, or after 20 s."""
        received: list[bytes] = []
        with rmq.PullConsumer(self.namesrv, group=f"g-{uuid4().hex[:12]}", start_from="first") as consumer:
            consumer.subscribe(TOPIC)
            while len(received) < len(self.sent):
                batch = consumer.poll(timeout=20.0)
                if not batch:
                    break
                received += [message.body for message in batch]
        return sorted(received)

    def found(self) -> dict[str, set[bytes]]:
        """Return which of the numbers that messages begin with are found by each key.

        A broker of Apache's indexes what it has acknowledged, and says nowhere how far it came: until all are found, or
        for 20 s, it is asked again.
        """
        until = time.monotonic() + 20
        with rmq.Admin(self.namesrv, timeout=30) as admin:
            while True:
                found = {key: {one.body[:6] for one in admin.query_messages(TOPIC, key)} for key in KEYS}
                if found == self.sent_by_key() or time.monotonic() > until:
                    return found

    def sent_by_key(self) -> dict[str, set[bytes]]:
        """Return those of the numbers that were sent with each key: ``send`` gives the same keys each time."""
        rounds = range(0, len(self.sent), 80)
        return {key: {b"%06d" % (begin + number) for begin in rounds} for number, key in enumerate(KEYS)}

    def index_files(self) -> list[str]:
        return sorted(path.name for path in (self.root / "index").iterdir())

    def damaged_bytes(self, broker: RocketProcess) -> int:
        (found,) = re.findall(r"store loaded .*damaged_bytes=(\d+)", broker.log.read_text())
        return int(found)


@pytest.fixture
def store(processes: Processes, tmp_path: Path) -> Store:
    require_java()
    opened = Store(processes, tmp_path)
    with opened.ours("stop"), rmq.Admin(opened.namesrv) as admin:
        admin.create_topic(TOPIC, queues=1)
    return opened


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_store_with_checksums_goes_to_apache_and_back(store: Store, end: str) -> None:
    with store.ours(end):
        store.send()
    with store.apache("5.5.0", end, forceVerifyPropCRC="true", enabledAppendPropCRC="true"):
        assert store.receive() == sorted(store.sent)
        store.send()
        assert store.receive() == sorted(store.sent)
    if end == "stop":
        # A killed one may not have come to write it.
        checkpoint = Checkpoint.read(store.root / "checkpoint", FileSystem())
        assert (checkpoint.begin_offset, checkpoint.rocketmq_ran) == (0, True)
    with store.ours(end) as broker:
        assert store.damaged_bytes(broker) == 0
        assert store.receive() == sorted(store.sent)
        store.send()
    with store.apache("5.5.0", end, forceVerifyPropCRC="true"):
        assert store.receive() == sorted(store.sent)
        store.send()  # without checksums, as Apache's brokers do by default
    with store.ours(end) as broker:
        assert store.damaged_bytes(broker) == 0
        assert store.receive() == sorted(store.sent)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_store_without_checksums_goes_to_4_9_and_back(store: Store, end: str) -> None:
    with store.ours(end, PLAIN):
        store.send()
    with store.apache("4.9.7", end):
        assert store.receive() == sorted(store.sent)
        store.send()
    with store.ours(end, PLAIN) as broker:
        assert store.damaged_bytes(broker) == 0
        assert store.receive() == sorted(store.sent)


# Each release and each end once: of what an end leaves behind, releases differ in nothing that is read here.
@pytest.mark.parametrize(("version", "end"), [("5.5.0", "kill"), ("4.9.7", "stop")])
def test_a_store_of_apaches_is_verified_and_repaired(
    store: Store, version: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with store.apache(version, end):
        store.send()
        store.send()
    said = verified(store, 0, capsys)
    assert said["messages"] >= said["served"] >= len(store.sent)
    assert (said["damaged"], said["lost"]) == ([], [])
    assert end == "kill" or said["unsaved"] == 0
    units = store.root / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    with units.open("r+b") as file:
        file.seek(20 * 7)
        file.write(bytes(20))
    assert [(each["file"], each["position"], each["bytes"]) for each in verified(store, 1, capsys)["damaged"]] == [
        (str(units.relative_to(store.root)), 140, 20)
    ]
    after = verified(store, 0, capsys, "--repair")
    assert after["served"] == said["served"]
    with store.apache(version, "stop"):
        assert store.receive() == sorted(store.sent)


def verified(store: Store, code: int, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """Verify the folder of a broker that does not run, and return what is said of it."""
    assert run(["broker", "verify", str(store.root), "-o", "json", *options]) == code
    said = json.loads(capsys.readouterr().out)
    assert isinstance(said, dict)
    return said


def test_apache_walks_over_bridged_damage(store: Store) -> None:
    with store.ours("kill"):
        store.send()
    lost = store.sent[30]
    log = store.root / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        data = file.read()
        file.seek(data.index(lost) - 60)
        file.write(b"\xff" * 100)
    with store.ours("stop") as broker:
        assert store.damaged_bytes(broker) > len(lost)
        store.sent.remove(lost)
        assert store.receive() == sorted(store.sent)
        store.send()
    # Apache's broker takes a blank in a queue for a message that was deleted with its log file, and skips what lies in
    # the same file: where that is the first one, the queues are left to it to build.
    shutil.rmtree(store.root / "consumequeue")
    with store.apache("5.5.0", "kill", forceVerifyPropCRC="true"):
        assert store.receive() == sorted(store.sent)


# Each release and each end once: index files are of one format, and a killed broker's are not taken over from either.
@pytest.mark.parametrize(("version", "end"), [("5.5.0", "stop"), ("4.9.7", "kill")])
def test_messages_are_found_by_key_by_whoever_has_the_store(store: Store, version: str, end: str) -> None:
    plain = PLAIN if version == "4.9.7" else None
    with store.ours(end, plain):
        store.send()
        assert store.found() == store.sent_by_key()
    ours = store.index_files()
    with store.apache(version, end):
        assert store.found() == store.sent_by_key()
        store.send()
        assert store.found() == store.sent_by_key()
        if end == "stop":
            assert store.index_files() == ours
    with store.ours(end, plain):
        assert store.found() == store.sent_by_key()
        if end == "stop":
            assert store.index_files() == ours
        store.send()
        assert store.found() == store.sent_by_key()
    with store.apache(version, "kill"):
        assert store.found() == store.sent_by_key()


@pytest.mark.parametrize("ours", [True, False])
def test_java_finds_messages_by_key_and_id(store: Store, ours: bool) -> None:
    with store.ours("stop"):
        with rmq.Producer(store.namesrv, group="ids") as producer:
            sent = [producer.send(rmq.Message(TOPIC, f"{number}", keys=["a", f"k{number}"])) for number in range(5)]
        with rmq.Admin(store.namesrv) as admin:
            for number, result in enumerate(sent):
                for message_id in (result.msg_id, result.offset_msg_id):
                    assert admin.view_message(TOPIC, message_id).body == b"%d" % number
                place = admin.message_at(result.queue, result.offset)
                assert place.body == b"%d" % number
        if ours:
            check_java(store, sent, "msg_id", "offset_msg_id")
    if not ours:
        # An offset id holds the address of the broker that stored the message.
        with store.apache("5.5.0", "kill"):
            check_java(store, sent, "msg_id")


def check_java(store: Store, sent: list[rmq.SendResult], *ids: str) -> None:
    """Apache's client finds the messages, and so does ours."""
    with JavaDriver("5.5.0", store.namesrv) as java:
        times = {"begin": 0, "end": (1 << 62)}
        found = java.call("admin.queryByKey", topic=TOPIC, key="a", max=32, **times)["messageList"]
        assert sorted(message["msgId"] for message in found) == sorted(result.msg_id for result in sent)
        for number, result in enumerate(sent):
            for message_id in (getattr(result, name) for name in ids):
                body = java.call("admin.viewMessage", topic=TOPIC, msgId=message_id)["body"]
                assert base64.b64decode(body) == b"%d" % number
    with rmq.Admin(store.namesrv) as admin:
        for number, result in enumerate(sent):
            assert admin.view_message(TOPIC, result.msg_id).body == b"%d" % number
