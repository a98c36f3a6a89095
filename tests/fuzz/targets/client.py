"""What brokers and name servers tell a client: answers to what it asks, and their own requests.

An answer is a value or a RocketError; a broker's request that asks for an answer gets one, but for those that brokers
send one-way.

input  u8: which question, or a request of the broker beyond the last · u8: form of the header, bit 0 · header · two
       carriage returns · body
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, Final

from rocketcore.admin import requests
from rocketcore.admin.client import ThreadAdmin
from rocketcore.admin.logic import AsyncAdmin
from rocketcore.client import api
from rocketcore.client.route_table import RouteTable
from rocketcore.client.serving import serve_broker_requests
from rocketcore.codes import RequestCode, Version
from rocketcore.errors import DecodeError, RocketError
from rocketcore.message import MessageQueue
from rocketcore.protocol import command
from rocketcore.protocol.bodies.client import CMResult, ProcessQueueInfo, ResetOffsetBody
from rocketcore.protocol.bodies.heartbeat import ConsumeType, HeartbeatData, SubscriptionData
from rocketcore.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.protocol.headers.message import (
    PullMessageRequestHeader,
    QueryMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from rocketcore.protocol.message import decode_messages
from rocketcore.service import ManualClock
from rocketcore.transport.channel import Channel
from rocketcore.transport.endpoint import Endpoint
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, refused
from tests.fuzz.targets.connection import BODY, FAILURES, LIMITS, Wire, loop, request, settle
from tests.reference import frame as reference_frame
from tests.reference import header as reference
from tests.reference import message as reference_message
from tests.reference.routes import Rows, client_routes, example

QUEUE = MessageQueue("T", "b", 1)
MAX_QUEUES = 10_000
SILENT = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.RESET_CONSUMER_CLIENT_OFFSET}
PULL = PullMessageRequestHeader(
    consumer_group="g", topic="T", queue_id=1, queue_offset=0, max_msg_nums=32, sys_flag=0, sub_version=0,
    commit_offset=0, suspend_timeout_millis=0,
)  # fmt: skip
QUERY = QueryMessageRequestHeader(topic="T", key="k", max_num=1, begin_timestamp=0, end_timestamp=1)
SEND = SendMessageRequestHeaderV2(
    producer_group="g", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=1, sys_flag=0,
    born_timestamp=0, flag=0,
)  # fmt: skip

Question = Callable[[Any], Coroutine[Any, Any, Any]]
BROKER = BrokerData("c", "b", {0: "h:1"})
KNOWN: Final = {
    RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo({"b": BROKER}, {"c": ["b"]}).encode(),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRouteData([QueueData("b", 4, 4, 6)], [BROKER]).encode(),
}
"""Answers to what an operation of administration asks before its own question: there is one broker."""


class Knowing:
    """Connections over which the whereabouts of the broker are told, and all else is answered by others."""

    def __init__(self, remoting: Any) -> None:
        self.remoting = remoting

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code not in KNOWN:
            answer: RemotingCommand = await self.remoting.invoke(address, command, timeout)
            return answer
        answer = RemotingCommand.response(command, body=KNOWN[RequestCode(command.code)])
        answer.version = Version.V5_5_0
        return answer


def administration(operation: Callable[[AsyncAdmin], Coroutine[Any, Any, Any]]) -> Question:
    def ask(remoting: Any) -> Coroutine[Any, Any, Any]:
        knowing: Any = Knowing(remoting)
        return operation(ThreadAdmin("a:1", remoting=knowing))

    return ask


QUESTIONS: Final[list[Question]] = [
    lambda r: api.topic_route(r, "a", "T", 1),
    lambda r: api.pull_message(r, "a", PULL, 1),
    lambda r: api.send_message(r, "a", SEND, b"x", 1),
    lambda r: api.knows_brokers(r, "a", 1),
    lambda r: api.heartbeat(r, "a", HeartbeatData("c"), 1),
    lambda r: api.query_consumer_offset(r, "a", "g", QUEUE, 1),
    lambda r: api.max_offset(r, "a", QUEUE, 1),
    lambda r: api.earliest_store_time(r, "a", QUEUE, 1),
    lambda r: api.consumer_ids(r, "a", "g", 1),
    lambda r: api.lock_queues(r, "a", "g", "c", [QUEUE], 1),
    lambda r: api.query_message(r, "a", QUERY, 1),
    lambda r: requests.topic_list(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)(r, "a", 1),
    lambda r: requests.CLUSTER_INFO_AND_VERSION(r, "a", 1),
    administration(lambda admin: admin.broker_member_group("c", "b")),
    administration(lambda admin: admin.data_versions("b")),
    administration(lambda admin: admin.get_kv("n", "k")),
    administration(lambda admin: admin.list_kv("n")),
    administration(lambda admin: admin.namesrv_config()),
    administration(lambda admin: admin.wipe_write_permission("b")),
    administration(lambda admin: admin.topic_stats("T")),
    lambda r: requests.broker_topics(0, 9)(r, "a", 1),
    administration(lambda admin: admin.broker_runtime_info("h:1")),
    administration(lambda admin: admin.consumer_connections("g")),
    administration(lambda admin: admin.broker_config("h:1")),
    administration(lambda admin: admin.consume_stats("g", "T")),
    administration(lambda admin: admin.groups()),
]


class Answering:
    """Connections over which everything is answered the same; the question is made into bytes."""

    def __init__(self, answer: RemotingCommand) -> None:
        self.answer = answer

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        command.encode()
        return self.answer


class Consumer:
    """The consumer that a broker's requests are about."""

    group = "g"
    client_id = "c"
    started_at = 1
    consume_type = ConsumeType.CONSUME_PASSIVELY
    config = SimpleNamespace(ordered=False, namesrv=("h:1",), threads=1)
    clock = ManualClock()

    instance = SimpleNamespace(routes=SimpleNamespace(is_at=lambda broker, address: True))

    def group_changed(self) -> None:
        pass

    def find_subscription(self, topic: str) -> SubscriptionData:
        return SubscriptionData.build("T", "a")

    def process_queues(self) -> list[Any]:
        return [SimpleNamespace(queue=QUEUE, commit_offset=3)]

    def process_queue_info(self, process_queue: Any) -> ProcessQueueInfo:
        return ProcessQueueInfo(commit_offset=process_queue.commit_offset)

    def subscriptions(self) -> list[SubscriptionData]:
        return [SubscriptionData.build("T", "a")]

    async def reset(self, offsets: dict[MessageQueue, int]) -> None:
        assert all(isinstance(queue, MessageQueue) and isinstance(at, int) for queue, at in offsets.items())

    async def consume_directly(self, message: Any) -> tuple[CMResult, str | None]:
        return CMResult.CR_SUCCESS, message.topic


class Served(Rows):
    """What ``serve_broker_requests`` registers with."""

    def address_of(self, channel: Any) -> str:
        return "h:1"


def run(data: bytes) -> None:
    if len(data) < 2:
        return
    header, _, body = data[2:].partition(BODY)
    frame = reference_frame.frame(header, body, data[1] & 1)
    command._opaque = itertools.count()  # type: ignore[misc]  # a header that names no opaque gets the next one
    try:
        (decoded,) = FrameDecoder().feed(frame)
    except DecodeError:
        return
    if data[0] < len(QUESTIONS):
        ask(QUESTIONS[data[0]], decoded)
    elif not decoded.is_response:
        loop().run_until_complete(serve(frame, decoded))


def ask(question: Question, answer: RemotingCommand) -> None:
    """Ask, and use what comes back as a client does."""
    try:
        question(Answering(answer)).send(None)
    except StopIteration as done:
        found = done.value
    except RocketError as error:
        str(error)
        return
    else:
        raise AssertionError("it waits for something")
    if isinstance(found, TopicRouteData):
        route(found)
    if isinstance(found, api.PullResult):
        refused(lambda: decode_messages(found.body, "b", max_body_bytes=1 << 16))


def route(data: TopicRouteData) -> None:
    """Take a route, twice: it is the same the second time."""
    if any(max(queues.read_queue_nums, queues.write_queue_nums) > MAX_QUEUES for queues in data.queue_datas):
        return  # as many objects are made as the name server says
    table = RouteTable()
    try:
        assert table.update("T", data)
    except RocketError:
        return
    assert not table.update("T", TopicRouteData.decode(data.encode_standard()))
    found = table.find("T")
    assert found is not None
    for queue in found.subscribe:
        assert queue.queue_id >= 0
    for queue in found.publish if not found.ordered else ():
        table.publish_address(queue.broker)


async def serve(frame: bytes, decoded: RemotingCommand) -> None:
    endpoint: Endpoint[Channel] = Endpoint("fuzz", LIMITS, clock=ManualClock(), server=False)
    wire = Wire()
    served: Any = Served(endpoint.routes)
    consumer: Any = Consumer()
    serve_broker_requests(served, consumer)
    channel = Channel(endpoint)
    channel.remote_address = "127.0.0.1:10911"
    channel.attach(wire)
    command._opaque = itertools.count()  # type: ignore[misc]
    channel.data_received(frame)
    await settle(endpoint)
    answers = [] if wire.closed else [answer.opaque for answer in FrameDecoder().feed(wire.sent)]
    if not wire.closed:
        assert len(answers) <= (not decoded.is_oneway)
        assert answers == [decoded.opaque] or decoded.is_oneway or decoded.code in SILENT
    channel.connection_lost(None)
    assert not FAILURES, FAILURES


def seeds() -> Iterable[bytes]:
    offsets = {
        "offset": "5", "timestamp": "7", "suggestWhichBrokerId": "0", "nextBeginOffset": "2", "minOffset": "0",
        "maxOffset": "9", "msgId": "0A", "queueId": "1", "queueOffset": "3", "value": "v", "wipeTopicCount": "1",
        "totalTopicNum": "1",
    }  # fmt: skip
    texts = {
        record["class"]: record["expected"].encode("utf-8", "replace")
        for record in vectors("bodies.jsonl")
        if isinstance(record.get("expected"), str) and record["name"].startswith("encode/") and "full" in record["name"]
    }
    answer = reference.write_json(reference.Header(0, 0, 493, 7, 1, None, offsets))
    stored = reference_message.encode(reference_message.Stored(topic=b"T", body=b"hi", properties=b"k\x01v"))
    contents = [b"", stored, b"a=b\nc = d\\u0041\n", *(text for text in texts.values() if len(text) < 1500)]
    for index in range(len(QUESTIONS)):
        yield bytes([index, 0]) + answer + BODY + contents[index % 3]
    for index, content in enumerate(contents):
        for question in (0, 3, 8, 9, 11, 12, 13, 14, 16, 19, 20, 21, 22, 23, 24, 25)[index % 2 :: 2]:
            yield bytes([question, 0]) + answer + BODY + content
    whole = TopicRouteData([QueueData("b", 4, 4, 6)], [BrokerData("c", "b", {0: "h:1", 1: "h:2"})], "b:4;c:2")
    yield b"\0\0" + answer + BODY + whole.encode()
    yield b"\0\0" + answer + BODY + whole.encode_standard().replace(b"b:4;c:2", b"b:x")
    for code, row in client_routes().items():
        ext = example(row, {}, missing="g")
        content = stored if code == RequestCode.CONSUME_MESSAGE_DIRECTLY else b""
        if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            content = ResetOffsetBody({QUEUE: 5}).encode()
            yield b"\xff\0" + request(code, ext) + BODY + b'{"offsetTable":[{"topic":"T","offset":7}]}'
        yield b"\xff\0" + request(code, ext) + BODY + content
        yield b"\xff\1" + request(code, ext, binary=True) + BODY + content


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        BODY, b'"code":0', b'"code":220', b'"code":309', b'"flag":1', b'"flag":2', b'"remark":"', b'"queueDatas":[',
        b'"brokerDatas":[', b'"orderTopicConf":"b:1"', b'"brokerAddrs":{0:"h:1"}', b'"offsetTable":{',
        b'{"brokerName":"b","queueId":0,"topic":"T"}:', b'"consumerGroup":"g"', b'"group":"g"', b"null", b"-1",
        b"2147483647", b"\xda\xa3\x20\xa7",
    ),
    max_length=2048,
)  # fmt: skip
