"""Pulls that ask as one before: answered by what was decided then, with the same outcome, as long as it holds."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.processors import pull
from rocketcore.broker.processors.pull import PullProcessor
from rocketcore.codes import RequestCode
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.heartbeat import MessageModel
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import UnregisterClientRequestHeader
from tests.integration.broker_client import BrokerClient, running_broker

Change = Callable[[BrokerClient], Awaitable[Any]]


def play(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), running_broker(folder, **settings) as client:
            await scenario(client)

    asyncio.run(run())


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[RemotingCommand]:
    """The pulls that were looked at as any pull is."""
    seen: list[RemotingCommand] = []
    general = PullProcessor.pull

    def counted(self: PullProcessor, channel: Any, request: RemotingCommand, header: Any) -> Any:
        seen.append(request)
        return general(self, channel, request, header)

    monkeypatch.setattr(PullProcessor, "pull", counted)
    return seen


@pytest.fixture
def in_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pulls that no kernel answered."""
    seen: list[int] = []
    run = PullProcessor.pull_chunk

    def counted(self: PullProcessor, channel: Any, chunk: Any, first: int, last: int) -> Any:
        seen.extend(range(first, last))
        return run(self, channel, chunk, first, last)

    monkeypatch.setattr(PullProcessor, "pull_chunk", counted)
    return seen


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is so; the test's own time limit ends a wait in vain."""
    while not condition():  # noqa: ASYNC110 - what is waited for sets no event
        await asyncio.sleep(0.001)


def outcome(client: BrokerClient, answer: RemotingCommand) -> tuple[Any, ...]:
    """What an answer says, and what the broker remembers of it."""
    context = client.broker._context
    offsets = context.offsets
    places = [(group, queue_id) for group in ("readers", "members") for queue_id in range(2)]
    return (
        (answer.code, answer.remark, answer.ext_fields, answer.body, answer.version),
        [offsets.find(group, "T", queue_id) for group, queue_id in places],
        [offsets.pull_offset(group, "T", queue_id) for group, queue_id in places],
    )


def test_what_was_decided_answers_as_the_way_that_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at: list[RemotingCommand], in_runs: list[int]
) -> None:
    rng = random.Random(7)
    known = pull.set_apart  # type: ignore[attr-defined]

    def fields() -> dict[str, Any]:
        tags = rng.choice(["*", "a", "b || c", "none", None])
        return {
            "queue_id": rng.randrange(2),
            "queue_offset": rng.choice([-1, 0, 0, 3, 17, 39, 40, 41, 99]),
            "group": "members" if tags is None else rng.choice(["readers", "members"]),
            "tags": tags,
            "commit": rng.choice([None, 0, 5]),
            "max_count": rng.choice([1, 8, 32]),
            "max_bytes": rng.choice([None, 700]),
            "wide": rng.random() < 0.1,
            "sub_version": 1,
            "code": rng.choice([RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE]),
        }

    async def scenario(client: BrokerClient) -> None:
        for number in range(80):
            await client.send("T", b"%d" % number * 9, queue_id=number % 2, properties={"TAGS": "abc"[number % 3]})
        await client.heartbeat("T", group="members", expression="a || c")
        totals = client.broker._context.stats.totals
        kernel = client.broker._server._responder
        answered = 0
        for _ in range(300):
            asked = fields()
            outcomes = []
            for answers, way in ((kernel, known), (None, known), (None, lambda *_: None), (kernel, known)):
                for listener in client.broker._server._listeners:
                    listener.answer_with(answers)
                monkeypatch.setattr(pull, "set_apart", way)
                before, seen = dataclasses.replace(totals), (len(looked_at), len(in_runs))
                answer = await client.pull("T", **asked)
                counted = [
                    getattr(totals, name.name) - getattr(before, name.name) for name in dataclasses.fields(totals)
                ]
                outcomes.append((*outcome(client, answer), counted))
            assert all(each == outcomes[0] for each in outcomes), asked
            if answer.code == 0 and not asked["wide"]:
                assert (len(looked_at), len(in_runs)) == seen, "a pull that finds messages is not looked at again"
                answered += 1
        assert answered > 80

    play(tmp_path, scenario)


async def deny_topic(client: BrokerClient) -> None:
    client.broker._context.topics.update(TopicConfig("T", 4, 4, 2))


async def fewer_queues(client: BrokerClient) -> None:
    client.broker._context.topics.update(TopicConfig("T", 1, 1, 6))


async def delete_topic(client: BrokerClient) -> None:
    client.broker._context.topics.delete(["T"])


async def switch_group_off(client: BrokerClient) -> None:
    client.broker._context.groups.update(SubscriptionGroupConfig(group_name="members", consume_enable=False))


async def refuse_broadcast(client: BrokerClient) -> None:
    context = client.broker._context
    context.groups.update(SubscriptionGroupConfig(group_name="members", consume_broadcast_enable=False))
    await client.heartbeat("T", group="members", model=MessageModel.BROADCASTING)


async def close_broker(client: BrokerClient) -> None:
    context = client.broker._context
    context.change_settings(dataclasses.replace(context.config, broker_permission=2))


async def come_again_with_others(client: BrokerClient) -> None:
    """The group goes with its last client: the one that comes is another, whatever its subscription's version."""
    await leave(client)
    await client.heartbeat("T", group="members", expression="z", sub_version=1)


async def leave(client: BrokerClient) -> None:
    header = UnregisterClientRequestHeader(client_id="client-1", consumer_group="members")
    await client.ask(RequestCode.UNREGISTER_CLIENT, header)


async def subscribe_to_others(client: BrokerClient) -> None:
    await client.heartbeat("T", group="members", expression="z", sub_version=2)


async def unsubscribe(client: BrokerClient) -> None:
    await client.heartbeat("SELF_TEST_TOPIC", group="members", sub_version=2)


async def reset(client: BrokerClient) -> None:
    client.broker._context.offsets.reset("members", "T", 1, 0)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (deny_topic, 16),
        (fewer_queues, 29),
        (delete_topic, 17),
        (switch_group_off, 16),
        (refuse_broadcast, 16),
        (close_broker, 16),
        (leave, 24),
        (come_again_with_others, 20),
        (subscribe_to_others, 20),
        (unsubscribe, 24),
        (reset, 21),
    ],
)
def test_what_was_decided_holds_no_longer_than_what_it_rests_on(
    tmp_path: Path, change: Change, code: int, looked_at: list[RemotingCommand]
) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(4):
            await client.send("T", queue_id=1, properties={"TAGS": "a"})
        await client.heartbeat("T", group="members", expression="a")
        asked: dict[str, Any] = {"group": "members", "tags": None, "sub_version": 1}
        for _ in range(2):
            assert (await client.pull("T", 1, 0, **asked)).code == 0
        assert not looked_at
        await change(client)
        assert (await client.pull("T", 1, 0, **asked)).code == code

    play(tmp_path, scenario)


def test_what_changed_is_decided_anew_once(tmp_path: Path, looked_at: list[RemotingCommand]) -> None:
    """By a newer subscription of the group, say: the next pulls that ask so go by it, and are not looked at again."""

    async def scenario(client: BrokerClient) -> None:
        for _ in range(4):
            await client.send("T", queue_id=1, properties={"TAGS": "a"})
        asked: dict[str, Any] = {"group": "members", "tags": None, "sub_version": 1}
        for version, expression in ((1, "a"), (2, "a || b")):
            await client.heartbeat("T", group="members", expression=expression, sub_version=version)
            for _ in range(3):
                assert (await client.pull("T", 1, 0, **asked)).code == 0
        assert not looked_at
        assert len(client.broker._pull._decided) == 1

    play(tmp_path, scenario)


def test_a_reset_of_another_group_changes_nothing(tmp_path: Path, in_runs: list[int]) -> None:
    """It may wait for ever: for a group that never pulls again."""

    async def scenario(client: BrokerClient) -> None:
        await client.send("T", queue_id=1)
        assert (await client.pull("T", 1, 0)).code == 0
        client.broker._context.offsets.reset("others", "T", 1, 0)
        seen = len(in_runs)
        assert (await client.pull("T", 1, 0)).code == 0
        assert len(in_runs) == seen

    play(tmp_path, scenario)


def test_questions_without_end_are_not_all_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "_DECIDED_MAX", 8)

    async def scenario(client: BrokerClient) -> None:
        await client.send("T", properties={"TAGS": "a"})
        for number in range(50):
            assert (await client.pull("T", tags=f"a || {number}")).code == 0
            assert len(client.broker._pull._decided) <= 8
        assert (await client.pull("T", tags="a || " + "b" * 2000)).code == 0
        assert all(len(question) <= 1024 for question in client.broker._pull._decided)

    play(tmp_path, scenario)


def test_a_client_that_does_not_read_stops_pulls_that_came_together(tmp_path: Path) -> None:
    """However many pulls a read brings, their answers do not pile up in memory."""

    async def scenario(client: BrokerClient) -> None:
        for _ in range(32):
            await client.send("T", bytes(8000))
        host, _, port = client.broker.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
        request = RemotingCommand.request(RequestCode.PULL_MESSAGE, client.pull_header("T"))
        writer.write(request.encode() * 200)
        await writer.drain()
        await client.pull("T")
        [channel] = [
            channel
            for channel in client.broker._server._endpoint.channels
            if channel.remote_address.endswith(str(writer.get_extra_info("sockname")[1]))
        ]
        await until(lambda: channel.write_paused)
        assert channel._transport.get_write_buffer_size() < 2 * channel._endpoint.limits.write_high_water_bytes
        answers = 0
        while answers < 200:
            size = int.from_bytes(await reader.readexactly(4), "big")
            await reader.readexactly(size)
            answers += 1
        writer.close()

    play(tmp_path, scenario)
