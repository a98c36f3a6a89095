"""``rocket mcp``: what agents are offered, how much they are answered, and how a change is made."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from rocketcore.admin.client import Admin, AsyncAdmin
from rocketcore.cli.shell.options import Settings
from rocketcore.cli.tools.mcp import server_of
from rocketcore.cli.tools.mcp_tools import MOST_PLANS, WriteTools, bounded
from rocketcore.client.sync import Producer
from rocketcore.errors import ConfigError
from rocketcore.local import LocalCluster
from rocketcore.message import Message, MessageQueue
from rocketcore.service import ManualClock

Session = Callable[[Client], Awaitable[None]]


def talk(cluster: LocalCluster, session: Session, *, allow_writes: bool = False) -> None:
    async def run() -> None:
        async with AsyncAdmin(cluster.namesrv) as admin:
            server = server_of(admin, Settings(namesrv_option=cluster.namesrv), allow_writes=allow_writes)
            async with Client(server) as client:
                await session(client)

    asyncio.run(run())


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def error_of(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)  # type: ignore[union-attr]


def test_questions_only_unless_writes_are_allowed(cluster: LocalCluster) -> None:
    async def session(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        assert all(tool.description for tool in tools)
        assert not {"confirm", "plan_delete_topic"} & {tool.name for tool in tools}
        assert {"describe_group", "find_messages", "message_status", "dead_letters"} <= {tool.name for tool in tools}

    talk(cluster, session)

    async def writing(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["confirm"].annotations is not None
        assert tools["confirm"].annotations.destructive_hint

    talk(cluster, writing, allow_writes=True)


def test_answers_are_bounded_and_bodies_asked_for(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.namesrv, group="p") as producer:
        producer.send(Message(topic, b"x" * 10_000, keys="large"), queue=MessageQueue(topic, "broker-a", 1))

    async def session(client: Client) -> None:
        found = await call(client, "describe_topic", topic=topic, limit=1)
        assert (found["messages"], len(found["queues"]), found["total"], found["truncated"]) == (6, 1, 2, True)
        [plain] = (await call(client, "find_messages", topic=topic, key="large"))["messages"]
        assert (plain["body_bytes"], "body" in plain) == (10_000, False)
        shown = await call(client, "get_message", message_id=plain["msg_id"], topic=topic, with_body=True)
        assert (len(shown["body"]), shown["body_truncated"]) == (4096, True)
        assert (await call(client, "list_topics", containing=topic))["topics"] == [{"topic": topic}]
        assert (await call(client, "cluster_status"))["brokers"][0]["broker"] == "broker-a"
        assert (await call(client, "message_status", message_id=plain["msg_id"], topic=topic))["groups"] == []
        settings = await call(client, "broker_settings", broker="broker-a", containing="brokerName")
        assert {"name": "brokerName", "value": "broker-a"} in settings["settings"]
        assert "TOPIC_NOT_EXIST" in await error_of(client, "describe_topic", topic="nothing")
        assert "GROUP_NOT_EXIST" in await error_of(client, "describe_group", group="nobody")

    talk(cluster, session)
    assert bounded(({"n": n} for n in range(1000)), 5000)["truncated"]


def test_a_change_is_planned_and_confirmed_once(cluster: LocalCluster, topic: str) -> None:
    group = f"{topic}-group"
    queue = MessageQueue(topic, "broker-a", 0)
    with Admin(cluster.namesrv) as admin:
        admin.create_group(group)
        admin.update_consumer_offset(group, queue, 1)

        async def session(client: Client) -> None:
            plan = await call(client, "plan_reset_offsets", group=group, topic=topic, to="latest")
            assert "4 messages skipped" in plan["plan"]
            assert await asyncio.to_thread(admin.consumer_offset, group, queue) == 1
            await call(client, "confirm", token=plan["token"])
            assert await asyncio.to_thread(admin.consumer_offset, group, queue) == 5
            assert "plan again" in await error_of(client, "confirm", token=plan["token"])

            plan = await call(client, "plan_delete_topic", topic=topic)
            assert "5 messages" in plan["plan"]
            with Producer(cluster.namesrv, group="p") as producer:
                await asyncio.to_thread(producer.send, topic, b"since")
            assert "changed since the plan" in await error_of(client, "confirm", token=plan["token"])
            plan = await call(client, "plan_delete_topic", topic=topic)
            assert (await call(client, "confirm", token=plan["token"]))["deleted_on"] == ["broker-a"]
            assert "TOPIC_NOT_EXIST" in await error_of(client, "plan_delete_topic", topic=topic)
            assert "system" in await error_of(client, "plan_delete_topic", topic="TBW102")
            plan = await call(client, "plan_create_topic", topic=topic, queues=3)
            assert (await call(client, "confirm", token=plan["token"]))["queues"] == 3

        talk(cluster, session, allow_writes=True)


def test_plans_grow_old_and_are_not_kept_without_end(cluster: LocalCluster) -> None:
    clock = ManualClock()

    async def run() -> None:
        async with AsyncAdmin(cluster.namesrv) as admin:
            tools = WriteTools(admin, clock)
            plans = [await tools.plan_create_topic(f"Planned{number}", 1) for number in range(MOST_PLANS + 1)]
            with pytest.raises(ConfigError):
                await tools.confirm(plans[0]["token"])
            clock.advance(301)
            with pytest.raises(ConfigError):
                await tools.confirm(plans[-1]["token"])

    asyncio.run(run())


def test_a_process_on_stdin_and_stdout(cluster: LocalCluster, topic: str) -> None:
    async def run() -> None:
        process = StdioServerParameters(
            command=sys.executable,
            args=["-m", "rocketcore.cli.main", "mcp", "--namesrv", cluster.namesrv],
            env={**os.environ},
        )
        async with asyncio.timeout(60), Client(stdio_client(process)) as client:
            assert (await call(client, "list_topics", containing=topic))["total"] == 1

    asyncio.run(run())
