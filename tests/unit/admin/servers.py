"""Name servers and brokers of a cluster as tables of answers, and an admin client that asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rocketcore.admin.logic import AsyncAdmin
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import (
    ConnectError,
    RequestTimeout,
)
from rocketcore.protocol.bodies.group import SubscriptionGroupWrapper
from rocketcore.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from rocketcore.protocol.bodies.topic import TopicList
from rocketcore.protocol.command import RemotingCommand

Server = Callable[[RemotingCommand], RemotingCommand]


class Servers:
    """Stands in for the connections: a function answers for each address, nobody for the others."""

    def __init__(self, **servers: Server) -> None:
        self.servers = servers
        self.asked: list[tuple[str, int]] = []
        self.timeouts: list[float] = []
        self.together = 0
        self._running = 0

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        self.asked.append((address, command.code))
        self.timeouts.append(timeout)
        self._running += 1
        self.together = max(self.together, self._running)
        await asyncio.sleep(0)
        self._running -= 1
        name = address.partition(":")[0]
        if name not in self.servers:
            raise ConnectError(f"nobody at {address}")
        return self.servers[name](command)

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        raise AssertionError("administration asks for answers")

    def close_channel(self, address: str) -> None:
        raise AssertionError("administration closes no connection")


def fine(request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response(request)


def empty(request: RemotingCommand) -> RemotingCommand:
    """A broker that does all, and has no topic and no group."""
    if request.code == RequestCode.GET_TOPIC_CONFIG:
        return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
    if request.code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
        return RemotingCommand.response(request, body=SubscriptionGroupWrapper().encode())
    return RemotingCommand.response(request)


def refusing(request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response(request, ResponseCode.NO_PERMISSION, "no")


def late(request: RemotingCommand) -> RemotingCommand:
    raise RequestTimeout("no answer")


def saying(body: bytes, **options: Any) -> Server:
    return lambda request: RemotingCommand.response(request, body=body, **options)


def run(servers: Servers, names: str, call: Callable[[AsyncAdmin], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    namesrv = ";".join(f"{name}:9876" for name in names)
    return asyncio.run(call(AsyncAdmin(namesrv, remoting=servers, **options)))


INFO = ClusterInfo(
    {
        "m": BrokerData("c", "m", {0: "up:1", 1: "down:1"}, zone_name="z"),
        "other": BrokerData("d", "other", {0: "other:1"}),
    },
    {"c": ["m"], "d": ["other"]},
)


ROUTE = TopicRouteData([QueueData("m", 4, 4, 6)], [BrokerData("c", "m", {0: "up:1"})])


def name_server(request: RemotingCommand) -> RemotingCommand:
    bodies = {
        RequestCode.GET_BROKER_CLUSTER_INFO: INFO.encode(),
        RequestCode.GET_ROUTEINFO_BY_TOPIC: ROUTE.encode(),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: TopicList(["c"], broker_addr="up:1").encode(),
    }
    return RemotingCommand.response(request, body=bodies.get(RequestCode(request.code), b""))
