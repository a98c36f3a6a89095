"""How far a group is, for every kind of consumer, whatever happens to its queues and however it ends.

Of each case the same is asked: no stored offset moved back that nobody asked to move, what was not acknowledged comes
again to the next member, and no new message is left out. A queue whose old messages expired, which takes a broker
hours, is in ``tests/unit/client/test_moved_queues.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import rocketcore as rmq
from rocketcore import aio
from rocketcore.admin.logic import AsyncAdmin
from rocketcore.client.offset_store import load_offsets
from rocketcore.client.pull import PullConsumer
from rocketcore.client.push import PushConsumer
from rocketcore.client.simple import SimpleConsumer
from rocketcore.errors import BrokerError, OffsetsMoved, TopicNotExist

Offsets = dict[rmq.MessageQueue, int]
FIRST, LATER = 12, 6
"""Messages in each queue before what happens, and after it."""
QUEUES = 2


async def committed(consumer: Any, message: rmq.ReceivedMessage | None = None) -> None:
    """Commit; a topic that was deleted has nowhere to note it, but for brokers of 4.9."""
    with contextlib.suppress(TopicNotExist):
        await consumer.commit(message)


class Member:
    """A member of the group of a case, which takes messages and says which of them are done."""

    def __init__(self, kind: str, namesrv: str, group: str, folder: Path) -> None:
        self.kind = kind
        options: dict[str, Any] = {
            "group": group, "start_from": "first", "rebalance_interval": 0.2, "route_interval": 0.2,
            "persist_interval": 0.05, "offset_store_path": str(folder), "close_timeout": 0.5, "timeout": 20.0,
        }  # fmt: skip
        if kind.startswith("pull"):
            auto = kind == "pull auto-commit"
            self.consumer: Any = PullConsumer(namesrv, auto_commit=auto, **options)
        elif kind == "simple":
            self.consumer = SimpleConsumer(namesrv, invisible=2.0, **options)
        else:
            more: dict[str, Any] = {"push ordered": {"ordered": True}, "push broadcast": {"broadcast": True}}.get(
                kind, {}
            )
            if kind == "push pop":
                more = {"pop": True, "invisible": 2.0}
            self.consumer = PushConsumer(namesrv, **options, **more)

    async def start(self, topic: str, queues: Iterable[rmq.MessageQueue]) -> None:
        if self.kind == "pull assign":
            await self.consumer.assign(queues)
            return
        await self.consumer.subscribe(topic)
        await self.consumer.start()
        if self.kind != "simple":
            await self.consumer.wait_ready()

    async def take(self, limit: int, seconds: float) -> list[rmq.ReceivedMessage]:
        """Return messages that were not returned before, none where none came in that time."""
        if self.kind.startswith("pull"):
            messages = await self.consumer.poll(seconds, max_messages=limit)
        elif self.kind == "simple":
            messages = await self.consumer.receive(min(limit, 32), seconds)
        else:
            try:
                async with asyncio.timeout(seconds):
                    messages = await self.consumer.take(limit)
            except TimeoutError:
                messages = []
        return list(messages)

    async def done(self, messages: list[rmq.ReceivedMessage]) -> set[str]:
        """Acknowledge messages that were taken in this order, and return which count; of one that commits by itself
        those count that it polled."""
        counted = {message.text() for message in messages}
        for message in messages:
            if self.kind.startswith("pull"):
                if self.kind != "pull auto-commit":
                    await committed(self.consumer, message)
                continue
            try:
                message.ack()
            except rmq.InvisibleTimeOver:  # beside load: it comes again
                counted.discard(message.text())
        await asyncio.sleep(0)
        if self.kind == "simple":
            try:
                await self.consumer.flush()
            except rmq.AcksFailed:  # of a topic that is gone, or too late
                counted.clear()
        return counted

    async def store(self) -> None:
        """Store offsets as the background does."""
        if self.kind != "simple":
            await self.consumer.persist_offsets()

    def queues(self) -> set[rmq.MessageQueue]:
        return set() if self.kind == "simple" else set(self.consumer.queues())

    async def kill(self) -> None:
        """End as a process does that is killed: nothing more is stored, and the connections are gone."""
        consumer = self.consumer
        for task in consumer._tasks:
            await task.stop()
        if self.kind == "simple":
            await consumer._stop_asking()
            for sender in list(consumer.receipts._senders.values()):
                sender.cancel()
        else:
            if consumer._next_try is not None:
                consumer._next_try.cancel()
            await consumer._stop_all_pulling()
            await consumer._stop_handling()
            await consumer._release(list(consumer._readers))  # a broker frees the locks of a dead member by itself
            consumer.offsets.close()
        await consumer._remoting.close()
        consumer._closed = True
        consumer._ended.set()

    async def drain(self, wanted: set[str], seconds: float) -> set[str]:
        """Take and acknowledge until all that is wanted has come, and then what comes at once."""
        clock = asyncio.get_running_loop().time
        until, got = clock() + seconds, set[str]()
        while clock() < until:
            messages = await self.take(32, 0.3)
            got |= await self.done(messages)
            if not messages and wanted <= got:
                break
        await self.store()
        return got


KINDS = (
    "push concurrent", "push ordered", "push broadcast", "push pop", "pull auto-commit", "pull manual", "pull assign",
    "simple",
)  # fmt: skip
EVENTS = ("nothing", "lost", "regained", "deleted", "anew", "reset")
ENDS = ("commit", "store", "close", "kill")
OF_BROKERS = ("reset",)
"""What a broadcast member, whose offsets are in a file, cannot be told."""
SHARING = {"push concurrent", "push ordered", "pull auto-commit", "pull manual"}


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the consumer's inner state has no event
            await asyncio.sleep(0.02)


class Case:
    """One kind of consumer, one thing that happens, one end."""

    def __init__(
        self, namesrv: str, admin: AsyncAdmin, producer: aio.Producer, topic: str, kind: str, event: str,
        end: str, folder: Path,
    ) -> None:  # fmt: skip
        self.namesrv, self.admin, self.producer = namesrv, admin, producer
        self.kind, self.event, self.end, self.folder = kind, event, end, folder
        self.topic, self.group = topic, f"G-{topic}"
        self.queues: list[rmq.MessageQueue] = []
        self._members: list[Member] = []

    def member(self) -> Member:
        self._members.append(Member(self.kind, self.namesrv, self.group, self.folder))
        return self._members[-1]

    async def send(self, word: str, count: int) -> set[str]:
        texts = [(f"{word}-{queue.broker}-{queue.queue_id}-{i}", queue) for queue in self.queues for i in range(count)]
        for text, queue in texts:
            await self.producer.send(self.topic, text, queue=queue)
        return {text for text, _ in texts}

    async def stored(self) -> Offsets:
        if self.kind == "push broadcast":
            [path] = self.folder.rglob("offsets.json")
            return load_offsets(path) or {}
        table = await self.admin.group_offsets(self.topic)
        return dict(table.get(self.group, {}))

    async def make_topic(self) -> None:
        brokers = len((await self.admin.cluster_info()).broker_addr_table)
        await self.admin.create_topic(self.topic, queues=QUEUES // brokers)
        self.queues = sorted(await self.admin.queues(self.topic))

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            for member in self._members:
                await member.consumer.close()  # of a case that failed: its sockets would be another test's

    async def _run(self) -> None:
        await self.make_topic()
        if self.kind == "push pop":
            await self.admin.create_group(self.group)
            await self.admin.set_request_mode(self.group, self.topic, "pop")
        sent = await self.send("old", FIRST)
        member = self.member()
        await member.start(self.topic, self.queues)
        acked, held = set[str](), list[rmq.ReceivedMessage]()
        while not held:
            for message in await member.take(1, 5.0):
                if len(acked) < 3:
                    acked |= await member.done([message])
                else:
                    held.append(message)
        await member.store()
        before = await self.stored()
        other, elsewhere = await self.happens(member)
        gone = self.event in ("deleted", "anew")
        if self.event != "deleted":
            sent = (set() if gone else sent) | await self.send("new", LATER)
        if self.event == "anew":
            got = await member.drain(sent, 20.0)
            assert sent <= got, f"{len(sent - got)} new messages did not come to the member"
            acked |= got
        acked |= await self.ends(member, held)
        if other is not None:
            elsewhere |= await other.drain(set(), 1.0)
            await other.consumer.close()
        if self.event == "deleted":
            await self.make_topic()
            sent = await self.send("new", LATER)
        after = await self.stored()
        if self.event == "reset" and self.kind in SHARING | {"pull assign"}:
            assert set(after.values()) <= {0}, f"the reset was undone: {after}"
        elif not gone and self.event != "reset":
            moved = {queue: (offset, after.get(queue)) for queue, offset in before.items() if after[queue] < offset}
            assert not moved, f"offsets moved back: {moved}"
        following = self.member()
        await following.start(self.topic, self.queues)
        wanted = sent if self.event in ("reset", "deleted") else sent - acked - elsewhere
        if self.kind in ("push pop", "simple") and self.end == "commit":
            wanted -= {
                message.text() for message in held
            }  # which may have been popped once more when it is acknowledged
        got = await following.drain(wanted, 20.0)
        await following.consumer.close()
        assert wanted <= got, f"{len(wanted - got)} messages were lost: {sorted(wanted - got)[:5]}"

    async def happens(self, member: Member) -> tuple[Member | None, set[str]]:
        """Have it happen; return another member that is there since then, and what that has done."""
        match self.event:
            case "lost" | "regained":
                return await self.lose(member)
            case "deleted" | "anew":
                await self.admin.delete_topic(self.topic)
                if self.event == "anew":
                    await self.make_topic()
            case "reset":
                await self.reset(member)
        return None, set()

    async def reset(self, member: Member) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + 20
        while True:
            plan = await self.admin.plan_reset(self.group, self.topic, "earliest")
            try:
                await self.admin.reset_offsets(plan)
                return
            except OffsetsMoved:  # the group stores what it has done so far meanwhile
                pass
            except BrokerError:  # one of 4.9 resets no group before it has an offset in each queue
                if clock() > until:
                    raise
                await member.take(1, 0.1)
                await member.store()

    async def lose(self, member: Member) -> tuple[Member | None, set[str]]:
        other = self.member()
        if self.kind == "pull assign":
            await member.consumer.assign(self.queues[:1])
        await other.start(self.topic, self.queues[1:])
        if self.kind in SHARING:
            await eventually(lambda: len(member.queues()) == 1 and len(other.queues()) == 1)
        done = await other.drain(set(), 5.0)
        if self.event == "lost":
            return other, self.of_the_group(done)
        await other.consumer.close()
        if self.kind == "pull assign":
            await member.consumer.assign(self.queues)
        elif self.kind in SHARING:
            await eventually(lambda: len(member.queues()) == 2)
        return None, self.of_the_group(done)

    def of_the_group(self, done: set[str]) -> set[str]:
        """What another member of a broadcast group has done is still to come to this one."""
        return set() if self.kind == "push broadcast" else done

    async def ends(self, member: Member, held: list[rmq.ReceivedMessage]) -> set[str]:
        """End the member; return what may count as acknowledged by that."""
        done: set[str] = set()
        if self.end == "commit":
            done = await member.done(held)
            if self.kind.startswith("pull"):
                await committed(member.consumer)
        if self.end == "close":
            if self.kind == "pull auto-commit":
                done = {message.text() for message in held}
            await member.consumer.close()
            return done
        if self.end != "kill":
            await member.store()
        await member.kill()
        return done


async def run_cases(namesrv: str, name: str, rows: Iterable[tuple[str, str, str]], folder: Path) -> list[str]:
    """Run cases at once, each given as kind, event and end; return what went wrong in which."""
    # Dozens at once, on a busy machine: no answer of it is late.
    async with (
        AsyncAdmin(namesrv, timeout=60.0) as admin,
        aio.Producer(namesrv, group="families", timeout=20.0) as producer,
    ):
        cases = [
            Case(namesrv, admin, producer, "-".join((name, *row)).replace(" ", "-"), *row, folder.joinpath(*row))
            for row in rows
        ]
        outcomes = await asyncio.gather(*(case.run() for case in cases), return_exceptions=True)
    return [
        f"{case.kind}, {case.event}, {case.end}: {type(outcome).__name__} {outcome}"
        for case, outcome in zip(cases, outcomes, strict=True)
        if outcome is not None
    ]
