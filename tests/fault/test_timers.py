"""Messages for a time, on a broker that is killed at any moment: each comes once, none early, none that was taken back.

``ROCKETCORE_FAULT_TIMER_CYCLES`` says how often it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rocketcore._fast.properties import encode_properties
from rocketcore.broker.record import RecordReader, StoredRecord
from rocketcore.codes import RequestCode
from rocketcore.errors import RocketError
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import PullMessageRequestHeader, RecallMessageRequestHeader
from rocketcore.transport.client import RemotingClient
from tests.fault.requests import send_header
from tests.fixtures.processes import Processes, RocketProcess

CYCLES = int(os.environ.get("ROCKETCORE_FAULT_TIMER_CYCLES", "4"))
SEED = int(os.environ.get("ROCKETCORE_FAULT_SEED", "20261120"))
SECONDS_A_CYCLE = 15
SENDERS = 32
LONGEST = 3_000
TIMEOUT = 10.0
SETTINGS = {"ROCKETCORE_FLUSH_DELAY_OFFSET_INTERVAL": "200", "ROCKETCORE_RECALL_MESSAGE_ENABLE": "true"}

pytestmark = pytest.mark.fault


@dataclass
class Sent:
    """What was asked for, and answered: number → time; those that are known to be stored, or to be taken back."""

    due: dict[int, int] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    recall_asked: set[int] = field(default_factory=set)
    recalled: set[int] = field(default_factory=set)


def now() -> int:
    return time.time_ns() // 1_000_000


class Clients:
    """Sends and takes back until the broker is gone."""

    def __init__(self, broker: RocketProcess, client: RemotingClient, sent: Sent, rng: random.Random) -> None:
        self._address = broker.address
        self._client = client
        self._sent = sent
        self._rng = rng

    async def ask(self, request: RemotingCommand) -> RemotingCommand:
        return await self._client.invoke(self._address, request, TIMEOUT)

    async def run(self) -> None:
        with contextlib.suppress(RocketError):
            while True:
                await self._send()

    async def _send(self) -> None:
        sent, rng = self._sent, self._rng
        number, delay = len(sent.due), rng.randrange(1, LONGEST)
        sent.due[number] = now() + delay
        asked = {"TIMER_DELAY_MS": str(delay)}
        if rng.random() < 0.5:
            asked = {"TIMER_DELIVER_MS": str(sent.due[number])}
        properties = encode_properties({"UNIQ_KEY": f"{number:032X}", **asked}).decode()
        header = send_header("T", 0, properties, now())
        answer = await self.ask(RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"%d" % number))
        assert answer.code == 0, answer
        sent.acknowledged.add(number)
        handle = (answer.ext_fields or {}).get("recallHandle")
        if handle is not None and rng.random() < 0.2:
            sent.recall_asked.add(number)
            recall = RecallMessageRequestHeader(topic="T", recall_handle=handle)
            answer = await self.ask(RemotingCommand.request(RequestCode.RECALL_MESSAGE, recall))
            if answer.code == 0:
                sent.recalled.add(number)


async def load_and_kill(broker: RocketProcess, sent: Sent, came: Came, rng: random.Random) -> None:
    """Read what came meanwhile, send and take back, and kill."""
    async with RemotingClient() as client:
        while await came.read(client, broker.address, sent.due, 1):
            pass
        clients = Clients(broker, client, sent, rng)
        async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
            for _ in range(SENDERS):
                group.create_task(clients.run())
            await asyncio.sleep(rng.uniform(0.3, 3.0))  # the moment of the kill
            broker.process.kill()
    broker.kill()


@dataclass
class Came:
    """What was read of the topic so far: number → how often it came, and how late each was."""

    times: Counter[int] = field(default_factory=Counter)
    late: list[int] = field(default_factory=list)
    end: int = 0

    async def read(self, client: RemotingClient, address: str, due: dict[int, int], hold_millis: int) -> int:
        """Pull once and return how many messages there were."""
        records = await pull(client, address, self.end, hold_millis)
        for record in records:
            number = int(record.message.body)
            self.times[number] += 1
            self.late.append(record.store_timestamp - due[number])
        self.end += len(records)
        return len(records)


async def read_rest(broker: RocketProcess, sent: Sent, came: Came) -> None:
    """Pull until everything that is due came, and what else comes a while later."""
    async with RemotingClient() as client:
        async with asyncio.timeout(LONGEST / 1000 + 20):
            missing = sent.acknowledged - sent.recall_asked - came.times.keys()
            while missing:
                await came.read(client, broker.address, sent.due, 1_000)
                missing -= came.times.keys()
        while await came.read(client, broker.address, sent.due, LONGEST + 1_000):
            pass


async def pull(client: RemotingClient, address: str, begin: int, hold_millis: int) -> list[StoredRecord]:
    header = PullMessageRequestHeader(
        consumer_group="g",
        topic="T",
        queue_id=0,
        queue_offset=begin,
        max_msg_nums=32,
        sys_flag=6,
        commit_offset=0,
        suspend_timeout_millis=hold_millis,
        sub_version=0,
        subscription="*",
    )
    answer = await client.invoke(address, RemotingCommand.request(RequestCode.PULL_MESSAGE, header), TIMEOUT)
    return list(RecordReader(100).read(answer.body)) if answer.code == 0 else []


@pytest.mark.timeout(120 + CYCLES * SECONDS_A_CYCLE)
def test_a_killed_broker_delivers_each_message_once_and_none_early(processes: Processes, tmp_path: Path) -> None:
    store, sent, came, rng = tmp_path / "store", Sent(), Came(), random.Random(SEED)
    for _ in range(CYCLES):
        broker = processes.start(
            "broker", "start", "--namesrv", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--store", str(store),
            env=SETTINGS,
        )  # fmt: skip
        asyncio.run(load_and_kill(broker, sent, came, rng))
    broker = processes.broker("127.0.0.1:1", store=store)
    asyncio.run(read_rest(broker, sent, came))
    late = sorted(came.late)
    assert [number for number, times in came.times.items() if times > 1] == []
    assert late[0] >= 0, "early"
    assert sent.recalled & came.times.keys() == set()
    print(
        f"{CYCLES} kills, {len(sent.acknowledged)} messages acknowledged, {len(sent.recalled)} of them taken back; "
        f"half of all came {late[len(late) // 2]} ms late at most"
    )
    assert len(sent.acknowledged) > 100 * CYCLES
    assert len(sent.recalled) > 5 * CYCLES
    assert broker.stop() == 0
