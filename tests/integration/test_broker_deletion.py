"""A deletion that was acknowledged holds: whatever the broker had still to write when it was killed."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.store.keeping.queue_notes import QueueNotes
from rocketcore.broker.store.notes import deleted_topics
from rocketcore.broker.store.writing.committer import Committer
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import DeleteSubscriptionGroupRequestHeader, DeleteTopicRequestHeader
from rocketcore.protocol.schema import Header
from rocketcore.transport.channel import Channel
from tests.fixtures.stores import crash_copy
from tests.integration.broker_client import BrokerClient, running_broker
from tests.integration.pop_client import GROUP, ack, pop
from tests.integration.transaction_client import Half
from tests.unit.broker.fakes import FakeChannel

TIMEOUT = 10.0
NOTE = "queuebounds"
TOPIC_GOES = RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T")
GROUP_GOES = (
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    DeleteSubscriptionGroupRequestHeader(group_name=GROUP, clean_offset=True),
)


class Steps:
    """The writes of a broker; the one to ``folder / held`` waits, when it is armed, until it is let go."""

    def __init__(self, held: str) -> None:
        self.held = held
        self.armed = False
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.done: set[str] = set()

    def take(self, name: str, write: Callable[[], Any]) -> Any:
        if self.armed and name == self.held:
            self.reached.set()
            assert self.go_on.wait(TIMEOUT)
        result = write()
        self.done.add(name)
        return result


@contextmanager
def held_at(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    save, write_notes = JsonFile.save, QueueNotes.write
    with monkeypatch.context() as patch:
        patch.setattr(
            JsonFile,
            "save",
            lambda file, text, **how: steps.take(file.path.name, lambda: save(file, text, **how)),
        )
        patch.setattr(
            QueueNotes,
            "write",
            lambda notes, note: steps.take(NOTE, lambda: write_notes(notes, note)),
        )
        try:
            yield
        finally:
            steps.go_on.set()


async def delete(client: BrokerClient, code: int, header: Header) -> RemotingCommand:
    """Call the handler, so that nothing but the broker's own work is between the request and the answer."""
    route = client.broker._server._endpoint.routes[code]
    answer = route.serve(cast(Channel, FakeChannel()), RemotingCommand.request(code, header))
    return cast(RemotingCommand, await cast("Awaitable[Any]", answer))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110  # threads do this, which have no event of the loop's
            await asyncio.sleep(0.001)


async def killed_at(
    root: Path, copies: Path, held: str, request: tuple[int, Header], others: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delete; take a copy as a kill leaves it when one write is held and the others are done, and after the answer."""
    steps = Steps(held)
    async with running_broker(root) as client:
        with held_at(steps, monkeypatch):
            await client.send("T", b"one")
            await client.heartbeat("T")
            await client.pull("T", 0, 1, commit=1)
            client.broker._save_offsets()
            await client.broker._context.writer.flushed()
            steps.done.clear()
            steps.armed = True
            deletion = asyncio.create_task(delete(client, *request))
            await until(lambda: steps.reached.is_set() or deletion.done())
            assert not deletion.done(), f"answered before {held} was written"
            await until(lambda: others <= steps.done)
            for _ in range(10):
                await asyncio.sleep(0)
            assert not deletion.done(), f"answered while {held} was not written"
            crash_copy(root, copies / "before")
            steps.go_on.set()
            assert (await deletion).code == 0
            crash_copy(root, copies / "after")


@pytest.mark.parametrize("held", ["topics.json", "consumerOffset.json", NOTE])
def test_a_deleted_topic_stays_deleted(tmp_path: Path, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T")
    others = {"topics.json"} if held == NOTE else {NOTE}
    asyncio.run(killed_at(tmp_path / "live", tmp_path, held, request, others, monkeypatch))

    async def check() -> None:
        async with running_broker(tmp_path / "after") as client:
            context = client.broker._context
            assert context.topics.find("T") is None
            assert "T" not in {topic for topic, _ in context.store.queues()}
            assert "readers" not in {group for _, group in context.offsets.places()}
            assert (await client.send("T", b"new")).code == 0
            assert await client.bodies("T") == [b"new"]
        async with running_broker(tmp_path / "before") as client:
            # Not acknowledged: the messages may be there or not; to delete it again ends what was begun.
            assert await client.bodies("T") in ([b"one"], [])
            assert (await delete(client, *request)).code == 0
            assert client.broker._context.topics.find("T") is None

    asyncio.run(check())


def test_a_deletion_over_the_bound_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_topics, "_MOST_NAMES", 1)

    async def run() -> None:
        async with running_broker(tmp_path) as client:
            for topic in ("T", "U"):
                await client.send(topic, topic.encode())
            assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))).code == 0
            refused = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="U"))
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "topic U is not deleted: 1 deleted topics are remembered" in (refused.remark or "")
            assert client.broker._context.topics.find("U") is not None
            assert await client.bodies("U") == [b"U"]

    asyncio.run(run())


def test_a_delayed_message_does_not_bring_its_deleted_topic_back(tmp_path: Path) -> None:
    request = RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T")

    async def delete_first() -> None:
        async with running_broker(tmp_path) as client:
            await client.send("T", b"now")
            await client.send("T", b"late", properties={"DELAY": "1"})
            assert (await delete(client, *request)).code == 0
            await until(lambda: client.broker._delay.positions()[1] == (1, 1))

    async def look() -> None:
        async with running_broker(tmp_path) as client:
            assert client.broker._context.topics.find("T") is None
            assert "T" not in {topic for topic, _ in client.broker._store.queues()}

    asyncio.run(delete_first())
    asyncio.run(look())


@pytest.mark.parametrize(
    "properties",
    [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}, {"TRAN_MSG": "true", "PGROUP": "shop"}],
    ids=["delayed", "timed", "half"],
)
@pytest.mark.parametrize("restart", [False, True])
def test_what_waits_does_not_bring_back_a_topic_that_held_nothing(
    tmp_path: Path, properties: dict[str, str], restart: bool
) -> None:
    """Also where the broker that deleted the topic is killed before its messages are due."""
    request = RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T")
    is_half = "TRAN_MSG" in properties

    async def wait_for_it(client: BrokerClient, sent: RemotingCommand) -> None:
        if is_half:
            await client.ask(RequestCode.END_TRANSACTION, Half(sent).end())
        await client.send("U", properties={"DELAY": "1"})
        await until(lambda: client.broker._store.max_offset("U", 0) == 1)
        await until(lambda: len(client.broker._timer) == 0)
        assert client.broker._context.topics.find("T") is None
        assert "T" not in {topic for topic, _ in client.broker._store.queues()}

    async def run() -> None:
        async with running_broker(tmp_path / "live") as client:
            sent = await client.send("T", b"late", properties=properties, sys_flag=4 if is_half else 0)
            assert sent.code == 0
            assert client.broker._context.topics.find("T") is not None
            assert (await delete(client, *request)).code == 0
            crash_copy(tmp_path / "live", tmp_path / "killed")
            if not restart:
                await wait_for_it(client, sent)
        if restart:
            async with running_broker(tmp_path / "killed") as client:
                await wait_for_it(client, sent)

    asyncio.run(run())


@pytest.mark.parametrize("held", ["subscriptionGroup.json", "consumerOffset.json"])
def test_a_deleted_group_stays_deleted(tmp_path: Path, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = (
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        DeleteSubscriptionGroupRequestHeader(group_name="readers", clean_offset=True),
    )
    asyncio.run(killed_at(tmp_path / "live", tmp_path, held, request, set(), monkeypatch))

    async def check() -> None:
        async with running_broker(tmp_path / "after") as client:
            assert not client.broker._context.groups.exists("readers")
            assert "readers" not in {group for _, group in client.broker._context.offsets.places()}

    asyncio.run(check())


# ---------------------------------------------------------------------- what was popped


async def pop_and_save(client: BrokerClient) -> None:
    """Have a group that has popped and acknowledged all of T; every file says so."""
    for body in (b"0", b"1", b"2"):
        assert (await client.send("T", body)).code == 0
    for message in await pop(client, "T"):
        assert (await ack(client, message)).code == 0
    service = client.broker._pop
    await service.journal.save()
    service._commit_synced()
    client.broker._save_offsets()
    await client.broker._context.writer.flushed()
    assert client.broker._context.offsets.find(GROUP, "T", 0) == 3


def is_forgotten(client: BrokerClient) -> bool:
    return not client.broker._pop.state.queues and GROUP not in {
        group for _, group in client.broker._context.offsets.places()
    }


@pytest.mark.parametrize("request_", [TOPIC_GOES, GROUP_GOES], ids=["topic", "group"])
def test_the_answer_waits_for_what_the_log_tells_of_it(
    tmp_path: Path, request_: tuple[int, Header], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Callable[[], None]] = []
    synced = Committer._synced

    async def run() -> None:
        steps = Steps("")
        async with running_broker(tmp_path / "live") as client:
            await pop_and_save(client)
            with held_at(steps, monkeypatch), monkeypatch.context() as patch:
                patch.setattr(Committer, "_synced", lambda *which: held.append(partial(synced, *which)))
                files = {"topics.json", NOTE} if request_ is TOPIC_GOES else {"subscriptionGroup.json"}
                deletions = [asyncio.create_task(delete(client, *request_))]
                await until(lambda: files | {"consumerOffset.json"} <= steps.done and bool(held))
                # Whoever asks again, as the first answer is late, is not told earlier.
                deletions.append(asyncio.create_task(delete(client, *request_)))
                await asyncio.sleep(0)
                await client.broker._context.writer.flushed()
                for _ in range(10):
                    await asyncio.sleep(0)
                answered = [each.done() for each in deletions]
            for each in held:
                each()
            assert answered[:1] == [False]
            assert answered[1:] == [False] or request_ is TOPIC_GOES, "the store tells of it, too"
            assert [(await each).code for each in deletions] == [0, 0]
            crash_copy(tmp_path / "live", tmp_path / "killed")
        async with running_broker(tmp_path / "killed") as client:
            assert is_forgotten(client)

    asyncio.run(run())


def test_a_deleted_topic_is_forgotten_where_the_log_lost_what_it_told_of_that(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_broker(tmp_path / "live") as client:
            await pop_and_save(client)
            crash_copy(tmp_path / "live", tmp_path / "before")
            assert (await client.ask(*TOPIC_GOES)).code == 0
            crash_copy(tmp_path / "live", tmp_path / "cut")
        for name in ("commitlog", "consumequeue"):
            shutil.rmtree(tmp_path / "cut" / name)
            shutil.copytree(tmp_path / "before" / name, tmp_path / "cut" / name)
        async with running_broker(tmp_path / "cut") as client:
            assert is_forgotten(client)
            assert client.broker._context.topics.find("T") is None

    asyncio.run(run())


def test_a_group_that_popped_is_not_deleted_while_the_log_takes_nothing(tmp_path: Path) -> None:
    """Only the log tells of it; one that never popped goes."""

    async def run() -> None:
        async with running_broker(tmp_path) as client:
            await pop_and_save(client)
            await client.heartbeat("T", group="readers")
            await client.pull("T", 0, 1, commit=1)
            context = client.broker._context
            client.broker._pop.put(["next", "T", GROUP, 0, 3])  # is not stored any more: nothing of "readers"
            client.broker._store._committer.fail("write", OSError(errno.EIO, "told to"))
            refused = await client.ask(*GROUP_GOES)
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "told to" in (refused.remark or "")
            assert context.groups.exists(GROUP)
            assert context.offsets.find(GROUP, "T", 0) == 3
            assert client.broker._pop.state.queues
            header = DeleteSubscriptionGroupRequestHeader(group_name="readers", clean_offset=True)
            assert (await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0
            assert not context.groups.exists("readers")
            assert context.offsets.queues("readers", "T") == {}

    asyncio.run(run())


def test_a_topic_that_was_popped_is_deleted_on_a_full_disk(tmp_path: Path) -> None:
    """The journal tells of it when there is room; the store remembers it until then."""

    async def run() -> None:
        async with running_broker(tmp_path) as client:
            await pop_and_save(client)
            store, journal = client.broker._store, client.broker._pop.journal
            end = store.next_offset(journal.topic, 0)
            store._refuse("full", "told to")
            assert (await client.ask(*TOPIC_GOES)).code == 0
            assert is_forgotten(client)
            assert store.next_offset(journal.topic, 0) == end
            store._refuse("full", "")
            journal.settle()
            assert store.next_offset(journal.topic, 0) == end + 1

    asyncio.run(run())


@pytest.mark.parametrize("request_", [TOPIC_GOES, GROUP_GOES], ids=["topic", "group"])
def test_a_disk_that_lost_the_newest_files_brings_nothing_back(tmp_path: Path, request_: tuple[int, Header]) -> None:
    """Each file's older generation was replaced, too."""
    names = ["consumerOffset.json", "topics.json" if request_ is TOPIC_GOES else "subscriptionGroup.json"]

    async def check() -> None:
        async with running_broker(tmp_path) as client:
            assert is_forgotten(client)
            context = client.broker._context
            assert (context.topics if request_ is TOPIC_GOES else context.groups).table.keys().isdisjoint({"T", GROUP})

    async def run() -> None:
        async with running_broker(tmp_path) as client:
            await pop_and_save(client)
        async with running_broker(tmp_path) as client:
            assert (await client.ask(*request_)).code == 0
        for name in names:
            (tmp_path / "config" / name).write_bytes(b"{")
        await check()

    asyncio.run(run())
