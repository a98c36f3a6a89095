"""A run: the load, the fate of the name servers by a seed, newcomers in the middle, and the figures at the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from rocketcore.message import MessageQueue
from tests.fault.ledger import Verdict
from tests.soak.clients import (
    Pace,
    aio_push_consumer,
    blocking_producer,
    polling_consumer,
    produce,
    push_consumer,
    until,
)
from tests.soak.cluster import BROKERS, SoakCluster
from tests.soak.ledger import Ledger

T = TypeVar("T")

TOPICS = ["SoakA", "SoakB"]
QUEUES = 4
BLOCKING_PRODUCERS = 5
AIO_PRODUCERS = 5
AIO_PUSH = 4
PUSH = 3
PULL = 3
ORDERED = 2
SEND_INTERVAL = 0.05
JOIN_SECONDS = 20.0
NEWCOMER_SECONDS = 15.0
NEWCOMER_MESSAGES = 20
NEWCOMER_EVERY = 20.0
_FIRST_CASES = {"one address": ("newcomers",), "held": ("one", "both")}
GROUPS = {"soak-aio": "p-", "soak-push": "p-", "soak-pull": "p-", "soak-ordered": "p-"}
IN_ORDER = ("soak-ordered", "soak-pull")


@dataclass(slots=True)
class Summary:
    """The figures of a run; times in seconds."""

    seed: int
    seconds: float
    sends: int = 0
    failed: int = 0
    acknowledged: int = 0
    consumed: int = 0
    duplicates: int = 0
    moved: int = 0
    lost: int = 0
    reordered: int = 0
    grouped: int = 0
    stuck: int = 0
    longest_gap: float = 0.0
    longest_delay: float = 0.0
    kills: int = 0
    both_dead: int = 0
    freezes: int = 0
    newcomers: int = 0
    restarts: int = 0
    longest_to_complete: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return {name: round(value, 3) for name, value in asdict(self).items()}


class SoakRun:
    """One cluster under load for some seconds.

    gap_allowed  seconds without a message after which a consumer counts as stuck
    plant        a fault of the harness's own, for the test that it is seen: ``"one address"``, a producer that knows
                 one name server only, begins while that is dead; ``"held"``, a consumer does not get on
    """

    def __init__(self, folder: Path, seed: int, seconds: float, *, gap_allowed: float, plant: str = "") -> None:
        self.ledger = Ledger(IN_ORDER)
        self.summary = Summary(seed, seconds)
        self._cluster = SoakCluster(folder)
        self._rng = random.Random(seed)
        self._seconds = seconds
        self._gap_allowed = gap_allowed
        self._plant = plant
        self._groups = dict(GROUPS)
        self._next_newcomers = 0.0
        self._held = asyncio.Event()

    async def run(self) -> Verdict:
        """Load, disturb, drain and judge."""
        cluster = self._cluster
        try:
            await asyncio.to_thread(cluster.start)
            for topic in TOPICS:
                await asyncio.to_thread(cluster.create_topic, topic, QUEUES)
            async with AsyncExitStack() as consumers:
                pace = Pace(SEND_INTERVAL)
                await self._join_consumers(consumers)
                async with AsyncExitStack() as producers:
                    tasks = await self._start_producers(producers, pace)
                    try:
                        await self._disturb(time.monotonic() + self._seconds)
                    finally:
                        pace.ended.set()
                        await asyncio.gather(*tasks)
                self.ledger.end_watch()
                self._held.set()
                await until(self._all_consumed, self._gap_allowed)
                # What members get twice while one after the other leaves the group is not the name servers' doing.
                self.ledger.close()
        finally:
            await asyncio.to_thread(cluster.stop)
        return self._judge()

    # Load

    async def _join_consumers(self, stack: AsyncExitStack) -> None:
        """Start all consumers, and wait until each has its share of the queues."""
        namesrv, ledger = self._cluster.namesrv, self.ledger
        groups: dict[str, list[Callable[[], list[MessageQueue]]]] = {group: [] for group in GROUPS}
        for number in range(AIO_PUSH):
            held = self._held if self._plant == "held" and number == 0 else None
            aio_push = aio_push_consumer(namesrv, ledger, "soak-aio", f"aio-{number}", TOPICS, number, held)
            groups["soak-aio"].append((await stack.enter_async_context(aio_push)).queues)
        for number in range(PUSH):
            client = push_consumer(namesrv, ledger, "soak-push", f"push-{number}", TOPICS, number)
            groups["soak-push"].append((await _enter(stack, client)).queues)
        for number in range(PULL):
            name = f"pull-{number}"
            pull = await _enter(stack, polling_consumer(namesrv, ledger, "soak-pull", name, TOPICS, number))
            groups["soak-pull"].append(pull.assignment)
        for number in range(ORDERED):
            client = push_consumer(namesrv, ledger, "soak-ordered", f"ordered-{number}", TOPICS, number, ordered=True)
            groups["soak-ordered"].append((await _enter(stack, client)).queues)
        queue_count = len(TOPICS) * BROKERS * QUEUES

        def balanced() -> bool:
            return all(
                sum(queue.topic in TOPICS for queue in queues()) == queue_count // len(members)
                for members in groups.values()
                for queues in members
            )

        assert await until(balanced, JOIN_SECONDS), "the groups do not come to a balance"
        for kind, count in (("aio", AIO_PUSH), ("push", PUSH), ("pull", PULL), ("ordered", ORDERED)):
            for number in range(count):
                ledger.watch(f"{kind}-{number}")

    async def _start_producers(self, stack: AsyncExitStack, pace: Pace) -> list[asyncio.Task[None]]:
        namesrv = self._cluster.namesrv
        queues = [
            MessageQueue(topic, f"broker-{letter}", queue_id)
            for topic in TOPICS
            for letter in "abc"[:BROKERS]
            for queue_id in range(QUEUES)
        ]
        for number in range(BLOCKING_PRODUCERS):
            await _enter(stack, blocking_producer(namesrv, self.ledger, f"p-blocking-{number}", TOPICS, pace, number))
        return [
            asyncio.create_task(produce(namesrv, self.ledger, f"p-aio-{number}", TOPICS, pace, number, queues))
            for number in range(AIO_PRODUCERS)
        ]

    # Disturbance

    async def _disturb(self, end: float) -> None:
        """Kill, freeze and restart name servers until the end; every case is met, then chance decides."""
        cases = list(_FIRST_CASES.get(self._plant, ("one", "newcomers", "both", "freeze", "rolling")))
        while time.monotonic() < end or cases:
            if cases:
                case = cases.pop(0)
            elif time.monotonic() >= self._next_newcomers:
                case = "newcomers"
            else:
                case = self._rng.choices(["one", "both", "freeze", "rolling"], [4, 2, 2, 2])[0]
            await self._case(case)
            await asyncio.sleep(self._rng.uniform(0.2, 1.5))

    async def _case(self, case: str) -> None:
        cluster, rng = self._cluster, self._rng
        first = rng.randrange(2)
        match case:
            case "both":
                self.summary.both_dead += 1
                await self._kill(first)
                await asyncio.sleep(rng.uniform(0.0, 0.5))
                await self._kill(1 - first)
                await asyncio.sleep(rng.uniform(0.0, 1.5))
                await asyncio.gather(self._restart(0), self._restart(1))
            case "freeze":
                await asyncio.to_thread(cluster.freeze, first)
                await asyncio.sleep(rng.uniform(0.5, 3.0))
                await self._kill(first)
                await self._restart(first)
            case "rolling":
                # The clients of the second go to the first while its routes are empty, or are coming in.
                await self._kill(first)
                await asyncio.to_thread(cluster.restart, first)
                complete = asyncio.create_task(asyncio.to_thread(cluster.await_routes, first))
                await asyncio.sleep(rng.uniform(0.0, 0.3))
                await self._kill(1 - first)
                await complete
                await self._restart(1 - first)
            case "newcomers":
                await self._kill(first)
                await self._newcomers(cluster.addresses[first])
                await self._restart(first)
                self._next_newcomers = time.monotonic() + NEWCOMER_EVERY
            case _:
                await self._kill(first)
                await asyncio.sleep(rng.uniform(0.0, 1.5))
                await self._restart(first)

    async def _kill(self, index: int) -> None:
        await asyncio.to_thread(self._cluster.kill, index)

    async def _restart(self, index: int) -> None:
        await asyncio.to_thread(self._cluster.restart, index)
        await asyncio.to_thread(self._cluster.await_routes, index)

    async def _newcomers(self, dead: str) -> None:
        """With a name server dead: a new topic, a new producer for it, and a new group that gets all of it."""
        self.summary.newcomers += 1
        number = self.summary.newcomers
        topic, group, name = f"SoakNew{number}", f"soak-new-{number}", f"n{number}-"
        await asyncio.to_thread(self._cluster.create_topic, topic, QUEUES)
        self._groups[group] = name
        namesrv = dead if self._plant == "one address" else self._cluster.namesrv
        pace = Pace(0.01)
        ledger = self.ledger
        async with aio_push_consumer(self._cluster.namesrv, ledger, group, f"new-{number}", [topic], number, None):
            async with AsyncExitStack() as stack:
                await _enter(stack, blocking_producer(namesrv, ledger, f"{name}blocking", [topic], pace, 0))
                sending = asyncio.create_task(produce(namesrv, ledger, f"{name}aio", [topic], pace, 0, []))
                await until(lambda: self._enough_of(name), NEWCOMER_SECONDS)
                pace.ended.set()
                await sending
            await until(lambda: not ledger.missing(group, name), NEWCOMER_SECONDS)

    def _enough_of(self, name: str) -> bool:
        count = sum(key[0].startswith(name) for key in list(self.ledger.acknowledged))
        return count >= NEWCOMER_MESSAGES or bool(self.ledger.failures)

    # Figures

    def _all_consumed(self) -> bool:
        return not any(self.ledger.missing(group, producers) for group, producers in self._groups.items())

    def _judge(self) -> Verdict:
        ledger, cluster, summary = self.ledger, self._cluster, self.summary
        verdict = ledger.judge(self._groups, self._gap_allowed)
        summary.sends = len(ledger.sent)
        summary.failed = verdict.counts["failed"]
        summary.acknowledged = len(ledger.acknowledged)
        summary.consumed = sum(len(messages) for messages in ledger.consumed.values())
        summary.duplicates = ledger.duplicates
        summary.moved = verdict.counts["moved"]
        summary.lost = verdict.counts["lost"]
        summary.reordered = verdict.counts["reordered"]
        summary.grouped = ledger.grouped
        summary.stuck = verdict.counts["stuck"]
        summary.longest_gap = ledger.longest_gap
        summary.longest_delay = ledger.longest_delay
        summary.kills, summary.freezes = cluster.kills, cluster.freezes
        summary.restarts = len(cluster.completed_in)
        summary.longest_to_complete = max(cluster.completed_in, default=0.0)
        return verdict


async def _enter(stack: AsyncExitStack, client: AbstractContextManager[T]) -> T:
    """Enter a blocking client, and have the stack leave it; both may block."""
    entered = await asyncio.to_thread(client.__enter__)
    stack.push_async_callback(asyncio.to_thread, client.__exit__, None, None, None)
    return entered
