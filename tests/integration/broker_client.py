"""A broker on a free port and a connection that speaks to it, for tests on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rocketcore._fast.batch import encode_batch
from rocketcore._fast.properties import encode_properties
from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.record import RecordReader, StoredRecord
from rocketcore.broker.store import StoreConfig
from rocketcore.codes import RequestCode
from rocketcore.protocol.bodies.heartbeat import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import PullMessageRequestHeader, SendMessageRequestHeaderV2
from rocketcore.protocol.schema import Header
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.client import RemotingClient

TIMEOUT = 10.0
SEGMENT_BYTES = 8 << 20


def store_config(folder: Path, **settings: Any) -> StoreConfig:
    small = {"mapped_file_size_commit_log": SEGMENT_BYTES, "max_hash_slot_num": 5000, "max_index_num": 20_000}
    return StoreConfig(store_path_root_dir=folder, **(small | settings))


def unique(number: int) -> str:
    return f"{number:032X}"


class BrokerClient:
    """Requests to one broker, spelled out."""

    def __init__(self, broker: Broker, client: RemotingClient) -> None:
        self.broker = broker
        self.client = client
        self._sent = 0

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        """Send a request and return the answer, whatever its code."""
        return await self.client.invoke(self.broker.address, RemotingCommand.request(code, header, body), TIMEOUT)

    def send_request(
        self,
        topic: str,
        body: bytes = b"hello",
        *,
        queue_id: int = 0,
        properties: dict[str, str] | None = None,
        default_topic: str = "TBW102",
        sys_flag: int = 0,
        reconsume_times: int | None = None,
        max_reconsume_times: int | None = None,
        batch: bool | None = None,
        rc_first_id: int | None = None,
        born_timestamp: int = 1_700_000_000_000,
        code: int = RequestCode.SEND_MESSAGE_V2,
    ) -> RemotingCommand:
        self._sent += 1
        header = SendMessageRequestHeaderV2(
            producer_group="producers",
            topic=topic,
            default_topic=default_topic,
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp=born_timestamp,
            flag=7,
            properties=encode_properties({"UNIQ_KEY": unique(self._sent), **(properties or {})}).decode(),
            reconsume_times=reconsume_times,
            max_reconsume_times=max_reconsume_times,
            batch=batch,
            rc_first_id=rc_first_id,
        )
        return RemotingCommand.request(code, header, body)

    async def send(self, topic: str, body: bytes = b"hello", **fields: Any) -> RemotingCommand:
        return await self.client.invoke(self.broker.address, self.send_request(topic, body, **fields), TIMEOUT)

    async def send_batch(self, topic: str, bodies: Sequence[bytes], **fields: Any) -> RemotingCommand:
        properties = [encode_properties({"UNIQ_KEY": unique(1000 + number)}) for number in range(len(bodies))]
        code = RequestCode.SEND_BATCH_MESSAGE
        return await self.send(topic, encode_batch(bodies, properties), batch=True, code=code, **fields)

    async def pull(self, *place: Any, code: int = RequestCode.PULL_MESSAGE, **fields: Any) -> RemotingCommand:
        """Pull; the arguments are those of ``pull_header``."""
        return await self.ask(code, self.pull_header(*place, **fields))

    @staticmethod
    def pull_header(
        topic: str,
        queue_id: int = 0,
        queue_offset: int = 0,
        *,
        group: str = "readers",
        tags: str | None = "*",
        hold_millis: int = 0,
        commit: int | None = None,
        max_count: int = 32,
        max_bytes: int | None = None,
        wide: bool = False,
        sub_version: int = 0,
        kind: str = "TAG",
    ) -> PullMessageRequestHeader:
        sys_flag = (1 if commit is not None else 0) | (2 if hold_millis else 0) | (4 if tags is not None else 0)
        return PullMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            max_msg_nums=max_count,
            sys_flag=sys_flag,
            commit_offset=commit or 0,
            suspend_timeout_millis=hold_millis,
            sub_version=sub_version,
            subscription=tags,
            expression_type=kind,
            max_msg_bytes=max_bytes,
            rc_pull=1 if wide else None,
        )

    async def records(self, topic: str, queue_id: int = 0, queue_offset: int = 0, **fields: Any) -> list[StoredRecord]:
        """Pull once and take the answer apart."""
        answer = await self.pull(topic, queue_id, queue_offset, **fields)
        return list(RecordReader(100).read(answer.body)) if answer.code == 0 else []

    async def bodies(self, topic: str, queue_id: int = 0, queue_offset: int = 0, **fields: Any) -> list[bytes]:
        return [bytes(record.message.body) for record in await self.records(topic, queue_id, queue_offset, **fields)]

    async def all_bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """Pull until the end of a queue."""
        read: list[bytes] = []
        while found := await self.bodies(topic, queue_id, len(read)):
            read += found
        return read

    async def heartbeat(
        self,
        *topics: str,
        group: str = "readers",
        client_id: str = "client-1",
        model: MessageModel = MessageModel.CLUSTERING,
        expression: str = "*",
        kind: str = "TAG",
        sub_version: int = 1,
    ) -> RemotingCommand:
        consumer = ConsumerData(
            group,
            ConsumeType.CONSUME_PASSIVELY,
            model,
            subscription_data_set=[
                SubscriptionData.build(topic, expression, kind, sub_version=sub_version) for topic in topics
            ],
        )
        return await self.ask(RequestCode.HEART_BEAT, body=HeartbeatData(client_id, [], [consumer]).encode())


@asynccontextmanager
async def running_broker(
    folder: Path,
    *,
    namesrv: str = "",
    store: Mapping[str, Any] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    **settings: Any,
) -> AsyncIterator[BrokerClient]:
    """A broker with small files and a client of it; both end with the block. ``store`` holds settings of the store."""
    config = BrokerConfig(**{"broker_name": "broker-a", "listen_port": 0, "namesrv_addr": namesrv, **settings})
    async with Broker(config, store_config(folder, **store or {}), clock=clock) as broker, RemotingClient() as client:
        yield BrokerClient(broker, client)


def play(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]], **settings: Any) -> None:
    """Run a scenario with a broker of its own; ``settings`` are those of ``running_broker``."""

    async def run() -> None:
        async with asyncio.timeout(30), running_broker(folder, **settings) as client:
            await scenario(client)

    asyncio.run(run())


def ext(answer: RemotingCommand) -> dict[str, str]:
    assert answer.ext_fields is not None
    return answer.ext_fields


async def turn_until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is so; the test's own time limit ends a wait in vain."""
    while not condition():  # noqa: ASYNC110 - what is waited for sets no event
        await asyncio.sleep(0.001)
