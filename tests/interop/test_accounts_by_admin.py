"""Users, policies and accounts on brokers of Apache's with access control: 5.5.0 and 4.9.7."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore.errors import NoPermission
from tests.fixtures.apache import require_java
from tests.fixtures.commands import Rocket, rocket_command
from tests.fixtures.topics import new_group
from tests.peers import ApacheCluster
from tests.peers.apache import Account

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

ACCOUNT = Account("rocketadmin", "s3cret-key-1")


@pytest.fixture(scope="module", params=["5.5.0", "4.9.7"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    require_java()
    folder: Path = tmp_path_factory.mktemp("guarded")
    with ApacheCluster(request.param, folder, acl=ACCOUNT) as cluster:
        yield cluster


@pytest.fixture
def rocket(guarded: ApacheCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rocket:
    monkeypatch.setenv("ROCKET_ACCESS_KEY", ACCOUNT.access_key)
    monkeypatch.setenv("ROCKET_SECRET_KEY", ACCOUNT.secret_key)
    monkeypatch.setenv("ANNS", "anns-secret-1")
    return rocket_command(guarded.namesrv, monkeypatch, capsys, "-o", "json", "-q")


def shown(rocket: Rocket, *arguments: str) -> Any:
    code, out, err = rocket(*arguments)
    assert code == 0, err
    return json.loads(out)


def send(guarded: ApacheCluster, topic: str) -> bool:
    with rmq.Producer(
        guarded.namesrv, group=new_group(), access_key="anna-maria", secret_key="anns-secret-1", trace=False
    ) as producer:
        return bool(producer.send(topic, b"x"))


def test_users_and_policies(guarded: ApacheCluster, rocket: Rocket) -> None:
    if guarded.version != "5.5.0":
        assert rocket("user", "list")[0] == 1
        pytest.skip("4.9 has no users")
    shown(rocket, "topic", "create", "Guarded", "--queues", "1")
    created = shown(rocket, "user", "create", "anna-maria", "--password-env", "ANNS")
    assert (created["user"], created["brokers"]) == ("anna-maria", guarded.brokers)
    assert {row["user"]: row["type"] for row in shown(rocket, "user", "list")} == {
        "anna-maria": "Normal",
        ACCOUNT.access_key: "Super",
    }
    assert shown(rocket, "user", "show", "anna-maria")["policies"] == []
    with pytest.raises(NoPermission):
        send(guarded, "Guarded")
    shown(rocket, "acl", "grant", "anna-maria", "Topic:Guarded", "Pub")
    assert send(guarded, "Guarded")
    [row] = shown(rocket, "acl", "list", "--subject", "User:anna-maria")
    assert (row["resource"], row["actions"], row["decision"]) == ("Topic:Guarded", ["Pub"], "Allow")
    assert shown(rocket, "acl", "revoke", "anna-maria", "Topic:Guarded", "--yes")["policies"] == 1
    assert rocket("acl", "revoke", "anna-maria", "--yes")[0] == 3
    assert shown(rocket, "user", "update", "anna-maria", "--status", "disable")["status"] == "disable"
    assert shown(rocket, "user", "show", "anna-maria")["status"] == "disable"
    assert shown(rocket, "user", "delete", "anna-maria", "--yes")["deleted_on"] == guarded.brokers
    assert rocket("user", "show", "anna-maria")[0] == 3


def test_accounts_of_4(guarded: ApacheCluster, rocket: Rocket) -> None:
    if guarded.version == "5.5.0":
        code, _, err = rocket("acl", "account", "list")
        assert (code, "NO_ACCOUNTS" in err) == (1, True)
        pytest.skip("5.5.0 has no accounts of 4.x")
    put = ("acl", "account", "put", "anna-maria", "--password-env", "ANNS", "--topics", "PUB|SUB", "--group", "g=SUB")
    assert shown(rocket, *put)["brokers"] == guarded.brokers
    [row] = [row for row in shown(rocket, "acl", "account", "list") if row["access_key"] == "anna-maria"]
    assert (row["default_topic_perm"], row["group_perms"], row["admin"]) == ("PUB|SUB", ["g=SUB"], False)
    shown(rocket, "topic", "create", "Guarded", "--queues", "1")
    assert send(guarded, "Guarded")
    assert shown(rocket, "acl", "account", "delete", "anna-maria", "--yes")["access_key"] == "anna-maria"
    assert rocket("acl", "account", "delete", "anna-maria", "--yes")[0] == 3
