"""How much one pull answers: the settings, what the request allows, and the long answers that table readers ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.record import RecordReader
from rocketcore.codes import RequestCode
from rocketcore.protocol.command import RemotingCommand
from tests.integration.broker_client import BrokerClient, running_broker

ON_DISK = {"access_message_in_memory_max_ratio": 0}


def play(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]], **store: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), running_broker(folder, store=store) as client:
            await scenario(client)

    asyncio.run(run())


async def fill(client: BrokerClient, count: int, size: int) -> None:
    """Store ``count`` messages of ``size`` bytes in queue 0 of T."""
    for begin in range(0, count, 1000):
        await client.send_batch("T", [b"x" * size] * min(1000, count - begin))


async def answered(client: BrokerClient, **fields: Any) -> tuple[int, int]:
    """Pull from the start of queue 0; messages and bytes of the answer."""
    answer = await client.pull("T", 0, 0, **fields)
    return len(list(RecordReader(10_000).read(answer.body))), len(answer.body)


@pytest.mark.parametrize(
    ("settings", "asked", "count"),
    [
        ({}, 4096, 32),
        ({}, 7, 7),
        ({}, 0, 1),
        ({"max_transfer_count_on_message_in_memory": 1024}, 4096, 1024),
        ({"max_transfer_count_on_message_in_memory": 1024}, 100, 100),
        (ON_DISK, 4096, 8),
        ({**ON_DISK, "max_transfer_count_on_message_in_disk": 300}, 4096, 300),
        ({**ON_DISK, "max_transfer_count_on_message_in_memory": 2, "max_transfer_count_on_message_in_disk": 9}, 99, 9),
    ],
)
def test_messages_of_an_answer(tmp_path: Path, settings: dict[str, Any], asked: int, count: int) -> None:
    """The settings alone say how many; those for messages on disk stand in place of those for messages in memory."""

    async def scenario(client: BrokerClient) -> None:
        await fill(client, 1200, 10)
        assert (await answered(client, max_count=asked))[0] == count

    play(tmp_path, scenario, **settings)


@pytest.mark.parametrize(
    ("settings", "max_bytes", "limit"),
    [
        ({"max_transfer_count_on_message_in_memory": 1024}, None, 262_144),
        ({"max_transfer_count_on_message_in_memory": 1024}, 100_000, 100_000),
        ({"max_transfer_count_on_message_in_memory": 1024}, 0, 262_144),
        ({"max_transfer_count_on_message_in_memory": 1024, "max_transfer_bytes_on_message_in_memory": 500_000}, None,
         500_000),
        ({**ON_DISK, "max_transfer_count_on_message_in_disk": 1024}, None, 65_536),
        ({**ON_DISK, "max_transfer_count_on_message_in_disk": 1024, "max_transfer_bytes_on_message_in_disk": 300_000},
         1 << 20, 300_000),
    ],
)  # fmt: skip
def test_bytes_of_an_answer(tmp_path: Path, settings: dict[str, Any], max_bytes: int | None, limit: int) -> None:
    async def scenario(client: BrokerClient) -> None:
        await fill(client, 1000, 1024)
        size = (await answered(client, max_count=4096, max_bytes=max_bytes))[1]
        assert limit - 1400 < size <= limit

    play(tmp_path, scenario, **settings)


@pytest.mark.parametrize("settings", [{}, ON_DISK])
def test_a_reader_of_tables_gets_more(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Up to 1 MiB and 8,192 messages, from memory and from disk; not where the pull may be held, as consumers' may."""

    async def scenario(client: BrokerClient) -> None:
        await fill(client, 10_000, 10)
        assert (1 << 20) - 200 < (await answered(client, max_count=100_000, wide=True))[1] <= 1 << 20
        assert (await answered(client, max_count=100, wide=True))[0] == 100
        assert (await answered(client, max_count=100_000, max_bytes=50_000, wide=True))[1] <= 50_000
        usual = 8 if settings else 32
        assert (await answered(client, max_count=100_000))[0] == usual
        assert (await answered(client, max_count=100_000, wide=True, hold_millis=1000))[0] == usual

    play(tmp_path, scenario, **settings)


def test_the_long_answers_have_settings(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await fill(client, 2000, 100)
        assert (await answered(client, max_count=100_000, wide=True))[0] == 300
        await client.send_batch("U", [bytes(1000)] * 500)
        answer = await client.pull("U", 0, 0, max_count=300, wide=True)
        assert 98_000 < len(answer.body) <= 100_000

    play(tmp_path, scenario, max_pull_count=300, max_pull_bytes=100_000)


def test_one_turn_answers_so_much(tmp_path: Path) -> None:
    """Many pulls that arrive together do not keep others from the loop: after 4 MiB they get the ordinary window."""

    async def scenario(client: BrokerClient) -> None:
        await fill(client, 1000, 1000)
        header = client.pull_header("T", max_count=8192, wide=True)
        requests = [RemotingCommand.request(RequestCode.PULL_MESSAGE, header) for _ in range(40)]
        answers = await asyncio.gather(
            *(client.client.invoke(client.broker.address, request, 10.0) for request in requests)
        )
        sizes = [len(answer.body) for answer in answers]
        assert max(sizes) > 500_000
        assert sum(size > 500_000 for size in sizes) < 40
        assert min(sizes) > 32 * 1000
        assert (await answered(client, max_count=8192, wide=True))[1] > 500_000

    play(tmp_path, scenario)


def test_a_reader_that_takes_nothing_holds_little(tmp_path: Path) -> None:
    """A thousand long answers that nobody takes: what waits to be sent is at most twice the high-water mark."""

    async def scenario(client: BrokerClient) -> None:
        await fill(client, 1000, 1000)
        host, _, port = client.broker.address.rpartition(":")
        before = set(client.broker._server.channels)
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        header = client.pull_header("T", max_count=8192, wide=True)
        for _ in range(1000):
            writer.write(RemotingCommand.request(RequestCode.PULL_MESSAGE, header).encode())
        while not (new := set(client.broker._server.channels) - before) or not next(iter(new)).write_paused:
            assert (await client.pull("T")).code == 0  # others are answered meanwhile
        assert next(iter(new))._transport.get_write_buffer_size() <= 2 * (8 << 20) + (1 << 20)
        writer.close()
        del reader

    play(tmp_path, scenario)


def test_messages_of_a_long_answer_have_an_end(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await fill(client, 10_000, 10)
        assert (await answered(client, max_count=100_000, wide=True))[0] == 8192

    play(tmp_path, scenario, max_pull_bytes=4 << 20, max_pull_count=20_000)
