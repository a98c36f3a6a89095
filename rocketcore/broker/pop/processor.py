"""POP and what goes with it: 200050, 200052, 200054, 200055.

Java: ``PopMessageProcessor``, ``PeekMessageProcessor``, ``NotificationProcessor``, ``PollingInfoProcessor`` (5.5.0).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sized
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import TypeAlias, TypeVar

from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore._fast.record import encode_stored
from rocketcore.broker.context import FAQ, BrokerContext
from rocketcore.broker.pop.order import OrderedPops, order_count_info
from rocketcore.broker.pop.poll import PendingPop, PopPoll, Wanted
from rocketcore.broker.pop.service import LONGEST_MILLIS, Asked, PopService, Taken
from rocketcore.broker.record import RecordReader
from rocketcore.broker.selection import (
    FILTER_HEADER_LIMIT,
    SELECT_ALL,
    Selection,
    select_by_sql,
    select_by_tags,
    unreadable,
)
from rocketcore.broker.waiting.pending_requests import LONGEST_SECONDS
from rocketcore.codes import MAX_PROPERTIES_BYTES, Permission, RequestCode, ResponseCode
from rocketcore.errors import BrokerError, ConfigError, RocketError
from rocketcore.filter import SQL92, TAG
from rocketcore.message import FIRST_POP_TIME, ORIGIN_GROUP
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

_Header: TypeAlias = PopMessageRequestHeader | PeekMessageRequestHeader | NotificationRequestHeader
_Place: TypeAlias = tuple[str, int, Selection]
"""Stored topic, queue id, what is taken there."""
FoundT = TypeVar("FoundT", bound=Sized | bool)

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
_WIDE_LOOKS = 16
"""Requests that look at more queues than that: each notes to which of thousands something comes meanwhile."""
_FILL_MILLIS = 50
"""After which a POP that has something looks no further: the invisible time runs from its first message on."""


class PopProcessor:
    """Answers POPs; one that finds nothing is held until a message comes or its time is over."""

    def __init__(self, context: BrokerContext, pop: PopService) -> None:
        self.poll = PopPoll(clock=context.clock)
        self._context = context
        self._pop = pop
        self._ordered = OrderedPops(context, pop)
        pop.on_free, pop.on_room, pop.on_more = self.poll.freed, self.poll.has_room, self.poll.more
        pop.on_any_room = self.poll.has_any_room
        self._reader = RecordReader(_MAX_MESSAGES)
        self._wide = asyncio.Semaphore(_WIDE_LOOKS)

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
            self._check(channel, header)
            wanted = self._wanted(header)
        except BrokerError as refused:
            return RemotingCommand.response(request, refused.code, refused.remark, NO_NUMBERS)
        return await self._execute(channel, request, header, wanted, self._deadline(header.born_time, header.poll_time))

    def _deadline(self, born_millis: int, poll_millis: int) -> float:
        """When a request that may wait is to be answered, by the monotonic clock."""
        clock = self._context.clock
        left = min(poll_millis, born_millis + poll_millis - clock.time_millis()) if born_millis else poll_millis
        return clock.monotonic() + min(max(0, left) / 1000, LONGEST_SECONDS)

    async def _execute(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: PopMessageRequestHeader,
        wanted: Wanted,
        deadline: float,
    ) -> RemotingCommand | None:
        check = partial(self._still, channel, header)
        asked = Asked(channel, header.invisible_time, header.init_mode, check, header.attempt_id or "")
        try:
            taken = await self._find(channel, header, wanted, deadline, partial(self._take_messages, header, asked))
        except BrokerError as refused:
            return RemotingCommand.response(request, refused.code, refused.remark, NO_NUMBERS)
        code, remark = ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE"
        if not taken and header.max_msg_nums > 0 and self._context.clock.monotonic() < deadline:
            again = partial(self._execute, channel, request, header, wanted)
            if self.poll.hold(PendingPop(channel, request, wanted, header.text_length, deadline, again)):
                return None
            code, remark = ResponseCode.POLLING_FULL, "POLLING_FULL"
        if not taken and channel.closed:
            return None
        end_offset = max((each.end_offset for each in taken), default=None)
        answer = PopMessageResponseHeader(
            pop_time=asked.time(self._context.clock),
            invisible_time=header.invisible_time,
            revive_qid=ORDERED_REVIVE_QUEUE if header.order else REVIVE_QUEUE,
            rest_num=await self._rest(header, end_offset),
            start_offset_info=";".join(f"{each.marker} {each.queue_id} {each.start}" for each in taken),
            msg_offset_info=";".join(
                f"{each.marker} {each.queue_id} {','.join(map(str, each.offsets))}" for each in taken
            ),
            order_count_info=order_count_info(taken) if header.order else None,
        )
        if end_offset is None:
            return RemotingCommand.response(request, code, remark, answer)
        try:
            await self._pop.stored(end_offset)
        except BrokerError as error:
            return RemotingCommand.response(request, error.code, error.remark, NO_NUMBERS)
        body = b"".join(self._body(each, header, asked.pop_time) for each in taken)
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
        for number, (name, queue_id, _) in enumerate(self._places(header, topic, SELECT_ALL)):
            await self._step(number)
            if count <= 0 or size >= _MAX_BYTES:
                break
            offset = self._pop.position(name, group, queue_id)
            found = await store.reads.read(
                channel, partial(store.get, name, queue_id, offset, count, max_bytes=_MAX_BYTES - size)
            )
            bodies.append(found.body)
            count, size = count - found.count, size + len(found.body)
        answer = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=await self._rest(header))
        code, remark = (0, "FOUND") if size else (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        return RemotingCommand.response(request, code, remark, answer, b"".join(bodies))

    async def notify(
        self, channel: Channel, request: RemotingCommand, header: NotificationRequestHeader
    ) -> RemotingCommand | None:
        """Say whether a POP would find something, at once or when it does."""
        try:
            check_place(self._context, channel, header.topic, header.queue_id)
            self._check_group(header.consumer_group)
            wanted = self._wanted(header)
        except BrokerError as refused:
            return RemotingCommand.response(request, refused.code, refused.remark, NO_NOTIFICATION)
        return await self._notify(channel, request, header, wanted, self._deadline(header.born_time, header.poll_time))

    async def _notify(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: NotificationRequestHeader,
        wanted: Wanted,
        deadline: float,
    ) -> RemotingCommand | None:
        is_full = False
        try:
            find = partial(self._has_message, channel, header)
            has_message = await self._find(channel, header, wanted, deadline, find)
        except BrokerError as refused:
            return RemotingCommand.response(request, refused.code, refused.remark, NO_NOTIFICATION)
        if not has_message and self._context.clock.monotonic() < deadline:
            again = partial(self._notify, channel, request, header, wanted)
            if self.poll.hold(PendingPop(channel, request, wanted, header.text_length, deadline, again, is_told=True)):
                return None
            is_full = True
        answer = NotificationResponseHeader(has_msg=has_message, polling_full=is_full)
        return RemotingCommand.response(request, header=answer)

    async def _has_message(self, channel: Channel, header: NotificationRequestHeader, places: Iterable[_Place]) -> bool:
        group, check = header.consumer_group, partial(self._still, channel, header)
        for number, (name, queue_id, _) in enumerate(places):
            await self._step(number, check)
            if header.order:
                if self._ordered.has_message((name, group, queue_id), header.attempt_id or ""):
                    return True
            elif self._pop.rest(name, group, queue_id):
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
        number = self.poll.waiting(header.topic, header.consumer_group, header.queue_id)
        return RemotingCommand.response(request, header=PollingInfoResponseHeader(polling_num=number))

    # ------------------------------------------------------------------ reading

    async def _find(
        self,
        channel: Channel,
        header: PopMessageRequestHeader | NotificationRequestHeader,
        wanted: Wanted,
        deadline: float,
        find: Callable[[Iterable[_Place]], Awaitable[FoundT]],
    ) -> FoundT:
        """Have ``find`` look at all places, then at those to which something came meanwhile, until it finds something.

        Where it finds nothing, there is nothing in this turn of the loop, or the deadline is over.

        raises  BrokerError where the request may not go on; what ``find`` raises
        """
        topic = self._still(channel, header)
        is_wide = wanted.queue_id < 0 and topic.read_queue_nums > _AT_ONCE
        missed: list[_Place] = []
        while True:
            # What came meanwhile are some places, however many queues the topic has.
            async with self._wide if is_wide and not missed else nullcontext():
                if is_wide:
                    topic = self._still(channel, header)
                with self.poll.look(wanted) as look:
                    found = await find(missed or self._places(header, topic, wanted.selection))
            if found or self._context.clock.monotonic() >= deadline or not (look.anywhere or look.missed):
                return found
            topic = self._still(channel, header)
            missed = []
            if not look.anywhere:
                missed = [
                    (name, queue_id, wanted.selection if name == header.topic else SELECT_ALL)
                    for name, queue_id in look.missed
                    if name != header.topic or queue_id < topic.read_queue_nums
                ]

    async def _take_messages(
        self, header: PopMessageRequestHeader, asked: Asked, places: Iterable[_Place]
    ) -> list[Taken]:
        taken: list[Taken] = []
        count, size = header.max_msg_nums, 0
        take = self._ordered.take if header.order else self._pop.take
        clock = self._context.clock
        try:
            for number, (name, queue_id, selection) in enumerate(places):
                await self._step(number, asked.check)
                if taken and clock.time_millis() - asked.pop_time >= _FILL_MILLIS:
                    break
                found = await take(asked, (name, header.consumer_group, queue_id), count, _MAX_BYTES - size, selection)
                if found is None:
                    continue
                taken.append(found)
                count -= len(found.offsets)
                size += len(found.body)
                if count <= 0 or size >= _MAX_BYTES:
                    break
        except (RocketError, OSError):
            if not taken:
                raise  # else what was handed out is answered; the next POP hears of it
        return taken

    def _places(self, header: _Header, topic: TopicConfig, selection: Selection) -> Iterator[_Place]:
        """The queues that a request looks at, in this order."""
        find = self._context.topics.find
        own = (
            (header.topic, queue_id, selection)
            for queue_id in self._queue_ids(header.queue_id, topic)
            # Others may have had their turn since: what was taken away meanwhile is left alone.
            if (now := find(header.topic)) is not None and queue_id < now.read_queue_nums
        )
        if not isinstance(header, PeekMessageRequestHeader) and header.order:
            return own
        names = self._pop.retry_topics(header.topic, header.consumer_group)
        again = ((name, 0, SELECT_ALL) for name in names)
        return chain(again, own) if self._context.rng.random() < _RETRY_FIRST else chain(own, again)

    def _queue_ids(self, queue_id: int, topic: TopicConfig) -> Iterable[int]:
        if queue_id >= 0:
            return (queue_id,)
        count = topic.read_queue_nums
        first = self._context.rng.randrange(count) if count else 0
        return chain(range(first, count), range(first))

    async def _rest(
        self, header: PopMessageRequestHeader | PeekMessageRequestHeader, end_offset: int | None = None
    ) -> int:
        """How many messages of a topic the group has not got yet.

        end_offset  of what was handed out: where others have their turn, no more is counted than until this is stored,
                    as its invisible time runs
        """
        topic, store = self._context.topics.find(header.topic), self._context.store
        if topic is None:
            return 0
        rest = 0
        for number, (name, queue_id, _) in enumerate(self._places(header, topic, SELECT_ALL)):
            await self._step(number)
            if number >= _AT_ONCE and end_offset is not None and store.durable_offset >= end_offset:
                break
            rest += self._pop.rest(name, header.consumer_group, queue_id)
        return rest

    async def _step(self, number: int, check: Callable[[], object] | None = None) -> None:
        """Called before each place that a request looks at: a topic may have thousands of queues.

        check  called when others had their turn; what it raises ends the request
        """
        if number and number % _AT_ONCE == 0:
            await self._context.cooperative.step()
            if check is not None:
                check()

    def _body(self, taken: Taken, header: PopMessageRequestHeader, pop_time: int) -> bytes:
        """Return what is answered: what comes again has its first topic, and its handle as a property."""
        if taken.marker == NORMAL or taken.topic == header.topic:
            return taken.body
        broker = self._context.config.broker_name
        records = []
        for record in self._reader.read(taken.body):
            message = record.message
            properties = decode_properties(message.properties)
            handle = Handle(
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
                    properties=with_handle(properties, handle),
                )
            )
        return b"".join(records)

    # ------------------------------------------------------------------ checks

    def _check(self, channel: Channel, header: PopMessageRequestHeader) -> None:
        context = self._context
        code = ResponseCode
        # As in Java: who names no time asks now, whatever its clock says.
        if header.born_time and context.clock.time_millis() - header.born_time - header.poll_time > _LATE_MILLIS:
            raise BrokerError.of(code.POLLING_TIMEOUT, f"the broker[{context.address}] pop message is timeout too much")
        if not context.is_readable:
            raise self._forbidden()
        self._check_count(header.max_msg_nums)
        check_invisible_time(header.invisible_time)
        if len(header.attempt_id or "") > LONGEST_ATTEMPT:
            raise BrokerError.of(code.INVALID_PARAMETER, f"attemptId has more than {LONGEST_ATTEMPT} characters")
        check_place(context, channel, header.topic, header.queue_id)
        self._check_group(header.consumer_group)

    def _still(self, channel: Channel, header: PopMessageRequestHeader | NotificationRequestHeader) -> TopicConfig:
        """Return the topic of a request that goes on after others had their turn.

        What was deleted meanwhile is not made anew by it, and what it finds is not for a connection that closed.

        raises  BrokerError where it may not
        """
        context, code = self._context, ResponseCode
        if channel.closed:
            raise BrokerError.of(code.SYSTEM_ERROR, "the connection closed")
        if not context.is_readable:
            raise self._forbidden()
        topic = check_place(context, channel, header.topic, header.queue_id)
        if not context.groups.exists(header.consumer_group):
            raise _no_group(header.consumer_group)
        self._check_group(header.consumer_group)
        return topic

    def _forbidden(self) -> BrokerError:
        return BrokerError.of(
            ResponseCode.NO_PERMISSION, f"the broker[{self._context.address}] pop message is forbidden"
        )

    def _check_count(self, count: int) -> None:
        if count > _MAX_MESSAGES:
            raise BrokerError.of(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._context.address}] pop message's num is greater than {_MAX_MESSAGES}",
            )

    def _check_group(self, name: str) -> None:
        group = self._context.groups.find(name)
        if group is None:
            raise _no_group(name)
        if not group.consume_enable:
            raise BrokerError.of(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")

    def _wanted(self, header: PopMessageRequestHeader | NotificationRequestHeader) -> Wanted:
        key = (header.topic, header.consumer_group)
        return Wanted(key, header.queue_id, self._selection(header), bool(header.order))

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


def with_handle(properties: dict[str, str], handle: str) -> bytes:
    """Encode properties and a handle, without which nothing can be acknowledged.

    Where they are too long together, what the broker noted is left out, then the longest.
    """
    own = properties.keys() - {FIRST_POP_TIME, ORIGIN_GROUP, POP_CK}
    longest_first = sorted(own, key=lambda name: len(name) + len(properties[name]), reverse=True)
    properties[POP_CK] = handle
    for name in (FIRST_POP_TIME, ORIGIN_GROUP, *longest_first):
        encoded = encode_properties(properties)
        if len(encoded) <= MAX_PROPERTIES_BYTES:
            return encoded
        properties.pop(name, None)
    return encode_properties(properties)


def _no_group(name: str) -> BrokerError:
    return BrokerError.of(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist, {FAQ}"
    )


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
