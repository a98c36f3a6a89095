"""Messages for a time, under kill -9 and power cuts: each comes once, none early, none that was taken back.

``ROCKETCORE_FAULT_TIMER_CYCLES`` says how often the broker dies, on each kind of disk.
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
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import RocketError
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import PullMessageRequestHeader, RecallMessageRequestHeader
from rocketcore.transport.client import RemotingClient
from tests.fault.harness import BrokerProcess
from tests.fault.requests import send_header
from tests.fault.simulated_disk import cut_power
from tests.fixtures.processes import Processes, RocketProcess

CYCLES = int(os.environ.get("ROCKETCORE_FAULT_TIMER_CYCLES", "2"))
SEED = int(os.environ.get("ROCKETCORE_FAULT_SEED", "20261120"))
SECONDS_A_CYCLE = 15
SENDERS = 32
LONGEST = 3_000
TIMEOUT = 30.0
SETTINGS = {"mappedFileSizeCommitLog": 64 << 20, "flushDelayOffsetInterval": 200, "recallMessageEnable": "true"}

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

    def __init__(self, address: str, client: RemotingClient, sent: Sent, rng: random.Random) -> None:
        self._address = address
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


async def load_and_kill(folder: Path, disk: str, sent: Sent, came: Came, rng: random.Random) -> None:
    """Start, read what came meanwhile, send and take back, and kill."""
    broker = BrokerProcess(folder, disk)
    try:
        address = f"127.0.0.1:{await broker.ready()}"
        async with RemotingClient() as client:
            while await came.read(client, address, sent.due, 1):
                pass
            clients = Clients(address, client, sent, rng)
            async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
                for _ in range(SENDERS):
                    group.create_task(clients.run())
                await asyncio.sleep(rng.uniform(0.3, 3.0))  # the moment of the kill
                broker.kill()
    finally:
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
        deadline = time.monotonic() + LONGEST / 1000 + 20
        while missing := sent.acknowledged - sent.recall_asked - came.times.keys():
            assert time.monotonic() < deadline, (len(missing), sorted(missing)[:5], came.end, len(sent.due))
            while await came.read(client, broker.address, sent.due, 100):
                pass
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
    nothing = ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.TOPIC_NOT_EXIST
    assert answer.code == 0 or answer.code in nothing[: 2 + (begin == 0)], (begin, answer.code, answer.ext_fields)
    return list(RecordReader(100).read(answer.body)) if answer.code == 0 else []


@pytest.mark.timeout(120 + CYCLES * SECONDS_A_CYCLE)
@pytest.mark.parametrize("disk", ["kept", "honest"])
def test_a_broker_that_dies_delivers_each_message_once_and_none_early(
    processes: Processes, tmp_path: Path, disk: str
) -> None:
    sent, came, rng, cuts = Sent(), Came(), random.Random(SEED), 0
    (tmp_path / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
    for _ in range(CYCLES):
        asyncio.run(load_and_kill(tmp_path, disk, sent, came, rng))
        if (journal := tmp_path / "journal").exists():
            cuts += cut_power(journal, rng)
    broker = processes.broker("127.0.0.1:1", store=tmp_path / "store")
    asyncio.run(read_rest(broker, sent, came))
    late = sorted(came.late)
    assert [number for number, times in came.times.items() if times > 1] == []
    assert late[0] >= 0, "early"
    assert sent.recalled & came.times.keys() == set()
    print(
        f"{CYCLES} kills ({disk}), {cuts} writes cut, {len(sent.acknowledged)} messages acknowledged, "
        f"{len(sent.recalled)} of them taken back; half of all came {late[len(late) // 2]} ms late at most"
    )
    assert len(sent.acknowledged) > 100 * CYCLES
    assert len(sent.recalled) > 5 * CYCLES
    assert broker.stop() == 0
