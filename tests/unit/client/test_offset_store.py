"""Where offsets are kept: what is written, what is read back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rocketcore.client.config import ConsumerConfig
from rocketcore.client.instance import SILENT_BROKER_SECONDS, ClientInstance
from rocketcore.client.offset_store import AT_ONCE, SURE_SECONDS, LocalOffsetStore, RemoteOffsetStore, local_offset_path
from rocketcore.client.runtime import ASYNCIO
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import ClientError, ConnectError, RequestTimeout, SystemBusy
from rocketcore.message import MessageQueue
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from rocketcore.service import SYSTEM_CLOCK, Clock, ManualClock
from tests.unit.client.fakes import FakeRemoting, Outcome, route

QUEUE = MessageQueue("T", "a", 1)


class Offsets:
    """A broker that keeps the offsets of one group."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, str, int], int] = {}
        self.updates = 0
        self.queries = 0
        self.ends = 100
        self.failure: Exception | None = None

    def __call__(self, address: str, request: RemotingCommand) -> Outcome:
        if isinstance(self.failure, ConnectError):
            return self.failure
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            update = request.header(UpdateConsumerOffsetRequestHeader)
            self.updates += 1
            self.table[update.consumer_group, update.topic, update.queue_id] = update.commit_offset
            return RemotingCommand.response(request)
        if request.code == RequestCode.GET_MAX_OFFSET:
            response = RemotingCommand.response(request)
            response.ext_fields = {"offset": str(self.ends)}
            return response
        self.queries += 1
        query = request.header(QueryConsumerOffsetRequestHeader)
        offset = self.table.get((query.consumer_group, query.topic, query.queue_id))
        if offset is None:
            return RemotingCommand.response(request, ResponseCode.QUERY_NOT_FOUND, "none")
        response = RemotingCommand.response(request)
        response.ext_fields = {"offset": str(offset)}
        return response


class Connections(FakeRemoting):
    """Has one connection, which a test exchanges."""

    connection: object = "first"

    def connection_to(self, address: str) -> object | None:
        return self.connection

    def add_routes(self, rows: object) -> None:
        raise AssertionError("no broker asks here")

    def expecting(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def remote(offsets: Offsets, clock: Clock = SYSTEM_CLOCK) -> RemoteOffsetStore:
    remoting = Connections({"T": route("a")}, offsets)
    instance = ClientInstance(ConsumerConfig(group="G"), remoting, ASYNCIO, clock=clock)
    instance.routes.update("T", route("a"))
    return RemoteOffsetStore(instance, "G")


def test_only_what_changed_is_sent() -> None:
    async def main() -> None:
        offsets = Offsets()
        store = remote(offsets)
        assert await store.read(QUEUE) is None
        store.update(QUEUE, 5)
        store.update(QUEUE, 3)
        await store.persist()
        await store.persist()
        assert (offsets.table, offsets.updates) == ({("G", "T", 1): 5}, 1)
        store.update(QUEUE, 2, reset=True)
        await store.persist([QUEUE, MessageQueue("T", "a", 0)])
        assert (offsets.table[("G", "T", 1)], offsets.updates) == (2, 2)
        assert await remote(offsets).read(QUEUE) == 2

    asyncio.run(main())


CHANGES: dict[str, Callable[[RemoteOffsetStore, ManualClock], object]] = {
    "nothing": lambda store, clock: None,
    "a moment": lambda store, clock: clock.advance(SURE_SECONDS / 2),
    "a while": lambda store, clock: clock.advance(SURE_SECONDS),
    "the group": lambda store, clock: store.doubt(),
    "the connection": lambda store, clock: setattr(store._instance.remoting, "connection", "second"),
    "no connection": lambda store, clock: setattr(store._instance.remoting, "connection", None),
    "the queue came back": lambda store, clock: store.forget(QUEUE),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_store_is_one_request_as_long_as_nothing_changes(change: str) -> None:
    """Then another member may be ahead: the broker is asked before, and what that has stored stays."""

    async def main() -> None:
        offsets, clock = Offsets(), ManualClock()
        store = remote(offsets, clock)
        await store.read(QUEUE)
        for offset in range(1, 10):
            store.update(QUEUE, offset)
            await store.persist()
        assert (offsets.updates, offsets.queries) == (9, 1)
        CHANGES[change](store, clock)
        offsets.table["G", "T", 1] = 50
        for offset in (10, 11):
            store.update(QUEUE, offset)
            await store.persist()
        kept = change not in ("nothing", "a moment")
        assert (offsets.table["G", "T", 1], offsets.queries) == ((50, 3) if kept else (11, 1))

    asyncio.run(main())


async def keep(store: RemoteOffsetStore) -> None:
    await store.keep([QUEUE])


WAYS: dict[str, Callable[[RemoteOffsetStore], Awaitable[object]]] = {
    "at intervals": keep,
    "close": lambda store: store.persist(),
    "commit": lambda store: store.persist(commit=True),
    "commit of an offset": lambda store: store.persist(asked=True, commit=True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("saved", [None, 3])
def test_a_broker_that_lost_what_it_was_told_is_told_again(way: str, saved: int | None) -> None:
    """It was killed before it had saved the offset, which has not changed since."""

    async def main() -> None:
        offsets = Offsets()
        store = remote(offsets)
        store.update(QUEUE, 9)
        await store.persist()
        offsets.table.clear()
        if saved is not None:
            offsets.table["G", "T", 1] = saved
        connections: Any = store._instance.remoting
        connections.connection = "second"
        await WAYS[way](store)
        assert offsets.table == {("G", "T", 1): 9}
        asked = offsets.queries + offsets.updates
        for _ in range(3):
            await keep(store)
        assert offsets.queries + offsets.updates == asked, "it is told once"

    asyncio.run(main())


@pytest.mark.parametrize("way", [way for way in WAYS if way != "commit of an offset"])
@pytest.mark.parametrize(
    ("stored", "ends"), [(20, 100), (None, 8)], ids=["another member is ahead", "it lost messages"]
)
def test_a_broker_that_comes_back_is_not_told_what_may_be_wrong(way: str, stored: int | None, ends: int) -> None:
    async def main() -> None:
        offsets = Offsets()
        store = remote(offsets)
        store.update(QUEUE, 9)
        await store.persist()
        offsets.table.clear()
        if stored is not None:
            offsets.table["G", "T", 1] = stored
        offsets.ends = ends
        connections: Any = store._instance.remoting
        connections.connection = "second"
        await WAYS[way](store)
        assert offsets.table.get(("G", "T", 1)) == stored

    asyncio.run(main())


@pytest.mark.parametrize(
    ("way", "again"), [("at intervals", 3), ("close", 3), ("commit", 9), ("commit of an offset", 9)]
)
def test_a_commit_counts_also_where_nothing_has_changed(way: str, again: int) -> None:
    """Somebody moved the group: what a member holds without a word of its program stays as it is."""

    async def main() -> None:
        offsets, clock = Offsets(), ManualClock()
        store = remote(offsets, clock)
        store.update(QUEUE, 9)
        await store.persist()
        offsets.table["G", "T", 1] = 3
        clock.advance(SURE_SECONDS)
        await WAYS[way](store)
        assert offsets.table == {("G", "T", 1): again}

    asyncio.run(main())


@pytest.mark.parametrize(("way", "stored"), [("at intervals", None), ("close", None), ("commit", 0)])
def test_a_group_without_an_offset_gets_one_by_a_commit_alone(way: str, stored: int | None) -> None:
    """Brokers say 0 for none while the queue's first message is in memory, and this was read."""

    async def main() -> None:
        offsets = Offsets()
        store = remote(offsets)
        offsets.table["G", "T", 1] = 0
        await store.read(QUEUE)
        del offsets.table["G", "T", 1]
        connections: Any = store._instance.remoting
        connections.connection = "second"
        await WAYS[way](store)
        assert offsets.table.get(("G", "T", 1)) == stored

    asyncio.run(main())


@pytest.mark.parametrize("way", ["at intervals", "close", "commit"])
def test_a_member_stores_that_it_stands_at_the_first_message(way: str) -> None:
    """A broker of 4.9 resets no group that has no offset in some queue; what another has stored meanwhile stays."""

    async def main() -> None:
        offsets = Offsets()
        offsets.table["G", "T", 1] = 0
        store, late = remote(offsets), remote(offsets)
        for each in (store, late):
            await each.read(QUEUE)
            each.update(QUEUE, 0)
        del offsets.table["G", "T", 1]
        await WAYS[way](store)
        assert (offsets.table, offsets.updates) == ({("G", "T", 1): 0}, 1)
        await WAYS[way](store)
        offsets.table["G", "T", 1] = 7
        await WAYS[way](late)
        assert (offsets.table, offsets.updates) == ({("G", "T", 1): 7}, 1)

    asyncio.run(main())


def test_a_seek_counts_until_it_is_stored(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        offsets, clock = Offsets(), ManualClock()
        store = remote(offsets, clock)
        store.update(QUEUE, 9)
        await store.persist(commit=True)
        offsets.table["G", "T", 1] = 40
        clock.advance(SURE_SECONDS)
        store.update(QUEUE, 10)
        await store.persist(commit=True)
        store.sought(QUEUE)
        await store.persist(commit=True)
        assert (offsets.table["G", "T", 1], caplog.text.count("ahead")) == (40, 2), "nothing was noted since"
        store.update(QUEUE, 20, reset=True)
        offsets.failure = ConnectError("down")
        await store.persist(commit=True)
        offsets.failure = None
        await keep(store)
        assert offsets.table["G", "T", 1] == 20
        offsets.table["G", "T", 1] = 40
        clock.advance(SURE_SECONDS)
        store.update(QUEUE, 21)
        for _ in range(3):
            await keep(store)
        assert (offsets.table["G", "T", 1], caplog.text.count("ahead")) == (40, 3), "it counts once"

    asyncio.run(main())


class OneHangs(FakeRemoting):
    """Broker b answers when the test says so."""

    def __init__(self, offsets: Offsets) -> None:
        super().__init__({}, offsets)
        self.answer = asyncio.Event()
        self.stored = asyncio.Event()
        self.to_b = 0

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if address == "b:1":
            self.to_b += 1
            await self.answer.wait()
            raise RequestTimeout(f"{address} did not answer within {timeout:g} s")
        answer = await super().invoke(address, command, timeout)
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.stored.set()
        return answer


def test_a_broker_that_hangs_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        offsets, clock = Offsets(), ManualClock()
        store = remote(offsets, clock)
        store._instance.routes.update("T", route("a", "b"))
        store._instance.remoting = hangs = OneHangs(offsets)
        of_b = MessageQueue("T", "b", 0)
        for offset in (1, 2, 3):
            store.update(QUEUE, offset)
            store.update(of_b, offset)
            await store.keep([of_b, QUEUE])
            await store.persist([QUEUE], commit=True)
            assert (offsets.table["G", "T", 1], hangs.to_b) == (offset, 1)
        store.update(QUEUE, 4)
        commit = asyncio.create_task(store.persist([of_b, QUEUE], commit=True))
        hangs.stored.clear()
        await hangs.stored.wait()
        assert not commit.done(), "it waits for both"
        hangs.answer.set()
        await commit
        assert "b:1 did not answer within 0.5 s" in caplog.text, "it was known to hang"
        asked = hangs.to_b
        await store.keep([of_b, QUEUE])
        await store.keep([of_b, QUEUE])
        assert hangs.to_b == asked, "it is left alone"
        clock.advance(SILENT_BROKER_SECONDS)
        await store.keep([of_b, QUEUE])
        assert hangs.to_b == asked + 1
        store.came_back("b")
        await store.keep([of_b, QUEUE])
        await store.keep([of_b, QUEUE])
        assert hangs.to_b > asked + 1
        store.close()

    asyncio.run(main())


def test_what_was_noted_while_a_store_was_slow_is_stored_soon() -> None:
    class Slow(FakeRemoting):
        answer = asyncio.Event()

        async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
            await self.answer.wait()
            return await super().invoke(address, command, timeout)

    async def main() -> None:
        offsets = Offsets()
        store = remote(offsets)
        store._instance.remoting = slow = Slow({}, offsets)
        store.update(QUEUE, 1)
        assert await store.keep([QUEUE]) is None
        store.update(QUEUE, 2)
        soon = await store.keep([QUEUE])
        assert soon is not None
        assert soon < 1
        slow.answer.set()
        while await store.keep([QUEUE]) is not None:
            pass
        await store.keep([QUEUE])
        assert offsets.table["G", "T", 1] == 2

    asyncio.run(main())


def test_what_waits_behind_a_commit_does_not_ask_a_broker_that_hangs_again() -> None:
    async def main() -> None:
        offsets = Offsets()
        store = remote(offsets, ManualClock())
        store._instance.routes.update("T", route("a", "b"))
        store._instance.remoting = hangs = OneHangs(offsets)
        of_b = MessageQueue("T", "b", 0)
        store.update(of_b, 5)
        commit = asyncio.create_task(store.persist(commit=True))
        await asyncio.sleep(0)
        await store.keep([of_b])
        hangs.answer.set()
        await commit
        await store.keep([of_b])
        assert hangs.to_b == 1

    asyncio.run(main())


def test_what_failed_is_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        offsets = Offsets()
        store = remote(offsets)
        offsets.failure = ConnectError("down")
        store.update(QUEUE, 5)
        assert await store.persist() == {QUEUE: offsets.failure}
        offsets.failure = None
        assert await store.persist() == {}
        assert offsets.table == {("G", "T", 1): 5}

    asyncio.run(main())
    assert "offset not stored" in caplog.text


def test_only_the_first_commit_of_a_topic_leaves_alone() -> None:
    class Slow(FakeRemoting):
        under_way: ClassVar[list[int]] = []
        together = 0

        async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
            self.under_way.append(command.opaque)
            self.together = max(self.together, len(self.under_way))
            await asyncio.sleep(0)
            self.under_way.remove(command.opaque)
            if not offsets.updates:
                assert self.together == 1
            return await super().invoke(address, command, timeout)

    offsets = Offsets()

    async def main() -> None:
        store = remote(offsets)
        slow = Slow({}, offsets)
        store._instance.remoting = slow
        queues = [MessageQueue("T", "a", queue_id) for queue_id in range(2 * AT_ONCE)]
        for queue in queues:
            store.update(queue, 5)
        await store.persist()
        assert (offsets.updates, slow.together) == (len(queues), AT_ONCE)

    asyncio.run(main())


def test_a_commit_after_each_poll_is_one_request_for_each_queue_that_was_polled() -> None:
    async def main() -> None:
        offsets = Offsets()
        store = remote(offsets, ManualClock())
        queues = [MessageQueue("T", "a", queue_id) for queue_id in range(8)]
        for queue in queues:
            store.update(queue, 0)
        await store.persist(commit=True)
        before = offsets.updates, offsets.queries
        for offset in range(1, 11):
            store.update(queues[offset % 8], offset)
            await store.persist(queues, commit=True)
        assert (offsets.updates, offsets.queries) == (before[0] + 10, before[1])

    asyncio.run(main())


def test_a_forgotten_queue_is_not_written_any_more() -> None:
    async def main() -> None:
        offsets = Offsets()
        store = remote(offsets)
        store.update(QUEUE, 5)
        store.forget(QUEUE)
        await store.persist()
        assert QUEUE not in store._offsets
        assert not offsets.updates

    asyncio.run(main())


def test_a_broker_that_does_not_answer_is_asked_once() -> None:
    """Each queue would wait for the same: 16 of them would hold up a close for 80 s."""

    async def main() -> None:
        offsets = Offsets()
        store = remote(offsets)
        asked: list[str] = []

        def hang(address: str, request: RemotingCommand) -> Outcome:
            asked.append(address)
            return RequestTimeout("hanging")

        instance = store._instance
        working, instance.remoting = instance.remoting, FakeRemoting({}, hang)
        for queue_id in range(4):
            store.update(MessageQueue("T", "a", queue_id), 5)
        await store.persist()
        assert asked == ["a:1"]
        instance.remoting = working
        await store.persist()
        assert len(offsets.table) == 4

    asyncio.run(main())


def test_a_refusal_is_not_taken_for_no_offset() -> None:
    async def main() -> None:
        store = remote(Offsets())
        store._instance.remoting = FakeRemoting(  # the broker is busy
            {}, lambda address, request: RemotingCommand.response(request, ResponseCode.SYSTEM_BUSY, "busy")
        )
        with pytest.raises(SystemBusy):
            await store.read(QUEUE)

    asyncio.run(main())


def test_a_broadcast_queue_that_comes_back_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    other = MessageQueue("T", "b", 0)

    async def main() -> None:
        store = LocalOffsetStore(path)
        assert await store.read(QUEUE) is None
        store.update(QUEUE, 5)
        await store.persist([QUEUE])
        store.forget(QUEUE)
        store.update(other, 9)
        await store.persist([other])
        assert await store.read(QUEUE) == 5
        store.close()
        assert await LocalOffsetStore(path).read(QUEUE) == 5

    asyncio.run(main())


async def read_once(path: Path) -> int | None:
    store = LocalOffsetStore(path)
    try:
        return await store.read(QUEUE)
    finally:
        store.close()


def test_the_file_has_javas_form_and_survives_damage(tmp_path: Path) -> None:
    path = local_offset_path(str(tmp_path), "10.0.0.9@DEFAULT", "G")
    assert path == tmp_path / "10.0.0.9@DEFAULT" / "G" / "offsets.json"

    async def main() -> None:
        store = LocalOffsetStore(path)
        assert await store.read(QUEUE) is None
        store.update(QUEUE, 5)
        await store.persist()
        assert path.read_bytes() == b'{"offsetTable":{{"brokerName":"a","queueId":1,"topic":"T"}:5}}'
        store.update(QUEUE, 6)
        await store.persist()
        store.close()
        assert await read_once(path) == 6
        for damaged in (b'{"offsetTable":{{"bro', b'{"offsetTable":{{"brokerName":"a"}:1e400}}'):
            path.write_bytes(damaged)
            assert await read_once(path) == 5
        path.unlink()
        path.mkdir()  # an OSError, whoever runs this
        assert await read_once(path) == 5
        path.with_name("offsets.json.bak").unlink()
        assert await read_once(path) is None

    asyncio.run(main())


def test_a_file_that_is_not_written_is_a_failure_of_each_queue_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    other = MessageQueue("T", "a", 2)

    async def main() -> None:
        store = LocalOffsetStore(path)
        store.update(QUEUE, 5)
        assert await store.persist() == {}
        path.unlink()
        path.mkdir()  # an OSError, whoever runs this
        store.update(other, 9)
        failures = await store.persist()
        assert list(failures) == [other]
        assert type(failures[other]) is ClientError
        assert str(path) in str(failures[other])
        path.rmdir()
        assert await store.persist() == {}
        assert await store.persist() == {}
        store.close()
        assert await LocalOffsetStore(path).read(other) == 9

    asyncio.run(main())
