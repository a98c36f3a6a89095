"""What a moment of a scripted run leaves, and the judgement of it: a broker is started on it, on a sound disk.

What a client was told, and what a consumer was shown, must be there.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rocketcore.broker.pop.service import ERROR_SECONDS
from rocketcore.codes import ResponseCode
from rocketcore.errors import RocketError
from rocketcore.service import ManualClock
from tests.fault.broker_run import DOOMED, GROUP, Life
from tests.fault.image import Image
from tests.fault.ledger import Key, Ledger, Verdict, read_body
from tests.fault.script import KEPT
from tests.fault.trial import memory_folder

SESSION_SECONDS = 60.0


@dataclass(slots=True)
class Pops:
    """What the group that pops acknowledged: with the answer 0, or, in ``tried``, whatever came back."""

    done: set[Key] = field(default_factory=set)
    tried: set[Key] = field(default_factory=set)

    def copy(self) -> Pops:
        return Pops(set(self.done), set(self.tried))


@dataclass(slots=True)
class Left:
    """What a moment leaves: files, and what was promised until then.

    spared  messages of which a record lay on a page of the log that could not be read, and was called damaged then
    twice   a start said that delayed messages may come twice, as it could not read which were delivered
    unreadable  a page of the log could not be read: of the records of popped messages perhaps
    """

    image: Image
    ledger: Ledger
    seen: set[Key]
    offsets: dict[tuple[str, int], set[int]]
    topics: dict[str, int]
    deleted: bool
    group: bool
    settings: set[str]
    spared: set[Key]
    twice: bool
    unreadable: bool
    popped: Pops


def judge_left(left: Left) -> Verdict:
    """Start a broker on what a power cut left, on a sound disk, and judge; then stop it and start it again."""
    with tempfile.TemporaryDirectory(dir=memory_folder(), prefix="rocket-fault-") as folder:
        root = Path(folder) / "store"
        left.image.write(root)
        try:
            return asyncio.run(asyncio.wait_for(_judge_left(left, root), SESSION_SECONDS))
        except TimeoutError:
            verdict = Verdict()
            verdict.blame("hung", f"start after the cut: no end after {SESSION_SECONDS} s")
            return verdict
        except (RocketError, OSError, AssertionError) as error:
            verdict = Verdict()
            verdict.blame("refused", f"start after the cut: {type(error).__name__}: {error}")
            return verdict


async def _judge_left(left: Left, root: Path) -> Verdict:
    verdict = Verdict()
    ledger, clock = left.ledger.copy(), ManualClock()
    clock.advance(1e6)
    for number in range(2):
        async with Life(root, ledger, clock, 100 + number) as life:
            topics = await life.topics()
            for topic, queues in left.topics.items():
                if topics.get(topic) != queues:
                    verdict.blame("state", f"topic {topic} has {topics.get(topic)} queues, not {queues}")
            if left.deleted and DOOMED in topics:
                verdict.blame("state", f"deleted topic {DOOMED} came back")
            found = await life.read_all(verdict)
            if left.twice:
                found = ledger.once(found)
            judged = ledger.judge(found, (set(ledger.acknowledged) | left.seen) - left.spared)
            for kind, example in judged.examples.items():
                verdict.blame(kind, f"start {number}: {example}")
            for (topic, queue_id), offsets in left.offsets.items():
                offset = await life.consumer_offset(topic, queue_id)
                if topic in topics and offset not in offsets:
                    verdict.blame("state", f"offset {offset} of {topic}/{queue_id}, not one of {offsets}")
            if left.group and GROUP not in await life.groups():
                verdict.blame("state", f"group {GROUP} is gone")
            polling = (await life.settings())["shortPollingTimeMills"]
            if polling not in left.settings:
                verdict.blame("state", f"shortPollingTimeMills {polling}, not one of {left.settings}")
            if number == 0 and not left.spared and not left.unreadable:
                there = {read_body(one.body) for one in found if one.topic in KEPT}
                await _judge_pops(life, left.popped, {key for key in there if key is not None}, verdict)
            if number == 0:
                answer = await life.send("Beta", 0, random.Random(1))
                if answer.code != ResponseCode.SUCCESS and "Beta" in left.topics:
                    verdict.blame("refused", f"a send after the cut: {answer.code} {answer.remark}")
    return verdict


async def _judge_pops(life: Life, popped: Pops, there: set[Key], verdict: Verdict) -> None:
    """Pop all that is left: what was acknowledged must not come, what nobody tried to acknowledge must."""
    came: set[Key] = set()
    for _ in range(3):
        # The time of all that was handed out is over; what could not be read is tried again after a while.
        life.clock.advance(ERROR_SECONDS + 1)
        await life.revive()
        for topic in KEPT:
            while messages := await life.pop(topic):
                came |= {key for message in messages if (key := read_body(message.body)) is not None}
                for message in messages:
                    await life.acknowledge(message)
    for key in sorted(came & popped.done):
        verdict.blame("popped", f"{key} was acknowledged, and came again")
    for key in sorted(there - came - popped.tried):
        verdict.blame("popped", f"{key} was not acknowledged, and did not come")
