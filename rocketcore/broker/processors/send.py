"""Sends: 10, 310, 320 (Java: ``SendMessageProcessor``, 5.5.0).

The fast path takes many 310 requests of a chunk at once, through kernels: those that ask for nothing but to be stored
in a topic that is there. The slow path takes one request and does what it asks for (a new topic, a delay, a retry, a
batch). What a message asks for is decided in one place for both, ``_fast/sends.pyx``. Both answer when the store says
that the messages are durable.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from rocketcore._fast.message_id import offset_msg_id
from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore._fast.record import delay_level
from rocketcore._fast.sends import (
    ASKS_DELAY,
    ASKS_INNER_BATCH,
    ASKS_KEY,
    ASKS_NO_WAIT,
    ASKS_POP_CHECKPOINT,
    ASKS_TIMER,
    ASKS_TRANSACTION,
    RESULT_COLUMNS,
    RESULT_POSITION,
    RESULT_QUEUE_OFFSET,
    RESULT_SIZE,
    RESULT_UNIQ_KEY_LENGTH,
    RESULT_UNIQ_KEY_START,
    RESULT_WAIT,
    SEND_COLUMNS,
    SEND_FLAG_BITS,
    SEND_OPAQUE,
    SEND_QUEUE_ID,
    SEND_SERIALIZE_TYPE,
    SEND_STATUS,
    SEND_TOPIC_LENGTH,
    SEND_TOPIC_START,
    examine,
    scan_send,
)
from rocketcore.broker.admission import Admission, drop_asking
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.context import FAQ, BrokerContext
from rocketcore.broker.hosts import born_host
from rocketcore.broker.processors.acknowledge import Acknowledger, SendReply
from rocketcore.broker.processors.recall import recall_handle
from rocketcore.broker.processors.send_back import retry_limit
from rocketcore.broker.state.topic_config import check_topic_name
from rocketcore.broker.store import PutResult, PutStatus, StoredMessage
from rocketcore.codes import (
    DLQ_TOPIC_PREFIX,
    FRAME_MAX_BYTES,
    OVERLOAD,
    RETRY_TOPIC_PREFIX,
    REVIVE_TOPIC_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    TIMER_TOPIC,
    TOPIC_MAX_LENGTH,
    TRANSACTION_MASK,
    MessageSysFlag,
    Permission,
    RemotingFlag,
    RequestCode,
    ResponseCode,
    TopicSysFlag,
)
from rocketcore.errors import BrokerError
from rocketcore.ids import new_uniq_key
from rocketcore.message import CLUSTER, DELAY, MSG_REGION, TRACE_ON, TRANSACTION_PREPARED, UNIQ_KEY
from rocketcore.protocol.bodies.topic import TopicConfig, TopicFilterType
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import Chunk
from rocketcore.protocol.headers.message import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rocketcore.table import Table
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2
Reply = RemotingCommand | None

_NO_DELAY = "-1"
_NUMBER = re.compile(r"[+-]?0*[0-9]{1,10}", re.ASCII)
_ONEWAY = int(RemotingFlag.ONEWAY)
_ROWS = 1024
_SCRATCH_BYTES = 512 * 1024


class _Target(NamedTuple):
    """A topic that chunks may be stored to without looking at its settings again."""

    name: str
    queue_count: int


class SendProcessor:
    """Checks, stores and acknowledges messages.

    prepare  puts a message that is part of a transaction
    """

    def __init__(
        self,
        context: BrokerContext,
        acknowledger: Acknowledger,
        admission: Admission,
        prepare: Callable[[StoredMessage, dict[str, str]], PutResult],
    ) -> None:
        self._context = context
        self._acknowledger = acknowledger
        self._admission = admission
        self._prepare = prepare
        self._targets: dict[bytes, _Target] = {}
        # Tables of the hot path, as flat arrays for Python and as rows of columns for the kernels.
        sends, results = Table(_ROWS, SEND_COLUMNS), Table(_ROWS, RESULT_COLUMNS)
        self._sends, self._send_rows = sends.flat, sends.view
        self._results, self._result_rows = results.flat, results.view
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._extra_of: BrokerConfig | None = None
        self._extra = b""

    def routes(self) -> Iterable[Route]:
        long, short = SendMessageRequestHeader, SendMessageRequestHeaderV2
        limits = 512 << 10, FRAME_MAX_BYTES  # properties may be 32 KiB, each byte of them six of a JSON text
        return (
            Route(RequestCode.SEND_MESSAGE, self.send, long, Right.PUB, *limits),
            Route(RequestCode.SEND_MESSAGE_V2, self.send, short, Right.PUB, *limits, run=self.send_chunk),
            Route(RequestCode.SEND_BATCH_MESSAGE, self.send, short, Right.PUB, *limits),
        )

    def topics_changed(self) -> None:
        """Look at the settings of every topic again."""
        self._targets.clear()

    def send_chunk(self, channel: Channel, chunk: Chunk, first: int, last: int) -> None:
        """Handle a run of SEND_MESSAGE_V2 requests; the answers follow when the messages are durable."""
        if not self._context.is_writable or self._refusal(channel) is not None:
            for index in range(first, last):
                channel.serve(chunk.command(index))
            return
        while first < last:
            end = min(last, first + _ROWS)
            count = scan_send(chunk.data, chunk.rows, chunk.heads, first, end, self._send_rows, self._scratch)
            if count == 0:
                channel.serve(chunk.command(first))
                count = 1
            else:
                self._store_rows(channel, chunk, first, count)
            first += count

    def _store_rows(self, channel: Channel, chunk: Chunk, first: int, count: int) -> None:
        """Store the first ``count`` scanned rows, which are the chunk's rows from ``first`` on."""
        sends = self._sends
        data = chunk.data
        row = 0
        while row < count:
            base = row * SEND_COLUMNS
            start = sends[base + SEND_TOPIC_START]
            topic = data[start : start + sends[base + SEND_TOPIC_LENGTH]]
            target = self._targets.get(topic) or self._find_target(topic)
            stored = 0
            if target is not None and not sends[base + SEND_STATUS]:
                stored = self._store_run(channel, data, row, count, target)
            if stored == 0:
                channel.serve(chunk.command(first + row))
                stored = 1
            row += stored

    def _find_target(self, name: bytes) -> _Target | None:
        """Remember a topic that needs nothing but storing; None for any other."""
        topic = self._context.topics.find(name.decode(errors="replace"))
        if (
            topic is None
            or topic.topic_filter_type is TopicFilterType.MULTI_TAG
            or _is_forbidden(topic.topic_name)
            or topic.topic_name.startswith(RETRY_TOPIC_PREFIX)
        ):
            return None
        target = self._targets[name] = _Target(topic.topic_name, _queue_count(topic))
        return target

    def _store_run(self, channel: Channel, data: bytes, first: int, last: int, target: _Target) -> int:
        """Store the plain messages of one topic from row ``first`` on; returns how many were."""
        context = self._context
        store = context.store
        put = store.put_rows(
            target.name,
            data,
            self._scratch,
            self._send_rows,
            first,
            last,
            born_host=born_host(channel),
            extra_properties=self._extra_properties(),
            results=self._result_rows,
            queue_count=target.queue_count,
        )
        if not put.count:
            return 0
        sends, results, scratch = self._sends, self._results, self._scratch
        store_host, base = store.store_host, put.base
        puts = context.stats.puts(target.name)
        size = 0
        waiting: list[SendReply] = []
        at_once: list[SendReply] = []
        for row in range(first, first + put.count):
            sent = row * SEND_COLUMNS
            result = row * RESULT_COLUMNS
            queue_id, length = sends[sent + SEND_QUEUE_ID], results[result + RESULT_SIZE]
            size += length
            counts = puts[queue_id]
            counts[0] += 1
            counts[1] += length
            if sends[sent + SEND_FLAG_BITS] & _ONEWAY:
                continue
            key = results[result + RESULT_UNIQ_KEY_START]
            reply = (
                sends[sent + SEND_OPAQUE],
                sends[sent + SEND_SERIALIZE_TYPE],
                queue_id,
                results[result + RESULT_QUEUE_OFFSET],
                offset_msg_id(store_host, base + results[result + RESULT_POSITION]),
                bytes(scratch[key : key + results[result + RESULT_UNIQ_KEY_LENGTH]]),
            )
            (waiting if results[result + RESULT_WAIT] else at_once).append(reply)
        self._acknowledge(channel, put.end_offset, size, waiting, at_once, topic=target.name)
        return put.count

    def _acknowledge(
        self,
        channel: Channel,
        end_offset: int,
        size: int,
        waiting: Sequence[SendReply],
        at_once: Sequence[SendReply],
        recall_handle: str | None = None,
        *,
        topic: str,
    ) -> None:
        """Answer the senders that wait for the flush after it, the others now; all count as pending until then."""
        self._acknowledger.reply_when_durable(channel, end_offset, size, waiting, recall_handle, topic)
        if at_once:
            channel.write(self._acknowledger.encode(at_once, recall_handle=recall_handle))

    def _extra_properties(self) -> bytes:
        """What every stored message carries beside the sender's properties."""
        config = self._context.config
        if self._extra_of is not config:
            self._extra_of = config
            self._extra = encode_properties(_broker_properties(config))
        return self._extra

    def send(self, channel: Channel, request: RemotingCommand, header: SendHeader) -> Reply | Awaitable[Reply]:
        """Handle one send; None means that the answer follows when the message is durable."""
        try:
            topic = self.find_topic(channel, header)
            if topic is None:
                return self._send_to_new_topic(channel, request, header)
            return self._send(channel, request, header, topic)
        except BrokerError as error:
            return self._acknowledger.refusal(request, error.code, error.remark)

    async def _send_to_new_topic(self, channel: Channel, request: RemotingCommand, header: SendHeader) -> Reply:
        try:
            topic = await self.create_topic(header)
            return self._send(channel, request, header, topic)
        except BrokerError as error:
            return self._acknowledger.refusal(request, error.code, error.remark)

    def find_topic(self, channel: Channel, header: SendHeader) -> TopicConfig | None:
        """Return the topic of a send, None where it is yet to be created; raises BrokerError where nothing is taken."""
        self._check_broker(channel, header.topic)
        check_topic_name(header.topic)
        if _is_forbidden(header.topic):
            raise BrokerError.of(ResponseCode.NO_PERMISSION, f"Sending message to topic[{header.topic}] is forbidden.")
        return self._context.topics.find(header.topic)

    async def create_topic(self, header: SendHeader) -> TopicConfig:
        """Create the topic of a send; wait until it is on disk, so that a crash cannot leave messages without it.

        raises  BrokerError where none may be created
        """
        topic = self._create_topic(header)
        await self._context.writer.flushed()
        return topic

    def _refusal(self, channel: Channel) -> BrokerError | None:
        """Why nothing is taken from a connection at the moment, whatever its topic."""
        context = self._context
        starts_at = context.config.start_accept_send_request_time_stamp
        if starts_at and context.clock.time_millis() < starts_at:
            return BrokerError.of(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {starts_at}")
        if self._acknowledger.pending_bytes(channel) > context.config.max_pending_connection_bytes:
            return BrokerError.of(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        return None

    def _check_broker(self, channel: Channel, topic_name: str) -> None:
        refusal = self._refusal(channel)
        if refusal is not None:
            raise refusal
        context = self._context
        if not context.is_writable:
            topic = context.topics.find(topic_name)
            if topic is not None and topic.order:
                raise BrokerError.of(
                    ResponseCode.NO_PERMISSION, f"the broker[{context.address}] sending message is forbidden"
                )

    def _create_topic(self, header: SendHeader) -> TopicConfig:
        context = self._context
        created = context.topics.create_for_send(
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            auto_create=context.config.auto_create_topic_enable,
            topic_sys_flag=int(TopicSysFlag.UNIT) if header.unit_mode else 0,
        )
        if created is None and header.topic.startswith(RETRY_TOPIC_PREFIX):
            created = context.topics.ensure(header.topic, 1)
        if created is None:
            raise BrokerError.of(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!{FAQ}"
            )
        return created

    def _send(self, channel: Channel, request: RemotingCommand, header: SendHeader, topic: TopicConfig) -> Reply:
        queue_id = self.queue_id(channel, header, topic)
        sys_flag = header.sys_flag
        if topic.topic_filter_type is TopicFilterType.MULTI_TAG:
            sys_flag |= MessageSysFlag.MULTI_TAGS
        # Half of a surrogate pair, which JSON can carry and UTF-8 cannot, becomes "?" as in Java.
        text = (header.properties or "").encode(errors="replace")
        asks = examine(text, sys_flag, self._extra_properties())
        if asks & ASKS_INNER_BATCH:
            # Consumers count the elements of such a message as messages of the queue, which has none of them.
            raise self._admission.illegal()
        message = StoredMessage(
            topic=header.topic,
            queue_id=queue_id,
            # A batch is many messages, which are copied once each, into the log.
            body=request.view_body() if header.batch else request.body,
            flag=header.flag,
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=born_host(channel),
            reconsume_times=header.reconsume_times or 0,
        )
        properties = decode_properties(text)
        if header.batch:
            result = self._put_batch(message, properties, first_id_only=_first_id_only(header))
        else:
            result = self._put_single(request, header, message, properties, asks)
        if result.status is not PutStatus.PUT_OK:
            raise self._admission.refusal(result)
        unique = properties.get(UNIQ_KEY)
        reply = (
            request.opaque,
            request.serialize_type,
            queue_id,
            result.queue_offset,
            result.msg_id,
            None if unique is None else unique.encode(),
        )
        replies = () if request.is_oneway else (reply,)
        waiting, at_once = ((), replies) if asks & ASKS_NO_WAIT else (replies, ())
        handle = recall_handle(properties, self._context.config.broker_name) if asks & ASKS_TIMER else None
        self._acknowledge(channel, result.end_offset, result.size, waiting, at_once, handle, topic=header.topic)
        return None

    def queue_id(self, channel: Channel, header: SendHeader, topic: TopicConfig) -> int:
        """Return the queue of a send, any where it names none; raises BrokerError for one that the topic has not."""
        any_queue = header.queue_id < 0
        if header.queue_id >= _queue_count(topic) or (any_queue and topic.write_queue_nums <= 0):
            perm = "".join(
                letter if topic.perm & bit else "-"
                for letter, bit in (("R", Permission.READ), ("W", Permission.WRITE), ("X", Permission.INHERIT))
            )
            filter_type = topic.topic_filter_type or TopicFilterType.SINGLE_TAG
            attributes = ", ".join(f"{key}={value}" for key, value in sorted((topic.attributes or {}).items()))
            raise BrokerError.of(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, TopicConfig [topicName={topic.topic_name}, "
                f"readQueueNums={topic.read_queue_nums}, writeQueueNums={topic.write_queue_nums}, perm={perm}, "
                f"topicFilterType={filter_type.name}, topicSysFlag={topic.topic_sys_flag}, "
                f"order={str(topic.order).lower()}, attributes={{{attributes}}}] Producer: {channel.remote_address}",
            )
        return self._context.rng.randrange(topic.write_queue_nums) if any_queue else header.queue_id

    def _put_batch(self, message: StoredMessage, properties: dict[str, str], *, first_id_only: bool) -> PutResult:
        """Store the elements of a batch as they were sent, with consecutive offsets."""
        if len(message.topic) > TOPIC_MAX_LENGTH:
            raise BrokerError.of(
                ResponseCode.MESSAGE_ILLEGAL, f"message topic length over {TOPIC_MAX_LENGTH}: {message.topic}"
            )
        if message.topic.startswith(RETRY_TOPIC_PREFIX):
            raise BrokerError.of(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {message.topic}"
            )
        _check_delay(properties)
        if delay_level(properties.get(DELAY, "")) or message.sys_flag & TRANSACTION_MASK:
            raise self._admission.illegal()
        if not message.body:
            # Apache's code: there it is the exception that a missing body raises.
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"the batch for topic {message.topic} holds no message")
        result = self._context.store.put_batch(message, first_id_only=first_id_only)
        return self._admission.count(message.topic, result, message.queue_id)

    def _put_single(
        self,
        request: RemotingCommand,
        header: SendHeader,
        message: StoredMessage,
        properties: dict[str, str],
        asks: int,
    ) -> PutResult:
        if not request.body:
            raise self._admission.illegal()
        if asks & ASKS_DELAY:
            _check_delay(properties)
        if message.topic.startswith(RETRY_TOPIC_PREFIX):
            self._check_retry(request, header, message, properties)
        if message.topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
            # What a consumer gives back was committed. Clients that leave in it what it was would lose it: nobody
            # ends that transaction.
            asks &= ~ASKS_TRANSACTION
            properties.pop(TRANSACTION_PREPARED, None)
            message.sys_flag &= ~TRANSACTION_MASK
        # A checkpoint is for the broker alone to make.
        drop_asking(properties, ASKS_POP_CHECKPOINT)
        if asks & ASKS_KEY:
            properties[UNIQ_KEY] = new_uniq_key()
        properties.update(_broker_properties(self._context.config))
        if asks & ASKS_TRANSACTION and not _is_retry(message, properties):
            self._check_transaction(properties)
            return self._prepare(message, properties)
        return self._admission.put(message, properties, is_sent=True)

    def _check_transaction(self, properties: dict[str, str]) -> None:
        """Refuse a part of a transaction where there are none, or one that only says so in its flags: nobody would
        ever see it."""
        context = self._context
        if context.config.reject_transaction_message:
            raise BrokerError.of(
                ResponseCode.NO_PERMISSION, f"the broker[{context.address}] sending transaction message is forbidden"
            )
        if properties.get(TRANSACTION_PREPARED, "").lower() != "true":
            raise self._admission.illegal()

    def _check_retry(
        self, request: RemotingCommand, header: SendHeader, message: StoredMessage, properties: dict[str, str]
    ) -> None:
        """Turn a retried message that failed too often into a dead letter."""
        name = message.topic.removeprefix(RETRY_TOPIC_PREFIX)
        group = self._context.groups.find(name)
        if group is None:
            raise BrokerError.of(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {FAQ}"
            )
        if message.reconsume_times <= retry_limit(group, header, request) and not self._context.locks.is_locked(name):
            return
        self._admission.make_dead_letter(message, name)
        drop_asking(properties, ASKS_TIMER)
        properties[DELAY] = _NO_DELAY


def _check_delay(properties: dict[str, str]) -> None:
    """Refuse a delay level that is no number of 32 bits, with the code of the exception that Java throws."""
    text = properties.get(DELAY, "0")
    if not _NUMBER.fullmatch(text) or not -(1 << 31) <= int(text) < 1 << 31:
        raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"{DELAY} is no number: {text[:80]!r}")


def _is_retry(message: StoredMessage, properties: dict[str, str]) -> bool:
    """Whether a consumer sends a message again, which may be one that was committed and still says what it was."""
    return message.reconsume_times > 0 and delay_level(properties.get(DELAY, "")) > 0


def _broker_properties(config: BrokerConfig) -> dict[str, str]:
    return {
        CLUSTER: config.broker_cluster_name,
        MSG_REGION: config.region_id,
        TRACE_ON: "true" if config.trace_on else "false",
    }


def _first_id_only(header: SendHeader) -> bool:
    """Whether the sender of a batch, one of ours, looks at no other id: of small messages they are a sixth."""
    return isinstance(header, SendMessageRequestHeaderV2) and header.rc_first_id == 1


def _is_forbidden(topic_name: str) -> bool:
    """Whether a topic takes messages from the broker alone."""
    return topic_name in SEND_FORBIDDEN_TOPICS or topic_name.startswith((TIMER_TOPIC, REVIVE_TOPIC_PREFIX))


def _queue_count(topic: TopicConfig) -> int:
    """How many queues a sender may name."""
    return max(topic.write_queue_nums, topic.read_queue_nums)
