"""Single messages: ``Admin.query_messages``, ``view_message``, ``message_at``; ``rocket message get`` and ``find``."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rocketcore import addresses, aio
from rocketcore.admin.client import Admin
from rocketcore.client.sync import Producer
from rocketcore.errors import ConfigError, ConnectError, QueryNotFound, RouteNotFound, TopicNotExist
from rocketcore.local import LocalCluster
from rocketcore.message import Message, MessageQueue, SendResult
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from tests.fixtures.commands import Rocket, rocket_command
from tests.integration.broker_client import running_broker


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def sent(cluster: LocalCluster) -> list[SendResult]:
    """Messages 0 to 9 of topic T, on both brokers."""
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("T", 1)
    with Producer(cluster.namesrv, group="p") as producer:
        return [
            producer.send(
                Message("T", f"hello {number}", tag="even" if number % 2 == 0 else "odd", keys=[f"k{number}", "all"]),
                queue=MessageQueue("T", f"broker-{'ab'[number % 2]}", 0),
            )
            for number in range(10)
        ]


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv) as admin:
        yield admin


@pytest.fixture
def rocket(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rocket:
    return rocket_command(cluster.namesrv, monkeypatch, capsys, "message")


def test_messages_of_all_brokers_are_found_in_the_order_of_their_times(sent: list[SendResult], admin: Admin) -> None:
    assert [message.text() for message in admin.query_messages("T", "k3")] == ["hello 3"]
    assert [message.text() for message in admin.query_messages("T", sent[4].msg_id)] == ["hello 4"]
    assert sorted(message.text() for message in admin.query_messages("T", tag="odd")) == [
        f"hello {number}" for number in (1, 3, 5, 7, 9)
    ]
    found = admin.query_messages("T", "all")
    assert [message.store_timestamp for message in found] == sorted(message.store_timestamp for message in found)
    assert {message.text() for message in found} == {f"hello {number}" for number in range(10)}
    newest = admin.query_messages("T", "all", max_messages=2)
    assert sorted(message.text() for message in newest) == [f"hello {number}" for number in (6, 7, 8, 9)]
    assert admin.query_messages("T", "none") == []


def test_times_limit_what_is_found(sent: list[SendResult], admin: Admin) -> None:
    now = datetime.now(UTC)
    assert len(admin.query_messages("T", "all", begin=now - timedelta(hours=1), end=now)) == 10
    assert admin.query_messages("T", "all", begin=now + timedelta(hours=1)) == []
    assert admin.query_messages("T", "all", end=1) == []


def test_a_message_is_found_by_either_of_its_ids_and_by_its_place(sent: list[SendResult], admin: Admin) -> None:
    for number, result in enumerate(sent):
        wanted = f"hello {number}"
        assert admin.view_message("T", result.msg_id).text() == wanted
        assert admin.view_message("T", result.offset_msg_id).text() == wanted
        assert admin.view_message(None, result.offset_msg_id.lower()).text() == wanted
        found = admin.message_at(result.queue, result.offset)
        assert (found.text(), found.queue, found.offset) == (wanted, result.queue, result.offset)


def test_what_is_not_there_is_not_found(sent: list[SendResult], admin: Admin) -> None:
    place = sent[0].offset_msg_id
    for topic, message_id in (("T", "F" * 32), (None, sent[0].msg_id), ("T", place[:-1] + "1"), ("T", "nothing")):
        with pytest.raises(QueryNotFound):
            admin.view_message(topic, message_id)
    with pytest.raises(QueryNotFound):
        admin.message_at(sent[0].queue, 99)
    with pytest.raises(QueryNotFound, match="topic T has no queue broker-a/9 to read"):
        admin.message_at(MessageQueue("T", "broker-a", 9), 0)
    with pytest.raises(RouteNotFound):
        admin.message_at(MessageQueue("T", "nobody", 0), 0)
    with pytest.raises(TopicNotExist):
        admin.query_messages("none", "all")


@pytest.mark.parametrize("taken", [False, True])
def test_a_message_is_found_by_its_place_after_its_broker_moved(tmp_path: Path, taken: bool) -> None:
    """Also where its old address is another broker's now."""

    async def main() -> None:
        async with NameServer(NameServerConfig(listen_port=0, rocketmq_home=tmp_path / "n")) as names:
            namesrv = names.address
            async with running_broker(tmp_path / "a", namesrv=namesrv) as client:
                port = addresses.split(client.broker.address)[1]
                async with aio.Producer(namesrv, group="p") as producer:
                    sent = await producer.send("T", b"here I am")
            # its port is taken before the broker starts again at a free one
            with socket.create_server(("127.0.0.1", 0 if taken else port)) as keeper:
                other: dict[str, Any] = {"listen_port": port if taken else 0, "broker_name": "broker-b"}
                async with (
                    running_broker(tmp_path / "b", namesrv=namesrv, **other),
                    running_broker(tmp_path / "a", namesrv=namesrv) as client,
                    aio.Admin(namesrv) as admin,
                ):
                    assert addresses.split(client.broker.address)[1] not in (port, keeper.getsockname()[1])
                    for topic in ("T", None):
                        assert (await admin.view_message(topic, sent.offset_msg_id)).text() == "here I am"
                    nowhere = f"{sent.offset_msg_id[:-2]}FF"
                    said = "no message has the id" if taken else f"names no registered broker .127.0.0.1:{port}"
                    with pytest.raises(QueryNotFound, match=said):
                        await admin.view_message(None, nowhere)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_what_cannot_be_asked(admin: Admin) -> None:
    for arguments in (
        {}, {"key": ""}, {"key": "a b"}, {"key": "a", "tag": "b"}, {"key": "a", "max_messages": 0},
        {"key": "a", "begin": 2, "end": 1},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            admin.query_messages("T", **arguments)
    with pytest.raises(ConfigError, match="'T' is not an offset_msg_id"):
        admin.view_message(None, "T")
    with pytest.raises(ConfigError):
        admin.view_message("T", "")


def test_the_same_on_asyncio(cluster: LocalCluster, sent: list[SendResult]) -> None:
    async def run() -> None:
        async with aio.Admin(cluster.namesrv) as admin:
            assert len(await admin.query_messages("T", "all")) == 10
            assert (await admin.view_message("T", sent[1].msg_id)).text() == "hello 1"

    asyncio.run(run())


def test_a_broker_that_does_not_answer_is_no_not_found(cluster: LocalCluster, sent: list[SendResult]) -> None:
    nobody = {cluster.broker_addresses[1]: "127.0.0.1:1"}
    with Admin(cluster.namesrv, broker_address_map=nobody) as admin:
        assert admin.view_message("T", sent[0].msg_id).text() == "hello 0"
        for ask in (lambda: admin.view_message("T", sent[1].msg_id), lambda: admin.query_messages("T", "k0")):
            with pytest.raises(ConnectError):
                ask()


# ---------------------------------------------------------------------- commands


def test_find_shows_a_list(rocket: Rocket, sent: list[SendResult]) -> None:
    code, out, _ = rocket("find", "T", "--key", "k3", "-o", "json")
    assert code == 0
    (row,) = json.loads(out)
    assert set(row) == {
        "topic", "broker", "queue_id", "offset", "msg_id", "tag", "keys", "properties", "born_at", "stored_at",
        "reconsume_times", "body",
    }  # fmt: skip
    assert (row["broker"], row["offset"], row["body"], row["keys"]) == ("broker-b", 1, "hello 3", ["k3", "all"])
    assert len(rocket("find", "T", "--tag", "even", "-o", "jsonl")[1].splitlines()) == 5
    assert rocket("find", "T", "-k", "k3", "-o", "name") == (0, f"{sent[3].msg_id}\n", "")
    code, out, _ = rocket("find", "T", "-k", "all", "--since", "1h", "--until", "now", "-n", "1")
    assert [line.split()[2:5] for line in out.splitlines()[1:]] == [
        [str(sent[number].offset), sent[number].msg_id, sent[number].queue and ("even", "odd")[number % 2]]
        for number in (8, 9)
    ]


def test_find_that_finds_nothing(rocket: Rocket, sent: list[SendResult]) -> None:
    code, out, err = rocket("find", "T", "-k", "none")
    assert (code, out) == (3, "")
    assert "no message of topic T has key 'none'" in err
    code, out, err = rocket("find", "T", "-t", "none", "--until", "2020-01-01", "-o", "json")
    assert (code, out) == (3, "")
    assert json.loads(err)["error"]["code"] == "NOT_FOUND"
    assert rocket("find", "nothing", "-k", "a")[0] == 3
    code, _, err = rocket("find", "T", "-k", "all", "--since", "2024-01-02", "--until", "2024-01-01")
    assert (code, "--since 2024-01-02T00:00:00.000Z is later than --until 2024-01-01T" in err) == (2, True), err
    assert rocket("find", "T")[0] == rocket("find", "T", "-k", "a", "-t", "b")[0] == 2


def test_get_shows_one_message(rocket: Rocket, sent: list[SendResult]) -> None:
    result = sent[2]
    place = f"{result.queue.broker}/{result.queue.queue_id}/{result.offset}"
    for arguments in (
        ("get", result.offset_msg_id),
        ("get", result.offset_msg_id, "--topic", "T"),
        ("get", result.msg_id, "--topic", "T"),
        ("get", "T", "--at", place),
    ):
        code, out, _ = rocket(*arguments, "-o", "json")
        assert code == 0
        value = json.loads(out)
        assert (value["topic"], value["msg_id"], value["body"]) == ("T", result.msg_id, "hello 2")
        assert rocket(*arguments, "-o", "name") == (0, f"{result.msg_id}\n", "")
    code, out, _ = rocket("get", "T", "--at", place)
    assert dict(line.split(maxsplit=1) for line in out.splitlines())["BODY"] == "hello 2"


def test_get_of_what_is_not_there(rocket: Rocket, sent: list[SendResult]) -> None:
    for arguments in (
        ("get", sent[0].msg_id),
        ("get", "F" * 32, "--topic", "T"),
        ("get", "T", "--at", "broker-a/0/99"),
        ("get", "T", "--at", "broker-a/9/0"),
        ("get", "T", "--at", "nobody/0/0"),
        ("get", "none", "--at", "broker-a/0/0"),
    ):
        code, out, err = rocket(*arguments)
        assert (code, out) == (3, ""), err
    assert rocket("get", "T", "--at", "broker-a")[0] == 2
    code, _, err = rocket("get", "T")
    assert (code, "if it is a topic, give --at BROKER/QUEUE/OFFSET" in err) == (2, True), err
    assert rocket("get", "T", "--at", "broker-a/0/0", "--topic", "T")[0] == 2
    assert rocket("get")[0] == 2
