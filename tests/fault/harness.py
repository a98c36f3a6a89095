"""Real broker processes under load, killed at random moments, started again on what they left, and judged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.transport.client import RemotingClient
from tests.fault.ledger import Found, Key, Ledger, Verdict, make_body
from tests.fault.log_scan import log_files, scan_log
from tests.fault.requests import Ask, asker, by_id_header, places, read_queue, send_header
from tests.fault.simulated_disk import LOG_FILES, cut_power
from tests.fixtures.processes import START_SECONDS, first_line
from tests.fixtures.stores import records

TOPIC = "FaultTopic"
QUEUES = 4
SENDERS = 4
FOUND_BY_ID = 5
"""Messages of a cycle that are looked up in the index, too."""
BURST = 8
READ_SECONDS = 30.0

SETTINGS = {
    "mappedFileSizeCommitLog": 256 << 10,
    "maxMessageSize": 1 << 16,
    "mappedFileSizeConsumeQueue": 20 * 500,
    "flushIntervalConsumeQueue": 20,
    "flushConsumeQueueThoroughInterval": 100,
    "defaultTopicQueueNums": QUEUES,
    "cleanResourceInterval": 100,
    "deleteFileBatchMax": 1,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 3000,
}
"""Files so small that segments, queue files and index files roll, and saves and looks for old files so frequent that a
kill hits them."""


class BrokerProcess:
    """A broker as a user starts it, on a disk of ``simulated_disk``."""

    def __init__(self, folder: Path, disk: str) -> None:
        config = folder / "broker.conf"
        if not config.exists():
            config.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
        program = ["tests.fault.simulated_disk", disk, str(folder / "journal")]
        command = [sys.executable, "-m", "rocketcore.child", *program, "broker", "start"]
        command += ["--flush", "sync", "--listen", "127.0.0.1:0"]
        command += ["--namesrv", "127.0.0.1:9", "--store", str(folder / "store"), "-c", str(config)]
        self._log = folder / "broker.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.PIPE, env={**os.environ}
            )

    async def ready(self) -> int:
        """Return the port, when the broker answers; one that fails to start, or takes too long, is ended."""
        try:
            line = await asyncio.to_thread(first_line, self._process, self._log, START_SECONDS)
        except BaseException:
            self.kill()
            raise
        return int(json.loads(line)["address"].rpartition(":")[2])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class FaultRun:
    """One store through many lives of its broker; the seed decides loads, moments and what a power cut takes.

    disk  a kind of ``simulated_disk``
    """

    def __init__(self, folder: Path, seed: int, *, disk: str = "kept") -> None:
        self.folder = folder
        self.ledger = Ledger()
        self.cycles = 0
        self.power_cuts = 0
        self.found_by_id = 0
        self._rng = random.Random(seed)
        self._disk = disk
        self._read_offsets = dict.fromkeys(range(QUEUES), 0)
        self._scanned = 0
        self._unjudged: set[Key] = set()
        self._ids: dict[Key, str] = {}
        self._broker: BrokerProcess | None = None

    async def __aenter__(self) -> FaultRun:
        self._broker = BrokerProcess(self.folder, self._disk)
        self._port = await self._broker.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._broker is not None:
            self._broker.kill()

    async def cycle(self) -> Verdict:
        """Load, kill, start again, and judge what came since the last cycle."""
        assert self._broker is not None
        moment = self._rng.uniform(0.02, 0.15)
        senders = [asyncio.create_task(self._send(sender)) for sender in range(SENDERS)]
        await asyncio.sleep(moment)
        self._broker.kill()
        self._broker = None
        await asyncio.gather(*senders)
        self.cycles += 1
        journal = self.folder / "journal"
        if journal.exists():
            self.power_cuts += cut_power(journal, self._rng)
        self._broker = BrokerProcess(self.folder, self._disk)
        self._port = await self._broker.ready()
        return await self._judge()

    async def judge_all(self) -> Verdict:
        """Read everything once more, from the first message on that retention may not have deleted."""
        self._read_offsets = dict.fromkeys(range(QUEUES), 0)
        self._scanned = 0
        self._unjudged = set(self.ledger.acknowledged)
        return await self._judge()

    async def _end_deletions(self) -> None:
        """Wait until retention has made the room that it is to make."""
        async with asyncio.timeout(READ_SECONDS):
            while len(self._log_files()) >= LOG_FILES:  # noqa: ASYNC110  # another process deletes them
                await asyncio.sleep(0.02)

    def _position(self, key: Key) -> int:
        place = self.ledger.acknowledged[key]
        assert place is not None, f"{key} is delayed"
        return place[2]

    @property
    def deleted_bytes(self) -> int:
        """Where the log begins now."""
        return self._log_files()[0]

    def _log_files(self) -> list[int]:
        return log_files(self.folder / "store")

    async def _judge(self) -> Verdict:
        await self._end_deletions()
        begin = self.deleted_bytes
        must = {key for key in self._unjudged if self._position(key) >= begin}
        refused = Verdict()
        # The oldest file went, and a newest one without a message, which a start removes.
        if begin and len(self._log_files()) < LOG_FILES - 2:
            refused.blame("lost", f"{self._log_files()} are left of the log, where {LOG_FILES - 1} files have room")
        pulled = await self._pull(refused)
        scanned, self._scanned = scan_log(self.folder / "store" / "commitlog", TOPIC, max(self._scanned, begin))
        verdict = self.ledger.judge(pulled, must)
        for kind, example in refused.examples.items():
            verdict.blame(kind, example)
        for kind, count in self.ledger.judge(scanned, must).counts.items():
            verdict.blame(f"{kind}", f"{count} messages in the scan of the log")
        order = [one.physical_offset for one in scanned]
        by_queue = {queue: [one for one in scanned if one.queue_id == queue] for queue in range(QUEUES)}
        if order != sorted(order) or sorted(map(_place, scanned)) != sorted(map(_place, pulled)):
            verdict.blame("moved", f"{len(scanned)} messages in the log, {len(pulled)} in the queues")
        for queue, messages in by_queue.items():
            offsets = [one.queue_offset for one in messages]
            breaks = [(one, other) for one, other in pairwise(offsets) if other != one + 1]
            if breaks:
                verdict.blame("moved", f"queue {queue} has gaps or repeats: {breaks[:20]}")
        await self._find_by_id(self._rng.sample(sorted(must), min(len(must), FOUND_BY_ID)), verdict)
        self._unjudged = set()
        return verdict

    # ------------------------------------------------------------------ load

    async def _send(self, sender: int) -> None:
        """Send bursts over one connection until it breaks."""
        rng = random.Random(self._rng.random())
        sequence = 0
        with contextlib.suppress(OSError, EOFError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                decoder = FrameDecoder()
                while True:
                    waiting: dict[int, Key] = {}
                    frames = []
                    for _ in range(rng.randint(1, BURST)):
                        key = (self.cycles, sender, sequence)
                        sequence += 1
                        queue_id = rng.randrange(QUEUES)
                        self.ledger.send(key, queue_id, TOPIC)
                        self._ids[key] = os.urandom(16).hex().upper()
                        unique = f"UNIQ_KEY\x01{self._ids[key]}\x02WAIT\x01true\x02"
                        header = send_header(TOPIC, queue_id, unique, int(time.time() * 1000))
                        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, make_body(key, rng))
                        waiting[command.opaque] = key
                        frames.append(command.encode())
                    writer.write(b"".join(frames))
                    while waiting:
                        data = await reader.read(1 << 16)
                        if not data:
                            return
                        for answer in decoder.feed(data):
                            self._acknowledge(waiting.pop(answer.opaque), answer)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    def _acknowledge(self, key: Key, answer: RemotingCommand) -> None:
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        (place,) = places(answer)
        self.ledger.acknowledge(key, place)
        self._unjudged.add(key)

    # ------------------------------------------------------------------ reading back

    async def _pull(self, verdict: Verdict) -> list[Found]:
        found = []
        async with RemotingClient() as client:
            ask = self._asker(client)
            for queue_id in range(QUEUES):
                messages = await read_queue(ask, TOPIC, queue_id, verdict, self._read_offsets[queue_id])
                if messages:
                    self._read_offsets[queue_id] = messages[-1].queue_offset + 1
                found += messages
        return found

    async def _find_by_id(self, keys: list[Key], verdict: Verdict) -> None:
        """Find messages by their ids where they were acknowledged."""
        async with RemotingClient() as client:
            ask = self._asker(client)
            for key in keys:
                answer = await ask(RequestCode.QUERY_MESSAGE, by_id_header(TOPIC, self._ids[key]))
                answered = records(answer.body) if answer.code == ResponseCode.SUCCESS else []
                if [one["physical_offset"] for one in answered] != [self._position(key)]:
                    what = f"{key} at {self._position(key)}: {answer.code} {answer.remark}, {len(answered)} found"
                    verdict.blame("unfound", what)
                self.found_by_id += 1

    def _asker(self, client: RemotingClient) -> Ask:
        return asker(client, f"127.0.0.1:{self._port}", READ_SECONDS)


def _place(message: Found) -> tuple[int, int, int]:
    return message.physical_offset, message.queue_id, message.queue_offset
