"""The script of a broker run, and the store folder it leaves: what a mutator damages and a judge knows all about.

A run has two or three lives, each ended by a stop or, the last one, perhaps by a kill: so a part of the log lies behind
the last note, or none. The seed decides everything but the moments of the broker's own threads.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

from rocketcore.codes import ResponseCode
from rocketcore.service import ManualClock
from tests.fault.broker_run import DELAYS, DOOMED, GROUP, QUEUE_FILE_BYTES, TOPICS, Life
from tests.fault.image import Image
from tests.fault.ledger import Found, Key, Ledger, Span, Verdict, read_body

STEPS = 30
NEVER = 3_600_000
UNIT_SIZE = 20
KEPT = [topic for topic in TOPICS if topic != DOOMED]


@dataclass(slots=True)
class Base:
    """A store as a run left it.

    older      the store in the middle of the run
    noted      end of the log at the last stop in order: a note says so
    records    physical offset → record; copies: where the records of each message lie
    committed  every offset that the group ever committed, by topic and queue; the last one last
    """

    image: Image
    older: Image
    ledger: Ledger
    clock: ManualClock
    noted: int
    stopped: bool
    deleted: bool
    records: dict[int, bytes] = field(default_factory=dict)
    copies: dict[Key, list[Span]] = field(default_factory=dict)
    committed: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))

    def remember(self, found: list[Found]) -> None:
        self.records = {message.physical_offset: message.record for message in found}
        self.copies = copies_of(found)


def copies_of(found: list[Found]) -> dict[Key, list[Span]]:
    """Return where the records of each message lie."""
    copies: dict[Key, list[Span]] = defaultdict(list)
    for message in found:
        if (key := read_body(message.body)) is not None:
            copies[key].append((message.physical_offset, message.physical_offset + len(message.record)))
    return dict(copies)


async def set_up(life: Life) -> None:
    """Create topics and a group."""
    for topic, queues in TOPICS.items():
        answer = await life.create_topic(topic, queues)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert (await life.create_group(GROUP)).code == ResponseCode.SUCCESS


async def one_step(life: Life, rng: random.Random, topics: list[str]) -> None:
    """Do one thing that a client may do."""
    topic = rng.choice(topics)
    queue_id = rng.randrange(TOPICS[topic])
    step = rng.choices(_STEPS, weights=_WEIGHTS)[0]
    await step(life, rng, topic, queue_id)


async def _send(life: Life, rng: random.Random, topic: str, queue_id: int) -> None:
    await life.send(topic, queue_id, rng)


async def _send_large(life: Life, rng: random.Random, topic: str, queue_id: int) -> None:
    await life.send(topic, queue_id, rng, large=True)


async def _send_several(life: Life, rng: random.Random, topic: str, queue_id: int) -> None:
    """Several requests at once: one group of the log."""
    sends = [life.send(topic, queue_id, rng, sender=sender) for sender in range(rng.randint(2, 6))]
    await asyncio.gather(*sends)


async def _send_batch(life: Life, rng: random.Random, topic: str, queue_id: int) -> None:
    await life.send_batch(topic, queue_id, rng, rng.randint(1, 6))


async def _send_delayed(life: Life, rng: random.Random, topic: str, queue_id: int) -> None:
    if topic != DOOMED:
        await life.send(topic, queue_id, rng, level=rng.randint(1, len(DELAYS)))


async def _commit(life: Life, rng: random.Random, topic: str, queue_id: int) -> None:
    await life.commit(topic, queue_id, rng.randrange(life.store.max_offset(topic, queue_id) + 1))


async def _turn_clock(life: Life, rng: random.Random, topic: str, queue_id: int) -> None:
    life.clock.advance(rng.choice((0.5, 2, 6)))
    await life.deliver()


async def _jump(life: Life, rng: random.Random, topic: str, queue_id: int) -> None:
    """Somebody sets the wall clock, forward or back."""
    life.clock.set_wall(life.clock.time_millis() + rng.choice((-3_600_000, -4000, 4000, 3_600_000)))
    await life.deliver()


_Step = Callable[[Life, random.Random, str, int], Awaitable[None]]
_STEPS: list[_Step] = [_send, _send_large, _send_several, _send_batch, _send_delayed, _commit, _turn_clock, _jump]
_WEIGHTS = [10, 2, 6, 4, 4, 4, 4, 1]


def make_base(seed: str, folder: Path) -> Base:
    """Run the script below ``folder``, which is empty again afterwards."""
    return asyncio.run(_make_base(random.Random(seed), folder))


async def _make_base(rng: random.Random, folder: Path) -> Base:
    root = folder / "script"
    base = Base(Image(), Image(), Ledger(), ManualClock(), 0, rng.random() < 0.5, rng.random() < 0.7)
    lives, eager = rng.randint(2, 3), rng.random() < 0.5
    for number in range(lives):
        last = number == lives - 1
        life = Life(root, base.ledger, base.clock, number, flush_interval_consume_queue=1 if eager else NEVER)
        async with life:
            await life.deliver()
            if number == 0:
                await set_up(life)
            topics = list(TOPICS) if number == 0 or not base.deleted else KEPT
            for _ in range(rng.randint(2, STEPS) if last else STEPS):
                await one_step(life, rng, topics)
            if base.deleted and number == 0:
                answer = await life.delete_topic(DOOMED)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                _forget(base.ledger, DOOMED)
            await life.settled()
            for queue, queue_offsets in life.committed.items():
                base.committed[queue] += queue_offsets
            if last:
                if eager:
                    await _saved(life)
                base.remember(await life.waiting() + await life.read_now(Verdict()))
                base.image = Image.read(root)
        if last and base.stopped:
            base.image = Image.read(root)
        base.noted = life.store.max_physical_offset if not last or base.stopped else base.noted
        if number == 0:
            base.older = Image.read(root)
    rmtree(root)
    base.image.files.pop("lock", None)
    missing = base.ledger.acknowledged.keys() - base.copies.keys()
    assert not missing, f"the script cannot read back {missing}"
    return base


async def _saved(life: Life) -> None:
    """Wait until the last unit of every queue is in its file, so that the next kill finds the same each time."""
    for topic, queue_id in life.store.queues():
        position = (life.store.max_offset(topic, queue_id) - 1) * UNIT_SIZE
        folder = life.root / "consumequeue" / topic / str(queue_id)
        path = folder / f"{position - position % QUEUE_FILE_BYTES:020d}"
        async with asyncio.timeout(10):
            while not _has_unit(path, position % QUEUE_FILE_BYTES):  # noqa: ASYNC110  # the store's own timer saves it
                await asyncio.sleep(0.002)


def _has_unit(path: Path, position: int) -> bool:
    return path.exists() and any(path.read_bytes()[position : position + UNIT_SIZE])


def _forget(ledger: Ledger, topic: str) -> None:
    """What was acknowledged in a deleted topic must be gone."""
    for key, (name, _) in list(ledger.sent.items()):
        if name == topic:
            del ledger.sent[key]
            ledger.acknowledged.pop(key, None)
