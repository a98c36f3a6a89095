"""POP and what goes with it: 200050, 200052, 200054, 200055.

Java: ``PopMessageProcessor``, ``PeekMessageProcessor``, ``NotificationProcessor``, ``PollingInfoProcessor`` (5.5.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeAlias

from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore._fast.record import encode_stored
from rocketcore.broker.context import FAQ, BrokerContext
from rocketcore.broker.record import RecordReader
from rocketcore.broker.selection import (
    FILTER_HEADER_LIMIT,
    SELECT_ALL,
    Selection,
    select_by_sql,
    select_by_tags,
    unreadable,
)
from rocketcore.broker.services.pop import LONGEST_MILLIS, PopService, Taken
from rocketcore.broker.services.pop_order import OrderedPops, order_count_info
from rocketcore.broker.services.pop_poll import HeldPop, PopPoll
from rocketcore.codes import Permission, RequestCode, ResponseCode
from rocketcore.errors import BrokerError, ConfigError, RocketError
from rocketcore.filter import SQL92, TAG
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.pop import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rocketcore.protocol.pop_info import NORMAL, ORDERED_REVIVE_QUEUE, POP_CK, Handle
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

_Place: TypeAlias = PopMessageRequestHeader | PeekMessageRequestHeader | NotificationRequestHeader

_MAX_MESSAGES = 32
_MAX_BYTES = 1 << 20
"""Bytes of an answer after which no further queue is read."""
LONGEST_ATTEMPT = 256
"""Characters of an attempt id: it is kept for as long as what was handed out with it. Java's clients send 36."""
_RETRY_FIRST = 0.2
"""Share of the POPs that look at what comes again before anything else (``popFromRetryProbability``)."""
_LATE_MILLIS = 500
NO_NUMBERS = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=0)
NO_NOTIFICATION = NotificationResponseHeader(has_msg=False)
NO_POLLING = PollingInfoResponseHeader(polling_num=0)
"""What refusals carry."""
REVIVE_QUEUE = 0
"""All that is popped is noted in one queue."""
_AT_ONCE = 64
"""Queues that are looked at before others may have their turn."""


class PopProcessor:
    """Answers POPs; one that finds nothing is held until a message comes or its time is over."""

    def __init__(self, context: BrokerContext, pop: PopService) -> None:
        self.poll = PopPoll(clock=context.clock)
        self._context = context
        self._pop = pop
        self._ordered = OrderedPops(context, pop)
        pop.on_free = lambda topic, queue_id: self.poll.message_arrived(topic, queue_id, None)
        self._reader = RecordReader(_MAX_MESSAGES)

    def routes(self) -> Iterable[Route]:
        code, right = RequestCode, Right.SUB
        return (
            Route(code.POP_MESSAGE, self.pop, PopMessageRequestHeader, right, FILTER_HEADER_LIMIT, waits=True),
            Route(code.PEEK_MESSAGE, self.peek, PeekMessageRequestHeader, right),
            Route(code.NOTIFICATION, self.notify, NotificationRequestHeader, right, FILTER_HEADER_LIMIT, waits=True),
            Route(code.POLLING_INFO, self.polling_info, PollingInfoRequestHeader, right),
        )

    async def pop(
        self, channel: Channel, request: RemotingCommand, header: PopMessageRequestHeader
    ) -> RemotingCommand | None:
        try:
            topic = self._check(channel, header)
            wanted = self._selection(header)
        except BrokerError as refused:
            return RemotingCommand.response(request, refused.code, refused.remark, NO_NUMBERS)
        deadline = self._deadline(header.born_time, header.poll_time)
        return await self._execute(channel, request, header, topic, wanted, deadline)

    def _deadline(self, born_millis: int, poll_millis: int) -> float:
        """When a request that may wait is to be answered, by the monotonic clock."""
        clock = self._context.clock
        left = min(poll_millis, born_millis + poll_millis - clock.time_millis()) if born_millis else poll_millis
        return clock.monotonic() + max(0, left) / 1000

    async def _execute(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: PopMessageRequestHeader,
        topic: TopicConfig,
        wanted: Selection,
        deadline: float,
    ) -> RemotingCommand | None:
        context = self._context
        clock = context.clock
        key = (header.topic, header.consumer_group)
        while True:
            pop_time = clock.time_millis()
            with self.poll.look(key) as look:
                taken = await self._take(channel, header, topic, wanted, pop_time)
            if taken or not look.missed or clock.monotonic() >= deadline:
                break
        code, remark = ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE"
        if not taken and clock.monotonic() < deadline:
            again = partial(self._execute, channel, request, header, topic, wanted, deadline)
            text = header.text_length
            if self.poll.hold(HeldPop(channel, request, key, header.queue_id, wanted, text, deadline, again)):
                return None
            code, remark = ResponseCode.POLLING_FULL, "POLLING_FULL"
        answer = PopMessageResponseHeader(
            pop_time=pop_time,
            invisible_time=header.invisible_time,
            revive_qid=ORDERED_REVIVE_QUEUE if header.order else REVIVE_QUEUE,
            rest_num=await self._rest(header, topic),
            start_offset_info=";".join(f"{each.marker} {each.queue_id} {each.start}" for each in taken),
            msg_offset_info=";".join(
                f"{each.marker} {each.queue_id} {','.join(map(str, each.offsets))}" for each in taken
            ),
            order_count_info=order_count_info(taken) if header.order else None,
        )
        if not taken:
            return RemotingCommand.response(request, code, remark, answer)
        try:
            await self._pop.stored(max(each.end_offset for each in taken))
        except BrokerError as error:
            return RemotingCommand.response(request, error.code, error.remark, NO_NUMBERS)
        body = b"".join(self._body(each, header, pop_time) for each in taken)
        return RemotingCommand.response(request, 0, "FOUND", answer, body)

    # ------------------------------------------------------------------ whether there is something

    async def peek(
        self, channel: Channel, request: RemotingCommand, header: PeekMessageRequestHeader
    ) -> RemotingCommand:
        """Show what a POP would find, as it is stored, and hand nothing out."""
        try:
            topic = check_place(self._context, channel, header.topic, header.queue_id)
            self._check_group(header.consumer_group)
        except BrokerError as refused:
            return RemotingCommand.response(request, refused.code, refused.remark, NO_NUMBERS)
        store, group = self._context.store, header.consumer_group
        bodies: list[bytes] = []
        count, size = header.max_msg_nums, 0
        for name, queue_id, _ in self._places(header, topic, SELECT_ALL):
            if count <= 0 or size >= _MAX_BYTES:
                break
            offset = self._pop.position(name, group, queue_id)
            found = await store.reads.read(
                channel, partial(store.get, name, queue_id, offset, count, max_bytes=_MAX_BYTES - size)
            )
            bodies.append(found.body)
            count, size = count - found.count, size + len(found.body)
        answer = PopMessageResponseHeader(
            pop_time=0, invisible_time=0, revive_qid=0, rest_num=await self._rest(header, topic)
        )
        code, remark = (0, "FOUND") if size else (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        return RemotingCommand.response(request, code, remark, answer, b"".join(bodies))

    async def notify(
        self, channel: Channel, request: RemotingCommand, header: NotificationRequestHeader
    ) -> RemotingCommand | None:
        """Say whether a POP would find something, at once or when it does."""
        try:
            topic = check_place(self._context, channel, header.topic, header.queue_id)
            self._check_group(header.consumer_group)
            wanted = self._selection(header)
        except BrokerError as refused:
            return RemotingCommand.response(request, refused.code, refused.remark, NO_NOTIFICATION)
        deadline = self._deadline(header.born_time, header.poll_time)
        return await self._notify(channel, request, header, topic, wanted, deadline)

    async def _notify(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: NotificationRequestHeader,
        topic: TopicConfig,
        wanted: Selection,
        deadline: float,
    ) -> RemotingCommand | None:
        key, is_full = (header.topic, header.consumer_group), False
        while True:
            with self.poll.look(key) as look:
                has_message = await self._has_message(header, topic)
            if has_message or not look.missed or self._context.clock.monotonic() >= deadline:
                break
        if not has_message and self._context.clock.monotonic() < deadline:
            again = partial(self._notify, channel, request, header, topic, wanted, deadline)
            text = header.text_length
            if self.poll.hold(HeldPop(channel, request, key, header.queue_id, wanted, text, deadline, again)):
                return None
            is_full = True
        answer = NotificationResponseHeader(has_msg=has_message, polling_full=is_full)
        return RemotingCommand.response(request, header=answer)

    async def _has_message(self, header: NotificationRequestHeader, topic: TopicConfig) -> bool:
        if not header.order:
            return await self._rest(header, topic) > 0
        for number, queue_id in enumerate(self._queue_ids(header.queue_id, topic)):
            await self._step(number)
            if self._ordered.has_message((header.topic, header.consumer_group, queue_id)):
                return True
        return False

    def polling_info(
        self, channel: Channel, request: RemotingCommand, header: PollingInfoRequestHeader
    ) -> RemotingCommand:
        """Say how many wait for a group, a topic and a queue."""
        try:
            check_place(self._context, channel, header.topic, header.queue_id)
            self._check_group(header.consumer_group)
        except BrokerError as refused:
            return RemotingCommand.response(request, refused.code, refused.remark, NO_POLLING)
        number = self.poll.waiting((header.topic, header.consumer_group), header.queue_id)
        return RemotingCommand.response(request, header=PollingInfoResponseHeader(polling_num=number))

    # ------------------------------------------------------------------ reading

    async def _take(
        self,
        channel: Channel,
        header: PopMessageRequestHeader,
        topic: TopicConfig,
        wanted: Selection,
        pop_time: int,
    ) -> list[Taken]:
        taken: list[Taken] = []
        count, size = header.max_msg_nums, 0
        take = partial(self._ordered.take, attempt_id=header.attempt_id or "") if header.order else self._pop.take
        for number, (name, queue_id, selection) in enumerate(self._places(header, topic, wanted)):
            await self._step(number)
            try:
                found = await take(
                    channel,
                    (name, header.consumer_group, queue_id),
                    count,
                    _MAX_BYTES - size,
                    selection,
                    pop_time,
                    header.invisible_time,
                    header.init_mode,
                )
            except (RocketError, OSError):
                if not taken:
                    raise
                break  # what was handed out is answered; the next POP hears of it
            if found is None:
                continue
            taken.append(found)
            count -= len(found.offsets)
            size += len(found.body)
            if count <= 0 or size >= _MAX_BYTES:
                break
        return taken

    def _places(self, header: _Place, topic: TopicConfig, wanted: Selection) -> Iterable[tuple[str, int, Selection]]:
        """The queues that a POP looks at, in this order: topic, queue id, what it takes there."""
        rng = self._context.rng
        if isinstance(header, PopMessageRequestHeader) and header.order:
            return [(header.topic, queue_id, wanted) for queue_id in self._queue_ids(header.queue_id, topic)]
        again = [(name, 0, SELECT_ALL) for name in self._pop.retry_topics(header.topic, header.consumer_group)]
        own = [(header.topic, queue_id, wanted) for queue_id in self._queue_ids(header.queue_id, topic)]
        return [*again, *own] if rng.random() < _RETRY_FIRST else [*own, *again]

    def _queue_ids(self, queue_id: int, topic: TopicConfig) -> Sequence[int]:
        if queue_id >= 0:
            return (queue_id,)
        count = topic.read_queue_nums
        first = self._context.rng.randrange(count) if count else 0
        return [*range(first, count), *range(first)]

    async def _rest(self, header: _Place, topic: TopicConfig) -> int:
        group = header.consumer_group
        rest = sum(self._pop.rest(name, group, 0) for name in self._pop.retry_topics(header.topic, group))
        for number, queue_id in enumerate(self._queue_ids(header.queue_id, topic)):
            await self._step(number)
            rest += self._pop.rest(header.topic, group, queue_id)
        return rest

    async def _step(self, number: int) -> None:
        """Called before each queue that a request looks at: a topic may have thousands."""
        if number % _AT_ONCE == _AT_ONCE - 1:
            await self._context.slices.step()

    def _body(self, taken: Taken, header: PopMessageRequestHeader, pop_time: int) -> bytes:
        """Return what is answered: what comes again has its first topic, and its handle as a property."""
        if taken.marker == NORMAL or taken.topic == header.topic:
            return taken.body
        broker = self._context.config.broker_name
        records = []
        for record in self._reader.read(taken.body):
            message = record.message
            properties = decode_properties(message.properties)
            properties[POP_CK] = Handle(
                taken.start,
                pop_time,
                header.invisible_time,
                REVIVE_QUEUE,
                taken.marker,
                broker,
                taken.queue_id,
                record.queue_offset,
            ).encode()
            records.append(
                encode_stored(
                    topic=header.topic.encode(),
                    queue_id=message.queue_id,
                    flag=message.flag,
                    queue_offset=record.queue_offset,
                    physical_offset=record.physical_offset,
                    sys_flag=message.sys_flag,
                    born_timestamp=message.born_timestamp,
                    born_host=message.born_host,
                    store_timestamp=record.store_timestamp,
                    store_host=record.store_host,
                    reconsume_times=message.reconsume_times,
                    prepared_offset=0,
                    body=message.body,
                    properties=encode_properties(properties),
                )
            )
        return b"".join(records)

    # ------------------------------------------------------------------ checks

    def _check(self, channel: Channel, header: PopMessageRequestHeader) -> TopicConfig:
        context = self._context
        code = ResponseCode
        # As in Java: who names no time asks now, whatever its clock says.
        if header.born_time and context.clock.time_millis() - header.born_time - header.poll_time > _LATE_MILLIS:
            raise BrokerError.of(code.POLLING_TIMEOUT, f"the broker[{context.address}] pop message is timeout too much")
        if not context.is_readable:
            raise BrokerError.of(code.NO_PERMISSION, f"the broker[{context.address}] pop message is forbidden")
        self._check_count(header.max_msg_nums)
        check_invisible_time(header.invisible_time)
        if len(header.attempt_id or "") > LONGEST_ATTEMPT:
            raise BrokerError.of(code.INVALID_PARAMETER, f"attemptId has more than {LONGEST_ATTEMPT} characters")
        topic = check_place(context, channel, header.topic, header.queue_id)
        self._check_group(header.consumer_group)
        return topic

    def _check_count(self, count: int) -> None:
        if count > _MAX_MESSAGES:
            raise BrokerError.of(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._context.address}] pop message's num is greater than {_MAX_MESSAGES}",
            )

    def _check_group(self, name: str) -> None:
        group = self._context.groups.find(name)
        if group is None:
            raise BrokerError.of(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist, {FAQ}"
            )
        if not group.consume_enable:
            raise BrokerError.of(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")

    def _selection(self, header: PopMessageRequestHeader | NotificationRequestHeader) -> Selection:
        kind, expression = header.exp_type, header.exp
        if not expression:
            return SELECT_ALL
        if kind in (None, "", TAG):
            return select_by_tags(expression)
        if kind != SQL92 or not self._context.config.enable_property_filter:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
            )
        try:
            return select_by_sql(expression)
        except ConfigError as error:
            raise unreadable(str(error)) from error


def check_invisible_time(millis: int) -> None:
    """Raise BrokerError for a time that nobody may keep a message for."""
    if not 0 <= millis <= LONGEST_MILLIS:
        raise BrokerError.of(
            ResponseCode.INVALID_PARAMETER, f"invisibleTime[{millis}] is illegal, 0 to {LONGEST_MILLIS} are possible"
        )


def check_place(context: BrokerContext, channel: Channel, name: str, queue_id: int) -> TopicConfig:
    """Return a topic that may be read and has the queue; raises BrokerError."""
    topic = context.topics.find(name)
    if topic is None:
        raise BrokerError.of(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {FAQ}")
    if not topic.perm & Permission.READ:
        raise BrokerError.of(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
    if queue_id >= topic.read_queue_nums:
        raise BrokerError.of(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.read_queue_nums}] "
            f"consumer:[{channel.remote_address}]",
        )
    return topic
