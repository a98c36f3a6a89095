"""A producer of transactions beside a broker under test: its half messages, its decisions, what it is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rocketcore._fast.properties import decode_properties
from rocketcore.broker.record import StoredRecord
from rocketcore.codes import RequestCode
from rocketcore.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from rocketcore.protocol.bodies.topic import KVTable
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from rocketcore.transport.routes import Route
from tests.integration.broker_client import BrokerClient, running_broker
from tests.reference.message import without_checksums

HALF, OP, ASIDE = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
OFTEN: dict[str, Any] = {"transaction_check_interval": 20, "transaction_time_out": 1}
SELDOM: dict[str, Any] = {"transaction_check_interval": 3_600_000}


class Half:
    """A half message as its producer knows it."""

    def __init__(self, answer: RemotingCommand) -> None:
        assert answer.code == 0, answer
        fields = answer.ext_fields or {}
        self.fields = fields
        self.queue_offset = int(fields["queueOffset"])
        self.physical_offset = int(fields["msgId"][16:], 16)

    def end(self, state: int = COMMIT, **changes: Any) -> EndTransactionRequestHeader:
        known: dict[str, Any] = {
            "producer_group": "shop",
            "tran_state_table_offset": self.queue_offset,
            "commit_log_offset": self.physical_offset,
            "commit_or_rollback": state,
            "msg_id": self.fields["transactionId"],
        }
        return EndTransactionRequestHeader(**(known | changes))


class Scene:
    """A broker, and a producer of the group ``shop`` with its questions."""

    def __init__(self, client: BrokerClient) -> None:
        self.client = client
        self.checks: asyncio.Queue[tuple[CheckTransactionStateRequestHeader, bytes]] = asyncio.Queue()
        client.client.add_routes(
            [Route(RequestCode.CHECK_TRANSACTION_STATE, self._checked, CheckTransactionStateRequestHeader)]
        )

    def _checked(self, channel: object, request: RemotingCommand, header: CheckTransactionStateRequestHeader) -> None:
        self.checks.put_nowait((header, bytes(request.body)))

    async def register(self, group: str = "shop") -> None:
        heartbeat = HeartbeatData("producer-1", [ProducerData(group)], [])
        assert (await self.client.ask(RequestCode.HEART_BEAT, body=heartbeat.encode())).code == 0

    async def send(self, body: bytes = b"half", *, topic: str = "T", ahead: float = 0, **properties: str) -> Half:
        """Send a half message; ``ahead`` is what the producer's clock is, in seconds."""
        properties = {"TRAN_MSG": "true", "PGROUP": "shop"} | properties
        born = time.time_ns() // 1_000_000 + round(1000 * ahead)
        return Half(
            await self.client.send(topic, body, queue_id=2, properties=properties, sys_flag=4, born_timestamp=born)
        )

    async def end(self, header: EndTransactionRequestHeader) -> RemotingCommand:
        return await self.client.ask(RequestCode.END_TRANSACTION, header)

    async def check(self) -> tuple[CheckTransactionStateRequestHeader, bytes]:
        return await asyncio.wait_for(self.checks.get(), 10)

    async def aside(self) -> list[StoredRecord]:
        """Wait until a message is set aside."""
        self.client.broker._context.topics.ensure(ASIDE, 1)
        return await self.client.records(ASIDE, hold_millis=10_000)

    async def undecided(self) -> str:
        """Return how many half messages the broker says that it has."""
        return KVTable.decode((await self.client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table["halfMessages"]

    async def delivered(self) -> list[bytes]:
        return await self.client.all_bodies("T", 2)


def play(folder: Path, scenario: Callable[[Scene], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), running_broker(folder, **(SELDOM | settings)) as client:
            await scenario(Scene(client))

    asyncio.run(run())


def text_of(record: StoredRecord) -> Mapping[str, str]:
    return decode_properties(without_checksums(record.message.properties))
