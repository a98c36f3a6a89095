"""Messages: single messages, by id, by key, by tag, by place.

RocketMQ: ``MQAdminImpl.queryMessage``, ``viewMessage``; its index goes by hash, so what a broker answers is looked at
again here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from rocketcore.admin.servers import Part, masters_of_route
from rocketcore.admin.timestamps import millis_of
from rocketcore.client import api
from rocketcore.codes import TOOLS_GROUP, PullSysFlag, ResponseCode
from rocketcore.errors import BrokerError, ConfigError, DecodeError, QueryNotFound, RocketError, RouteNotFound
from rocketcore.ids import is_offset_id, place_of
from rocketcore.message import KEY_SEPARATOR, KeyKind, MessageQueue
from rocketcore.naming import check_topic
from rocketcore.protocol.headers.message import PullMessageRequestHeader, QueryMessageRequestHeader
from rocketcore.service import Clock, Deadline
from rocketcore.warning import warn

if TYPE_CHECKING:
    from rocketcore.admin.servers import Question
    from rocketcore.message import ReceivedMessage
    from rocketcore.transport.remoting import Remoting

__all__ = ["Messages", "copies_at", "messages_from", "messages_in"]

logger = logging.getLogger(__name__)

_END_OF_TIME = (1 << 63) - 1
_ID_ANSWERS = 32
"""Messages with one unique id that are looked at: a retry topic may have several copies."""


def messages_in(body: bytes, broker: str) -> list[ReceivedMessage]:
    """Return the messages of an answer; a damaged one as it is stored, or not at all, with a warning.

    Their kernels are imported here: most commands look at no message.
    """
    if not body:
        return []
    from rocketcore.protocol.message import decode_messages

    return decode_messages(body, broker, unreadable=_tell_unreadable, skipped=_tell_skipped)


def _tell_unreadable(message: ReceivedMessage, error: DecodeError) -> None:
    warn(logger, "body not decoded queue=%s offset=%d error=%s", message.queue, message.offset, error)


def _tell_skipped(error: DecodeError) -> None:
    warn(logger, "damaged message passed over error=%s", error)


class Messages(Part):
    """The part of ``AsyncAdmin`` about single messages."""

    async def query_messages(
        self,
        topic: str,
        key: str | None = None,
        *,
        tag: str | None = None,
        begin: int | datetime = 0,
        end: int | datetime = _END_OF_TIME,
        max_messages: int = 64,
    ) -> list[ReceivedMessage]:
        """Return the newest messages of a topic with a key, or a tag, the oldest of them first.

        Every master of the topic is asked, all at the same time.

        key           one of the keys of a message, or its unique id
        tag           in place of a key; brokers before 5.5 do not know messages by it and answer none
        begin, end    when the messages were stored, both included; an int is epoch milliseconds
        max_messages  of each broker, which has a limit of its own (``maxMsgsNumBatch``, 64)
        raises        TopicNotExist, RouteNotFound without a master; the error of a broker that does not
                      answer, since its messages are then unknown
        """
        check_topic(topic)
        wanted, kind = (tag, KeyKind.TAG) if key is None else (key, KeyKind.KEY)
        if wanted is None or (key is not None and tag is not None):
            raise ConfigError("messages are found by a key or by a tag: give one of them")
        if not wanted or (kind is KeyKind.KEY and KEY_SEPARATOR in wanted):
            raise ConfigError(f"a key has no blank and is not empty, got {wanted!r}")
        if max_messages < 1:
            raise ConfigError(f"max_messages is 1 at least, got {max_messages}")
        if millis_of(begin) > millis_of(end):
            raise ConfigError(f"begin lies behind end: {begin} and {end}")
        header = QueryMessageRequestHeader(
            topic=topic,
            key=wanted,
            max_num=max_messages,
            begin_timestamp=millis_of(begin),
            end_timestamp=millis_of(end),
            index_type=None if kind is KeyKind.KEY else kind.value,
        )

        def fits(message: ReceivedMessage) -> bool:
            within = header.begin_timestamp <= message.store_timestamp <= header.end_timestamp
            return within and kind.fits(message.properties, wanted)

        deadline = self._servers.deadline()
        masters = await self._servers.masters_of(topic, deadline)
        answers = await self._servers.each(masters.values(), _query_at(header, masters, fits), deadline)
        return _in_order([message for found in self._servers.known(answers).values() for message in found])

    async def view_message(self, topic: str | None, message_id: str) -> ReceivedMessage:
        """Return the message of an id.

        message_id  ``msg_id`` or ``offset_msg_id``, of a message or of the result of its send
        topic       of the message; None: only an ``offset_msg_id``, which says where the message lies, is understood
        raises      QueryNotFound where no broker has it; if one does not answer and no other has it, its error;
                    ConfigError for any other id without its topic
        """
        if topic is not None:
            check_topic(topic)
        elif not is_offset_id(message_id):
            raise ConfigError(f"{message_id!r} is not an offset_msg_id: give the topic with any other id")
        if not message_id or KEY_SEPARATOR in message_id:
            raise ConfigError(f"invalid message id: {message_id!r}")
        deadline = self._servers.deadline()
        place = place_of(message_id)
        questions: dict[str, Question[list[ReceivedMessage]]] = {}
        if topic is None:
            registered = {
                address: name
                for view in (await self._servers.views(deadline)).values()
                for name, data in view.broker_addr_table.items()
                for address in data.broker_addrs.values()
            }
        else:
            route = await self._servers.route(topic, deadline)
            registered = {
                address: data.broker_name for data in route.broker_datas for address in data.broker_addrs.values()
            }
            masters = masters_of_route(route, topic)
            questions = dict.fromkeys(masters.values(), copies_at(topic, message_id, masters))
        if place is not None and place[0] in registered:
            questions[place[0]] = _first_of(
                _at_place(place[1], message_id, topic, registered[place[0]]),
                questions.get(place[0]),
                self._servers.clock,
            )
        answers = await self._ask_each(questions, deadline)
        found = _found_in(answers)
        if not found and place is not None:
            # The broker may have another address by now, and its old one another broker. A record says where it was
            # stored, so only the one that is meant has this id.
            elsewhere = {
                address: _at_place(place[1], message_id, topic, name)
                for address, name in registered.items()
                if address != place[0]
            }
            moved = await self._ask_each(elsewhere, deadline)
            found = _found_in(moved)
            answers = {**answers, **{address: answer for address, answer in moved.items() if address not in answers}}
        if not found:
            for answer in answers.values():
                if isinstance(answer, RocketError):
                    raise answer
            where = f" in topic {topic!r}" if topic is not None else ""
            gone = ""
            if place is not None and place[0] not in registered:
                gone = f": it names no registered broker ({place[0]}), and none that is registered has the message"
            raise QueryNotFound(ResponseCode.QUERY_NOT_FOUND, f"no message has the id {message_id!r}{where}{gone}")
        return found[0]

    async def _ask_each(
        self, questions: Mapping[str, Question[list[ReceivedMessage]]], deadline: Deadline
    ) -> dict[str, list[ReceivedMessage] | RocketError]:
        """Ask each server its own question, all at the same time."""

        async def ask(remoting: Remoting, address: str, timeout: float) -> list[ReceivedMessage]:
            return await questions[address](remoting, address, timeout)

        return await self._servers.each(questions, ask, deadline) if questions else {}

    async def message_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """Return the message at an offset of a queue; raises QueryNotFound where the offset has no message,
        RouteNotFound."""
        deadline = self._servers.deadline()
        route = await self._servers.route(queue.topic, deadline)
        masters = masters_of_route(route, queue.topic)
        if queue.broker not in masters:
            raise RouteNotFound(f"broker {queue.broker!r} does not serve topic {queue.topic!r}")
        counts = {data.broker_name: data.read_queue_nums for data in route.queue_datas}
        if not 0 <= queue.queue_id < counts.get(queue.broker, 0):
            what = f"topic {queue.topic} has no queue {queue.broker}/{queue.queue_id} to read"
            raise QueryNotFound(ResponseCode.QUERY_NOT_FOUND, what)
        ask = messages_from(queue, offset, 1)
        for message in await self._servers.ask_one(ask, masters[queue.broker], deadline.remaining()):
            if message.offset == offset:
                return message
        place = f"offset {offset} of {queue.topic} {queue.broker}/{queue.queue_id}"
        raise QueryNotFound(ResponseCode.QUERY_NOT_FOUND, f"no message is at {place}")


def messages_from(queue: MessageQueue, offset: int, max_messages: int) -> Question[list[ReceivedMessage]]:
    """Ask for messages of a queue from an offset on; the question leaves no trace of a group at the broker."""
    header = PullMessageRequestHeader(
        consumer_group=TOOLS_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=int(PullSysFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )

    async def ask(remoting: Remoting, address: str, timeout: float) -> list[ReceivedMessage]:
        result = await api.pull_message(remoting, address, header, timeout)
        return messages_in(result.body, queue.broker)

    return ask


def copies_at(topic: str, unique_id: str, masters: Mapping[str, str]) -> Question[list[ReceivedMessage]]:
    """Ask a master's index for the messages of a topic that have a unique id."""
    header = QueryMessageRequestHeader(
        topic=topic, key=unique_id, max_num=_ID_ANSWERS, begin_timestamp=0, end_timestamp=_END_OF_TIME,
        index_type=KeyKind.UNIQUE.value,
    )  # fmt: skip
    return _query_at(header, masters, lambda message: KeyKind.UNIQUE.fits(message.properties, unique_id))


def _query_at(
    header: QueryMessageRequestHeader, masters: Mapping[str, str], fits: Callable[[ReceivedMessage], bool]
) -> Question[list[ReceivedMessage]]:
    """Ask a master's index; what shares no more than the hash is left out, and what it answers twice."""
    names = {address: name for name, address in masters.items()}

    async def ask(remoting: Remoting, address: str, timeout: float) -> list[ReceivedMessage]:
        body = await api.query_message(remoting, address, header, timeout)
        found = messages_in(body, names[address])
        own = [message for message in found if message.queue.topic == header.topic and fits(message)]
        return list({message.physical_offset: message for message in own}.values())

    return ask


def _at_place(physical_offset: int, message_id: str, topic: str | None, broker: str) -> Question[list[ReceivedMessage]]:
    async def ask(remoting: Remoting, address: str, timeout: float) -> list[ReceivedMessage]:
        try:
            body = await api.view_message(remoting, address, physical_offset, timeout)
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_ERROR:  # which is also "there is none"
                return []
            raise
        found = messages_in(body, broker)
        wanted = message_id.upper()
        return [each for each in found if each.offset_msg_id == wanted and topic in (None, each.queue.topic)]

    return ask


def _first_of(
    first: Question[list[ReceivedMessage]], second: Question[list[ReceivedMessage]] | None, clock: Clock
) -> Question[list[ReceivedMessage]]:
    """Ask one server two questions, the second where the first brings nothing."""

    async def ask(remoting: Remoting, address: str, timeout: float) -> list[ReceivedMessage]:
        deadline = Deadline(timeout, clock)
        found = await first(remoting, address, timeout)
        return found if found or second is None else await second(remoting, address, deadline.remaining())

    return ask


def _found_in(answers: Mapping[str, list[ReceivedMessage] | RocketError]) -> list[ReceivedMessage]:
    return [message for answer in answers.values() if not isinstance(answer, RocketError) for message in answer]


def _in_order(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
    return sorted(messages, key=lambda each: (each.store_timestamp, each.queue.broker, each.physical_offset))
