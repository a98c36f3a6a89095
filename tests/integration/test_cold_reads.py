"""A consumer that reads what is not in memory, on a disk that takes its time: nobody else waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rocketcore.broker.record import RecordReader
from rocketcore.broker.store import message_store
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.bodies.stats import TopicStatsTable
from rocketcore.protocol.bodies.topic import KVTable
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import GetTopicStatsInfoRequestHeader
from rocketcore.protocol.headers.consumer import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from rocketcore.protocol.headers.message import ConsumerSendMsgBackRequestHeader, ViewMessageRequestHeader
from rocketcore.transport.client import RemotingClient
from tests.fixtures.cold_disk import ColdDisk, forget_all, stop_looks
from tests.integration.broker_client import BrokerClient, running_broker

COUNT = 100
BODIES = [b"%04d" % number + bytes(2000) for number in range(COUNT)]


def play(
    folder: Path, scenario: Callable[[BrokerClient, ColdDisk], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker whose topic T has messages that are not in memory."""
    disk = ColdDisk()
    monkeypatch.setattr(message_store, "FileSystem", lambda: disk)

    async def run() -> None:
        async with asyncio.timeout(60), running_broker(folder) as client:
            await client.send_batch("T", BODIES)
            store = client.broker._store
            await stop_looks(store)
            forget_all(store, disk)
            try:
                await scenario(client, disk)
            finally:
                disk.gate.set()

    asyncio.run(run())


def begin(client: BrokerClient, queue_offset: int = 0) -> asyncio.Task[RemotingCommand]:
    return asyncio.get_running_loop().create_task(client.pull("T", 0, queue_offset))


async def until_waiting(client: BrokerClient, count: int) -> None:
    while len(client.broker._store.reads) != count:  # noqa: ASYNC110  # a state of the store, without an event
        await asyncio.sleep(0.001)


def test_sends_of_others_are_answered_while_a_pull_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(client: BrokerClient, disk: ColdDisk) -> None:
        disk.gate.clear()
        pulling = begin(client)
        await until_waiting(client, 1)
        async with RemotingClient() as connection:
            other = BrokerClient(client.broker, connection)
            sent = await other.send("T", b"meanwhile", queue_id=1)
            assert sent.code == ResponseCode.SUCCESS
            assert await other.bodies("T", 1) == [b"meanwhile"], "what is recent needs no disk"
        assert (await client.send("T", b"on the same connection", queue_id=1)).code == ResponseCode.SUCCESS
        assert not pulling.done()
        disk.gate.set()
        answer = await pulling
        assert answer.code == ResponseCode.SUCCESS
        assert [bytes(one.message.body) for one in RecordReader(100).read(answer.body)] == BODIES[:32]

    play(tmp_path, scenario, monkeypatch)


def test_pulls_of_a_connection_are_answered_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: BrokerClient, disk: ColdDisk) -> None:
        await client.send("T", b"recent", queue_id=1)
        disk.gate.clear()
        order: list[str] = []

        async def pull(name: str, *place: int) -> None:
            assert (await client.pull("T", *place)).code == ResponseCode.SUCCESS
            order.append(name)

        pulling = [asyncio.create_task(pull("cold", 0, 0))]
        await until_waiting(client, 1)
        pulling.append(asyncio.create_task(pull("recent", 1, 0)))
        await until_waiting(client, 2)
        disk.gate.set()
        await asyncio.gather(*pulling)
        assert order == ["cold", "recent"]

    play(tmp_path, scenario, monkeypatch)


def test_what_a_closed_connection_waited_for_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: BrokerClient, disk: ColdDisk) -> None:
        disk.gate.clear()
        async with RemotingClient() as connection:
            other = BrokerClient(client.broker, connection)
            pulling = [begin(other), begin(other, 50)]
            await until_waiting(client, 2)
        await asyncio.gather(*pulling, return_exceptions=True)
        await until_waiting(client, 0)
        disk.gate.set()
        assert (await client.pull("T", 0, 0)).code == ResponseCode.SUCCESS

    play(tmp_path, scenario, monkeypatch)


def test_a_disk_that_does_not_answer_is_an_error_of_the_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: BrokerClient, disk: ColdDisk) -> None:
        reads = client.broker._store.reads
        disk.gate.clear()
        pulling = begin(client)
        await until_waiting(client, 1)
        monkeypatch.setattr(reads, "_clock", _Later())
        reads.look()
        answer = await pulling
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the disk has not answered for 8 s" in (answer.remark or "")
        assert (await client.send("T", b"meanwhile", queue_id=1)).code == ResponseCode.SUCCESS
        disk.gate.set()
        table = KVTable.decode((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        assert table["logReadTimeouts"] == "1"
        assert int(table["coldLogReads"]) >= 1

    play(tmp_path, scenario, monkeypatch)


def test_all_who_read_wait_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups, searches and statistics of what is not in memory are answered as those of what is."""

    async def scenario(client: BrokerClient, disk: ColdDisk) -> None:
        store = client.broker._store
        place = store.place("T", 0, 40)
        assert place is not None
        time = store.store_time("T", 0, 40)

        async def ask_cold(*request: object) -> RemotingCommand:
            forget_all(store, disk)
            answer = await client.ask(*request)  # type: ignore[arg-type]  # code and header
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert disk.loads, "it was not in memory"
            return answer

        answer = await ask_cold(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=place))
        assert [bytes(one.message.body) for one in RecordReader(1).read(answer.body)] == [BODIES[40]]
        search = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=time)
        answer = await ask_cold(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
        assert answer.header(SearchOffsetResponseHeader).offset == store.offset_by_time("T", 0, time)
        earliest = GetEarliestMsgStoretimeRequestHeader(topic="T", queue_id=0)
        answer = await ask_cold(RequestCode.GET_EARLIEST_MSG_STORETIME, earliest)
        assert answer.header(GetEarliestMsgStoretimeResponseHeader).timestamp == store.earliest_time("T", 0)
        answer = await ask_cold(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="T"))
        [newest] = [one.last_update_timestamp for one in TopicStatsTable.decode(answer.body).offset_table.values()
                    if one.max_offset]  # fmt: skip
        assert newest == store.store_time("T", 0, COUNT - 1)
        await client.pull("T", 0, 0)  # makes the group
        back = ConsumerSendMsgBackRequestHeader(offset=place, group="readers", delay_level=1, origin_topic="T")
        await ask_cold(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        await ask_cold(RequestCode.GET_BROKER_RUNTIME_INFO)

    play(tmp_path, scenario, monkeypatch)


class _Later:
    """A clock on which every deadline is over."""

    def time_millis(self) -> int:
        raise NotImplementedError

    def monotonic(self) -> float:
        return float("inf")
