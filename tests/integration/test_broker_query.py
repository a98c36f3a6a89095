"""Request 12 over the wire: messages by key, by unique id and by tag, and what a broker says that has none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.record import RecordReader
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import QueryMessageRequestHeader, QueryMessageResponseHeader
from tests.fixtures.stores import IndexFails
from tests.integration.broker_client import BrokerClient, running_broker, unique

ALL_TIMES = {"begin_timestamp": 0, "end_timestamp": (1 << 63) - 1}


def play(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with running_broker(folder, store=settings) as client:
            await scenario(client)

    asyncio.run(run())


async def query(client: BrokerClient, key: str, topic: str = "T", max_num: int = 64, **fields: Any) -> RemotingCommand:
    header = QueryMessageRequestHeader(topic=topic, key=key, max_num=max_num, **(ALL_TIMES | fields))
    return await client.ask(RequestCode.QUERY_MESSAGE, header)


def bodies(answer: RemotingCommand) -> list[bytes]:
    assert answer.code == 0, answer.remark
    return [bytes(record.message.body) for record in RecordReader(100).read(answer.body)]


async def send_some(client: BrokerClient, count: int = 5) -> None:
    for number in range(count):
        properties = {"KEYS": f"all k{number}", "TAGS": f"t{number % 2}"}
        assert (await client.send("T", b"%d" % number, properties=properties)).code == 0


def test_messages_are_found_as_soon_as_they_are_acknowledged(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await send_some(client)
        assert bodies(await query(client, "k3")) == [b"3"]
        assert bodies(await query(client, unique(3))) == [b"2"]
        assert bodies(await query(client, unique(3), unique_key_query=True)) == [b"2"]
        assert bodies(await query(client, unique(3), index_type="U")) == [b"2"]
        assert bodies(await query(client, "t1", index_type="T")) == [b"1", b"3"]
        assert bodies(await query(client, "all", max_num=2)) == [b"3", b"4"]
        assert bodies(await query(client, "all", index_type="X")) == [b"%d" % number for number in range(5)]

    play(tmp_path, scenario)


def test_the_answer_tells_how_far_the_index_is(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await send_some(client)
        last = (await client.records("T"))[-1]
        answer = await query(client, "k1")
        header = answer.header(QueryMessageResponseHeader)
        assert header.index_last_update_timestamp == last.store_timestamp
        assert header.index_last_update_phyoffset == last.physical_offset
        assert answer.remark is None

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("none", {}),
        ("k1", {"topic": "U"}),
        ("k1", {"end_timestamp": 5}),
        ("k1", {"max_num": 0}),
        ("k1", {"index_type": "U"}),
    ],
)
def test_nothing_found(tmp_path: Path, key: str, fields: dict[str, Any]) -> None:
    async def scenario(client: BrokerClient) -> None:
        await send_some(client)
        answer = await query(client, key, **fields)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.remark == "can not find message, maybe time range not correct"
        assert answer.ext_fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}

    play(tmp_path, scenario)


def test_limits_of_an_answer(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await send_some(client, 9)
        assert bodies(await query(client, "all")) == [b"6", b"7", b"8"]
        for _ in range(4):
            await client.send("T", b"again", properties={"UNIQ_KEY": unique(99)})
        assert len(bodies(await query(client, unique(99), unique_key_query=True))) == 2

    play(tmp_path, scenario, max_msgs_num_batch=3, default_query_max_num=2)


def test_a_broker_without_an_index_says_so(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        answer = await query(client, "k1")
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "messageIndexEnable=false" in (answer.remark or "")

    play(tmp_path, scenario, message_index_enable=False)


def test_what_is_not_indexed_yet_is_no_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketcore.broker.processors.query.QUERY_SECONDS", 0.2)
    disk = IndexFails(tmp_path)
    monkeypatch.setattr("rocketcore.broker.store.message_store.FileSystem", lambda: disk)

    async def scenario(client: BrokerClient) -> None:
        await send_some(client, 3)
        assert bodies(await query(client, "all")) == [b"0", b"1", b"2"]
        disk.failing = "write"
        await send_some(client, 3)
        found = await query(client, "k1")
        assert bodies(found) == [b"1"]
        assert "bytes of the log behind" in (found.remark or "")
        missing = await query(client, "none")
        assert missing.code == ResponseCode.SYSTEM_BUSY
        assert "bytes of the log behind" in (missing.remark or "")
        disk.failing = ""

    play(tmp_path, scenario)
