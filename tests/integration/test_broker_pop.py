"""POP over the wire: what is handed out, acknowledged, and comes again."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocketcore._fast.properties import decode_properties
from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.pop.processor import NO_NUMBERS, with_handle
from rocketcore.broker.pop.service import Asked
from rocketcore.broker.record import RecordReader
from rocketcore.broker.selection import SELECT_ALL
from rocketcore.broker.store import Cold
from rocketcore.codes import MAX_PROPERTIES_BYTES, RequestCode, ResponseCode
from rocketcore.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from rocketcore.protocol.headers.admin import DeleteTopicRequestHeader
from rocketcore.protocol.headers.consumer import ResetOffsetRequestHeader
from rocketcore.protocol.headers.pop import (
    AckMessageRequestHeader,
    PeekMessageRequestHeader,
    PopMessageResponseHeader,
)
from rocketcore.protocol.pop_info import POP_CK
from rocketcore.service import ManualClock
from rocketcore.transport.client import RemotingClient
from tests.integration.broker_client import BrokerClient, running_broker, store_config
from tests.integration.pop_client import GROUP, Popped, ack, ack_batch, ask_hide, ask_pop, hide, pop


@asynccontextmanager
async def clocked_broker(folder: Path, clock: ManualClock, **settings: Any) -> AsyncIterator[BrokerClient]:
    """A broker whose clock the test turns; nothing comes again before ``revive``."""
    config = BrokerConfig(broker_name="broker-a", listen_port=0, **settings)
    async with Broker(config, store_config(folder), clock=clock) as broker, RemotingClient() as client:
        yield BrokerClient(broker, client)


async def revive(client: BrokerClient) -> None:
    """Have come again what is due now, and wait until it can be popped."""
    broker = client.broker
    await broker._pop.revive_due()
    await broker._pop.stored(broker._store.max_physical_offset)


def test_a_message_is_handed_out_once_and_comes_again_where_it_is_not_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(4):
                await client.send("T", b"%d" % number, queue_id=number % 2)
            popped = await pop(client, "T", clock=clock)
            assert sorted(message.body for message in popped) == [b"0", b"1", b"2", b"3"]
            assert await pop(client, "T", clock=clock) == []

            for message in popped[:3]:
                assert (await ack(client, message)).code == 0
            left = popped[3]
            clock.advance(59)
            await revive(client)
            assert await pop(client, "T", clock=clock) == []
            clock.advance(2)
            await revive(client)
            (again,) = await pop(client, "T", clock=clock)
            assert (again.body, again.topic, again.reconsume_times) == (left.body, "T", 1)
            assert again.properties["1ST_POP_TIME"] == str(left.handle.pop_time)
            assert again.properties["ORIGIN_GROUP"] == GROUP
            assert again.properties["UNIQ_KEY"] == left.properties["UNIQ_KEY"]
            assert again.handle.marker == "1"

            assert (await ack(client, left)).code == 0  # too late: it changes nothing
            clock.advance(61)
            await revive(client)
            (third,) = await pop(client, "T", clock=clock)
            assert (third.body, third.reconsume_times) == (left.body, 2)
            assert (await ack(client, third)).code == 0
            assert (await ack(client, third)).code == 0
            clock.advance(61)
            await revive(client)
            assert await pop(client, "T", clock=clock) == []

    asyncio.run(main())


def test_what_was_handed_out_and_acknowledged_outlives_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(6):
                await client.send("T", b"%d" % number)
            popped = await pop(client, "T", clock=clock, max_msg_nums=4)
            assert (await ack(client, popped[1])).code == 0
        clock.advance(10)
        async with clocked_broker(tmp_path, clock) as client:
            assert (await ack(client, popped[2])).code == 0
            assert [message.body for message in await pop(client, "T", clock=clock)] == [b"4", b"5"]
            clock.advance(51)
            await revive(client)
            again = await pop(client, "T", clock=clock)
            assert [message.body for message in again] == [b"0", b"3"]

    asyncio.run(main())


def test_a_batch_acknowledges_several_pops(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(8):
                await client.send("T", b"%d" % number, queue_id=number % 2)
            first = await pop(client, "T", clock=clock, max_msg_nums=3)
            second = await pop(client, "T", clock=clock)
            left = {first[1].body, second[0].body}
            done = [message for message in first + second if message.body not in left]
            assert (await ack_batch(client, done)).code == 0
            assert (await ack_batch(client, done)).code == 0
            assert (await client.ask(RequestCode.BATCH_ACK_MESSAGE)).code == ResponseCode.NO_MESSAGE
            assert (await ack_batch(client, [])).code == ResponseCode.NO_MESSAGE
            for many in ([BatchAck(bits=base64.b64encode(b"\xff" * 1251).decode())], [BatchAck()] * 10_001):
                body = BatchAckMessageRequestBody("broker-a", many).encode()
                refused = await client.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)
                assert (refused.code, refused.remark) == (29, "a batch acknowledges 10000 messages at most")
            clock.advance(61)
            await revive(client)
            again = await pop(client, "T", clock=clock)
            assert {message.body for message in again} == left
            assert (await ack_batch(client, again)).code == 0
            clock.advance(61)
            await revive(client)
            assert await pop(client, "T", clock=clock) == []

    asyncio.run(main())


def test_a_message_stays_invisible_for_as_long_as_is_asked_for_again(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(3):
                await client.send("T", b"%d" % number)
            longer, shorter, waits = await pop(client, "T", clock=clock)
            changed = await hide(client, longer, 100_000)
            assert (await ack(client, longer)).code == 0  # its handle is an old one: this changes nothing
            assert (await ask_hide(client, longer, 1000)).code == ResponseCode.NO_MESSAGE
            assert (await ask_hide(client, longer, -1)).code == ResponseCode.INVALID_PARAMETER
            await hide(client, shorter, 5_000)
            await hide(client, waits, 5_000, suspend=True)
            clock.advance(6)
            await revive(client)
            again = await pop(client, "T", clock=clock)
            assert [(message.body, message.reconsume_times) for message in again] == [(b"1", 1), (b"2", 0)]
            assert (await ack_batch(client, again)).code == 0
            clock.advance(60)
            await revive(client)
            assert await pop(client, "T", clock=clock) == []
        clock.advance(33)
        async with clocked_broker(tmp_path, clock) as client:
            await revive(client)
            assert await pop(client, "T", clock=clock) == []
            changed = await hide(client, changed, 10_000)
            clock.advance(11)
            await revive(client)
            (again_longer,) = await pop(client, "T", clock=clock)
            assert (again_longer.body, again_longer.reconsume_times) == (b"0", 1)
            assert (await ask_hide(client, changed, 1000)).code == ResponseCode.NO_MESSAGE

    asyncio.run(main())


def test_who_peeks_takes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            header = PeekMessageRequestHeader(topic="T", queue_id=-1, max_msg_nums=3, consumer_group=GROUP)
            for number in range(4):
                await client.send("T", b"%d" % number, queue_id=number % 2)
            for _ in range(2):
                answer = await client.ask(RequestCode.PEEK_MESSAGE, header)
                assert (answer.code, len(list(RecordReader(9).read(answer.body)))) == (0, 3)
                assert answer.header(PopMessageResponseHeader).rest_num == 4
            assert len(await pop(client, "T")) == 4
            assert (await client.ask(RequestCode.PEEK_MESSAGE, header)).code == ResponseCode.PULL_NOT_FOUND

    asyncio.run(main())


def test_what_comes_again_goes_by_the_retry_topic_of_the_second_form(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock, enable_retry_topic_v2=True) as client:
            await client.send("T", b"1")
            assert len(await pop(client, "T", clock=clock)) == 1
            for times in (1, 2):
                clock.advance(61)
                await revive(client)
                (again,) = await pop(client, "T", clock=clock)
                assert (again.topic, again.reconsume_times, again.handle.marker) == ("T", times, "2")
            assert client.broker._topics.find(f"%RETRY%{GROUP}+T") is not None
            assert (await ack_batch(client, [again])).code == 0
            clock.advance(61)
            await revive(client)
            assert await pop(client, "T", clock=clock) == []

    asyncio.run(main())


def test_a_group_goes_back_where_an_admin_resets_it(tmp_path: Path) -> None:
    """Also over a kill right after the reset: offsets were not saved since, and nothing was popped in between."""

    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(4):
                await client.send("T", b"%d" % number)
            popped = await pop(client, "T", clock=clock)
            assert (await ack_batch(client, popped)).code == 0
            reset = ResetOffsetRequestHeader(topic="T", group=GROUP, queue_id=0, offset=2, timestamp=0, force=True)
            before = client.broker._context.offsets.encode()
            assert (await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
        (tmp_path / "config" / "consumerOffset.json").write_bytes(before)
        async with clocked_broker(tmp_path, clock) as client:
            assert [message.body for message in await pop(client, "T", clock=clock)] == [b"2", b"3"]
            assert await pop(client, "T", clock=clock) == []
            offsets = client.broker._context.offsets
            assert (offsets.find(GROUP, "T", 0), offsets.take_reset(GROUP, "T", 0)) == (4, None)

    asyncio.run(main())


def test_a_reset_while_a_pop_reads_leaves_no_commit_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed out after it is committed; else the group would seem to stand where the reset put it."""

    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(3):
                await client.send("T", b"%d" % number)
            assert len(await pop(client, "T", clock=clock)) == 3
            broker = client.broker
            reads, offsets = broker._store.reads, broker._context.offsets
            now = reads.now

            def cold(*_: Any) -> Any:
                raise Cold

            async def read_late(*question: Any) -> Any:
                found = now(*question)
                if not offsets.resets:
                    offsets.reset(GROUP, "T", 0, 2)
                return found

            await client.send("T", b"3")
            monkeypatch.setattr(reads, "now", cold)
            monkeypatch.setattr(reads, "read", read_late)
            popped = await pop(client, "T", clock=clock)
            assert [message.body for message in popped] == [b"2", b"3"]
            assert (offsets.find(GROUP, "T", 0), offsets.resets) == (4, {})

    asyncio.run(main())


def test_a_deleted_topic_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for _ in range(3):
                await client.send("T", b"old")
            assert len(await pop(client, "T", clock=clock)) == 3
            clock.advance(61)
            await revive(client)
            assert len(await pop(client, "T", clock=clock, max_msg_nums=1)) == 1
            answer = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))
            assert answer.code == 0
            await client.send("T", b"new")
            assert [topic for topic in client.broker._topics.table if topic.endswith("_T")] == []
        clock.advance(61)
        async with clocked_broker(tmp_path, clock) as client:
            await revive(client)
            assert [message.body for message in await pop(client, "T", clock=clock)] == [b"new"]

    asyncio.run(main())


def test_old_files_stay_as_long_as_something_in_them_is_handed_out(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            service, store = client.broker._pop, client.broker._store
            assert service.needed_from() is None
            await client.send("U", b"first")
            await client.send("T", b"second")
            (message,) = await pop(client, "T", clock=clock)
            assert service.needed_from() == store.place("T", 0, 0)
            assert (await ack(client, message)).code == 0
            journal = service.journal
            assert service.needed_from() == store.place(journal.topic, 0, 0)
            for _ in range(2):
                await journal.save()
                (message,) = await pop_new(client, clock)
                assert (await ack(client, message)).code == 0
            await journal.save()
            needed = service.needed_from()
            assert needed is not None
            assert needed > store.place(journal.topic, 0, 1)  # type: ignore[operator]

    async def pop_new(client: BrokerClient, clock: ManualClock) -> list[Popped]:
        await client.send("T", b"new")
        return await pop(client, "T", clock=clock)

    asyncio.run(main())


def test_no_more_is_handed_out_than_the_bounds_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketcore.broker.pop.service.PER_QUEUE", 3)
    monkeypatch.setattr("rocketcore.broker.pop.service.CAPACITY", 5)

    async def main() -> None:
        async with running_broker(tmp_path) as client:
            for number in range(10):
                await client.send("T", b"%d" % number, queue_id=number % 2)
            first = await pop(client, "T", queue_id=0)
            assert len(first) == 3
            assert len(await pop(client, "T")) == 2
            assert await pop(client, "T") == []
            assert (await ack_batch(client, first)).code == 0
            assert len(await pop(client, "T")) == 3

    asyncio.run(main())


def test_an_offset_is_committed_when_what_was_handed_out_is_on_disk(tmp_path: Path) -> None:
    """Offsets are saved in a file of their own: a start would pass over messages that nobody is known to have."""

    async def main() -> None:
        async with running_broker(tmp_path) as client:
            for _ in range(3):
                await client.send("T")
            service, offsets = client.broker._pop, client.broker._context.offsets
            channel = next(iter(client.broker._server._endpoint.channels))
            key = ("T", GROUP, 0)
            asked = Asked(channel, 60_000, 0, lambda: None)
            taken = await service.take(asked, key, 32, 1 << 20, SELECT_ALL)
            assert taken is not None
            assert offsets.find(GROUP, "T", 0) == 0, "where the group begins"
            await service.stored(taken.end_offset)
            assert offsets.find(GROUP, "T", 0) == 3

    asyncio.run(main())


def test_groups_get_all_that_their_filter_lets_through(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path, enable_property_filter=True) as client:
            for number in range(4):
                await client.send("T", b"%d" % number, properties={"TAGS": "ab"[number % 2], "number": str(number)})
            some = await pop(client, "T", exp="b", exp_type="TAG")
            assert [message.body for message in some] == [b"1", b"3"]
            assert await pop(client, "T", exp="b", exp_type="TAG") == []
            others = await pop(client, "T", consumer_group="others")
            assert len(others) == 4
            third = await pop(client, "T", consumer_group="third", exp="number > 1", exp_type="SQL92")
            assert [message.body for message in third] == [b"2", b"3"]
            assert await pop(client, "T", consumer_group="third", exp="number > 1", exp_type="SQL92") == []
            wrong = await ask_pop(client, "T", exp="number >", exp_type="SQL92")
            assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    asyncio.run(main())


def test_refusals_carry_the_four_numbers(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            await client.send("T")
            expected = (
                ({"max_msg_nums": 33}, ResponseCode.INVALID_PARAMETER),
                ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER),
                ({"invisible_time": -1}, ResponseCode.INVALID_PARAMETER),
                ({"born_time": 1}, ResponseCode.POLLING_TIMEOUT),
                ({"exp": "||", "exp_type": "TAG"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            )
            for fields, code in expected:
                answer = await ask_pop(client, "T", **fields)
                assert (answer.code, answer.header(PopMessageResponseHeader)) == (code, NO_NUMBERS)
            (message,) = await pop(client, "T", consumer_group="others")
            odd = AckMessageRequestHeader(consumer_group="others", topic="T", queue_id=0, extra_info="x", offset=0)
            assert (await client.ask(RequestCode.ACK_MESSAGE, odd)).code == ResponseCode.SYSTEM_ERROR
            elsewhere = replace(message, handle=message.handle._replace(queue_offset=5))
            assert (await ack(client, elsewhere, "others")).code == ResponseCode.NO_MESSAGE
            elsewhere = replace(message, handle=message.handle._replace(queue_id=9))
            assert (await ack(client, elsewhere, "others")).code == ResponseCode.MESSAGE_ILLEGAL
            assert (await ask_hide(client, elsewhere, 1000, "others")).code == ResponseCode.MESSAGE_ILLEGAL
            assert (await ask_pop(client, "None")).code == ResponseCode.TOPIC_NOT_EXIST
            assert len(await pop(client, "T")) == 1
            empty = await ask_pop(client, "T")
            header = empty.header(PopMessageResponseHeader)
            assert (empty.code, empty.remark) == (210, "NO_MESSAGE_IN_QUEUE")
            assert header.pop_time > 0
            assert (header.invisible_time, header.start_offset_info, header.msg_offset_info) == (60_000, "", "")

    asyncio.run(main())


def test_no_client_sends_to_the_journal(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            answer = await client.send("rmq_sys_REVIVE_LOG_DefaultCluster")
            assert answer.code != 0

    asyncio.run(main())


@pytest.mark.parametrize("room", [0, 60, 130])
def test_a_message_whose_properties_are_nearly_full_comes_again(tmp_path: Path, room: int) -> None:
    """What the broker notes in it is left out where it has no room, and what is longest where its handle has none."""

    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            size = MAX_PROPERTIES_BYTES
            while (await client.send("Probe", properties={"K": "x" * size})).code != 0:
                size -= 1
            assert (await client.send("T", b"full", properties={"K": "x" * (size - room)})).code == 0
            assert len(await pop(client, "T", clock=clock)) == 1
            for times in (1, 2):
                await client.send("T", b"%d" % times)
                clock.advance(61)
                await revive(client)
                messages = {message.body: message for message in await pop(client, "T", clock=clock)}
                assert messages.keys() == {b"full", b"%d" % times}
                assert (await ack(client, messages[b"%d" % times])).code == 0
            assert (await ack(client, messages[b"full"])).code == 0
            clock.advance(61)
            await revive(client)
            assert await pop(client, "T", clock=clock) == []

    asyncio.run(main())


def test_what_is_left_out_for_a_handle_is_never_the_handle() -> None:
    properties = {f"N{number:02}" + "n" * 1015: "v" for number in range(32)} | {POP_CK: "another"}
    encoded = with_handle(properties, "h" * 120)
    assert len(encoded) <= MAX_PROPERTIES_BYTES
    assert decode_properties(encoded)[POP_CK] == "h" * 120
