"""A start with a smaller maxMessageSize: what the store holds already goes where it was meant for, by every mover."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from rocketcore.codes import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, RequestCode
from rocketcore.protocol.headers.message import ConsumerSendMsgBackRequestHeader
from tests.integration.broker_client import BrokerClient, running_broker
from tests.integration.pop_client import pop
from tests.integration.transaction_client import SELDOM, Half

LONG = b"x" * 3_000


async def arrives(client: BrokerClient, topic: str) -> None:
    """Wait for the long message in the only queue of a topic that may have one later."""
    while await client.bodies(topic, hold_millis=1_000) != [LONG]:  # noqa: ASYNC110 - the topic may not be there yet
        await asyncio.sleep(0.01)


async def send_back(client: BrokerClient, offset: int, delay_level: int) -> int:
    header = ConsumerSendMsgBackRequestHeader(group="readers", offset=offset, delay_level=delay_level)
    return (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code


def test_what_is_stored_already_moves(tmp_path: Path) -> None:
    async def run() -> None:
        folder, levels = tmp_path / "store", {"message_delay_level": "3s 1s"}
        async with asyncio.timeout(90):
            async with running_broker(folder, store=levels, **SELDOM) as client:
                assert (await client.send("popped", LONG)).code == 0
                assert (await client.send("plain", LONG)).code == 0
                [plain] = await client.records("plain")
                half = Half(
                    await client.send("ended", LONG, properties={"TRAN_MSG": "true", "PGROUP": "shop"}, sys_flag=4)
                )
                assert [each.body for each in await pop(client, "popped", invisible_time=3_000)] == [LONG]
                assert (await client.send("level", LONG, properties={"DELAY": "1"})).code == 0
                at = str(time.time_ns() // 1_000_000 + 3_000)
                assert (await client.send("timer", LONG, properties={"TIMER_DELIVER_MS": at})).code == 0
            async with running_broker(folder, store=levels | {"max_message_size": 1_000}, **SELDOM) as client:
                for properties, flag in (({}, 0), ({"DELAY": "2"}, 0), ({"TRAN_MSG": "true", "PGROUP": "p"}, 4)):
                    answer = await client.send("plain", LONG, properties=properties, sys_flag=flag)
                    assert answer.code == 13, (properties, answer.remark)
                assert (await client.send_batch("plain", [LONG])).code == 13
                await arrives(client, "level")
                await arrives(client, "timer")
                while not (again := await pop(client, "popped", poll_time=0)):  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.05)
                assert [each.body for each in again] == [LONG]
                assert await send_back(client, plain.physical_offset, 2) == 0
                await arrives(client, RETRY_TOPIC_PREFIX + "readers")
                assert await send_back(client, plain.physical_offset, -1) == 0
                await arrives(client, DLQ_TOPIC_PREFIX + "readers")
                assert (await client.ask(RequestCode.END_TRANSACTION, half.end())).code == 0
                await arrives(client, "ended")

    asyncio.run(run())
