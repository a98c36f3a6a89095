"""Transactions and restarts: what a start knows of half messages, of its own broker and of Apache's."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rocketcore._fast.properties import encode_properties
from rocketcore.broker.store import StoredMessage
from rocketcore.codes import RequestCode
from rocketcore.protocol.headers.consumer import UpdateConsumerOffsetRequestHeader
from rocketcore.protocol.message import decode_message
from tests.fixtures.clocks import ShiftedClock
from tests.integration.broker_client import running_broker, unique
from tests.integration.transaction_client import (
    HALF,
    OFTEN,
    OP,
    ROLLBACK,
    SELDOM,
    Scene,
    text_of,
)


def test_what_is_undecided_is_asked_about_after_a_restart(tmp_path: Path) -> None:
    """And what is decided is not, nor stored again."""

    async def main() -> None:
        async with running_broker(tmp_path, **SELDOM) as client:
            scene = Scene(client)
            halves = [await scene.send(b"%d" % number) for number in range(3)]
            await scene.end(halves[0].end())
            await scene.end(halves[2].end(ROLLBACK))
        async with running_broker(tmp_path, **OFTEN) as client:
            scene = Scene(client)
            await scene.register()
            asked = {decode_message((await scene.check())[1]).body for _ in range(3)}
            assert asked == {b"1"}
        async with running_broker(tmp_path, **SELDOM) as client:
            scene = Scene(client)
            assert (await scene.end(halves[1].end())).code == 0
            assert await scene.delivered() == [b"0", b"1"]
        async with running_broker(tmp_path, **OFTEN) as client:
            scene = Scene(client)
            await scene.register()
            half = await scene.send(b"last")
            assert (await scene.check())[0].msg_id == half.fields["transactionId"]
            committed = client.broker._context.offsets.queues("CID_RMQ_SYS_TRANS", HALF)
            assert committed[0] >= 4

    asyncio.run(asyncio.wait_for(main(), 30))


def test_only_the_newest_of_two_copies_is_asked_about_after_a_crash(tmp_path: Path) -> None:
    """The disk kept a copy, and not the op message that ends the one before it."""

    async def main() -> None:
        async with running_broker(tmp_path, **SELDOM) as client:
            scene = Scene(client)
            half = await scene.send()
            [record] = await client.records(HALF)
            copy = record.message
            copy.properties = encode_properties({**text_of(record), "TRAN_PREPARED_QUEUE_OFFSET": "0"})
            await client.broker._admission.stored(client.broker._store.put(copy))
        async with running_broker(tmp_path, **OFTEN) as client:
            scene = Scene(client)
            await scene.register()
            offsets = [(await scene.check())[0].tran_state_table_offset for _ in range(3)]
            assert offsets == [2, 3, 4]
            assert (await scene.end(half.end())).code == 0
            assert await scene.delivered() == [b"half"]

    asyncio.run(asyncio.wait_for(main(), 30))


def test_an_op_message_of_apache_that_names_the_first_copy(tmp_path: Path) -> None:
    """There a producer's decision ends the offset that it names, and copies that wait for their time say that one."""

    async def main() -> None:
        async with running_broker(tmp_path, **SELDOM) as client:
            scene, store = Scene(client), client.broker._store
            await scene.send(CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
            [record] = await client.records(HALF)
            text = {**text_of(record), "TRAN_PREPARED_QUEUE_OFFSET": "0"}
            record.message.properties = encode_properties(text)
            store.put(record.message)
            op = StoredMessage(topic=OP, queue_id=0, body=b"0,", properties=encode_properties({"TAGS": "d"}))
            await client.broker._admission.stored(store.put(op))
            client.broker._transactions._positions = 1, 0
        async with running_broker(tmp_path, **OFTEN) as client:
            scene = Scene(client)
            await scene.register()
            half = await scene.send(b"other")
            assert (await scene.check())[0].msg_id == half.fields["transactionId"]
            assert set(await client.bodies(HALF, 0, 3)) == {b"other"}

    asyncio.run(asyncio.wait_for(main(), 30))


def test_one_that_was_moved_is_not_taken_for_one_that_was_decided(tmp_path: Path) -> None:
    """A decision about a later one keeps the op messages of the check, which name what it moved: all were read as ends.

    What producers had been asked about, and had not decided, was lost with a restart.
    """

    async def main() -> None:
        clock = ShiftedClock()
        async with running_broker(tmp_path, **SELDOM, transaction_time_out=30_000, clock=clock) as client:
            scene = Scene(client)
            await scene.register()
            await scene.send(b"asked about")
            clock.advance(3600)
            await scene.send(b"young")
            await scene.end((await scene.send(b"ended")).end())
            await client.broker._check.round()
            assert decode_message((await scene.check())[1]).body == b"asked about"
            assert client.broker._transactions.halves.begin == 1
        async with running_broker(tmp_path, **OFTEN) as client:
            scene = Scene(client)
            await scene.register()
            asked = {decode_message((await scene.check())[1]).body for _ in range(6)}
            assert asked == {b"asked about", b"young"}
            assert client.broker._transactions.undecided() == 2

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_client_does_not_move_the_positions(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path, **SELDOM) as client:
            scene = Scene(client)
            await scene.send()
            header = UpdateConsumerOffsetRequestHeader(
                consumer_group="CID_RMQ_SYS_TRANS", topic=HALF, queue_id=0, commit_offset=1
            )
            assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0
        async with running_broker(tmp_path, **OFTEN) as client:
            scene = Scene(client)
            await scene.register()
            assert decode_message((await scene.check())[1]).body == b"half"

    asyncio.run(asyncio.wait_for(main(), 30))


def test_positions_that_say_more_than_the_store_holds(tmp_path: Path) -> None:
    """The log lost its end. Messages that come to where it was are not taken for decided."""

    async def main() -> None:
        async with running_broker(tmp_path, **SELDOM) as client:
            client.broker._transactions._positions = 5, 5
        async with running_broker(tmp_path, **SELDOM) as client:
            scene = Scene(client)
            for _ in range(3):
                await scene.send()
            assert client.broker._context.offsets.find("CID_RMQ_SYS_TRANS", HALF, 0) == 0
        async with running_broker(tmp_path, **OFTEN) as client:
            scene = Scene(client)
            await scene.register()
            assert (await scene.check())[0].msg_id == unique(1)

    asyncio.run(asyncio.wait_for(main(), 30))
