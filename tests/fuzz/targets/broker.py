"""A whole connection to a broker: frames, requests, answers, and the log that they leave.

Whatever comes, nothing is raised, each request that asks for an answer gets one, answers and log are the same bytes
with and without the handlers that take requests by the chunk, and what was acknowledged is in the log.

The broker has a topic ``T`` of four queues and a group ``g``.

input  u8: form in bits 0 and 1 as for ``connection``: 0 a stream of frames, 1 JSON headers, 2 binary headers, each with
       its body; bit 2 each is sent when those before are answered · stream or headers
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from unittest.mock import patch

from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store import FlushDiskType, StoreConfig
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import DecodeError
from rocketcore.message import MessageQueue
from rocketcore.protocol import command
from rocketcore.protocol.bodies.client import LockBatchRequestBody, UnlockBatchRequestBody
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.heartbeat import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.protocol.headers.message import EndTransactionRequestHeader
from rocketcore.service import ManualClock
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Routes
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, scratch
from tests.fuzz.targets.connection import BODY, FAILURES, JOINT, Wire, loop, request, settle, stream_of
from tests.reference import message as reference_message
from tests.reference.routes import broker_routes, example

FOLDER = scratch() / "store"
SEGMENT_BYTES = 256 * 1024
DISK = SimpleNamespace(total=1 << 40, used=1 << 39, free=1 << 39)
HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
JUDGED_BYTES = 64 << 10
"""Of a longer frame the header is judged before the body is there."""
CHUNKS = {RequestCode.SEND_MESSAGE_V2}
SENDS = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2}


def run(data: bytes) -> None:
    if not data:
        return
    form = data[0] & 3
    if data[0] & 4 and form:
        parts = [stream_of(form, part) for part in data[1:].split(JOINT)]
    else:
        parts = [stream_of(form, data[1:])]
    loop().run_until_complete(serve(parts))


async def serve(parts: list[bytes]) -> None:
    sent = requests_of(b"".join(parts))
    with (
        patch("shutil.disk_usage", return_value=DISK),  # others fill the disk meanwhile, and the broker tells of it
        patch("rocketcore.broker.processors.send.new_uniq_key", return_value="0A" * 16),
    ):
        answers, log = await answered(parts, by_chunks=True)
        if CHUNKS & set(sent.values()):
            assert (answers, log) == await answered(parts, by_chunks=False)
    records, bad = reference_message.decode_all(log, 0, len(log), check_crc=True)
    assert bad is None
    at = {record.physical_offset: record for record in records}
    for answer in FrameDecoder().feed(b"".join(answers)):
        if sent.get(answer.opaque) in SENDS and answer.code == ResponseCode.SUCCESS:
            fields = answer.ext_fields or {}
            record = at[int(fields["msgId"].partition(",")[0][-16:], 16)]
            assert str(record.queue_offset) == fields["queueOffset"]
    assert not FAILURES, FAILURES


def requests_of(stream: bytes) -> dict[int, int]:
    """Return the codes of the requests by opaque, 0 for those that share one without sharing the code."""
    command._opaque = itertools.count()  # type: ignore[misc]  # a header that names no opaque gets the next one
    codes: dict[int, int] = {}
    with contextlib.suppress(DecodeError):
        for each in FrameDecoder().feed(stream):
            codes[each.opaque] = each.code if codes.get(each.opaque, each.code) == each.code else 0
    return codes


async def answered(parts: list[bytes], *, by_chunks: bool) -> tuple[list[bytes], bytes]:
    """Return the answers of a new broker in the order of their bytes, and its log."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    command._opaque = itertools.count()  # type: ignore[misc]
    config = StoreConfig(
        store_path_root_dir=FOLDER, flush_disk_type=FlushDiskType.ASYNC_FLUSH,
        mapped_file_size_commit_log=SEGMENT_BYTES, mapped_file_size_consume_queue=2000,
        max_message_size=SEGMENT_BYTES // 2,
    )  # fmt: skip
    broker = Broker(BrokerConfig(broker_name="b"), config, clock=ManualClock())
    context, store, endpoint = broker._context, broker._store, broker._server._endpoint
    context.rng = random.Random(1)
    context.address, store.store_host = "127.0.0.1:10911", HOST
    store.load()
    for state in (broker._topics, broker._groups, context.offsets, broker._delay):
        state.load()
    broker._transactions.load()
    await store.start()
    try:
        await broker._transactions.read_back()
        broker._register_handlers()
        context.topics.ensure("T", 4)
        context.groups.find("g")
        if not by_chunks:
            endpoint.routes = Routes(route._replace(run=None) for route in endpoint.routes.values())
        wire, channel = Wire(), Channel(endpoint)
        channel.remote_address = "127.0.0.1:50000"
        channel.attach(wire)
        for part in filter(None, parts):
            if not wire.closed:
                channel.data_received(part)
                await settle(endpoint)
        await broker._pull.long_poll.stop()
        await settle(endpoint)
        frames = FrameDecoder().feed(wire.sent)
        answers = [each for each in frames if each.is_response]
        if not wire.closed:
            check_answers(b"".join(parts), answers)
        channel.connection_lost(None)
        assert not endpoint.channels
        assert not len(broker._pull.long_poll)
        assert not context.consumers.groups()
        assert not context.producers.groups()
        await context.writer.close()
        for file in (broker._topics, broker._groups, context.offsets, broker._delay):
            file.encode()
        return sorted(answer.encode() for answer in answers), log_of(store.max_physical_offset)
    finally:
        await store.stop()
        await broker._client.close()


def log_of(end: int) -> bytes:
    """Return the first segment of the log, up to where messages end; a stream leaves no more."""
    assert end <= SEGMENT_BYTES
    return (FOLDER / "commitlog" / f"{0:020d}").read_bytes()[:end] if end else b""


def is_undecided(request: RemotingCommand) -> bool:
    """Whether a request is the one that gets no answer, as in Apache: a transaction's end by who does not know it."""
    if request.code != RequestCode.END_TRANSACTION:
        return False
    try:
        return request.header(EndTransactionRequestHeader).commit_or_rollback == 0
    except DecodeError:
        return False


def check_answers(stream: bytes, answers: list[RemotingCommand]) -> None:
    """Every request that is not one-way has one answer, and nobody else has, but for a long one that is still coming.

    Of a long frame the header is judged when it is there: what nobody serves is refused then.
    """
    command._opaque = itertools.count()  # type: ignore[misc]
    asked = Counter(
        each.opaque
        for each in FrameDecoder().feed(stream)
        if not each.is_response and not each.is_oneway and not is_undecided(each)
    )
    given = Counter(answer.opaque for answer in answers)
    assert not asked - given
    if given != asked:
        begun = header_of_last(stream)
        assert begun is not None
        assert given - asked == Counter([begun.opaque])


def header_of_last(stream: bytes) -> RemotingCommand | None:
    """Return the request that a stream ends in the middle of, without its body; None where its header is not there."""
    at = 0
    while (end := at + 4 + int.from_bytes(stream[at : at + 4])) <= len(stream) and at + 4 <= len(stream):
        at = end
    rest = stream[at:]
    size = 4 + int.from_bytes(rest[5:8])
    if end - at <= JUDGED_BYTES or len(rest) < 4 + size:
        return None
    return FrameDecoder().feed(size.to_bytes(4) + rest[4 : 4 + size])[0]


def seeds() -> Iterable[bytes]:
    named = {
        "topic": "T", "defaultTopic": "TBW102", "group": "g", "consumerGroup": "g", "producerGroup": "g",
        "topicFilterType": "SINGLE_TAG", "perm": "6", "readQueueNums": "4", "writeQueueNums": "4", "queueId": "1",
        "clientID": "c", "srcGroup": "g", "destGroup": "h", "sysFlag": "0", "subscription": "*", "timestamp": "-1",
        "offset": "0", "maxMsgNums": "32", "queueOffset": "0", "expressionType": "TAG", "groupName": "g",
        "a": "g", "b": "T", "c": "TBW102", "e": "1", "i": "TAGS\x01a\x02UNIQ_KEY\x010A\x02",
    }  # fmt: skip
    consumer = ConsumerData(
        "g", ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING, None,
        [SubscriptionData.build("T", "a || b", sub_version=3)],
    )  # fmt: skip
    queues = {MessageQueue("T", "b", 0)}
    content = {
        RequestCode.HEART_BEAT: HeartbeatData("c", [ProducerData("g")], [consumer]).encode(),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig("g").encode(),
        RequestCode.UPDATE_BROKER_CONFIG: b"brokerPermission=4\n",
        RequestCode.LOCK_BATCH_MQ: LockBatchRequestBody("g", "c", False, queues).encode(),
        RequestCode.UNLOCK_BATCH_MQ: UnlockBatchRequestBody("g", "c", False, queues).encode(),
        RequestCode.CHECK_CLIENT_CONFIG: b'{"clientId":"c","group":"g","subscriptionData":{"expressionType":"TAG"}}',
    }  # fmt: skip
    batch = bytes.fromhex("00000026000000000000000000000000000000026869000e6b01760257414954017472756502")
    texts = {}
    for code, served in broker_routes().items():
        ext = example(served, named)
        body = content.get(RequestCode(code), batch if code == RequestCode.SEND_BATCH_MESSAGE else b"hi")
        texts[code] = request(code, ext) + BODY + body
        yield b"\x01" + texts[code]
        if code < 1 << 15:  # a binary header has no room for more
            yield b"\x02" + request(code, ext, binary=True) + BODY + body
    send, pull = texts[RequestCode.SEND_MESSAGE_V2], texts[RequestCode.PULL_MESSAGE]
    topic, beat = texts[RequestCode.UPDATE_AND_CREATE_TOPIC], texts[RequestCode.HEART_BEAT]
    back = texts[RequestCode.CONSUMER_SEND_MSG_BACK]
    again = [send.replace(b'"opaque":310', b'"opaque":%d' % opaque) for opaque in range(4)]
    yield b"\x01" + JOINT.join([*again, pull])
    yield b"\x05" + JOINT.join([topic, *again, pull, back, texts[RequestCode.VIEW_MESSAGE_BY_ID]])
    yield b"\x05" + JOINT.join([topic, beat, *again, texts[RequestCode.UPDATE_CONSUMER_OFFSET], pull])
    yield b"\x05" + JOINT.join([topic, beat, pull.replace(b'"sysFlag":"0"', b'"sysFlag":"2"'), again[0], again[1]])
    yield b"\x05" + JOINT.join([topic, texts[RequestCode.SEND_BATCH_MESSAGE], texts[RequestCode.GET_TOPIC_STATS_INFO]])
    yield b"\x05" + JOINT.join([topic, send.replace(b"TAGS", b"DELAY\\u00013\\u0002TAGS"), again[1], pull])
    yield b"\x05" + JOINT.join([topic, again[0], texts[RequestCode.DELETE_TOPIC_IN_BROKER], again[1]])
    half = again[0].replace(b"TAGS", b"TRAN_MSG\\u0001true\\u0002PGROUP\\u0001g\\u0002TAGS")
    for outcome in (b"0", b"8", b"12"):
        end = texts[RequestCode.END_TRANSACTION].replace(
            b'"commitOrRollback":"0"', b'"commitOrRollback":"%b"' % outcome
        )
        end = end.replace(b'"producerGroup":"x"', b'"producerGroup":"g"')
        yield b"\x05" + JOINT.join([topic, half, end, end, pull])
    for count in (4097, 2**31 - 1):
        larger = topic.replace(b'"writeQueueNums":"4"', b'"writeQueueNums":"%d"' % count)
        last = again[0].replace(b'"e":"1"', b'"e":"%d"' % (count - 1))
        yield b"\x05" + JOINT.join([larger, last, again[1], texts[RequestCode.GET_CONSUME_STATS]])
    yield b"\x01" + JOINT.join([send, again[0], again[1]])
    for record in vectors("frames.jsonl")[::12]:
        if len(record["hex"]) < 300:
            yield b"\x00" + bytes.fromhex(record["hex"])


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        JOINT, BODY, b'"code":310', b'"code":11', b'"code":34', b'"code":17', b'"code":320', b'"flag":2', b'"opaque":',
        b'"topic":"T"', b'"b":"T"', b'"e":"-1"', b'"sysFlag":"', b'"queueId":"', b'"queueOffset":"', b'"m":"true"',
        b"DELAY\\u0001", b"TRAN_MSG\\u0001true\\u0002PGROUP\\u0001g\\u0002", b'"code":37', b'"commitOrRollback":"8"',
        b"WAIT\\u0001false\\u0002", b"UNIQ_KEY\\u0001", b"%RETRY%g", b"SCHEDULE_TOPIC_XXXX",
        b"2147483647", b"-1", b"9223372036854775807", b"\\ud800",
    ),
    max_length=4096,
)  # fmt: skip
