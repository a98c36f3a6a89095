"""RPC hooks: what they see and what they can do, in servers and in both clients."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import NoPermission
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.nameserver import GetRouteInfoRequestHeader
from rocketcore.protocol.signing import Signer, verify
from rocketcore.transport.blocking.client import BlockingRemotingClient
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.server.server import RemotingServer
from tests.integration.remoting_server import CALL_BACK, ECHO, HEADERS, SLOW, TIMEOUT, TestServer, add_handler


class Recorder:
    """Keeps what it saw; adds an ext field to each request and to each answer, refuses one code, or breaks."""

    def __init__(self, refused: int = -1, broken: int = -1) -> None:
        self.seen: list[tuple[str, int, int | None]] = []
        self.addresses: set[str] = set()
        self._refused = refused
        self._broken = broken

    def before_request(self, address: str, command: RemotingCommand) -> None:
        self.seen.append(("before", command.code, None))
        self.addresses.add(address)
        command.ext_fields = {**(command.ext_fields or {}), "trace": "1"}
        if command.code == self._refused:
            raise NoPermission(ResponseCode.NO_PERMISSION, "not you")

    def after_response(self, address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        self.seen.append(("after", command.code, response.code))
        if command.code == self._broken:
            raise ValueError("broken")
        response.ext_fields = {**(response.ext_fields or {}), "hooked": "1"}


def test_a_server_shows_requests_and_answers() -> None:
    hook = Recorder()
    with TestServer(hooks=[hook]) as server, BlockingRemotingClient() as client:
        answer = client.invoke(server.address, RemotingCommand.request(ECHO, body=b"x"), TIMEOUT)
        assert (answer.body, answer.ext_fields) == (b"x", {"hooked": "1"})
        slow = client.invoke(server.address, RemotingCommand.request(SLOW, body=b"0.01"), TIMEOUT)
        assert slow.ext_fields == {"hooked": "1"}
        own = client.connect(server.address).local_address
    assert hook.seen == [("before", ECHO, None), ("after", ECHO, 0), ("before", SLOW, None), ("after", SLOW, 0)]
    assert hook.addresses == {own}


def test_an_exception_is_the_answer() -> None:
    reached: list[int] = []

    def handler(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        reached.append(request.code)
        return RemotingCommand.response(request)

    hook = Recorder(refused=120, broken=121)
    with TestServer(hooks=[hook]) as server, BlockingRemotingClient() as client:

        def register(running: RemotingServer) -> None:
            add_handler(running, 120, handler)
            add_handler(running, 121, handler)

        server.call(register)
        refused = client.invoke(server.address, RemotingCommand.request(120), TIMEOUT)
        assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "not you")
        assert reached == []
        broken = client.invoke(server.address, RemotingCommand.request(121), TIMEOUT)
        assert (broken.code, broken.remark) == (ResponseCode.SYSTEM_ERROR, "ValueError: broken")
        assert reached == [121]
    assert ("after", 120, ResponseCode.NO_PERMISSION) in hook.seen


def test_no_request_passes_by_the_hooks(tmp_path: Path) -> None:
    """A name server answers routes in C, or by chunks; with hooks each request is seen."""
    hook = Recorder()

    async def scenario() -> None:
        config = NameServerConfig(listen_port=0, rocketmq_home=tmp_path)
        async with asyncio.timeout(30), NameServer(config, hooks=[hook]) as server, RemotingClient() as client:
            header = GetRouteInfoRequestHeader(topic="T")
            requests = [RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header) for _ in range(5)]
            answers = await asyncio.gather(*(client.invoke(server.address, each, TIMEOUT) for each in requests))
            assert [answer.code for answer in answers] == [ResponseCode.TOPIC_NOT_EXIST] * 5

    asyncio.run(scenario())
    assert hook.seen.count(("before", RequestCode.GET_ROUTEINFO_BY_TOPIC, None)) == 5
    assert hook.seen.count(("after", RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST)) == 5


def test_what_a_hook_adds_is_signed() -> None:
    hook = Recorder()
    options: dict[str, Any] = {"hooks": [hook], "signer": Signer("ak", "sk")}
    with TestServer() as server:
        with BlockingRemotingClient(**options) as client:
            request = RemotingCommand.request(HEADERS, body=b"x")
            assert client.invoke(server.address, request, TIMEOUT).code == 0
            fields = request.ext_fields or {}
            assert fields["trace"] == "1"
            assert not verify({**fields, "trace": "2"}, b"x", "sk")

        async def scenario() -> None:
            async with asyncio.timeout(30), RemotingClient(**options) as client:
                assert (await client.invoke(server.address, RemotingCommand.request(HEADERS), TIMEOUT)).code == 0

        asyncio.run(scenario())
    assert hook.seen == [("before", HEADERS, None), ("after", HEADERS, 0)] * 2
    assert hook.addresses == {server.address}


def test_a_client_shows_every_kind_of_request() -> None:
    hook = Recorder()
    expected = [("before", ECHO, None), ("after", ECHO, 0), ("before", SLOW, None)]
    with TestServer() as server:
        with BlockingRemotingClient(hooks=[hook]) as client:
            answer = client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
            assert answer.ext_fields == {"hooked": "1"}
            client.invoke_oneway(server.address, RemotingCommand.request(SLOW, body=b"0"), TIMEOUT)
        assert hook.seen == expected
        hook.seen.clear()

        async def scenario() -> None:
            async with asyncio.timeout(30), RemotingClient(hooks=[hook]) as client:
                answer = await client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
                assert answer.ext_fields == {"hooked": "1"}
                await client.invoke_oneway(server.address, RemotingCommand.request(SLOW, body=b"0"), TIMEOUT)

        asyncio.run(scenario())
        assert hook.seen == expected


def test_a_hook_can_refuse_to_send() -> None:
    hook = Recorder(refused=ECHO)
    with TestServer() as server:
        with BlockingRemotingClient(hooks=[hook]) as client, pytest.raises(NoPermission, match="not you"):
            client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)

        async def scenario() -> None:
            async with asyncio.timeout(30), RemotingClient(hooks=[hook]) as client:
                with pytest.raises(NoPermission, match="not you"):
                    await client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)

        asyncio.run(scenario())


def test_requests_of_the_server_are_shown_too() -> None:
    hook = Recorder()
    with TestServer() as server:
        with BlockingRemotingClient(hooks=[hook]) as client:
            add_handler(client, 307, lambda channel, request: RemotingCommand.response(request, body=b"me"))
            assert client.invoke(server.address, RemotingCommand.request(CALL_BACK), TIMEOUT).body == b"me"

        async def scenario() -> None:
            async with asyncio.timeout(30), RemotingClient(hooks=[hook]) as client:
                add_handler(client, 307, lambda channel, request: RemotingCommand.response(request, body=b"me"))
                assert (await client.invoke(server.address, RemotingCommand.request(CALL_BACK), TIMEOUT)).body == b"me"

        asyncio.run(scenario())
        assert [answer.ext_fields for answer in server.callback_answers] == [{"hooked": "1"}] * 2
    seen = [("before", CALL_BACK, None), ("before", 307, None), ("after", 307, 0), ("after", CALL_BACK, 0)]
    assert hook.seen == seen * 2


def test_hooks_of_producers_consumers_and_administration() -> None:
    """They see what these send, the routes' questions included."""
    producer_hook, consumer_hook, admin_hook = Recorder(), Recorder(), Recorder()
    with rmq.LocalCluster() as cluster:
        with rmq.Producer(cluster.namesrv, hooks=[producer_hook]) as producer:
            producer.send("T", b"x")
        with rmq.PullConsumer(cluster.namesrv, group="g", start_from="first", hooks=[consumer_hook]) as consumer:
            consumer.subscribe("T")
            assert [message.body for message in consumer.poll(timeout=TIMEOUT)] == [b"x"]
        with rmq.Admin(cluster.namesrv, hooks=[admin_hook]) as admin:
            assert "T" in admin.topics()
    route = RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert {route, RequestCode.SEND_MESSAGE_V2} <= {code for _, code, _ in producer_hook.seen}
    assert {route, RequestCode.PULL_MESSAGE} <= {code for _, code, _ in consumer_hook.seen}
    assert RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER in {code for _, code, _ in admin_hook.seen}
