"""Groups of a cluster: all masters are asked side by side, and their failures are told."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rocketcore.admin.logic import AsyncAdmin
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import (
    ConnectError,
    NoPermission,
    RequestTimeout,
)
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.client import Connection, ConsumerConnection
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rocketcore.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
)
from rocketcore.protocol.bodies.stats import ConsumeStats, OffsetWrapper
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import (
    GetAllSubscriptionGroupResponseHeader,
)
from tests.unit.admin.servers import INFO, Server, Servers, empty, late, refusing, run, saying


def masters(**brokers: Server) -> Servers:
    """Return a name server that lists brokers in this order, and those brokers."""
    table = {name: BrokerData("c", name, {0: f"{name}:1"}) for name in brokers}
    return Servers(a=saying(ClusterInfo(table, {"c": list(table)}).encode()), **brokers)


def groups_of(*names: str) -> Server:
    return saying(SubscriptionGroupWrapper({name: SubscriptionGroupConfig(name) for name in names}).encode())


def members_of(*ids: str, host: str) -> Server:
    return saying(ConsumerConnection([Connection(name, host) for name in ids]).encode())


def progress_of(broker: str, offset: int) -> Server:
    return saying(ConsumeStats({MessageQueue("t", broker, 0): OffsetWrapper(9, offset)}).encode())


def nobody_there(request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response(request, ResponseCode.CONSUMER_NOT_ONLINE, "no such consumer")


def test_masters_are_asked_about_groups_side_by_side() -> None:
    servers = masters(z=groups_of("g", "z"), x=groups_of("g", "a"), y=groups_of())
    assert list(run(servers, "a", lambda admin: admin.groups())) == ["a", "g", "z"]
    assert servers.together == 3

    servers = masters(z=progress_of("z", 1), x=progress_of("x", 2), y=progress_of("y", 3))
    stats = run(servers, "a", lambda admin: admin.consume_stats("g"))
    assert [(queue.broker, each.consumer_offset) for queue, each in stats.items()] == [("x", 2), ("y", 3), ("z", 1)]
    assert servers.together == 3

    servers = masters(z=members_of("1", "3", host="z"), x=members_of("2", "1", host="x"), y=nobody_there)
    connections = run(servers, "a", lambda admin: admin.consumer_connections("g"))
    assert [(each.client_id, each.client_addr) for each in connections] == [("2", "x"), ("1", "z"), ("3", "z")]
    assert servers.together == 3
    servers = masters(x=nobody_there, y=nobody_there)
    assert run(servers, "a", lambda admin: admin.consumer_connections("g")) == []


def test_groups_come_in_pages() -> None:
    names = [f"g{number}" for number in range(5)]

    def page(request: RemotingCommand) -> RemotingCommand:
        first = int((request.ext_fields or {})["groupSeq"])
        table = {name: SubscriptionGroupConfig(name) for name in names[first : first + 2]}
        header = GetAllSubscriptionGroupResponseHeader(total_group_num=len(names))
        return RemotingCommand.response(request, header=header, body=SubscriptionGroupWrapper(table).encode())

    servers = masters(x=page)
    assert list(run(servers, "a", lambda admin: admin.groups())) == names
    assert [code for _, code in servers.asked].count(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG) == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.groups(),
        lambda admin: admin.consume_stats("g"),
        lambda admin: admin.consumer_connections("g"),
    ],
)
def test_the_error_of_the_first_master_that_fails_is_raised(
    call: Callable[[AsyncAdmin], Coroutine[Any, Any, Any]],
) -> None:
    with pytest.raises(NoPermission):
        run(masters(z=late, y=refusing, x=groups_of()), "a", call)
    with pytest.raises(RequestTimeout):
        run(masters(z=refusing, y=late, x=groups_of()), "a", call)


def test_a_name_server_that_has_just_started_hides_no_master() -> None:
    part = ClusterInfo({"m": INFO.broker_addr_table["m"]}, {"c": ["m"]})
    servers = Servers(a=saying(part.encode()), b=saying(INFO.encode()), up=empty, other=empty)
    assert run(servers, "abx", lambda admin: admin.create_group("g")).brokers == ("m", "other")
    assert {address for address, code in servers.asked if code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP} == {
        "up:1", "other:1",
    }  # fmt: skip


def test_without_a_name_server_no_master_is_looked_for() -> None:
    with pytest.raises(ConnectError, match="nobody at"):
        run(Servers(), "ab", lambda admin: admin.create_group("g"))
