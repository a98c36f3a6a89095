"""A cluster with a silent name server: one deadline for all that a call asks, and what cannot be asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rocketcore.admin.logic import AsyncAdmin
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import (
    ClientClosed,
    ConfigError,
    ConnectError,
    NoPermission,
    RemoteProtocolError,
    RequestTimeout,
    RocketError,
    TopicNotExist,
)
from rocketcore.message import MessageQueue
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock
from tests.unit.admin.servers import Server, Servers, empty, fine, name_server, refusing, run


class Silent(Servers):
    """Servers of which those without a function take all the time that they are given."""

    def __init__(self, **servers: Server) -> None:
        super().__init__(**servers)
        self.clock = ManualClock()

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if address.partition(":")[0] not in self.servers:
            self.asked.append((address, command.code))
            self.clock.advance(timeout)
            raise RequestTimeout(f"no answer of {address}")
        return await super().invoke(address, command, timeout)


QUEUE = MessageQueue("t", "m", 0)


@pytest.mark.parametrize("up", [True, False], ids=["brokers answer", "brokers are silent"])
@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.topics(),
        lambda admin: admin.system_topics(),
        lambda admin: admin.topic_stats("t"),
        lambda admin: admin.create_topic("t", 4, order=True, broker="m"),
        lambda admin: admin.delete_topic("t"),
        lambda admin: admin.max_offset(QUEUE),
        lambda admin: admin.min_offset(QUEUE),
        lambda admin: admin.search_offset(QUEUE, 1),
        lambda admin: admin.earliest_store_time(QUEUE),
        lambda admin: admin.consumer_offset("g", QUEUE),
        lambda admin: admin.update_consumer_offset("g", QUEUE, 1),
        lambda admin: admin.groups(),
        lambda admin: admin.consume_stats("g"),
        lambda admin: admin.consumer_connections("g"),
        lambda admin: admin.describe_group("g"),
        lambda admin: admin.group_members("g"),
        lambda admin: admin.group_lag("g"),
        lambda admin: admin.plan_reset("g", "t", "latest"),
        lambda admin: admin.producers(),
        lambda admin: admin.dead_letter_queues("g"),
        lambda admin: admin.broker_status(),
        lambda admin: admin.data_versions("m"),
        lambda admin: admin.put_kv("n", "k", "v"),
    ],
)
def test_one_deadline_for_all_that_a_call_asks(
    call: Callable[[AsyncAdmin], Coroutine[Any, Any, Any]], up: bool
) -> None:
    """The first of two name servers is silent."""
    servers = Silent(b=name_server, **({"up": fine, "other": fine} if up else {}))
    with contextlib.suppress(RocketError):
        run(servers, "ab", call, timeout=4.0, clock=servers.clock)
    assert servers.clock.monotonic() <= 4.001


def test_a_topic_is_created_though_a_name_server_is_silent() -> None:
    servers = Silent(b=name_server, up=empty, other=empty)
    made = run(servers, "ab", lambda admin: admin.create_topic("t", 4, broker="m"), timeout=4.0, clock=servers.clock)
    assert made.brokers == ("m",)
    assert ("b:9876", RequestCode.GET_ROUTEINFO_BY_TOPIC) in servers.asked, "who answers is asked whether it shows it"
    assert servers.clock.monotonic() <= 2.001, "who was silent is not waited for again"


def test_a_deletion_is_finished_at_the_name_server_that_missed_it() -> None:
    def done(request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return RemotingCommand.response(request)

    servers = Servers(a=done, b=name_server, up=fine)
    assert run(servers, "ab", lambda admin: admin.delete_topic("t")) == ["m"]
    assert {address for address, code in servers.asked if code == RequestCode.DELETE_TOPIC_IN_NAMESRV} == {
        "a:9876", "b:9876",
    }  # fmt: skip
    with pytest.raises(TopicNotExist):
        run(Servers(a=done), "ab", lambda admin: admin.delete_topic("t"))
    with pytest.raises(ConnectError):
        run(Servers(), "ab", lambda admin: admin.delete_topic("t"))


def test_an_answer_that_cannot_be_read_says_whose_it_is() -> None:
    with pytest.raises(RemoteProtocolError, match="answer of a:9876: ClusterInfo: no body"):
        run(Servers(a=fine), "a", lambda admin: admin.cluster_info())


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf"), 1e30])
def test_a_timeout_that_is_none(timeout: float) -> None:
    with pytest.raises(ConfigError, match="timeout is a number of seconds"):
        AsyncAdmin("a:1", timeout=timeout)


@pytest.mark.parametrize("setting", [("a", "1\nb=2"), ("a", "1\rb=2"), ("a\nb", "1"), ("a=b", "1")])
def test_a_setting_that_would_become_another(setting: tuple[str, str]) -> None:
    servers = Servers(a=fine, broker=fine)
    with pytest.raises(ConfigError, match="value of one line"):
        run(servers, "a", lambda admin: admin.update_namesrv_config(dict([setting])))
    with pytest.raises(ConfigError, match="value of one line"):
        run(servers, "a", lambda admin: admin.update_broker_config("broker:1", dict([setting])))
    assert servers.asked == []


def test_a_closed_client_makes_no_connection() -> None:
    async def scenario() -> None:
        async with AsyncAdmin("127.0.0.1:1") as admin:
            pass
        await admin.close()
        with pytest.raises(ClientClosed):
            await admin.topics()

    asyncio.run(scenario())


@pytest.mark.parametrize("unused_topics", [False, True])
def test_a_broker_is_asked_to_delete_what_is_old(unused_topics: bool) -> None:
    servers = Servers(broker=fine)
    run(servers, "a", lambda admin: admin.clean_broker("broker:1", unused_topics=unused_topics))
    codes = [RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE]
    assert servers.asked == [("broker:1", each) for each in codes + [RequestCode.CLEAN_UNUSED_TOPIC] * unused_topics]
    with pytest.raises(NoPermission):
        run(Servers(broker=refusing), "a", lambda admin: admin.clean_broker("broker:1"))
