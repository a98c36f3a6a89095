"""POP under kills: producers, members of a group that pop, and one that pops in order, judged by what each was told.

acknowledged  its acknowledgement was answered with 0 before its invisible time was over, counted from before the POP
              was asked for: such a message may never come again
unsure        an acknowledgement was sent, and answered later than that or not at all: it may come again, or not
lost          was stored, none of these, and not handed out by a broker that is left to run, until nothing more comes
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rocketcore.codes import RequestCode
from rocketcore.errors import RocketError
from rocketcore.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from rocketcore.protocol.headers.pop import (
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
)
from rocketcore.transport.client import RemotingClient
from tests.fault.harness import QUEUES, BrokerProcess
from tests.fault.requests import Ask, asker, send_header
from tests.fault.simulated_disk import cut_power
from tests.fixtures.popped import Popped, ack_header, read_popped

GROUPS = {"members": False, "ordered": True}
"""Consumer groups, and whether they pop in order."""
TOPIC = "PopTopic"
INVISIBLE_MILLIS = 700
QUIET_SECONDS = 40.0
"""For which a group is given nothing new before what is missing is lost: however much is left to hand out."""
LOOK_SECONDS = 3.0
"""More than what was not acknowledged stays invisible."""
_BODY = b"%09d" + b"." * 600


@dataclass(slots=True)
class Told:
    """What a group was told of messages, by their numbers."""

    acknowledged: dict[int, float] = field(default_factory=dict)
    """Number → when that was known (monotonic)."""
    tried: set[int] = field(default_factory=set)
    """An acknowledgement was sent, whatever became of it: acknowledged or unsure."""
    places: dict[int, dict[int, int]] = field(default_factory=dict)
    """Queue id → offset → the message that was handed out from there, of which no acknowledgement was sent."""


class PopRun:
    """One store through many lives of its broker."""

    def __init__(self, folder: Path, seed: int, *, disk: str = "kept") -> None:
        self.folder = folder
        self.stored: set[int] = set()
        self.groups = {group: Told() for group in GROUPS}
        self.wrong: Counter[str] = Counter()
        self.examples: list[str] = []
        self.kills = self.again = self.power_cuts = 0
        self._rng = random.Random(seed)
        self._disk = disk
        self._sent = 0
        self._broker: BrokerProcess | None = None
        self._port = 0

    async def __aenter__(self) -> PopRun:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._broker is not None:
            self._broker.kill()

    async def _start(self) -> None:
        self._broker = BrokerProcess(self.folder, self._disk)
        self._port = await self._broker.ready()

    async def cycle(self) -> None:
        """Load, kill, start again."""
        assert self._broker is not None
        work = [self._produce(), self._produce(), *(self._consume(group) for group in GROUPS for _ in range(2))]
        tasks = [asyncio.create_task(each) for each in work]
        await asyncio.sleep(self._rng.uniform(0.3, 1.2))
        self._broker.kill()
        self._broker = None
        await asyncio.gather(*tasks)
        self.kills += 1
        journal = self.folder / "journal"
        if journal.exists():
            self.power_cuts += cut_power(journal, self._rng)
        await self._start()

    async def drain(self) -> None:
        """Acknowledge all that is left, until nothing new comes. Then look a while at what comes again."""
        await asyncio.gather(*(self._consume(group, self._until_all_was_tried(group)) for group in GROUPS))
        looked_until = time.monotonic() + LOOK_SECONDS
        await asyncio.gather(*(self._consume(group, lambda: time.monotonic() >= looked_until) for group in GROUPS))
        for group, told in self.groups.items():
            for number in sorted(self.stored - told.tried):
                self._blame("lost", f"{group}: {number}")

    def _until_all_was_tried(self, group: str) -> Callable[[], bool]:
        told = self.groups[group]
        tried, new_at = -1, 0.0

        def is_over() -> bool:
            nonlocal tried, new_at
            if len(told.tried) != tried:
                tried, new_at = len(told.tried), time.monotonic()
            return self.stored <= told.tried or time.monotonic() >= new_at + QUIET_SECONDS

        return is_over

    def _blame(self, kind: str, example: str) -> None:
        self.wrong[kind] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{kind} {example}")

    # ------------------------------------------------------------------ load

    async def _produce(self) -> None:
        async with RemotingClient() as client:
            ask = asker(client, f"127.0.0.1:{self._port}", 5.0)
            with contextlib.suppress(RocketError, OSError):
                while True:
                    number, self._sent = self._sent, self._sent + 1
                    queue_id = self._rng.randrange(QUEUES)
                    header = send_header(TOPIC, queue_id, f"UNIQ_KEY\x01{number:032X}\x02", int(time.time() * 1000))
                    if (await ask(RequestCode.SEND_MESSAGE_V2, header, _BODY % number)).code == 0:
                        self.stored.add(number)
                    await asyncio.sleep(self._rng.uniform(0, 0.005))

    async def _consume(self, group: str, is_over: Callable[[], bool] | None = None) -> None:
        """Pop and acknowledge until the broker is gone, or for a broker that is left to run until it is over."""
        rng = random.Random(self._rng.random())
        told = self.groups[group]
        async with RemotingClient() as client:
            ask = asker(client, f"127.0.0.1:{self._port}", 5.0)
            with contextlib.suppress(RocketError, OSError):
                while is_over is None or not is_over():
                    begin = time.monotonic()
                    messages = await self._pop(ask, group, rng)
                    for message in messages:
                        if told.acknowledged.get(_number(message), math.inf) < begin:
                            self._blame("acknowledged, and came again", f"{group}: {message}")
                    self._judge_order(group, messages)
                    if is_over is None:
                        await self._hide_some(ask, group, messages, rng)
                    await self._acknowledge(ask, group, messages, begin, rng, leave=0.0 if is_over else 0.2)

    async def _pop(self, ask: Ask, group: str, rng: random.Random) -> list[Popped]:
        header = PopMessageRequestHeader(
            consumer_group=group,
            topic=TOPIC,
            queue_id=-1,
            max_msg_nums=rng.randint(1, 16),
            invisible_time=INVISIBLE_MILLIS,
            poll_time=200,
            born_time=int(time.time() * 1000),
            init_mode=0,
            order=GROUPS[group],
        )
        answer = await ask(RequestCode.POP_MESSAGE, header)
        if answer.code != 0:
            await asyncio.sleep(0.01)
            return []
        messages = read_popped(answer, "b")
        for message in messages:
            if message.body != _BODY % _number(message):
                self._blame("damaged", f"{group}: {message}")
            self.again += message.reconsume_times > 0
        return messages

    def _judge_order(self, group: str, messages: list[Popped]) -> None:
        """Blame what was handed out in order before an earlier message that nobody acknowledged."""
        if not GROUPS[group]:
            return
        told = self.groups[group]
        here: dict[int, dict[int, int]] = {}
        for each in messages:
            here.setdefault(each.handle.queue_id, {})[each.handle.queue_offset] = _number(each)
        for queue_id, handed in here.items():
            before, last = told.places.get(queue_id, {}), max(handed)
            left = {offset: number for offset, number in before.items() if number not in told.tried}
            for offset in left:
                if offset < last and offset not in handed:
                    self._blame("out of order", f"{group}: {queue_id} {offset} before {last}")
            told.places[queue_id] = left | handed

    async def _hide_some(self, ask: Ask, group: str, messages: list[Popped], rng: random.Random) -> None:
        for message in [each for each in messages if rng.random() < 0.1]:
            handle = message.handle
            header = ChangeInvisibleTimeRequestHeader(
                consumer_group=group,
                topic=handle.stored_topic(message.topic, group),
                queue_id=handle.queue_id,
                extra_info=handle.encode(),
                offset=handle.queue_offset,
                invisible_time=100,
            )
            if (await ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)).code == 0:
                messages.remove(message)

    async def _acknowledge(
        self, ask: Ask, group: str, messages: list[Popped], begin: float, rng: random.Random, *, leave: float
    ) -> None:
        told = self.groups[group]
        chosen = [each for each in messages if rng.random() >= leave]
        if chosen and rng.random() < 0.5:
            parts = [
                BatchAck(
                    consumer_group=group,
                    topic=each.topic,
                    retry=each.handle.marker,
                    start_offset=each.handle.start_offset,
                    queue_id=each.handle.queue_id,
                    pop_time=each.handle.pop_time,
                    bits=BatchAck.encode_bits({each.handle.queue_offset - each.handle.start_offset}),
                )
                for each in chosen
            ]
            told.tried |= {_number(each) for each in chosen}
            body = BatchAckMessageRequestBody("b", parts).encode()
            answer = await ask(RequestCode.BATCH_ACK_MESSAGE, None, body)  # type: ignore[arg-type]  # it has no header
            if answer.code == 0 and time.monotonic() < begin + INVISIBLE_MILLIS / 1000:
                told.acknowledged |= dict.fromkeys(map(_number, chosen), time.monotonic())
            return
        for each in chosen:
            told.tried.add(_number(each))
            answer = await ask(RequestCode.ACK_MESSAGE, ack_header(each, group))
            if answer.code == 0 and time.monotonic() < begin + INVISIBLE_MILLIS / 1000:
                told.acknowledged[_number(each)] = time.monotonic()


def _number(message: Popped) -> int:
    return int(message.body[:9])
