"""What is asked of brokers about accounts, and how answers in Apache's form are read (5.5.0, 4.9.7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rocketcore.admin.accounts import Policy
from rocketcore.admin.client import AsyncAdmin
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import ConfigError, PartlyDone, RequestNotSupported, RequestTimeout, RouteNotFound
from rocketcore.protocol.bodies.route import BrokerData, ClusterInfo
from rocketcore.protocol.command import RemotingCommand

CLUSTER = ClusterInfo(
    {"a": BrokerData("C", "a", {0: "m:1", 1: "s:1"}), "b": BrokerData("D", "b", {0: "m:2"})}, {"C": ["a"], "D": ["b"]}
)


class Brokers:
    """Connections whose answers are given: code and address → answer code, body."""

    def __init__(self, answer: Callable[[int, str], tuple[int, Any]]) -> None:
        self._answer = answer
        self.asked: list[tuple[int, str, dict[str, str], Any]] = []

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return RemotingCommand.response(command, body=CLUSTER.encode())
        body = json.loads(bytes(command.body)) if command.body else None
        self.asked.append((command.code, address, dict(command.ext_fields or {}), body))
        code, said = self._answer(command.code, address)
        body = b"" if said is None else json.dumps(said).encode()
        return RemotingCommand.response(command, code, "not set any response code", body=body)

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None: ...

    def close_channel(self, address: str) -> None: ...


def ask(brokers: Brokers, call: Callable[[AsyncAdmin], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with AsyncAdmin("n:1", remoting=brokers) as admin:
            return await call(admin)

    return asyncio.run(main())


def test_users_are_laid_together_and_have_no_password() -> None:
    ann = {"username": "ann", "password": "hidden", "userType": "Normal", "userStatus": "enable"}
    off = ann | {"userStatus": "disable"}

    def answer(code: int, address: str) -> tuple[int, Any]:
        return 0, {"m:1": [ann], "m:2": [off], "s:1": None}[address]

    users = ask(Brokers(answer), lambda admin: admin.users("an"))
    assert [(each.username, each.user_type, each.status, each.brokers) for each in users] == [
        ("ann", "Normal", "enable", ("m:1",)),
        ("ann", "Normal", "disable", ("m:2",)),
    ]
    assert "hidden" not in repr(users)


def test_a_change_goes_to_all_members_of_the_brokers_that_are_meant() -> None:
    brokers = Brokers(lambda code, address: (0, None))
    assert ask(brokers, lambda admin: admin.create_user("ann", "pw", broker="a")) == ["m:1", "s:1"]
    assert {(code, address) for code, address, _, _ in brokers.asked} == {(3001, "m:1"), (3001, "s:1")}
    body = {"username": "ann", "password": "pw", "userType": "Normal", "userStatus": "enable"}
    assert all((asked["username"], said) == ("ann", body) for _, _, asked, said in brokers.asked)
    with pytest.raises(RouteNotFound):
        ask(brokers, lambda admin: admin.delete_user("ann", broker="c"))
    with pytest.raises(PartlyDone):
        ask(Brokers(lambda code, address: (16 if address == "m:2" else 0, None)), lambda admin: admin.delete_user("x"))


def test_policies_come_and_go_an_entry_each() -> None:
    acl = {
        "subject": "User:ann",
        "policies": [
            {"policyType": "Custom", "entries": [
                {"resource": "Topic:t", "actions": ["Pub", "Sub"], "decision": "Allow"},
                {"resource": "Group:*", "actions": ["Sub"], "sourceIps": ["10.0.0.0/8"], "decision": "Deny"},
            ]}
        ],
    }  # fmt: skip
    brokers = Brokers(lambda code, address: (0, [acl] if code == RequestCode.AUTH_LIST_ACL else None))
    found = ask(brokers, lambda admin: admin.policies("User:ann", cluster="D"))
    assert found == [
        Policy("User:ann", "Group:*", ("Sub",), "Deny", ("10.0.0.0/8",), brokers=("m:2",)),
        Policy("User:ann", "Topic:t", ("Pub", "Sub"), brokers=("m:2",)),
    ]
    brokers.asked.clear()
    ask(brokers, lambda admin: admin.grant(Policy("User:ann", "Topic:t", ("Pub",)), broker="b"))
    entry = {"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"}
    body = {"subject": "User:ann", "policies": [{"policyType": "Custom", "entries": [entry]}]}
    assert brokers.asked == [(3006, "m:2", {"subject": "User:ann"}, body)]
    brokers.asked.clear()
    ask(brokers, lambda admin: admin.revoke("User:ann", "Topic:t", broker="b"))
    fields = {"subject": "User:ann", "policyType": "Custom", "resource": "Topic:t"}
    assert brokers.asked == [(3008, "m:2", fields, None)]


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.revoke("User:ann", "Foo:x"),  # a broker would delete all of them
        lambda admin: admin.revoke("ann"),
        lambda admin: admin.grant(Policy("User:ann", "Topic:t", ("Fly",))),
        lambda admin: admin.grant(Policy("User:ann", "Topic:t", ())),
        lambda admin: admin.create_user("ann", " "),
        lambda admin: admin.create_user(" ", "pw"),
        lambda admin: admin.update_user("ann"),
    ],
)
def test_what_is_refused_before_anybody_is_asked(call: Callable[[AsyncAdmin], Awaitable[Any]]) -> None:
    brokers = Brokers(lambda code, address: (0, None))
    with pytest.raises(ConfigError):
        ask(brokers, call)
    assert brokers.asked == []


def test_accounts_of_4_have_no_secret() -> None:
    said = {
        "globalWhiteAddrs": ["10.*.*.*"],
        "plainAccessConfigs": [
            {"accessKey": "ann", "admin": False, "secretKey": "hidden", "topicPerms": ["t=PUB|SUB"], "groupPerms": []}
        ],
    }
    found = ask(Brokers(lambda code, address: (0, said)), lambda admin: admin.accounts(broker="b"))
    assert found.white_addresses == {"m:2": ("10.*.*.*",)}
    [account] = found.accounts
    assert (account.access_key, account.topic_perms, account.brokers) == ("ann", ("t=PUB|SUB",), ("m:2",))
    assert "hidden" not in repr(found)
    brokers = Brokers(lambda code, address: (0, None))
    ask(brokers, lambda admin: admin.put_account("ann", "secret-1", topic_perms=["t=PUB", "u=SUB"], broker="b"))
    [(code, _, fields, _)] = brokers.asked
    assert (code, fields["accessKey"], fields["topicPerms"]) == (50, "ann", "t=PUB,u=SUB")


def test_brokers_without_accounts() -> None:
    refusing = Brokers(lambda code, address: (int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), None))
    with pytest.raises(RequestNotSupported):
        ask(refusing, lambda admin: admin.users())


def test_a_list_for_who_only_looks_lacks_the_members_that_are_silent() -> None:
    def answer(code: int, address: str) -> tuple[int, Any]:
        if address == "m:2":
            raise RequestTimeout("AUTH_LIST_USER at m:2: no answer within 1 s")
        return 0, [{"username": "ann"}]

    async def look(admin: AsyncAdmin) -> Any:
        admin.servers.left_out = {}
        return await admin.users(), list(admin.servers.left_out)

    users, left_out = ask(Brokers(answer), look)
    assert [(each.username, each.brokers, left_out) for each in users] == [("ann", ("m:1", "s:1"), ["m:2"])]
    with pytest.raises(RequestTimeout, match="m:2"):
        ask(Brokers(answer), lambda admin: admin.users())
