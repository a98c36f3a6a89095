"""Topics and groups of a cluster as a file, and back: ``rocket cluster export`` and ``import``, and ``Admin``."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rocketcore.admin import transfer
from rocketcore.admin.client import Admin, AsyncAdmin
from rocketcore.admin.metadata import ClusterMetadata, metadata_document, read_metadata
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import BrokerError, PartlyDone, PlanOutdated
from rocketcore.local import LocalCluster
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.command import RemotingCommand
from tests.fixtures.commands import Rocket, rocket_command

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
LISTS = (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)


class Codes:
    """Counts requests, and refuses those of some codes as a broker does that does not know them."""

    def __init__(self, *refused: int) -> None:
        self.sent: Counter[int] = Counter()
        self._refused = refused

    def before_request(self, address: str, command: RemotingCommand) -> None:
        self.sent[command.code] += 1
        if command.code in self._refused:
            raise BrokerError.of(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported", address)

    def after_response(self, address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        """Nothing to see."""


def metadata(topics: int, groups: int = 0, write_queues: int = 16) -> ClusterMetadata:
    """Return so many topics and groups of broker-a."""
    return ClusterMetadata(
        "DefaultCluster",
        {f"t{number}": {"broker-a": TopicConfig(f"t{number}", 16, write_queues)} for number in range(topics)},
        {f"g{number}": {"broker-a": SubscriptionGroupConfig(f"g{number}")} for number in range(groups)},
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster of two brokers, with an ordered topic on both, one on the first, and a group."""
    with LocalCluster(brokers=2) as running:
        with Admin(running.namesrv) as admin:
            admin.create_topic("orders", 4, order=True, attributes={"message.type": "FIFO"})
            admin.create_topic("bills", 2, broker="broker-a")
            admin.create_group("billing", retry_max_times=3)
        yield running


@pytest.fixture
def target() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


def test_what_was_exported_is_imported_elsewhere(
    rocket: Rocket,
    target: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text, err = rocket("cluster", "export")
    assert code == 0, err
    exported = json.loads(text)
    assert list(exported) == ["format", "cluster", "topics", "groups"]
    assert [(name, list(by_broker)) for name, by_broker in exported["topics"].items()] == [
        ("bills", ["broker-a"]),
        ("orders", ["broker-a", "broker-b"]),
    ]
    file = tmp_path / "cluster.json"
    file.write_text(text)
    other = rocket_command(target.namesrv, monkeypatch, capsys)
    assert other("cluster", "import", str(file), "--dry-run")[:2] == (0, "")
    code, out, err = other("cluster", "import", str(file), "--yes", "-o", "json")
    assert code == 0, err
    assert {(row["kind"], row["name"], row["broker"], row["action"]) for row in json.loads(out)} == {
        ("topic", "bills", "broker-a", "created"),
        ("topic", "orders", "broker-a", "created"),
        ("group", "billing", "broker-a", "created"),
    }
    again = json.loads(other("cluster", "export")[1])
    assert again["topics"]["orders"]["broker-a"] == exported["topics"]["orders"]["broker-a"]
    code, out, err = other("cluster", "import", "-", "-o", "json", stdin=text.encode())
    assert (code, {row["action"] for row in json.loads(out)}) == (0, {"unchanged"})
    assert "unchanged: 2 topics and 1 group" in err
    code, out, _ = other("cluster", "import", "-", "-o", "csv", stdin=text.encode())
    assert out.splitlines()[1:2] == ["topic,bills,broker-a,unchanged,"]
    with Admin(target.namesrv) as admin:
        assert admin.get_kv("ORDER_TOPIC_CONFIG", "orders") == "broker-a:4"
        assert admin.topics("DefaultCluster").count("orders") == 1


def test_many_go_in_few_requests(target: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = Codes()
    with Admin(target.namesrv, hooks=[codes]) as admin:
        wanted = metadata(200, 50)
        assert admin.import_metadata(admin.plan_import(wanted)).rows == ()
        del codes.sent[RequestCode.GET_TOPICS_BY_CLUSTER]  # as often as until they are listed
        assert sum(codes.sent.values()) < 15
        assert [codes.sent[code] for code in LISTS] == [1, 1]
        assert admin.export_metadata() == wanted
        monkeypatch.setattr(transfer, "_LIST_BYTES", 500)
        admin.import_metadata(admin.plan_import(metadata(7, write_queues=3)))
        assert 1 + 2 <= codes.sent[LISTS[0]] <= 1 + 7
        assert codes.sent[RequestCode.UPDATE_AND_CREATE_TOPIC] == 0
        assert [each["broker-a"].write_queue_nums for each in admin.export_metadata().topics.values()].count(3) == 7


def test_a_broker_that_knows_no_lists_is_asked_for_each(target: LocalCluster) -> None:
    async def scenario() -> None:
        codes = Codes(*LISTS)
        async with AsyncAdmin(target.namesrv, hooks=[codes]) as admin:
            wanted = metadata(40, 3)
            assert (await admin.import_metadata(await admin.plan_import(wanted))).rows == ()
            assert codes.sent[RequestCode.UPDATE_AND_CREATE_TOPIC] == 40
            assert codes.sent[RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP] == 3
            assert await admin.export_metadata() == wanted

    asyncio.run(scenario())


def test_what_one_refuses_does_not_keep_the_others(target: LocalCluster) -> None:
    with Admin(target.namesrv) as admin:
        topics = {
            name: {"broker-a": TopicConfig(name, attributes=attributes)}
            for name, attributes in (("a", {}), ("b", {"no.such": "1"}), ("c", {}))
        }
        wanted = ClusterMetadata("DefaultCluster", topics, {})
        plan = admin.plan_import(wanted)
        with pytest.raises(PartlyDone, match=r"done at broker-a \(2 topics\), not at broker-a \(1 topic\)") as caught:
            admin.import_metadata(plan)
        assert "'b'" in str(caught.value)
        assert list(admin.export_metadata().topics) == ["a", "c"]
        assert [(row.name, row.action) for row in admin.plan_import(wanted).changes] == [("b", "create")]
        only = replace(wanted, topics={"b": topics["b"]})
        with pytest.raises(BrokerError, match="'b'"):
            admin.import_metadata(admin.plan_import(only))


def test_a_change_is_shown_and_made(
    target: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rocket = rocket_command(target.namesrv, monkeypatch, capsys)
    with Admin(target.namesrv) as admin:
        admin.create_topic("orders", 4, attributes={"message.type": "FIFO"})
        admin.create_topic("kept", 2)
        admin.create_group("billing")
        file = metadata_document(admin.export_metadata())
        file["topics"]["orders"]["broker-a"] |= {"read_queues": 2, "perm": "r", "attributes": {}}
        file["groups"]["billing"]["broker-a"] |= {"max_retries": 3, "consume_enabled": False}
        del file["topics"]["kept"]
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps(file))
        code, out, err = rocket("cluster", "import", str(path))
        assert (code, out) == (2, "")
        assert (
            "change topic orders on broker-a: read queues 4 → 2, perm rw → r, attributes message.type=FIFO → –" in err
        )
        assert "change group billing on broker-a: consume enabled true → false, max retries 16 → 3" in err
        assert "messages in its queues beyond these cannot be read any more" in err
        assert "its members receive nothing any more" in err
        plan = admin.plan_import(read_metadata(path.read_bytes()))
        code, out, err = rocket("cluster", "import", str(path), "--yes", "-o", "json")
        assert code == 0, err
        changed = {row["name"]: row["settings"] for row in json.loads(out)}
        assert changed["billing"]["max_retries"] == {"before": 16, "after": 3}
        assert changed["orders"]["read_queues"] == {"before": 4, "after": 2}
        now = admin.export_metadata()
        assert "kept" in now.topics
        assert now.topics["orders"]["broker-a"].attributes == {}
        assert now.groups["billing"]["broker-a"].retry_max_times == 3
        with pytest.raises(PlanOutdated, match="topic 'orders' on broker-a has changed since"):
            admin.import_metadata(plan)
        assert admin.export_metadata() == now


def test_the_order_of_other_brokers_is_kept(cluster: LocalCluster) -> None:
    with Admin(cluster.namesrv) as admin:
        now = admin.export_metadata()
        first = {"broker-a": replace(now.topics["orders"]["broker-a"], write_queue_nums=6)}
        admin.import_metadata(admin.plan_import(replace(now, topics={"orders": first})))
        assert admin.get_kv("ORDER_TOPIC_CONFIG", "orders") == "broker-a:6;broker-b:4"
        admin.import_metadata(admin.plan_import(now))
        assert admin.export_metadata() == now


def test_the_file_of_the_page_is_one(rocket: Rocket) -> None:
    block = re.search(r"```json\n(\{\n  \"format\".*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    code, out, err = rocket("cluster", "import", "-", "--dry-run", stdin=block[1].encode())
    assert (code, out) == (0, ""), err
    assert "import into cluster DefaultCluster: " in err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"format": 1,', "line 1, column 14"),
        ("[]", "[] is not an object"),
        ("\xff", "byte 0: no UTF-8"),
        ('{"format": 1, "cluster": "c", "topics": {"t": {"b": {"colour": 1}}}}', "topics.t.b.colour: unknown setting"),
        (
            '{"format": 1, "cluster": "c", "topics": {"t": {"broker-a": {}, "other": {"order": true}}}}',
            "topic 't' has other settings on each of broker-a, other, and cluster 'DefaultCluster' has no other",
        ),
        ('{"format": 1, "cluster": "c", "topics": {"a b": {"broker-a": {}}}}', "'a b' may hold only"),
    ],
)
def test_a_bad_file_says_where(rocket: Rocket, tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "cluster.json"
    file.write_bytes(text.encode("latin-1"))
    code, out, err = rocket("cluster", "import", str(file), "--yes")
    assert (code, out) == (2, ""), err
    assert why in err


def test_what_is_not_there(rocket: Rocket, tmp_path: Path) -> None:
    assert rocket("cluster", "export", "--cluster", "nowhere")[0] == 3
    file = tmp_path / "cluster.json"
    assert rocket("cluster", "import", str(file))[0] == 2
    file.write_text('{"format": 1, "cluster": "c"}')
    assert rocket("cluster", "import", str(file), "--cluster", "nowhere")[0] == 3
    assert rocket("cluster", "export", "-o", "csv")[0] == 2
