"""A scripted broker run on a disk that can fail at any call, and lose its power before any.

The calls on the store's files are numbered as they come. A run can be told to fail one of them, and to keep what a
power cut before some of them would leave. Whatever it left is started again, on a sound disk, and judged: what a client
was told, and what a consumer was shown, must be there.

Before the log is synced, clients get their turn: a store that answers, or shows, a message too early is seen doing it.

A run has four lives, so that every way to start makes its calls: the first on an empty folder, the second on what a
stop left; that one is killed, and before the third a message, the end of the log and a queue are damaged; before the
fourth the note of where the queues end is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import mmap
import os
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store.log.segment_file import segment_name
from rocketcore.codes import ResponseCode
from rocketcore.errors import RocketError
from rocketcore.service import ManualClock
from tests.fault.broker_run import DOOMED, GROUP, SEGMENT_BYTES, TOPICS, Heard, Life
from tests.fault.ledger import Key, Ledger, Span, Verdict, find_bodies, read_body
from tests.fault.left import SESSION_SECONDS, Left, Pops, judge_left
from tests.fault.script import KEPT, UNIT_SIZE, one_step
from tests.fault.system_calls import Call, SystemCalls
from tests.fault.trial import memory_folder
from tests.fault.unreadable_page import lose_page
from tests.fault.volatile_disk import VolatileDisk

STEPS = 10
LIVES = 4
KILLED = 1
"""The life that ends without a stop."""

HURT = 2
"""The life that begins with damage of the log and of a queue: it bridges, puts aside and repairs."""

BARE = 3
"""The life that begins without ``queuebounds``: it reads the whole log."""

DAMAGED_QUEUE = ("Alpha", "0")
"""The queue of which a unit is damaged before the life ``HURT``."""

GARBAGE = b"\xa5" * 100
"""What stands behind the log's end before the life ``HURT``, as a write that was cut off."""

CATCH_UP_SECONDS = 5.0
HEAL_ROUNDS = 20

ERRORS: dict[str, tuple[int, ...]] = {
    "open": (errno.EIO, errno.EMFILE),
    "read": (errno.EIO,),
    "seek": (errno.EIO,),
    "list": (errno.EIO, errno.EMFILE),
    "stat": (errno.EIO,),
    "lock": (errno.ENOLCK,),
    "map": (errno.EIO, errno.ENOMEM, *(-1 - page for page in range(SEGMENT_BYTES // mmap.PAGESIZE))),
    "write": (errno.EIO, errno.ENOSPC),
    "allocate": (errno.EIO, errno.ENOSPC),
    "resize": (errno.EIO,),
    "sync": (errno.EIO,),
    "sync_folder": (errno.EIO,),
    "rename": (errno.EIO,),
    "link": (errno.EIO,),
    "unlink": (errno.EIO,),
    "mkdir": (errno.EIO, errno.ENOSPC),
}
"""What can go wrong with a call; of a map, -1 and less: it succeeds, and its page 0 or a further one is unreadable."""

KILL = 0
"""No error: the process is killed before the call. No later call of its life reaches the disk."""

HEALING = {
    ("open", errno.EMFILE),
    ("list", errno.EMFILE),
    ("allocate", errno.ENOSPC),
    ("map", errno.ENOMEM),
    ("mkdir", errno.ENOSPC),
}
"""Errors that pass: the same process takes messages again without a restart. So does one with an unreadable page."""

SETTINGS = {
    "flush_interval_consume_queue": 2,
    "flush_consume_queue_thorough_interval": 1000,
    "mapped_file_size_consume_queue": 4000,
}
"""The second counts on the clock that the script turns. A queue file has several sectors, which a cut can part."""

RECORD_HEAD_BYTES = 60
"""To a byte of a record that is neither its length nor its magic code."""

POLLING = "777"
POLLING_DEFAULT = str(BrokerConfig().short_polling_time_mills)

CROWD = 40
"""Messages of a batch whose units fill more than a sector; their sizes are such that it is not refused."""

CROWD_SIZES = (0, 10, 100, 300)


@dataclass(frozen=True, slots=True)
class Fault:
    """The call that fails, by its number, and how; where a page is to be unreadable, by its number among the maps."""

    number: int
    error: int


def name_of(error: int) -> str:
    """Return what an error is called on the command line."""
    return "KILL" if error == KILL else f"PAGE{-1 - error}" if error < 0 else errno.errorcode[error]


def error_of(name: str) -> int:
    return KILL if name == "KILL" else -1 - int(name[4:]) if name.startswith("PAGE") else int(getattr(errno, name))


@dataclass(slots=True)
class Session:
    """One run. ``cuts`` are the numbers of the calls before which the power is cut, in copies of the disk."""

    seed: str
    fault: Fault | None = None
    cuts: Collection[int] = ()
    calls: list[str] = field(default_factory=list)
    failed: str = ""
    left: list[tuple[int, Left]] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)

    def run(self) -> Session:
        """Play the script in a folder of its own."""
        with tempfile.TemporaryDirectory(dir=memory_folder(), prefix="rocket-fault-") as folder:
            root = Path(folder) / "store"
            root.mkdir()
            with Heard() as heard:
                _Player(self, root, heard).play()
        return self


class _Player:
    def __init__(self, session: Session, root: Path, heard: Heard) -> None:
        self._session = session
        self._root = root.resolve()
        self._heard = heard
        self._rng = random.Random(session.seed)
        self._chance = random.Random(f"{session.seed}:{session.fault}:disk")
        self._disk = VolatileDisk(root)
        self._ledger = Ledger()
        self._clock = ManualClock()
        self._seen: set[Key] = set()
        self._shown: dict[tuple[str, int], int] = {}
        self._offsets: dict[tuple[str, int], set[int]] = {}
        self._topics: dict[str, int] = {}
        self._deleted = False
        self._group = False
        self._settings = {POLLING_DEFAULT}
        self._popped = Pops()
        self._victim: Key | None = None
        self._copies: dict[Key, set[Span]] = defaultdict(set)
        self._spared: set[Key] = set()
        self._named = 0
        self._end = 0
        self._dead = False
        self._number = 0
        self._fault_life = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life: Life | None = None

    def play(self) -> None:
        with SystemCalls(self._root, self._before, self._around) as self._calls:
            try:
                asyncio.run(asyncio.wait_for(self._play(), SESSION_SECONDS))
            except TimeoutError:
                self._blame("hung", f"no end after {SESSION_SECONDS} s")
        self._session.left.append((len(self._session.calls), self._leave()))

    # ------------------------------------------------------------------ the disk

    def _before(self, call: Call) -> None:
        """Let clients hear and see what they can before the log is on disk; in the thread that syncs it."""
        loop, life = self._loop, self._life
        if self._dead or call.name != "sync" or life is None or loop is None or not _is_segment(call.path):
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with contextlib.suppress(TimeoutError, RocketError, OSError):
                asyncio.run_coroutine_threadsafe(self._look(life), loop).result(CATCH_UP_SECONDS)

    def _around(self, call: Call, function: Callable[[], Any]) -> Any:
        session = self._session
        number = len(session.calls)
        maps = session.calls.count("map")
        session.calls.append(call.name)
        if number in session.cuts:
            session.left.append((number, self._leave()))
        if self._dead:
            raise OSError(errno.EIO, "killed")
        fault = session.fault
        if fault is not None and fault.number == (number if fault.error >= 0 else maps if call.name == "map" else -1):
            error = fault.error
            self._fault_life = self._number
            if error == KILL:
                self._dead = True
                session.failed = f"killed before {call.name} {os.path.relpath(call.path, self._root)}"
                raise OSError(errno.EIO, "killed")
            if error not in ERRORS[call.name]:
                error = ERRORS[call.name][0]
            if error < 0:
                mapped, page = self._disk.perform(call, function), -1 - error
                if page * mmap.PAGESIZE < len(mapped):
                    lose_page(mapped, page)
                    session.failed = f"page {page} of {os.path.relpath(call.path, self._root)}"
                return mapped
            session.failed = f"{call.name} {os.path.relpath(call.path, self._root)} {errno.errorcode[error]}"
            return self._disk.perform(call, lambda: self._fail(call, error))
        return self._disk.perform(call, function)

    def _fail(self, call: Call, error: int) -> None:
        """Fail a call; a write may have come halfway."""
        if call.name == "write" and call.position >= 0 and self._chance.random() < 0.5:
            with open(call.path, "r+b") as file:
                file.seek(call.position)
                file.write(call.data[: self._chance.randrange(len(call.data) + 1)])
        raise OSError(error, os.strerror(error))

    def _leave(self) -> Left:
        self._find_copies()
        self._spare()
        return Left(
            self._disk.cut_power(self._chance),
            self._ledger.copy(),
            set(self._seen),
            self._possible_offsets(),
            dict(self._topics),
            self._deleted,
            self._group,
            self._settings | self._lost_settings(),
            set(self._spared),
            self._may_come_twice,
            self._session.failed.startswith("page"),
            self._popped.copy(),
        )

    @property
    def _may_come_twice(self) -> bool:
        return self._session.failed.startswith("page") and any("may come twice" in line for line in self._heard.lines)

    def _spare(self) -> None:
        """Excuse the messages of which a record lay where damage was named since the last call."""
        named = self._heard.named[self._named :]
        self._named += len(named)
        self._spared |= {
            key
            for key, copies in self._copies.items()
            if any(first < end and start < last for first, last in copies for start, end in named)
        }

    def _find_copies(self) -> None:
        """Note where messages lie in the log, those that wait for their time included: its files are sound.

        Damage that is named before the next call is theirs: what comes to its place later is none of it.
        """
        if self._session.fault is None or self._session.fault.error >= 0:
            return
        for path in (self._root / "commitlog").glob("[0-9]" * len(segment_name(0))):
            for key, (start, end) in find_bodies(path.read_bytes()):
                self._copies[key].add((int(path.name) + start, int(path.name) + end))

    def _possible_offsets(self) -> dict[tuple[str, int], set[int]]:
        """What may be found: what was there at the last stop in order, or what was committed since."""
        committed = self._life.committed if self._life is not None else {}
        return {
            queue: self._offsets.get(queue, {0}) | set(committed.get(queue, ()))
            for queue in self._offsets.keys() | committed.keys()
        }

    # ------------------------------------------------------------------ the script

    async def _play(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: self._blame("raised", str(context)))
        for self._number in range(LIVES):
            self._dead = False
            with self._calls.unseen():
                self._hurt()
            try:
                await self._live(self._number)
            except (RocketError, OSError) as error:
                # A start, or a stop, that says what is wrong with the disk. The next start may try again.
                if self._fault_life != self._number and not self._dead:
                    self._blame("refused", f"life {self._number}: {type(error).__name__}: {error}")
            finally:
                self._offsets = self._possible_offsets()
                if self._life is not None and self._fault_life != self._number and not self._dead:
                    for queue, offsets in self._life.committed.items():
                        self._offsets[queue] = {offsets[-1]}
                self._life = None
            if self._session.failed and self._number > self._fault_life:
                return

    async def _live(self, number: int) -> None:
        life = Life(self._root, self._ledger, self._clock, number, **SETTINGS)
        async with life:
            self._life = life
            self._spare()
            if number and self._session.failed and number <= self._fault_life + 1:
                # What the last life left is shown now: whatever it is, a power cut must not take it back.
                await self._look(life)
                with self._calls.unseen():
                    self._session.left.append((len(self._session.calls), self._leave()))
            if not self._topics or not self._group:
                await self._set_up(life)
            topics = [topic for topic in TOPICS if topic in self._topics]
            answer = await life.send_batch("Alpha", 0, self._rng, CROWD, CROWD_SIZES)
            assert answer.code == ResponseCode.SUCCESS or self._session.fault is not None, answer.remark
            await life.send("Beta", 0, self._rng, large=True)
            for _ in range(STEPS if topics else 0):
                await one_step(life, self._rng, topics)
            await self._pop(life)
            if not self._deleted and DOOMED in self._topics:
                await self._delete(life)
            if number == HURT:
                await life.read_now(Verdict(), KEPT)  # the damaged unit is found, and its queue repaired
            if number == KILLED:
                await self._change_settings(life)
                await self._choose_victim(life)
            await self._check_running(life)
            if number == KILLED:
                await life.settled()
                self._end = life.store.durable_offset
                self._dead = True

    def _lost_settings(self) -> set[str]:
        """What counts where the disk did not give their file: the first change has no older generation."""
        return {POLLING_DEFAULT} if self._session.failed.startswith("read config/liveSettings") else set()

    async def _change_settings(self, life: Life) -> None:
        self._settings.add(POLLING)
        if (await life.update_settings({"shortPollingTimeMills": POLLING})).code == ResponseCode.SUCCESS:
            self._settings = {POLLING}

    async def _choose_victim(self, life: Life) -> None:
        """Send a message that is to be damaged, with one behind it."""
        answer = await life.send("Beta", 0, self._rng)
        if answer.code == ResponseCode.SUCCESS:
            self._victim = (life.cycle, 0, life.sequence - 1)
        await life.send("Beta", 1, self._rng)

    async def _pop(self, life: Life) -> None:
        """Pop a part of the messages, acknowledge every second one, as far as the clock stands still."""
        for topic in KEPT:
            for number, message in enumerate(await life.pop(topic)):
                key = read_body(message.body)
                if key in self._popped.done:
                    self._blame("popped", f"{key} was acknowledged, and came again to life {self._number}")
                if key is not None and number % 2:
                    self._popped.tried.add(key)
                    if await life.acknowledge(message):
                        self._popped.done.add(key)

    def _hurt(self) -> None:
        """Change files between two lives, as disks and people do; not where an error left other files than these."""
        self._find_copies()  # before a start puts aside what it cannot read
        if self._number == HURT and self._victim is not None:
            place = self._ledger.acknowledged.pop(self._victim)
            assert place is not None, "it was not delayed"
            self._seen.discard(self._victim)
            name, position = divmod(place[2], SEGMENT_BYTES)
            log = self._root / "commitlog"
            _flip(log / segment_name(name * SEGMENT_BYTES), position + RECORD_HEAD_BYTES)
            _flip(self._root.joinpath("consumequeue", *DAMAGED_QUEUE, segment_name(0)), 2 * UNIT_SIZE + 7)
            name, position = divmod(self._end, SEGMENT_BYTES)
            path = log / segment_name(name * SEGMENT_BYTES)
            if path.exists() and position + len(GARBAGE) <= SEGMENT_BYTES:
                with path.open("r+b") as file:
                    file.seek(position)
                    file.write(GARBAGE)
        if self._number == BARE and (self._root / "queuebounds").exists():
            note = self._root / "queuebounds"
            self._disk.perform(Call("unlink", str(note)), note.unlink)

    async def _set_up(self, life: Life) -> None:
        self._group |= (await life.create_group(GROUP)).code == ResponseCode.SUCCESS
        for topic, queues in TOPICS.items():
            if topic == DOOMED and self._deleted:
                continue
            if (await life.create_topic(topic, queues)).code == ResponseCode.SUCCESS:
                self._topics[topic] = queues

    async def _delete(self, life: Life) -> None:
        """Delete a topic. What was sent to it may be found or not until the answer comes, and never after it."""
        await life.send(DOOMED, 0, self._rng)
        doomed = {key for key, (topic, _) in self._ledger.sent.items() if topic == DOOMED}
        for key in doomed:
            self._ledger.acknowledged.pop(key, None)
        self._seen -= doomed
        self._topics.pop(DOOMED)
        if (await life.delete_topic(DOOMED)).code == ResponseCode.SUCCESS:
            self._deleted = True
            for key in doomed:
                self._ledger.sent.pop(key)

    async def _look(self, life: Life) -> None:
        """Let answers arrive, and read what is new in every queue."""
        for topic in KEPT:
            for queue_id in range(TOPICS[topic]):
                queue = topic, queue_id
                if life.store.max_offset(*queue) <= self._shown.get(queue, 0):
                    continue
                for message in await life.read_queue(*queue, Verdict(), self._shown.get(queue, 0)):
                    key = read_body(message.body)
                    if key is not None:
                        self._seen.add(key)
                        if self._clock.monotonic() < life.due.get(key, 0.0):
                            self._blame("early", f"{key} at {self._clock.monotonic()}, due at {life.due[key]}")
                    self._shown[queue] = message.queue_offset + 1
        for _ in range(5):
            await asyncio.sleep(0)

    async def _check_running(self, life: Life) -> None:
        """After an error: reads go on; sends are refused in plain words, or, if it can pass, taken again."""
        fault = self._session.fault
        if fault is None or not self._session.failed or self._dead:
            return
        kind = self._session.failed.split()[0]
        unreadable = kind == "page"
        answer = None
        for _ in range(HEAL_ROUNDS):
            self._clock.advance(1.0)
            answer = await life.send("Alpha", 0, self._rng)
            if answer.code == ResponseCode.SUCCESS:
                break
            await asyncio.sleep(0.002)
        assert answer is not None
        if answer.code != ResponseCode.SUCCESS:
            if (kind, fault.error) in HEALING or unreadable or self._fault_life != self._number:
                self._blame("refused", f"{self._session.failed} does not heal: {answer.code} {answer.remark}")
            elif not answer.remark:
                self._blame("refused", f"{self._session.failed}: sends are refused without a word: {answer.code}")
        await life.settled()
        verdict = Verdict()
        topics = KEPT
        if self._number == HURT and answer.code != ResponseCode.SUCCESS:
            # A store that writes no more repairs no queue: the one that was damaged may be read after a restart.
            topics = [topic for topic in KEPT if topic != DAMAGED_QUEUE[0]]
        found = await life.read_now(verdict, topics)
        if self._may_come_twice:
            found = self._ledger.once(found)
        must = {key for key in self._ledger.acknowledged if self._ledger.sent[key][0] in topics}
        must -= self._ledger.delayed
        judged = self._ledger.judge(found, must)
        for one in (verdict, judged):
            for name, example in one.examples.items():
                if unreadable and name in ("lost", "unreadable"):
                    continue  # while the page cannot be read; the next start, on a sound disk, is judged of these
                self._blame(name, f"while the broker runs on: {example}")

    def _blame(self, kind: str, what: str) -> None:
        self._session.verdict.blame(kind, what)


def _flip(path: Path, position: int) -> None:
    """Flip a bit of a file, where there is one."""
    if path.exists():
        with path.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)
            file.seek(position)
            file.write(bytes(one ^ 4 for one in byte))


def _is_segment(path: str) -> bool:
    return os.path.basename(os.path.dirname(path)) == "commitlog" and os.path.basename(path).isdigit()


def main() -> None:
    """``python -m tests.fault.session SEED NUMBER ERROR``: one run with one failing call; ``cut`` for a power cut."""
    seed, number, error = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    logging.getLogger("rocketcore").addHandler(logging.StreamHandler())
    if error == "cut":
        session = Session(seed, cuts=[number]).run()
    else:
        session = Session(seed, Fault(number, error_of(error))).run()
    print(session.failed or session.calls[number : number + 1])
    for verdict in (session.verdict, *(judge_left(left) for _, left in session.left)):
        print(dict(verdict.counts), verdict.examples)


if __name__ == "__main__":
    main()
