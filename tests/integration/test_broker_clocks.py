"""Clocks that are set, of the broker and of its clients: positions and monotonic time decide, not the time of day."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.pop.service import ERROR_SECONDS
from rocketcore.broker.store import PutResult, PutStatus, StoredMessage
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.client import LockBatchRequestBody, LockBatchResponseBody
from rocketcore.protocol.headers.consumer import SearchOffsetRequestHeader, SearchOffsetResponseHeader
from rocketcore.protocol.message import decode_message
from rocketcore.transport.client import RemotingClient
from tests.fixtures.clocks import ShiftedClock
from tests.fixtures.waiting import until
from tests.integration.broker_client import BrokerClient, running_broker
from tests.integration.pop_client import ack, pop
from tests.integration.transaction_client import ROLLBACK, SELDOM, Scene

HOUR = 3600.0
STEPS = [-HOUR, HOUR]


async def round_of(scene: Scene) -> list[bytes]:
    """Have the broker look at its half messages now; return what it asked about."""
    transactions = scene.client.broker._transactions
    await asyncio.wait_for(transactions._loaded.wait(), 10)
    before = scene.client.broker._store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    await scene.client.broker._check.round()
    moved = scene.client.broker._store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) - before
    return [decode_message((await scene.check())[1]).body for _ in range(moved)]


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(limited())


@pytest.mark.parametrize("step", STEPS)
def test_transactions_are_asked_about_after_the_brokers_clock_was_set(tmp_path: Path, step: float) -> None:
    async def main() -> None:
        clock = ShiftedClock()
        async with running_broker(tmp_path, **SELDOM, transaction_time_out=30_000, clock=clock) as client:
            scene = Scene(client)
            await scene.register()
            await scene.send(b"before")
            clock.set_by(step)
            await scene.send(b"after")
            assert await round_of(scene) == [], "too young"
            clock.advance(31)
            assert sorted(await round_of(scene)) == [b"after", b"before"]
            assert sorted(await round_of(scene)) == [b"after", b"before"], "and again in each round"

    run(main)


@pytest.mark.parametrize("step", [*STEPS, -24 * HOUR, 24 * HOUR, -5000 * HOUR, 5000 * HOUR])
def test_transactions_are_asked_about_after_a_start_with_another_clock(tmp_path: Path, step: float) -> None:
    async def main() -> None:
        settings: dict[str, Any] = {**SELDOM, "transaction_time_out": 30_000}
        async with running_broker(tmp_path, **settings) as client:
            await Scene(client).send(b"before")
        clock = ShiftedClock(step)
        async with running_broker(tmp_path, **settings, clock=clock) as client:
            scene = Scene(client)
            await scene.register()
            await scene.send(b"after")
            early = await round_of(scene)
            assert early == ([b"before"] if step > 0 else []), "a clock ahead makes old what lay there"
            clock.advance(31)
            assert sorted(await round_of(scene)) == [b"after", b"before"]
            assert client.broker._store.max_offset("TRANS_CHECK_MAX_TIME_TOPIC", 0) == 0, "none is set aside"

    run(main)


@pytest.mark.parametrize("when", ["before the stop", "at the start", "there and back"])
@pytest.mark.parametrize("step", [-24 * HOUR, 24 * HOUR])
def test_what_producers_decided_holds_whatever_the_clock_did(tmp_path: Path, step: float, when: str) -> None:
    """Of four half messages two were decided, on either side of the clock's step, and one after a restart."""

    async def main() -> None:
        clock = ShiftedClock()
        settings: dict[str, Any] = {**SELDOM, "transaction_time_out": 30_000, "clock": clock}
        async with running_broker(tmp_path, **settings) as client:
            scene = Scene(client)
            halves = [await scene.send(b"%d" % number) for number in range(4)]
            assert (await scene.end(halves[0].end())).code == 0
            if when != "at the start":
                clock.set_by(step)
            assert (await scene.end(halves[1].end(ROLLBACK))).code == 0
        if when == "at the start":
            clock.set_by(step)
        elif when == "there and back":
            clock.set_by(-step)
        async with running_broker(tmp_path, **settings) as client:
            scene = Scene(client)
            await scene.register()
            assert (await scene.end(halves[2].end())).code == 0, "who may decide later than ever"
            clock.advance(31)
            for _ in range(2):
                assert await round_of(scene) == [b"3"], "and again in each round"
            assert await scene.delivered() == [b"0", b"2"]
        async with running_broker(tmp_path, **settings) as client:
            scene = Scene(client)
            await scene.register()
            clock.set_by(-step)
            clock.advance(31)
            assert await round_of(scene) == [b"3"]
            assert await scene.undecided() == "1"
            assert client.broker._store.max_offset("TRANS_CHECK_MAX_TIME_TOPIC", 0) == 0, "none is set aside"
            assert await scene.delivered() == [b"0", b"2"]

    run(main)


@pytest.mark.parametrize("ahead", [-56 * 365 * 24 * HOUR, -HOUR, HOUR, 24 * HOUR])
def test_a_producers_clock_makes_no_transaction_older(tmp_path: Path, ahead: float) -> None:
    async def main() -> None:
        clock = ShiftedClock()
        async with running_broker(tmp_path, **SELDOM, transaction_time_out=30_000, clock=clock) as client:
            scene = Scene(client)
            await scene.register()
            await scene.send(b"plain", ahead=ahead)
            patient = await scene.send(b"patient", ahead=ahead, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
            assert await round_of(scene) == []
            clock.advance(31)
            assert (await scene.end(patient.end())).code == 0, "within its time, its producer may decide"
            late = await scene.send(b"late", ahead=ahead, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
            assert await round_of_one(scene) == b"plain"
            clock.advance(61)
            assert (await scene.end(late.end())).code == ResponseCode.ILLEGAL_OPERATION, "and not after it"
            assert sorted(await round_of(scene)) == [b"late", b"plain"]

    async def round_of_one(scene: Scene) -> bytes:
        await scene.client.broker._check.round()
        asked = decode_message((await scene.check())[1]).body
        assert scene.checks.empty()
        return asked

    run(main)


def test_a_time_without_questions_is_counted_on_after_a_restart(tmp_path: Path) -> None:
    """And not begun anew with each copy that the broker makes of the message."""

    async def main() -> None:
        clock = ShiftedClock()
        settings: dict[str, Any] = {**SELDOM, "transaction_time_out": 30_000, "clock": clock}
        async with running_broker(tmp_path, **settings) as client:
            await Scene(client).send(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        clock.advance(400)
        async with running_broker(tmp_path, **settings) as client:
            scene = Scene(client)
            await scene.register()
            for _ in range(2):
                await client.broker._transactions._loaded.wait()
                await client.broker._check.round()
                clock.advance(90)
            assert scene.checks.empty()
            clock.advance(30)
            assert await round_of(scene) == [b"patient"]

    run(main)


def test_one_that_is_older_than_files_are_kept_is_set_aside_after_a_question(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ShiftedClock()
        async with running_broker(tmp_path, **SELDOM, transaction_time_out=30_000, clock=clock) as client:
            scene = Scene(client)
            await scene.register()
            await scene.send(b"old")
            clock.advance(100 * HOUR)
            assert await round_of(scene) == [b"old"]
            await client.broker._check.round()
            assert [record.message.body for record in await scene.aside()] == [b"old"]

    run(main)


@pytest.mark.parametrize("step", STEPS)
def test_messages_come_after_the_brokers_clock_was_set(tmp_path: Path, step: float) -> None:
    """A delay level and a pull that waits."""

    async def main() -> None:
        clock = ShiftedClock()
        async with running_broker(tmp_path, store={"message_delay_level": "1s 30m"}, clock=clock) as client:
            await client.send("T", b"before", properties={"DELAY": "1"})
            clock.set_by(step)
            await client.send("T", b"after", properties={"DELAY": "1"})
            clock.advance(1)
            assert await client.bodies("T", hold_millis=20_000) == [b"before", b"after"]

    run(main)


@pytest.mark.parametrize("step", STEPS)
def test_a_popped_message_comes_again_when_its_time_is_over(tmp_path: Path, step: float) -> None:
    async def main() -> None:
        clock = ShiftedClock()
        async with running_broker(tmp_path, clock=clock) as client:
            await client.send("T", b"1")
            await client.send("T", b"2")
            first, second = await pop(client, "T", invisible_time=30_000, clock=clock)
            clock.set_by(step)
            assert await pop(client, "T", clock=clock) == [], "invisible still"
            assert (await ack(client, first)).code == 0
            clock.advance(31)
            again = await pop(client, "T", poll_time=20_000, clock=clock)
            assert [message.body for message in again] == [second.body]
            assert (await ack(client, again[0])).code == 0

    run(main)


@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "restarts"])
@pytest.mark.parametrize("step", [*STEPS, -24 * HOUR, 24 * HOUR])
def test_a_message_that_the_store_refuses_to_put_again_comes_ten_seconds_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float, restarts: bool
) -> None:
    async def main() -> None:
        clock = ShiftedClock()
        async with contextlib.AsyncExitStack() as brokers:
            client = await brokers.enter_async_context(running_broker(tmp_path, clock=clock))
            await client.send("T", b"1")
            await pop(client, "T", invisible_time=30_000, clock=clock)
            clock.set_by(step)
            clock.advance(31)
            broker = client.broker
            put, refused = broker._store.put, asyncio.Event()

            def full(message: StoredMessage) -> PutResult:
                if not message.topic.startswith("%RETRY%"):
                    return put(message)
                refused.set()
                return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="disk full")

            with monkeypatch.context() as patched:
                patched.setattr(broker._store, "put", full)
                await refused.wait()
            if restarts:
                await brokers.aclose()
                client = await brokers.enter_async_context(running_broker(tmp_path, clock=clock))
            assert await pop(client, "T", clock=clock) == [], "not yet"
            clock.advance(ERROR_SECONDS + 1)
            again = await pop(client, "T", poll_time=20_000, clock=clock)
            assert [message.body for message in again] == [b"1"]
            assert (await ack(client, again[0])).code == 0
            clock.advance(24 * HOUR)
            assert await pop(client, "T", clock=clock) == []

    run(main)


@pytest.mark.parametrize("step", STEPS)
def test_who_holds_a_queue_holds_it_for_its_time(tmp_path: Path, step: float) -> None:
    queue = MessageQueue("T", "broker-a", 0)

    async def lock(client: BrokerClient, client_id: str) -> bool:
        body = LockBatchRequestBody("g", client_id, mq_set={queue})
        answer = await client.ask(RequestCode.LOCK_BATCH_MQ, body=body.encode())
        return queue in LockBatchResponseBody.decode(answer.body).lock_ok_mq_set

    async def main() -> None:
        clock = ShiftedClock()
        async with running_broker(tmp_path, clock=clock) as client:
            await client.heartbeat("T", group="g", client_id="one")
            assert await lock(client, "one")
            clock.set_by(step)
            assert not await lock(client, "two")
            client.broker._expire()
            assert client.broker._context.consumers.find("g") is not None, "and it is still a member"
            clock.advance(61)
            assert await lock(client, "two")

    run(main)


def test_the_queues_of_a_member_that_was_killed_are_free_when_it_had_to_renew(tmp_path: Path) -> None:
    queue = MessageQueue("T", "broker-a", 0)

    async def lock(client: BrokerClient, client_id: str) -> bool:
        body = LockBatchRequestBody("g", client_id, mq_set={queue})
        answer = await client.ask(RequestCode.LOCK_BATCH_MQ, body=body.encode())
        return queue in LockBatchResponseBody.decode(answer.body).lock_ok_mq_set

    async def main() -> None:
        clock = ShiftedClock()
        async with running_broker(tmp_path, clock=clock) as client:
            await client.heartbeat("T", group="g", client_id="two")
            async with RemotingClient() as link:
                killed = BrokerClient(client.broker, link)
                await killed.heartbeat("T", group="g", client_id="one")
                assert await lock(killed, "one")
            group = client.broker._context.consumers.find("g")
            assert group is not None
            await asyncio.to_thread(until, lambda: len(group.clients) == 1)
            assert not await lock(client, "two")
            clock.advance(26)
            assert await lock(client, "two")

    run(main)


def test_a_search_by_time_finds_a_place_whatever_the_clock_did(tmp_path: Path) -> None:
    """The times of a queue never fall: what is stored while the clock is behind has the time of the one before."""

    async def search(client: BrokerClient, millis: int) -> int:
        header = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=millis)
        answer = await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return answer.header(SearchOffsetResponseHeader).offset

    async def main() -> None:
        clock = ShiftedClock()
        async with running_broker(tmp_path, clock=clock) as client:
            before = clock.time_millis()
            await client.send("T", b"0")
            clock.set_by(-HOUR)
            await client.send("T", b"1")
            assert await search(client, clock.time_millis()) == 0, "all that came since that time is behind it"
            assert await search(client, before) == 0
            clock.advance(2 * HOUR)
            between = clock.time_millis()
            clock.advance(1)
            await client.send("T", b"2")
            assert await search(client, between) == 2

    run(main)
