"""A broker that is killed under load: what it acknowledged is there when it comes back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from rocketcore._fast.properties import encode_properties
from rocketcore.broker.record import RecordReader
from rocketcore.codes import RequestCode
from rocketcore.protocol.bodies.topic import KVTable
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import PullMessageRequestHeader, SendMessageRequestHeaderV2
from rocketcore.transport.client import RemotingClient
from tests.fixtures.processes import Processes, RocketProcess

TIMEOUT = 10.0
QUEUES = 4
IN_FLIGHT = 64


def send_request(number: int, **properties: str) -> RemotingCommand:
    header = SendMessageRequestHeaderV2(
        producer_group="p",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=number % QUEUES,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=encode_properties({"UNIQ_KEY": f"{number:032X}", **properties}).decode(),
    )
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"%d" % number)


async def send_until(address: str, numbers: list[int], acknowledged: dict[int, tuple[int, int]], enough: int) -> None:
    """Keep requests in flight and note where each success went, until there are ``enough`` or the broker is gone."""

    async def one_sender(client: RemotingClient) -> None:
        while len(acknowledged) < enough:
            number = len(numbers)
            numbers.append(number)
            answer = await client.invoke(address, send_request(number), TIMEOUT)
            if answer.code == 0 and answer.ext_fields is not None:
                acknowledged[number] = int(answer.ext_fields["queueId"]), int(answer.ext_fields["queueOffset"])

    async with RemotingClient() as client:
        await asyncio.gather(*(one_sender(client) for _ in range(IN_FLIGHT)), return_exceptions=True)


async def read_queue(client: RemotingClient, address: str, queue_id: int) -> list[int]:
    read: list[int] = []
    while True:
        header = PullMessageRequestHeader(
            consumer_group="g",
            topic="T",
            queue_id=queue_id,
            queue_offset=len(read),
            max_msg_nums=32,
            sys_flag=4,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
        )
        answer = await client.invoke(address, RemotingCommand.request(RequestCode.PULL_MESSAGE, header), TIMEOUT)
        if answer.code != 0:
            return read
        read += [int(record.message.body) for record in RecordReader(100).read(answer.body)]


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_by_a_kill(processes: Processes, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = tmp_path / "store"
    numbers: list[int] = []
    acknowledged: dict[int, tuple[int, int]] = {}
    for _ in range(2):
        broker = processes.broker("127.0.0.1:1", store=store)
        moment = len(acknowledged) + rng.randrange(50, 800)

        async def load_and_kill(broker: RocketProcess = broker, moment: int = moment) -> None:
            sending = asyncio.create_task(send_until(broker.address, numbers, acknowledged, 1_000_000))
            while len(acknowledged) < moment and not sending.done():  # noqa: ASYNC110 - the senders set no event
                await asyncio.sleep(0.001)
            broker.process.kill()
            async with asyncio.timeout(TIMEOUT):
                await sending

        asyncio.run(load_and_kill())
        broker.kill()

    broker = processes.broker("127.0.0.1:1", store=store)

    async def check() -> None:
        async with asyncio.timeout(60), RemotingClient() as client:
            queues = [await read_queue(client, broker.address, queue_id) for queue_id in range(QUEUES)]
        for number, (queue_id, queue_offset) in acknowledged.items():
            assert queues[queue_id][queue_offset] == number, (number, queue_id, queue_offset)
        everything = [number for queue in queues for number in queue]
        assert len(set(everything)) == len(everything)
        assert set(everything) <= set(numbers)

    asyncio.run(check())
    assert len(acknowledged) >= 100
    assert broker.stop() == 0


@pytest.mark.parametrize("delivered", [1, 1_500])
def test_delayed_messages_come_once_though_the_broker_is_killed_while_they_come(
    processes: Processes, tmp_path: Path, delivered: int
) -> None:
    """All are due together; the kill comes when some are delivered, long before positions are saved."""
    store = tmp_path / "store"
    count = 3_000
    broker = processes.broker("127.0.0.1:1", store=store)

    async def send_and_kill(broker: RocketProcess) -> None:
        async with asyncio.timeout(60), RemotingClient() as client:
            for first in range(0, count, 500):
                numbers = range(first, first + 500)
                sends = [client.invoke(broker.address, send_request(n, DELAY="2"), TIMEOUT) for n in numbers]
                assert {answer.code for answer in await asyncio.gather(*sends)} == {0}
            while len(await read_queue(client, broker.address, 0)) < delivered / QUEUES:
                pass
        broker.kill()

    async def read_all(broker: RocketProcess) -> list[int]:
        async with asyncio.timeout(60), RemotingClient() as client:
            while True:
                queues = [await read_queue(client, broker.address, queue_id) for queue_id in range(QUEUES)]
                if sum(map(len, queues)) >= count and await positions(client, broker.address) == f"{count},{count}":
                    return sorted(number for queue in queues for number in queue)

    asyncio.run(send_and_kill(broker))
    broker = processes.broker("127.0.0.1:1", store=store)
    assert asyncio.run(read_all(broker)) == list(range(count))
    assert broker.stop() == 0


async def positions(client: RemotingClient, address: str) -> str:
    """Where level 2 is, and where its queue ends."""
    answer = await client.invoke(address, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO, None), TIMEOUT)
    return KVTable.decode(answer.body).table["scheduleMessageOffset_2"]
