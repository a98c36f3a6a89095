"""A broker in this process on a store of small files: spoken to by requests, read back whole, its words kept.

``Life`` is one start of a broker to its stop, or to a copy of its files, which is what a kill would leave. The broker
is the one that users start, in all its parts, with a port; only its clock is turned by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from rocketcore._fast.batch import encode_batch
from rocketcore._fast.properties import encode_properties
from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store import MessageStore, StoreConfig
from rocketcore.codes import SCHEDULE_TOPIC, TIMER_TOPIC, RequestCode, ResponseCode
from rocketcore.config_file import format_properties, parse_properties
from rocketcore.errors import RocketError
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rocketcore.protocol.bodies.topic import TopicConfigSerializeWrapper
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
)
from rocketcore.protocol.headers.consumer import (
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketcore.protocol.headers.pop import PopMessageRequestHeader
from rocketcore.protocol.schema import Header
from rocketcore.service import ManualClock
from rocketcore.transport.client import RemotingClient
from tests.fault.ledger import Found, Key, Ledger, Span, Verdict, make_body, read_body
from tests.fault.requests import by_id_header, places, read_queue, send_header
from tests.fixtures.popped import Popped, ack_header, read_popped
from tests.fixtures.stores import records

SEGMENT_BYTES = 80 * 1024
QUEUE_FILE_BYTES = 25 * 20
TIMEOUT = 10.0
LEVELS = "1s 5s 10s"
DELAYS = (1.0, 5.0, 10.0, 8.0)
"""Of the levels; the last one is asked for as a time."""
TIMER = len(DELAYS)
WAITING = ((TIMER_TOPIC, 0), *((SCHEDULE_TOPIC, level) for level in range(TIMER - 1)))
"""Queues of messages that wait."""
LONG_DELAY = 3600.0
DELAY_ROUNDS = 15

SIZES = (0, 10, 100, 700, 2500)
LARGE_SIZES = (9000, 14_000)

GROUP = "g"
POPPERS = "poppers"
INVISIBLE_MILLIS = 60_000
LONG_TOPIC = "%DLQ%" + "v" * 180
"""So long that its records are of the second version."""

TOPICS = {"Alpha": 3, "Beta": 2, LONG_TOPIC: 1, "Doomed": 2}
DOOMED = "Doomed"

_PLACE = re.compile(r"path=(\S*/commitlog/(\d+)) position=(\d+)(?: bytes=(\d+))?")


class Heard(logging.Handler):
    """Keeps what a broker says of damage, as spans of the log; one place without a length is one byte long."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.named: list[Span] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        self.lines.append(f"{record.levelname} {line}")
        for _, start, position, length in _PLACE.findall(line):
            begin = int(start) + int(position)
            self.named.append((begin, begin + int(length or 1)))

    def __enter__(self) -> Heard:
        logging.getLogger("rocketcore").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("rocketcore").removeHandler(self)


def store_config(root: Path, **settings: object) -> StoreConfig:
    values: dict[str, object] = {
        "store_path_root_dir": root,
        "mapped_file_size_commit_log": SEGMENT_BYTES,
        "mapped_file_size_consume_queue": QUEUE_FILE_BYTES,
        "max_message_size": SEGMENT_BYTES - 64 * 1024,
        "message_delay_level": LEVELS,
        "flush_interval_consume_queue": 10,
        "flush_consume_queue_thorough_interval": 3_600_000,
        "max_hash_slot_num": 200,
        "max_index_num": 500,
    }
    return StoreConfig(**(values | settings))  # type: ignore[arg-type]  # settings of several types


class Life:
    """One start of a broker and what is asked of it; ``async with``.

    due        when each delayed message may be shown at the earliest, by the monotonic clock
    committed  the offsets that the group committed, in order, by topic and queue
    """

    def __init__(self, root: Path, ledger: Ledger, clock: ManualClock, cycle: int, **settings: object) -> None:
        self.root = root
        self.ledger = ledger
        self.clock = clock
        self.cycle = cycle
        self.sequence = 0
        self.due: dict[Key, float] = {}
        self.committed: dict[tuple[str, int], list[int]] = {}
        self._broker = Broker(
            BrokerConfig(broker_name="fault", listen_port=0), store_config(root, **settings), clock=clock
        )
        self._client = RemotingClient()

    async def __aenter__(self) -> Life:
        await self._broker.start()
        # It would go by the real time between two steps. ``revive`` does the same, at once and whole.
        await self._broker._pop._revive_task.stop()
        try:
            await self._client.__aenter__()
        except BaseException:
            await self._broker.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._client.__aexit__(kind, error, trace)
        finally:
            await self._broker.stop()

    @property
    def store(self) -> MessageStore:
        return self._broker._store

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        return await self._client.invoke(self._broker.address, RemotingCommand.request(code, header, body), TIMEOUT)

    # ------------------------------------------------------------------ writing

    async def send(
        self, topic: str, queue_id: int, rng: random.Random, *, level: int = 0, large: bool = False, sender: int = 0
    ) -> RemotingCommand:
        """Send a message and note what becomes of it; ``level`` is its delay."""
        sizes = LARGE_SIZES if large else SIZES
        key, body = self._new(topic, queue_id, rng, sizes, delayed=level > 0, sender=sender)
        properties = {"UNIQ_KEY": _unique(key), "TAGS": f"t{key[2] % 3}", "KEYS": "k" * (key[2] % 40)}
        if level:
            if level == TIMER:
                properties["TIMER_DELAY_MS"] = str(int(DELAYS[-1] * 1000))
            else:
                properties["DELAY"] = str(level)
            self.due[key] = self.clock.monotonic() + DELAYS[level - 1]
        header = send_header(topic, queue_id, encode_properties(properties).decode(), self.clock.time_millis())
        answer = await self.ask(RequestCode.SEND_MESSAGE_V2, header, body)
        self._acknowledge([key], answer)
        return answer

    async def send_batch(
        self, topic: str, queue_id: int, rng: random.Random, count: int, sizes: tuple[int, ...] = SIZES
    ) -> RemotingCommand:
        new = [self._new(topic, queue_id, rng, sizes) for _ in range(count)]
        properties = [encode_properties({"UNIQ_KEY": _unique(key)}) for key, _ in new]
        header = send_header(topic, queue_id, "", self.clock.time_millis(), batch=True)
        body = encode_batch([body for _, body in new], properties)
        answer = await self.ask(RequestCode.SEND_BATCH_MESSAGE, header, body)
        self._acknowledge([key for key, _ in new], answer)
        return answer

    async def commit(self, topic: str, queue_id: int, queue_offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=GROUP, topic=topic, queue_id=queue_id, commit_offset=queue_offset
        )
        if (await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.SUCCESS:
            self.committed.setdefault((topic, queue_id), []).append(queue_offset)

    async def create_topic(self, topic: str, queues: int) -> RemotingCommand:
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
        )
        return await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def create_group(self, group: str) -> RemotingCommand:
        body = SubscriptionGroupConfig(group_name=group, retry_max_times=3).encode()
        return await self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def update_settings(self, properties: dict[str, str]) -> RemotingCommand:
        return await self.ask(RequestCode.UPDATE_BROKER_CONFIG, body=format_properties(properties).encode())

    async def delete_topic(self, topic: str) -> RemotingCommand:
        return await self.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic))

    def _new(
        self,
        topic: str,
        queue_id: int,
        rng: random.Random,
        sizes: tuple[int, ...],
        *,
        delayed: bool = False,
        sender: int = 0,
    ) -> tuple[Key, bytes]:
        key = (self.cycle, sender, self.sequence)
        self.sequence += 1
        self.ledger.send(key, queue_id, topic, delayed=delayed)
        return key, make_body(key, rng, sizes)

    def _acknowledge(self, keys: list[Key], answer: RemotingCommand) -> None:
        if answer.code != ResponseCode.SUCCESS:
            return
        for key, place in zip(keys, places(answer), strict=True):
            self.ledger.acknowledge(key, place)

    # ------------------------------------------------------------------ popping

    async def pop(self, topic: str) -> list[Popped]:
        """Return what the group that pops is handed out of a topic, nothing where that is refused."""
        header = PopMessageRequestHeader(
            consumer_group=POPPERS,
            topic=topic,
            queue_id=-1,
            max_msg_nums=32,
            invisible_time=INVISIBLE_MILLIS,
            poll_time=0,
            born_time=self.clock.time_millis(),
            init_mode=0,
        )
        answer = await self.ask(RequestCode.POP_MESSAGE, header)
        return read_popped(answer, "fault") if answer.code == ResponseCode.SUCCESS else []

    async def acknowledge(self, message: Popped) -> bool:
        """Whether a popped message counts as done."""
        return (await self.ask(RequestCode.ACK_MESSAGE, ack_header(message, POPPERS))).code == ResponseCode.SUCCESS

    async def revive(self) -> None:
        """Do what brings back popped messages every 100 ms, now, and wait until they are on disk."""
        await self._broker._pop.revive_due()
        await self.settled()

    # ------------------------------------------------------------------ reading back

    async def read_all(self, verdict: Verdict, topics: Iterable[str] = TOPICS) -> list[Found]:
        """Return every message that consumers get, queue by queue; the ones of a delay after all of it is over."""
        await self._end_delays()
        return await self.read_now(verdict, topics)

    async def read_now(self, verdict: Verdict, topics: Iterable[str] = TOPICS) -> list[Found]:
        """Return every message that consumers get now."""
        queues = [(topic, queue_id) for topic in topics for queue_id in range(TOPICS[topic])]
        read = await asyncio.gather(*(self.read_queue(topic, queue_id, verdict) for topic, queue_id in queues))
        return [message for messages in read for message in messages]

    async def read_queue(self, topic: str, queue_id: int, verdict: Verdict, begin: int = 0) -> list[Found]:
        """Return the messages of a queue as a consumer pulls them: it follows what it is told."""
        return await read_queue(self.ask, topic, queue_id, verdict, begin)

    async def find_all(self, found: Iterable[Found], verdict: Verdict) -> None:
        """Find each of the messages by its key as well."""
        for message in found:
            key = read_body(message.body)
            if key is None:
                continue
            answer = await self.ask(RequestCode.QUERY_MESSAGE, by_id_header(message.topic, _unique(key)))
            answered = records(answer.body) if answer.code == ResponseCode.SUCCESS else []
            if message.physical_offset not in [one["physical_offset"] for one in answered]:
                verdict.blame("unfound", f"{message} {answer.code} {answer.remark}")

    async def _end_delays(self) -> None:
        """Turn the clock until every delayed message is where it belongs, or could be."""
        for _ in range(DELAY_ROUNDS):
            if self._delays_over():
                return
            self.clock.advance(LONG_DELAY)
            await self.deliver()
            async with asyncio.timeout(TIMEOUT):
                while self._is_waiting():  # noqa: ASYNC110  # a queue is repaired, or read, on a thread of the store
                    await asyncio.sleep(0.002)

    def _is_waiting(self) -> bool:
        in_repair = any(self.store.is_in_repair(topic, queue_id) for topic, queue_id in WAITING)
        return in_repair or len(self.store.reads) > 0

    def _delays_over(self) -> bool:
        levels = self._broker._delay.positions().values()
        return all(position >= end for position, end in levels) and not len(self._broker._timer)

    async def deliver(self) -> None:
        """Do what the services do every 100 ms, now, and wait until what they delivered is on disk."""
        delay, timer, before = self._broker._delay, self._broker._timer, None
        while before != (before := (delay.positions(), len(timer))):
            for service in (delay, timer):
                with contextlib.suppress(RocketError):  # its own task logs that and goes on
                    service.deliver_due()
            await self.settled()

    async def settled(self) -> None:
        """Wait until everything that was put is durable or refused."""
        done = asyncio.Event()
        self.store.wait(self.store.max_physical_offset, lambda _: done.set())
        await done.wait()
        await asyncio.sleep(0)

    async def waiting(self) -> list[Found]:
        """Return the records of the delayed messages as they wait for their time."""
        verdict = Verdict()
        read = await asyncio.gather(*(self.read_queue(topic, queue_id, verdict) for topic, queue_id in WAITING))
        return [message for messages in read for message in messages]

    async def topics(self) -> dict[str, int]:
        """Return the topics of the broker's settings and their numbers of queues."""
        answer = await self.ask(RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequestHeader(topic_seq=0))
        table = TopicConfigSerializeWrapper.decode(answer.body).topic_config_table
        return {name: config.write_queue_nums for name, config in table.items()}

    async def groups(self) -> set[str]:
        """Return the names of the consumer groups that have settings."""
        answer = await self.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return set(SubscriptionGroupWrapper.decode(answer.body).subscription_group_table)

    async def settings(self) -> dict[str, str]:
        """Return the broker's settings as they are now."""
        answer = await self.ask(RequestCode.GET_BROKER_CONFIG)
        return dict(parse_properties(answer.body.decode()))

    async def consumer_offset(self, topic: str, queue_id: int) -> int:
        """Return the group's offset, 0 where it has none."""
        header = QueryConsumerOffsetRequestHeader(consumer_group=GROUP, topic=topic, queue_id=queue_id)
        answer = await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
        if answer.code != ResponseCode.SUCCESS:
            return 0
        return answer.header(QueryConsumerOffsetResponseHeader).offset


def _unique(key: Key) -> str:
    return f"{key[0]:08X}{key[1]:08X}{key[2]:016X}"
