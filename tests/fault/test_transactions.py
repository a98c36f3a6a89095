"""kill -9 and power cuts under transactions: what was committed comes, once, and what was rolled back never does.

Each sender says how its transactions end before it begins them, tells the broker of half of the outcomes, and answers
the rest when it is asked, in two of three cases at once: else it does not know yet. All that can be wrong:

lost       the half message was acknowledged, its work succeeded, and it does not come
phantom    it comes, and was rolled back or never sent
twice      it comes twice since the start of the broker that acknowledged a commit: a crash may tear a write behind what
           was committed, and then nobody was told, and the producer is asked again
corrupt    it comes with other bytes

The disk is small: what came and was deleted for its age before it was read is counted by the offsets that are missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import TransportError
from rocketcore.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from rocketcore.protocol.bodies.topic import KVTable
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import GetMinOffsetRequestHeader, GetMinOffsetResponseHeader
from rocketcore.protocol.headers.message import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rocketcore.protocol.message import decode_message
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.routes import Route
from tests.fault.harness import QUEUES, READ_SECONDS, SETTINGS, TOPIC, BrokerProcess
from tests.fault.ledger import Found, Key, Verdict, make_body, read_body
from tests.fault.requests import asker, places, read_queue, send_header
from tests.fault.simulated_disk import cut_power

CYCLES = int(os.environ.get("ROCKETCORE_FAULT_CYCLES", "6"))
SEED = int(os.environ.get("ROCKETCORE_FAULT_SEED", "20261126"))
SECONDS_A_CYCLE = 20
SENDERS = 4
GROUP = "shop"
COMMIT, ROLLBACK = 8, 12
OFTEN: dict[str, Any] = {
    "transactionCheckInterval": 50,
    "transactionTimeOut": 100,
    "transactionCheckMax": 1_000_000,
    "flushConsumerOffsetInterval": 50,
}

pytestmark = pytest.mark.fault


class Outcomes:
    """What every transaction was to become, what was acknowledged of it, and what came of it."""

    def __init__(self) -> None:
        self.sent: dict[Key, tuple[bytes, int]] = {}
        self.acknowledged: set[Key] = set()
        self.committed: dict[Key, int] = {}
        """Commits that the broker acknowledged, and the physical offset from which on it had written."""
        self.came: dict[Key, list[int]] = {}
        """Physical offsets of what was read."""
        self.unread = 0
        """Messages that were deleted before they were read."""
        self.asked = 0

    def outcome(self, key: Key) -> int:
        return self.sent[key][1]

    @property
    def due(self) -> set[Key]:
        """What is to come."""
        return {key for key in self.acknowledged if self.outcome(key) == COMMIT}

    def read(self, found: list[Found], verdict: Verdict) -> None:
        for message in found:
            key = read_body(message.body)
            if key is None or key not in self.sent:
                verdict.blame("phantom" if key else "corrupt", f"{key} at {message.physical_offset}")
                continue
            self.came.setdefault(key, []).append(message.physical_offset)
            body, outcome = self.sent[key]
            if body != message.body:
                verdict.blame("corrupt", f"{key} at {message.physical_offset}")
            if outcome == ROLLBACK:
                verdict.blame("phantom", f"{key} was rolled back, and is at {message.physical_offset}")

    @property
    def is_complete(self) -> bool:
        """Whether all that is due came."""
        return len(self.due - self.came.keys()) <= self.unread

    def judge(self, verdict: Verdict) -> None:
        if not self.is_complete:
            for key in self.due - self.came.keys():
                verdict.blame("lost", f"{key}, commit acknowledged: {key in self.committed}, {self.unread} not read")
        for key, begin in self.committed.items():
            copies = self.came.get(key, [])
            if sum(place >= begin for place in copies) > 1:
                verdict.blame("twice", f"{key} is at {copies}, committed behind {begin}")


class TransactionRun:
    """One store through many lives of its broker."""

    def __init__(self, folder: Path, seed: int, disk: str) -> None:
        self.folder = folder
        self.outcomes = Outcomes()
        self.cycles = 0
        self._begin = 0
        self._rng = random.Random(seed)
        self._disk = disk
        self._read_offsets = dict.fromkeys(range(QUEUES), 0)
        (folder / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in (SETTINGS | OFTEN).items()))

    async def cycle(self, *, last: bool = False) -> Verdict:
        """Start, load, wait for all that is due, load on and kill; ``last``: only the first half."""
        broker = BrokerProcess(self.folder, self._disk)
        verdict = Verdict()
        try:
            address = f"127.0.0.1:{await broker.ready()}"
            async with RemotingClient() as client:
                answer = await client.invoke(address, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO), 10)
                self._begin = int(KVTable.decode(answer.body).table["commitLogMaxOffset"])
            async with self._producer(address) as client:
                await self._await_due(client, address, verdict)
                self.outcomes.judge(verdict)
                if last:
                    return verdict
                senders = [asyncio.create_task(self._send(client, address, number)) for number in range(SENDERS)]
                await asyncio.sleep(self._rng.uniform(0.1, 0.4))
                broker.kill()
                await asyncio.gather(*senders)
        finally:
            with contextlib.suppress(AssertionError, ValueError):
                broker.kill()
        self.cycles += 1
        if (journal := self.folder / "journal").exists():
            cut_power(journal, self._rng)
        return verdict

    @contextlib.asynccontextmanager
    async def _producer(self, address: str) -> AsyncIterator[RemotingClient]:
        """A client that is known as a producer and answers what it is asked."""
        async with RemotingClient() as client:
            tasks: set[asyncio.Task[None]] = set()

            def asked(channel: object, request: RemotingCommand, header: CheckTransactionStateRequestHeader) -> None:
                key = read_body(decode_message(request.body).body)
                assert key is not None
                self.outcomes.asked += 1
                if self._rng.random() < 1 / 3:
                    return
                task = asyncio.create_task(
                    self._end(
                        client, address, key, header.tran_state_table_offset, header.commit_log_offset, asked=True
                    )
                )
                tasks.add(task)
                task.add_done_callback(tasks.discard)

            route = Route(RequestCode.CHECK_TRANSACTION_STATE, asked, CheckTransactionStateRequestHeader)
            client.add_routes([route])
            heartbeat = HeartbeatData("producer-1", [ProducerData(GROUP)], []).encode()
            request = RemotingCommand.request(RequestCode.HEART_BEAT, None, heartbeat)
            assert (await client.invoke(address, request, READ_SECONDS)).code == 0
            yield client
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, client: RemotingClient, address: str, sender: int) -> None:
        """Run transactions one after the other until the broker is gone."""
        rng = random.Random(self._rng.random())
        with contextlib.suppress(TransportError):
            for sequence in range(1_000_000):
                key = (self.cycles, sender, sequence)
                body = make_body(key, rng, (0, 100, 1000))
                self.outcomes.sent[key] = body, rng.choice((COMMIT, COMMIT, ROLLBACK))
                text = f"UNIQ_KEY\x01{os.urandom(16).hex().upper()}\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
                header = send_header(TOPIC, rng.randrange(QUEUES), text, time.time_ns() // 1_000_000)
                header.sys_flag = 4
                request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body)
                answer = await client.invoke(address, request, READ_SECONDS)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                self.outcomes.acknowledged.add(key)
                ((_, queue_offset, physical_offset),) = places(answer)
                if rng.random() < 0.5:
                    await self._end(client, address, key, queue_offset, physical_offset)

    async def _end(
        self,
        client: RemotingClient,
        address: str,
        key: Key,
        queue_offset: int,
        physical_offset: int,
        *,
        asked: bool = False,
    ) -> None:
        outcome = self.outcomes.outcome(key)
        header = EndTransactionRequestHeader(
            producer_group=GROUP,
            tran_state_table_offset=queue_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=outcome,
            from_transaction_check=asked,
            msg_id="x",
        )
        answer = await client.invoke(
            address, RemotingCommand.request(RequestCode.END_TRANSACTION, header), READ_SECONDS
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        if outcome == COMMIT:
            self.outcomes.committed.setdefault(key, self._begin)

    async def _await_due(self, client: RemotingClient, address: str, verdict: Verdict) -> None:
        """Read until all that is due is there, or for too long; and once more."""
        ask = asker(client, address, READ_SECONDS)
        until = time.monotonic() + READ_SECONDS
        while True:
            complete = self.outcomes.is_complete or time.monotonic() > until
            for queue_id in range(QUEUES):
                begin = self._read_offsets[queue_id]
                found = await read_queue(ask, TOPIC, queue_id, verdict, begin)
                header = GetMinOffsetRequestHeader(topic=TOPIC, queue_id=queue_id)
                answer = await ask(RequestCode.GET_MIN_OFFSET, header)
                first = answer.header(GetMinOffsetResponseHeader).offset
                end = max(begin, first, *(message.queue_offset + 1 for message in found))
                self.outcomes.unread += end - begin - len(found)
                self._read_offsets[queue_id] = end
                self.outcomes.read(found, verdict)
            if complete:
                return
            await asyncio.sleep(0.05)


async def survive(folder: Path, seed: int, disk: str) -> Outcomes:
    run = TransactionRun(folder, seed, disk)
    for number in range(CYCLES + 1):
        verdict = await run.cycle(last=number == CYCLES)
        assert verdict, f"seed {seed} cycle {number}: {dict(verdict.counts)} {verdict.examples}"
    return run.outcomes


@pytest.mark.parametrize("disk", ["kept", "honest"])
@pytest.mark.timeout(60 + CYCLES * SECONDS_A_CYCLE)
def test_transactions_survive(tmp_path: Path, disk: str) -> None:
    outcomes = asyncio.run(survive(tmp_path, SEED, disk))
    again = sum(len(copies) - 1 for copies in outcomes.came.values())
    print(
        f"{CYCLES} kills ({disk}), {len(outcomes.acknowledged)} transactions, {outcomes.asked} questions, "
        f"{len(outcomes.came)} messages came, {again} of them again, {outcomes.unread} were deleted unread; "
        "none lost, none that was rolled back"
    )
    assert len(outcomes.acknowledged) > 10 * CYCLES
    assert outcomes.asked > CYCLES
    assert again <= CYCLES


def test_the_judge() -> None:
    outcomes, rng = Outcomes(), random.Random(1)
    for sequence, outcome in enumerate((COMMIT, COMMIT, COMMIT, ROLLBACK)):
        key = (0, 0, sequence)
        outcomes.sent[key] = make_body(key, rng), outcome
        outcomes.acknowledged.add(key)
    outcomes.committed[0, 0, 0] = 100

    def judged(*found: bytes, place: int = 200) -> dict[str, int]:
        verdict = Verdict()
        outcomes.read([Found(0, 0, place, body) for body in found], verdict)
        outcomes.judge(verdict)
        return dict(verdict.counts)

    bodies = [body for body, _ in outcomes.sent.values()]
    assert judged() == {"lost": 3}
    outcomes.unread = 3
    assert judged() == {}
    outcomes.unread = 2
    assert judged() == {"lost": 3}
    outcomes.unread = 0
    assert judged(*bodies[:3]) == {}
    assert judged(bodies[1]) == {}
    assert judged(bodies[0], place=99) == {}
    assert judged(bodies[0], bodies[3], b"nonsense", make_body((9, 9, 9), rng)) == {
        "twice": 1,
        "phantom": 2,
        "corrupt": 1,
    }
