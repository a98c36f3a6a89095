"""A send is answered, stored and held back the same whichever way it takes through the broker.

The slow path takes one request at a time and knows all rules; kernels take whole chunks of plain ones. Which of the
two a request takes depends on things that its sender does not see, such as whether its topic exists already.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocketcore._fast.batch import encode_batch
from rocketcore._fast.properties import decode_properties
from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.record import RecordReader, StoredRecord
from rocketcore.broker.store import FlushDiskType, PutStatus, StoreConfig, StoredMessage
from rocketcore.codes import RemotingFlag, RequestCode, ResponseCode, SerializeType
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.protocol.headers.message import SendMessageRequestHeaderV2
from rocketcore.protocol.recall import RecallHandle
from rocketcore.service import ManualClock
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Routes
from tests.fuzz.targets.connection import Wire, settle

QUEUES = 4
SEGMENT_BYTES = 8 << 20
NAMES = [
    *("UNIQ_KEY", "TAGS", "KEYS", "WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON", "DELAY", "TRAN_MSG", "POP_CK", "city"),
    *("TIMER_DELAY_SEC", "INNER_NUM", "Łódź", "__CRC32#"),
]
VALUES = ["true", "false", "TRUE", "False", "no", "yes", "0", "3", "-1", "", "a b", "=", "Łódź", "K" * 32]
PAIRS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES), st.just("\x02")), max_size=6)
ODD_PAIRS = st.lists(st.tuples(st.sampled_from([*NAMES, ""]), st.sampled_from(VALUES), st.sampled_from(["\x02", ""])))


class Send(NamedTuple):
    """A send but for its topic."""

    properties: str
    body: bytes = b"hello"
    queue_id: int = 1
    sys_flag: int = 0
    batch: bool | None = None
    reconsume_times: int | None = None
    flag: int = 7
    code: int = RequestCode.SEND_MESSAGE_V2
    oneway: bool = False
    serialize_type: SerializeType = SerializeType.JSON


def text(pairs: list[tuple[str, str, str]]) -> str:
    return "".join(f"{name}\x01{value}{end}" for name, value, end in pairs)


KEY = "UNIQ_KEY\x01" + "0A" * 16 + "\x02"
SENDS = st.builds(
    Send,
    properties=PAIRS.map(lambda pairs: KEY + text(pairs)) | PAIRS.map(text) | ODD_PAIRS.map(text),
    body=st.sampled_from([b"hello", b"x" * 3_000, b"", encode_batch([b"a", b"b"], [KEY.encode()] * 2)]),
    queue_id=st.sampled_from([0, 1, 3, -1, 4, 99]),
    sys_flag=st.sampled_from([0, 0, 1, 2, 4, 8, 16, 0x40, 0x80, 0xC0, 1 << 20]),
    batch=st.sampled_from([None, False, True]),
    reconsume_times=st.sampled_from([None, 0, 2]),
    flag=st.sampled_from([0, 7, -1]),
    code=st.sampled_from([RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE]),
    oneway=st.booleans(),
    serialize_type=st.sampled_from(SerializeType),
)


class Outcome(NamedTuple):
    """What a sender and a reader see of a send, but for where and when it was stored.

    at_once   whether the answer did not wait for the flush
    stored    the records: body, property text, flags, times and hosts that the sender decides
    """

    answer: tuple[int, str | None, tuple[tuple[str, str], ...]] | None
    at_once: bool
    stored: list[StoredMessage]


class Scene:
    """A broker without a socket whose flushes end when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._topics = itertools.count()
        self._reader = RecordReader(64)
        self._held: list[Callable[[PutStatus], None]] = []
        self.loop.run_until_complete(self._start(folder))

    async def _start(self, folder: Path) -> None:
        config = StoreConfig(
            store_path_root_dir=folder,
            flush_disk_type=FlushDiskType.ASYNC_FLUSH,
            mapped_file_size_commit_log=SEGMENT_BYTES,
        )
        broker = self.broker = Broker(BrokerConfig(broker_name="b"), config, clock=ManualClock())
        broker._store.load()
        for state in (broker._topics, broker._groups, broker._delay):
            state.load()
        await broker._store.start()
        broker._register_handlers()
        broker._context.address = "127.0.0.1:10911"
        broker._context.rng.randrange = lambda *_: 2  # type: ignore[method-assign]
        broker._store.wait = lambda _end, callback: self._held.append(callback)  # type: ignore[assignment]
        self.endpoint = broker._server._endpoint
        self.routes = self.endpoint.routes

    def stop(self) -> None:
        async def stop() -> None:
            await self.broker._context.writer.close()
            await self.broker._store.stop()
            await self.broker._client.close()

        self.loop.run_until_complete(stop())
        self.loop.close()

    def outcome(self, send: Send, *, by_chunk: bool, exists: bool) -> Outcome:
        return self.loop.run_until_complete(self._outcome(send, by_chunk=by_chunk, exists=exists))

    async def _outcome(self, send: Send, *, by_chunk: bool, exists: bool) -> Outcome:
        topic = f"T{next(self._topics):08d}"
        if exists:
            self.broker._context.topics.ensure(topic, QUEUES)
        run: dict[str, Any] = {} if by_chunk else {"run": None}
        self.endpoint.routes = Routes(route._replace(**run) for route in self.routes.values())
        wire, channel = Wire(), Channel(self.endpoint)
        channel.remote_address = "127.0.0.1:50000"
        channel.attach(wire)
        before = self.broker._store.max_physical_offset
        channel.data_received(frame(send, topic))
        await settle(self.endpoint)
        at_once = bool(wire.sent)
        held, self._held[:] = list(self._held), []
        for callback in held:
            callback(PutStatus.PUT_OK)
        await settle(self.endpoint)
        records = self.records_from(before)
        answers = FrameDecoder().feed(wire.sent)
        channel.connection_lost(None)
        return Outcome(seen(answers, topic, records), at_once, [contents(record, topic) for record in records])

    def records_from(self, physical_offset: int) -> list[StoredRecord]:
        """The log's records from there on."""
        store = self.broker._store
        found: list[StoredRecord] = []
        while physical_offset < store.max_physical_offset:
            record = store.lookup(physical_offset)
            if record is None:  # the rest of the segment is filled up
                physical_offset += SEGMENT_BYTES - physical_offset % SEGMENT_BYTES
                continue
            found += self._reader.read(record)
            physical_offset += len(record)
        return found


def seen(
    answers: list[RemotingCommand], topic: str, records: list[StoredRecord]
) -> tuple[int, str | None, tuple[tuple[str, str], ...]] | None:
    if not answers:
        return None
    [answer] = answers
    fields = dict(answer.ext_fields or {})
    if answer.code == ResponseCode.SUCCESS:
        # Where it is depends on what was stored before.
        assert fields.pop("msgId") == ",".join(record.msg_id for record in records)
        assert fields.pop("queueOffset") == str(records[0].queue_offset)
        if "recallHandle" in fields:  # it names the topic
            fields["recallHandle"] = repr(RecallHandle.decode(fields["recallHandle"])).replace(topic, "TOPIC")
    remark = None if answer.remark is None else answer.remark.replace(topic, "TOPIC")
    return answer.code, remark, tuple(sorted(fields.items()))


def contents(record: StoredRecord, topic: str) -> StoredMessage:
    message = record.message
    message.topic = message.topic.replace(topic, "TOPIC")
    # A checksum covers the place of its record, too.
    text = bytes(message.properties).replace(topic.encode(), b"TOPIC")
    message.properties = re.sub(rb"(__CRC32#\x01)[0-9]{9,10}", rb"\1checksum", text)
    return message


def frame(send: Send, topic: str) -> bytes:
    header = SendMessageRequestHeaderV2(
        producer_group="p",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=send.queue_id,
        sys_flag=send.sys_flag,
        born_timestamp=1_700_000_000_000,
        flag=send.flag,
        properties=send.properties,
        reconsume_times=send.reconsume_times,
        batch=send.batch,
    )
    request = RemotingCommand.request(send.code, header, send.body)
    request.serialize_type = send.serialize_type
    if send.oneway:
        request.flag |= RemotingFlag.ONEWAY
    return request.encode()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("paths") / "store")
    # Message ids of the broker's own are all the same here, so that two sends can be compared.
    with patch("rocketcore.broker.processors.send.new_uniq_key", return_value="FF" * 16):
        yield scene
    scene.stop()


@settings(max_examples=300, deadline=None)
@given(SENDS)
@example(Send(KEY + "WAIT\x01no\x02"))
@example(Send(KEY + "WAIT\x01FALSE\x02"))
@example(Send(KEY + "WAIT\x01false\x02WAIT\x01true\x02"))
@example(Send(KEY + "TAGS\x01a\x02TAGS\x01b\x02"))
@example(Send(KEY + "TAGS\x01a\x02" + KEY))
@example(Send(KEY + "CLUSTER\x01mine\x02"))
@example(Send(KEY + "TIMER_DELAY_SEC\x013\x02"))
def test_a_send_ends_the_same_by_the_general_way_and_by_the_kernels(scene: Scene, send: Send) -> None:
    chunk = scene.outcome(send, by_chunk=True, exists=True)
    assert chunk == scene.outcome(send, by_chunk=False, exists=True)
    assert chunk == scene.outcome(send, by_chunk=True, exists=False)


@pytest.mark.parametrize("by_chunk", [True, False])
@pytest.mark.parametrize(
    ("wait", "waits"),
    [
        *((value, True) for value in (None, "true", "TRUE", "tRuE")),
        *((value, False) for value in ("false", "False", "no", "0", "1", "true ")),
    ],
)
def test_an_answer_waits_for_the_flush_unless_its_sender_does_not(
    scene: Scene, wait: str | None, waits: bool, by_chunk: bool
) -> None:
    """As Java's Boolean.parseBoolean reads it: whatever is not "true" in some case is false; what is absent is true."""
    properties = KEY if wait is None else f"{KEY}WAIT\x01{wait}\x02"
    outcome = scene.outcome(Send(properties), by_chunk=by_chunk, exists=True)
    assert outcome.answer is not None
    assert (outcome.answer[0], outcome.at_once) == (0, not waits)


@pytest.mark.parametrize("by_chunk", [True, False])
def test_of_a_property_given_twice_the_last_is_stored(scene: Scene, by_chunk: bool) -> None:
    send = Send(f"TAGS\x01a\x02{KEY}TAGS\x01b\x02CLUSTER\x01mine\x02")
    outcome = scene.outcome(send, by_chunk=by_chunk, exists=True)
    stored = outcome.stored[0].properties
    assert stored.count(b"TAGS") == stored.count(b"CLUSTER") == 1
    properties = decode_properties(stored)
    assert (properties["TAGS"], properties["CLUSTER"]) == ("b", "DefaultCluster")
