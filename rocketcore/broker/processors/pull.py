"""Pulls: 11 and 361, held while there is nothing to answer (Java: ``PullMessageProcessor``, 5.5.0).

A consumer asks the same question of a queue again and again, from another offset each time. What was decided of it, who
may pull what and through which filter, is remembered as long as nothing changes that it rests on; then the question is
known by its bytes (``_fast/fields.pyx``, ``set_apart``), and only the messages are looked for. All but an answer with
messages is left to the way that takes any pull, and decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from rocketcore._fast.command import encode_pull_response_header
from rocketcore._fast.decided import Decided
from rocketcore._fast.fields import set_apart
from rocketcore.broker.context import FAQ, BrokerContext
from rocketcore.broker.selection import (
    FILTER_HEADER_LIMIT,
    SELECT_ALL,
    Selection,
    select_by_sql,
    select_by_tags,
    select_retries,
    unreadable,
)
from rocketcore.broker.store import MAX_RECORDS, Cold, GetResult, GetStatus
from rocketcore.broker.waiting.long_poll import LongPoll, PendingPull
from rocketcore.codes import (
    CURRENT_VERSION,
    OVERLOAD,
    RETRY_TOPIC_PREFIX,
    Permission,
    PullSysFlag,
    RequestCode,
    ResponseCode,
)
from rocketcore.errors import BrokerError, ConfigError, RocketError
from rocketcore.filter import SQL92, TAG
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.heartbeat import MessageModel
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import Chunk
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.transport import exchange
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

if TYPE_CHECKING:
    from rocketcore._fast.pulls import PullAnswers
    from rocketcore._fast.window import Window

_SUSPEND = int(PullSysFlag.SUSPEND)
_COMMIT_OFFSET = int(PullSysFlag.COMMIT_OFFSET)
_HAS_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)
_READ = int(Permission.READ)
_LITE_PULL = int(RequestCode.LITE_PULL_MESSAGE)
_SUCCESS = int(ResponseCode.SUCCESS)
_FOUND = GetStatus.FOUND
_MASTER = 0
_RUN_MOST = 4
"""Pulls whose answers, of a quarter MiB each, leave together."""
_DECIDED_MAX = 16_384
_QUESTION_MAX = 1024
"""Bytes of a question that is remembered; one with thousands of tags is decided each time."""
_WIDE_BYTES = 4 << 20
"""Wide answers of one turn of the loop; the pulls after them get the ordinary window, so that others do not wait for
milliseconds. A connection that does not read its answers is held up by the server."""

_FORBIDDEN_BROKER, _FORBIDDEN_GROUP, _FORBIDDEN_TOPIC, _FORBIDDEN_BROADCAST, _FORBIDDEN_SUBSCRIPTION = 1, 2, 3, 4, 5

_CODES = {
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
"""An empty queue, and one that nothing was put into yet, is answered by the offset that was asked for."""


class _Forbidden(Exception):
    """A pull that is not allowed; ``kind`` tells a 5.x client which rule forbids it."""

    def __init__(self, kind: int, remark: str) -> None:
        super().__init__(kind, remark)
        self.kind = kind
        self.remark = remark


class PullProcessor:
    """Answers pulls; one that finds nothing and may wait is held until something arrives or its time is over.

    One whose messages are not in memory waits until they were read, and those of its connection behind it.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._wide_bytes = 0  # answered in this turn of the loop
        self._decided: dict[bytes, Decided] = {}
        self.long_poll = LongPoll(
            self._resume,
            context.store.max_offset,
            capacity=context.config.pull_thread_pool_queue_capacity,
            clock=context.clock,
        )

    def routes(self) -> Iterable[Route]:
        header, right = PullMessageRequestHeader, Right.SUB
        return tuple(
            Route(code, self.pull, header, right, FILTER_HEADER_LIMIT, run=self.pull_chunk, run_most=_RUN_MOST)
            for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        )

    def settings_changed(self) -> None:
        """Decide anew of every pull."""
        self._decided.clear()

    def pull_chunk(self, channel: Channel, chunk: Chunk, first: int, last: int) -> list[bytes] | None:
        """Answer a run of pulls as far as they are known and find messages; the others by ``pull``."""
        pieces: list[bytes] = []
        for index in range(first, last):
            asked = set_apart(chunk.data, chunk.rows, chunk.heads, index, b"queueOffset", b"commitOffset")
            decided = None
            if asked is not None:
                decided = self._decided.get(asked[0])
                if decided is None or not decided.holds():
                    decided = self._decide(channel, chunk.command(index), asked[0])
            answer = None
            if decided is not None and asked is not None and decided.holds():
                answer = self._answer_decided(channel, decided, asked)
            if answer is not None:
                pieces += answer
                continue
            if pieces:
                channel.write(pieces)
                pieces = []
            channel.serve(chunk.command(index))
        return pieces

    def _decide(self, channel: Channel, request: RemotingCommand, question: bytes) -> Decided | None:
        """Remember what is decided of a pull, where it holds for others; None where ``pull`` has to say why not."""
        if len(question) > _QUESTION_MAX:
            return None
        context = self._context
        try:
            header = request.header(PullMessageRequestHeader)
            group = self._check(channel, request, header)
            wanted = self._filter(header, group)
        except (RocketError, _Forbidden):
            return None
        subscriptions = None
        if not header.sys_flag & _HAS_SUBSCRIPTION:
            connected = context.consumers.find(header.consumer_group)
            if connected is None or not group.consume_broadcast_enable:
                return None
            subscriptions = connected.subscriptions
        if wanted.properties is not None or header.rc_pull:
            return None
        if context.config.filter_support_retry and header.topic.startswith(RETRY_TOPIC_PREFIX):
            return None  # what it selects may follow from other topics' subscriptions
        if len(self._decided) >= _DECIDED_MAX:
            self._decided.clear()
        decided = self._decided[question] = Decided(
            header, wanted, context.offsets, context.stats, bool(header.sys_flag & _COMMIT_OFFSET), subscriptions
        )
        return decided

    def _answer_decided(
        self, channel: Channel, decided: Decided, asked: tuple[bytes, int, int, int, int]
    ) -> list[bytes] | None:
        """Return the answer to a pull that finds messages at once; None for any other, of which nothing was done."""
        header: PullMessageRequestHeader = decided.header
        _, queue_offset, commit_offset, opaque, serialize_type = asked
        context = self._context
        try:
            found = context.store.get(
                header.topic,
                header.queue_id,
                queue_offset,
                header.max_msg_nums,
                decided.wanted.sorted_codes,
                None,
                max_bytes=header.max_msg_bytes,
                owner=channel,
            )
        except (RocketError, OSError, Cold):
            return None
        if found.status is not _FOUND:
            return None
        decided.note(commit_offset, found.next_begin_offset, found.count, len(found.body))
        head = encode_pull_response_header(
            _SUCCESS, opaque, CURRENT_VERSION, "FOUND", _MASTER,
            found.next_begin_offset, found.min_offset, found.max_offset, len(found.body), serialize_type,
        )  # fmt: skip
        return [head, found.body]

    def answers(self, max_frame_bytes: int) -> PullAnswers:
        """Return what answers pulls that are known from the receive buffer, as ``pull_chunk`` would."""
        from rocketcore._fast.pulls import PullAnswers

        codes = int(RequestCode.PULL_MESSAGE), _LITE_PULL
        store = self._context.store
        return PullAnswers(
            codes, self._decided, store.reads.waiting, store.windows, self._locate, MAX_RECORDS, int(CURRENT_VERSION),
            max_frame_bytes,
        )  # fmt: skip

    def _locate(self, decided: Decided, queue_offset: int) -> Window | None:
        """Look up what pulls are answered from; None where ``pull_chunk`` has to look."""
        header = decided.header
        try:
            return self._context.store.locate(
                header.topic, header.queue_id, queue_offset, header.max_msg_nums,
                decided.wanted.sorted_codes, header.max_msg_bytes,
            )  # fmt: skip
        except (RocketError, OSError, Cold):
            return None

    def _count(self, header: PullMessageRequestHeader, next_offset: int, count: int, size: int, seconds: float) -> None:
        """Note what a group was handed, and how long the disk took for it."""
        context = self._context
        context.offsets.note_pull(header.consumer_group, header.topic, header.queue_id, next_offset)
        context.stats.count_get(header.consumer_group, header.topic, count, size, header.queue_id, seconds)

    def pull(
        self, channel: Channel, request: RemotingCommand, header: PullMessageRequestHeader
    ) -> RemotingCommand | None:
        return self._execute(channel, request, header, may_suspend=True)

    def _resume(self, held: PendingPull) -> None:
        if held.channel.closed:
            return
        try:
            response = self._execute(held.channel, held.request, held.header, may_suspend=False)
        except Exception as error:
            # One pull that fails must not keep the others of this turn from their answers.
            self._failed(held.channel, held.request, error)
            return
        if response is not None:
            held.channel.send(response)

    def _failed(self, channel: Channel, request: RemotingCommand, error: Exception) -> None:
        """Answer a pull that waited, and failed."""
        if not channel.closed and not request.is_oneway:
            channel.send(exchange.failure(request, error, "broker", channel.remote_address))

    def _execute(
        self, channel: Channel, request: RemotingCommand, header: PullMessageRequestHeader, *, may_suspend: bool
    ) -> RemotingCommand | None:
        try:
            group = self._check(channel, request, header)
            wanted = self._filter(header, group)
        except _Forbidden as refused:
            response = RemotingCommand.response(request, ResponseCode.NO_PERMISSION, refused.remark)
            response.add_ext_field("forbiddenType", str(refused.kind))
            return response
        context = self._context
        if may_suspend and header.sys_flag & _COMMIT_OFFSET:
            context.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        target = context.offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if target is not None:
            minimum = context.store.min_offset(header.topic, header.queue_id)
            maximum = context.store.max_offset(header.topic, header.queue_id)
            self._reply(channel, request, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", target, minimum, maximum)
            return None
        try:
            found = self._get(header, wanted, channel)
        except Cold as cold:
            self._answer_later(channel, request, header, wanted, cold, may_suspend=may_suspend)
        else:
            self._answer(channel, request, header, wanted, may_suspend, None, found)
        return None

    def _check(
        self, channel: Channel, request: RemotingCommand, header: PullMessageRequestHeader
    ) -> SubscriptionGroupConfig:
        context = self._context
        if not context.is_readable:
            raise _Forbidden(_FORBIDDEN_BROKER, f"the broker[{context.address}] pulling message is forbidden")
        if request.code == _LITE_PULL and not context.config.lite_pull_message_enable:
            raise _Forbidden(_FORBIDDEN_BROKER, f"the broker[{context.address}] for lite pull consumer is forbidden")
        group = context.groups.find(header.consumer_group)
        if group is None:
            raise BrokerError.of(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist, {FAQ}",
            )
        if not group.consume_enable:
            raise _Forbidden(_FORBIDDEN_GROUP, f"subscription group no permission, {header.consumer_group}")
        topic = context.topics.find(header.topic)
        if topic is None:
            raise BrokerError.of(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please! {FAQ}"
            )
        if not topic.perm & _READ:
            raise _Forbidden(_FORBIDDEN_TOPIC, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise BrokerError.of(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{channel.remote_address}]",
            )
        return group

    def _filter(self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig) -> Selection:
        """The filter that came with the pull, or else with the group's heartbeats."""
        came_with_pull = bool(header.sys_flag & _HAS_SUBSCRIPTION)
        if came_with_pull:
            kind, expression = header.expression_type, header.subscription or ""
        else:
            kind, expression = self._registered_subscription(header, group)
        if kind in (None, "", TAG):
            return select_by_tags(expression)
        if kind != SQL92 or not self._context.config.enable_property_filter:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
            )
        try:
            if header.topic.startswith(RETRY_TOPIC_PREFIX) and self._context.config.filter_support_retry:
                return self._filter_retries(header.topic)
            return select_by_sql(expression)
        except ConfigError as error:
            if came_with_pull:
                raise unreadable(str(error)) from error
            raise BrokerError.of(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"The broker's consumer filter data is not exist!Your expression may be wrong! {error}",
            ) from error

    def _filter_retries(self, topic: str) -> Selection:
        """The filter of a group's retry topic: what its heartbeats said of each topic."""
        expressions = self._context.filters.expressions(topic.removeprefix(RETRY_TOPIC_PREFIX))
        return select_retries(tuple(expressions.items())) if expressions else SELECT_ALL

    def _registered_subscription(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig
    ) -> tuple[str | None, str]:
        connected = self._context.consumers.find(header.consumer_group)
        if connected is None:
            raise BrokerError.of(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        if connected.message_model is MessageModel.BROADCASTING and not group.consume_broadcast_enable:
            raise _Forbidden(
                _FORBIDDEN_BROADCAST,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        if self._context.groups.is_forbidden(header.consumer_group, header.topic):
            raise _Forbidden(
                _FORBIDDEN_SUBSCRIPTION,
                f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
            )
        subscription = connected.subscriptions.get(header.topic)
        if subscription is None:
            raise BrokerError.of(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if subscription.sub_version < header.sub_version:
            raise BrokerError.of(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription.expression_type, subscription.sub_string

    def _answer_later(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        wanted: Selection,
        cold: Cold,
        *,
        may_suspend: bool,
    ) -> None:
        """Answer when the disk has given what was not in memory."""
        request.drop()
        self._context.store.reads.later(
            channel,
            cold,
            partial(self._get, header, wanted),
            partial(self._answer, channel, request, header, wanted, may_suspend, self._context.clock.monotonic()),
            partial(self._failed, channel, request),
        )

    def _get(self, header: PullMessageRequestHeader, wanted: Selection, owner: Channel | None = None) -> GetResult:
        # Messages are looked at one by one for their properties: too slow for the many of a wide answer.
        wide = wanted.properties is None and self._takes_wide(header)
        found = self._context.store.get(
            header.topic,
            header.queue_id,
            header.queue_offset,
            header.max_msg_nums,
            wanted.sorted_codes,
            wanted.properties,
            max_bytes=header.max_msg_bytes,
            wide=wide,
            owner=owner,
        )
        if wide:
            self._count_wide(len(found.body))
        return found

    def _answer(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        wanted: Selection,
        may_suspend: bool,
        asked_disk_at: float | None,
        found: GetResult,
    ) -> None:
        """Answer with what was read, or hold the pull until there is something, in the same step of the loop."""
        code = _SUCCESS if found.status is _FOUND else _CODES.get(found.status)
        if code is None:
            code = ResponseCode.PULL_OFFSET_MOVED if header.queue_offset else ResponseCode.PULL_NOT_FOUND
        if code == ResponseCode.PULL_NOT_FOUND and may_suspend and header.sys_flag & _SUSPEND:
            self._hold(channel, request, header, wanted)
            return
        seconds = 0.0 if asked_disk_at is None else self._context.clock.monotonic() - asked_disk_at
        self._count(header, found.next_begin_offset, found.count, len(found.body), seconds)
        self._reply(
            channel,
            request,
            code,
            "FOUND" if found.status is _FOUND else found.status.value,
            found.next_begin_offset,
            found.min_offset,
            found.max_offset,
            found.body,
        )

    def _takes_wide(self, header: PullMessageRequestHeader) -> bool:
        """Whether a pull gets a long answer: its client has to ask for it, and not to be held, as consumers do."""
        return bool(header.rc_pull) and not header.sys_flag & _SUSPEND and self._wide_bytes < _WIDE_BYTES

    def _count_wide(self, size: int) -> None:
        if not self._wide_bytes and size:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._wide_bytes += size

    def _end_turn(self) -> None:
        self._wide_bytes = 0

    def _hold(
        self, channel: Channel, request: RemotingCommand, header: PullMessageRequestHeader, wanted: Selection
    ) -> None:
        config = self._context.config
        millis = header.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_mills
        held = self.long_poll.hold(
            PendingPull(
                channel,
                request,
                header,
                wanted,
                self._context.clock.monotonic() + max(0, millis) / 1000,
                None if wanted.properties is None else partial(self._search, header, wanted),
            )
        )
        if not held:
            raise BrokerError.of(ResponseCode.SYSTEM_BUSY, f"{OVERLOAD}: too many held pulls")

    def _search(self, header: PullMessageRequestHeader, wanted: Selection, queue_offset: int) -> int | None:
        """Look for the first message from ``queue_offset`` on that a held pull is for.

        returns  where to look next; None where the pull has to be executed: for what it finds, or to say what is wrong
        """
        try:
            found = self._context.store.get(
                header.topic, header.queue_id, queue_offset, 1, wanted.sorted_codes, wanted.properties, owner=self
            )
        except (RocketError, OSError, Cold):
            return None
        if found.status is GetStatus.OFFSET_OVERFLOW_ONE:
            return queue_offset
        if found.status is GetStatus.NO_MATCHED_MESSAGE and found.next_begin_offset == found.max_offset:
            return found.next_begin_offset
        return None

    def _reply(
        self,
        channel: Channel,
        request: RemotingCommand,
        code: int,
        remark: str,
        next_begin: int,
        minimum: int,
        maximum: int,
        body: bytes = b"",
    ) -> None:
        if request.is_oneway:
            return
        head = encode_pull_response_header(
            code,
            request.opaque,
            CURRENT_VERSION,
            remark,
            _MASTER,
            next_begin,
            minimum,
            maximum,
            len(body),
            request.serialize_type,
        )
        channel.write([head, body] if body else head)
