"""What happens between two steps of a POP, or of a reset: while it waits for the disk, or others have their turn."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.store import Cold, PutResult, PutStatus
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.headers.admin import DeleteSubscriptionGroupRequestHeader, DeleteTopicRequestHeader
from rocketcore.service import ManualClock
from tests.fixtures.stores import crash_copy
from tests.integration.broker_client import BrokerClient, running_broker
from tests.integration.pop_client import GROUP, Popped, ack, ask_pop, pop, reset, until
from tests.integration.test_broker_pop import clocked_broker, revive
from tests.integration.test_broker_pop_wide import WIDE, between, wide


def bodies(messages: list[Popped]) -> list[bytes]:
    return [message.body for message in messages]


async def delete(client: BrokerClient, topic: str) -> None:
    header = DeleteTopicRequestHeader(topic=topic)
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == 0


class SlowDisk:
    """Every read of a broker's store waits until the test lets it go."""

    def __init__(self, client: BrokerClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[asyncio.Event] = []
        reads = client.broker._store.reads
        self._now = reads.now
        monkeypatch.setattr(reads, "now", self._is_cold)
        monkeypatch.setattr(reads, "read", self._read)

    def _is_cold(self, *_: object) -> None:
        raise Cold

    async def _read(self, owner: object, call: Callable[..., object], *what: object) -> object:
        answered = asyncio.Event()
        self.waiting.append(answered)
        await answered.wait()
        return self._now("nobody", call, *what)

    async def asked(self, count: int) -> list[asyncio.Event]:
        """Wait until so many reads wait, and return them."""
        await until(lambda: len(self.waiting) == count)
        waiting, self.waiting = self.waiting, []
        return waiting

    async def answer(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Answer all that is asked until the tasks are done."""
        while not all(task.done() for task in tasks):
            waiting, self.waiting = self.waiting, []
            for each in waiting:
                each.set()
            await asyncio.sleep(0)


def test_two_pops_in_order_that_wait_for_the_same_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(4):
                await client.send("T", b"%d" % number)
            disk = SlowDisk(client, monkeypatch)
            ask = partial(pop, client, "T", clock=clock, order=True, max_msg_nums=1, queue_id=0)
            pops = [asyncio.create_task(ask()) for _ in range(2)]
            for each in await disk.asked(2):
                each.set()
            await disk.answer(pops)
            assert sorted(bodies(each.result()) for each in pops) == [[], [b"0"]]

    asyncio.run(main())


def test_an_attempt_that_is_repeated_takes_nothing_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            await client.send("T", b"0")
            ask = partial(pop, client, "T", clock=clock, order=True, queue_id=0)
            assert bodies(await ask(attempt_id="x")) == [b"0"]
            clock.advance(61)
            disk = SlowDisk(client, monkeypatch)
            late = asyncio.create_task(ask(attempt_id="x"))
            (late_read,) = await disk.asked(1)
            other = asyncio.create_task(ask(attempt_id="y"))
            await disk.answer([other])
            late_read.set()
            await disk.answer([late])
            assert (bodies(other.result()), bodies(late.result())) == ([b"0"], [])

    asyncio.run(main())


@pytest.mark.parametrize("order", [False, True])
def test_what_was_read_of_a_topic_that_is_another_by_now_is_not_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: bool
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            await client.send("T", b"old")
            reads = client.broker._store.reads
            now, topics = reads.now, [b"new"]

            def cold(*_: object) -> None:
                raise Cold

            async def read_of_old(owner: object, call: Callable[..., object]) -> object:
                found = now(owner, call)
                if topics:
                    await delete(client, "T")
                    await client.send("T", topics.pop())
                return found

            monkeypatch.setattr(reads, "now", cold)
            monkeypatch.setattr(reads, "read", read_of_old)
            messages = await pop(client, "T", clock=clock, queue_id=0, order=order)
            assert bodies(messages) == [b"new"]

    asyncio.run(main())


def test_queues_that_are_taken_away_meanwhile_give_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with wide(running_broker(tmp_path)) as client:
            await client.send("Wide", b"x", queue_id=4000)

            async def shrink(number: int) -> None:
                if number == 0:
                    client.broker._context.topics.update(TopicConfig("Wide", 128, 128, 6))

            between(client, shrink)
            assert await pop(client, "Wide") == []

    asyncio.run(main())


def test_what_members_that_pull_commit_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(6):
                await client.send("T", b"%d" % number)
            service, offsets = client.broker._pop, client.broker._context.offsets
            synced = service._commit_synced
            monkeypatch.setattr(service, "_commit_synced", lambda: None)  # a sync that takes its time
            assert bodies(await pop(client, "T", clock=clock, max_msg_nums=2, queue_id=0)) == [b"0", b"1"]
            await client.pull("T", 0, 5, group=GROUP, commit=5)
            assert offsets.find(GROUP, "T", 0) == 5
            synced()
            assert offsets.find(GROUP, "T", 0) == 5
            monkeypatch.undo()
            assert bodies(await pop(client, "T", clock=clock, queue_id=0)) == [b"5"]

    asyncio.run(main())


def test_a_reset_survives_a_kill_once_it_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        live, killed = tmp_path / "live", tmp_path / "killed"
        async with clocked_broker(live, clock, flush_consumer_offset_interval=600_000) as client:
            for number in range(6):
                await client.send("T", b"%d" % number)
            for message in await pop(client, "T", clock=clock, queue_id=0):
                await ack(client, message)
            client.broker._save_offsets()
            await client.broker._context.writer.flushed()
            assert (await reset(client, "T", timestamp=0, queue_id=0, offset=1)).code == 0
            crash_copy(live, tmp_path / "at once")
            assert bodies(await pop(client, "T", clock=clock, queue_id=0, max_msg_nums=1)) == [b"1"]
            crash_copy(live, killed)
        async with clocked_broker(tmp_path / "at once", clock) as client:
            assert bodies(await pop(client, "T", clock=clock, queue_id=0, max_msg_nums=1)) == [b"1"]
        async with clocked_broker(killed, clock) as client:
            assert bodies(await pop(client, "T", clock=clock, queue_id=0)) == [b"2", b"3", b"4", b"5"]

    asyncio.run(main())


def test_a_reset_makes_no_offsets_of_what_is_deleted_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        async with wide(running_broker(tmp_path)) as client:
            for number in range(3):
                await client.send("Wide", b"%d" % number, queue_id=4000)
            assert len(await pop(client, "Wide")) == 3
            deleted = False

            async def act(number: int) -> None:
                nonlocal deleted
                if number > WIDE + 10 and not deleted:  # its targets are known, and some are set
                    deleted = True
                    await delete(client, "Wide")

            between(client, act)
            answer = await reset(client, "Wide", timestamp=-1)
            assert (answer.code, deleted) == (ResponseCode.TOPIC_NOT_EXIST, True)
            assert client.broker._context.offsets.queues(GROUP, "Wide") == {}
            client.broker._context.topics.update(TopicConfig("Wide", WIDE, WIDE, 6))
            await client.send("Wide", b"new", queue_id=4000)
            assert bodies(await pop(client, "Wide", queue_id=4000)) == [b"new"]

    asyncio.run(main())


def test_a_reset_that_the_log_does_not_take_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(3):
                await client.send("T", b"%d" % number)
            for message in await pop(client, "T", clock=clock, queue_id=0):
                await ack(client, message)
            with monkeypatch.context() as patch:
                full = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="disk full")
                patch.setattr(client.broker._store, "put", lambda *_, **__: full)
                assert (await reset(client, "T", timestamp=0, queue_id=0, offset=1)).code != 0
            assert client.broker._context.offsets.find(GROUP, "T", 0) == 3
            assert await pop(client, "T", clock=clock, queue_id=0) == []

    asyncio.run(main())


def test_what_a_deleted_group_was_to_get_again_goes_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            await client.send("T", b"old")
            assert len(await pop(client, "T", clock=clock)) == 1
            assert len(await pop(client, "T", clock=clock, consumer_group="others")) == 1
            clock.advance(61)
            await revive(client)
            await delete_group(client, GROUP)
            assert bodies(await pop(client, "T", clock=clock, consumer_group="others")) == [b"old"]
            await delete(client, "T")
            await client.send("T", b"new")
            assert bodies(await pop(client, "T", clock=clock)) == [b"new"]

    asyncio.run(main())


async def delete_group(client: BrokerClient, group: str) -> None:
    header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=True)
    assert (await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0


def test_a_retry_topic_of_others_stays_where_a_group_goes(tmp_path: Path) -> None:
    """Retry topics of three groups may have one name: who pulls as a_b_c, who pops c as a_b, and who pops b_c as a."""

    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for topic, group in (("b_c", "a"), ("c", "a_b")):
                await client.send(topic, topic.encode())
                assert len(await pop(client, topic, clock=clock, consumer_group=group)) == 1
            clock.advance(61)
            await revive(client)
            await delete_group(client, "a")
            assert b"c" in bodies(await pop(client, "c", clock=clock, consumer_group="a_b"))
            await client.heartbeat("b_c", group="a_b_c")
            await client.pull("b_c", group="a", commit=1)
            await client.send("%RETRY%a_b_c", b"failed once")
            await delete_group(client, "a_b")
            await delete_group(client, "a")
            assert b"failed once" in await client.bodies("%RETRY%a_b_c")

    asyncio.run(main())


def test_a_pop_that_reads_on_hands_nothing_to_a_group_that_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            context = client.broker._context
            context.topics.update(TopicConfig("T", 2, 2, 6))
            monkeypatch.setattr(context.rng, "randrange", lambda *_: 0)  # the queue of the others is looked at first
            monkeypatch.setattr(context.rng, "random", lambda: 1.0)
            for _ in range(28):
                await client.send_batch("T", [b"x"] * 500, properties={"TAGS": "a"})
            await client.send("T", b"wanted", queue_id=1, properties={"TAGS": "b"})
            deleted = False

            async def act(number: int) -> None:
                nonlocal deleted
                if not deleted:
                    deleted = True
                    await delete_group(client, GROUP)

            between(client, act)
            answer = await ask_pop(client, "T", exp="b", exp_type="TAG", poll_time=8_000)
            assert (answer.code, deleted) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, True)
            assert not any(group == GROUP for _, group in context.offsets.places())

    asyncio.run(main())


def test_who_waits_in_order_misses_nothing_where_another_topic_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            await client.send("T", b"0")
            await client.send("Other", b"1")
            ask = partial(pop, client, "T", clock=clock, order=True, queue_id=0)
            assert bodies(await ask()) == [b"0"]
            waits = asyncio.create_task(ask(poll_time=3_600_000))
            await until(lambda: len(client.broker._pop_processor.poll) == 1)
            disk = SlowDisk(client, monkeypatch)
            clock.advance(61)
            revived = asyncio.create_task(client.broker._pop.revive_due())
            (read,) = await disk.asked(1)
            await delete(client, "Other")
            read.set()
            await disk.answer([waits])
            assert bodies(waits.result()) == [b"0"]
            await revived

    asyncio.run(main())


def test_a_reset_that_is_refused_loses_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(6):
                await client.send("T", b"%d" % number)
            service = client.broker._pop
            synced = service._commit_synced
            full = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="disk full")
            with monkeypatch.context() as patch:
                patch.setattr(service, "_commit_synced", lambda: None)  # a sync that takes its time
                assert len(await pop(client, "T", clock=clock, queue_id=0, max_msg_nums=3)) == 3
                patch.setattr(service.journal, "_put_record", lambda _: full)
                assert (await reset(client, "T", timestamp=0, queue_id=0, offset=5)).code != 0
            synced()
            assert client.broker._context.offsets.find(GROUP, "T", 0) == 3

    asyncio.run(main())


def test_a_reset_that_cannot_be_saved_says_that_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            for number in range(3):
                await client.send("T", b"%d" % number)
            assert len(await pop(client, "T", queue_id=0)) == 3

            async def full() -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(client.broker._context.writer, "flushed", full)
            answer = await reset(client, "T", timestamp=0, queue_id=0, offset=1)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "was reset, but that is not stored yet" in (answer.remark or "")
            assert client.broker._context.offsets.find(GROUP, "T", 0) == 1

    asyncio.run(main())
