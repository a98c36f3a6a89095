"""Retention seen from outside: requests 306, 316 and 329, consumers that are behind, delayed messages."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.keeping.cleaner import Cleaner
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.bodies.topic import KVTable
from rocketcore.protocol.headers.message import EndTransactionRequestHeader, PullMessageResponseHeader
from tests.integration.broker_client import SEGMENT_BYTES, BrokerClient, running_broker

ANOTHER_HOUR = f"{(time.localtime().tm_hour + 12) % 24:02}"
BODY = bytes(1 << 20)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[None]:
    """Gets an entry whenever a broker has looked for files to delete."""
    done: asyncio.Queue[None] = asyncio.Queue()
    look = Cleaner.look

    async def noted(self: Cleaner) -> None:
        await look(self)
        done.put_nowait(None)

    monkeypatch.setattr(Cleaner, "look", noted)
    return done


def log_files(folder: Path) -> list[Path]:
    return sorted((folder / "commitlog").glob("[0-9]" * 20))


def make_old(*paths: Path) -> None:
    at = time.time() - 73 * 3600
    for path in paths:
        os.utime(path, (at, at))


async def fill(client: BrokerClient, topic: str = "T") -> int:
    """Send messages until two files of the log are full; returns how many."""
    for count in range(1, 2 * SEGMENT_BYTES // len(BODY) + 3):
        answer = await client.send(topic, b"%06d" % count + BODY)
        assert answer.code == 0, answer.remark
    return count


async def runtime(client: BrokerClient) -> dict[str, str]:
    return KVTable.decode((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table


def test_old_files_are_deleted_on_request_and_consumers_go_on_behind_them(
    tmp_path: Path, looks: asyncio.Queue[None]
) -> None:
    async def run() -> None:
        store = {"delete_when": ANOTHER_HOUR, "clean_file_forcibly_enable": False}
        async with asyncio.timeout(60), running_broker(tmp_path, store=store) as client:
            count = await fill(client)
            first = log_files(tmp_path)[0]
            make_old(first)
            assert (await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
            await looks.get()
            assert not first.exists()
            assert (await runtime(client))["deletedLogBytes"] == str(SEGMENT_BYTES)
            assert (await runtime(client))["commitLogMinOffset"] == str(SEGMENT_BYTES)
            behind = await client.pull("T", 0, 1)
            assert behind.code == ResponseCode.PULL_OFFSET_MOVED
            header = behind.header(PullMessageResponseHeader)
            assert header.next_begin_offset == header.min_offset > 1
            records = await client.records("T", 0, header.next_begin_offset, max_bytes=64 << 20)
            assert records[0].queue_offset == header.min_offset
            assert (await client.send("T")).code == 0
            assert (await runtime(client))["damagedMessages"] == "0"
            assert header.max_offset == count

    asyncio.run(run())


def test_a_delayed_message_keeps_its_file(
    tmp_path: Path, looks: asyncio.Queue[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever age it has, and however full the disk is; it goes when the message was delivered."""
    monkeypatch.setattr(FileSystem, "used_percent", lambda self, path: 89.0)

    async def run() -> None:
        store = {"message_delay_level": "1h 2s"}
        async with asyncio.timeout(60), running_broker(tmp_path, store=store) as client:
            assert (await client.send("Later", properties={"DELAY": "2"})).code == 0
            await fill(client)
            first = log_files(tmp_path)[0]
            make_old(first)
            for _ in range(2):
                assert (await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
                await looks.get()
                if not await client.bodies("Later"):
                    assert first.exists()
            while not (found := await client.bodies("Later", hold_millis=5000)):
                pass
            assert found == [b"hello"]
            # The position of the level moves on before the next look.
            while first.exists():
                assert (await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
                await looks.get()
            assert await client.bodies("Later") == [b"hello"]

    asyncio.run(run())


def test_a_half_message_keeps_its_file(
    tmp_path: Path, looks: asyncio.Queue[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is decided, and the next round has seen that."""
    monkeypatch.setattr(FileSystem, "used_percent", lambda self, path: 89.0)

    async def look(client: BrokerClient) -> None:
        assert (await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
        await looks.get()

    async def run() -> None:
        async with asyncio.timeout(60), running_broker(tmp_path, transaction_check_interval=3_600_000) as client:
            half = await client.send("Later", properties={"TRAN_MSG": "true", "PGROUP": "shop"}, sys_flag=4)
            await fill(client)
            first = log_files(tmp_path)[0]
            make_old(first)
            for _ in range(2):
                await look(client)
                assert first.exists()
            header = EndTransactionRequestHeader(
                producer_group="shop",
                tran_state_table_offset=0,
                commit_log_offset=int((half.ext_fields or {})["msgId"][16:], 16),
                commit_or_rollback=8,
                msg_id="x",
            )
            assert (await client.ask(RequestCode.END_TRANSACTION, header)).code == 0
            assert await client.bodies("Later") == [b"hello"]
            await client.broker._check.round()
            await look(client)
            assert not first.exists()
            assert await client.bodies("Later") == [b"hello"]

    asyncio.run(run())


def test_files_of_queues_and_queues_without_a_topic_go_on_request(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), running_broker(tmp_path, store={"delete_when": ANOTHER_HOUR}) as client:
            for topic in ("Kept", "Unused"):
                assert (await client.send(topic)).code == 0
            assert (await client.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
            client.broker._topics.delete(["Unused"])
            assert (await client.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
            assert {topic for topic, _ in client.broker._store.queues()} == {"Kept"}
            assert await client.bodies("Kept") == [b"hello"]
        async with running_broker(tmp_path) as client:
            assert {topic for topic, _ in client.broker._store.queues()} == {"Kept"}

    asyncio.run(run())


def test_a_disk_that_is_too_full_refuses_sends(
    tmp_path: Path, looks: asyncio.Queue[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[str, Any] = {"percent": 95.0}
    monkeypatch.setattr(FileSystem, "used_percent", lambda self, path: used["percent"])

    async def run() -> None:
        async with asyncio.timeout(60), running_broker(tmp_path) as client:
            assert (await client.send("T")).code == 0
            assert (await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
            await looks.get()
            refused = await client.send("T")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "95.0 %" in refused.remark  # type: ignore[operator]
            used["percent"] = 50.0
            assert (await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
            await looks.get()
            assert (await client.send("T")).code == 0

    asyncio.run(run())
