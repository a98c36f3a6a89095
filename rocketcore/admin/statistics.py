"""Statistics: what brokers counted, how far all groups are, and how a message fares.

A broker knows a counter once something was counted, RocketMQ's for as long as that goes on: of others it says that
they do not exist, which is None here. RocketMQ 5.5.0: ``StatsAllSubCommand``, ``BrokerStatsManager``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketcore.admin.messages import messages_in
from rocketcore.admin.requests import Request
from rocketcore.admin.servers import Part, masters_in
from rocketcore.client import api
from rocketcore.codes import AUTO_CREATE_TOPIC, CLIENT_INNER_PRODUCER_GROUP, RequestCode, ResponseCode
from rocketcore.errors import BrokerError, QueryNotFound, RemoteProtocolError, RocketError
from rocketcore.ids import new_uniq_key, place_of
from rocketcore.message import NAME_SEPARATOR, PROPERTY_SEPARATOR, UNIQ_KEY, MessageQueue
from rocketcore.protocol.headers.admin import GetConsumeStatsInBrokerHeader, ViewBrokerStatsDataRequestHeader
from rocketcore.protocol.headers.message import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketcore.admin.servers import Question
    from rocketcore.protocol.bodies.stats import BrokerStatsData
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.transport.remoting import Remoting

__all__ = ["Counted", "Echo", "GroupTraffic", "Statistics", "Traffic"]

_ECHO: Final = b"rocketcore: there and back"


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted in the last minute, hour and day, and how much a second it was in that minute."""

    minute: int
    hour: int
    day: int
    per_second: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Two counters of one broker; each None where it has none.

    first, second  of a topic: messages and bytes that were stored; of a broker: messages in and out
    """

    first: Counted | None
    second: Counted | None


@dataclass(frozen=True, slots=True)
class GroupTraffic:
    """A group in one topic, over all masters.

    written     the offsets of the topic's next messages, of all queues together; consumed those where the group goes on
    per_second  messages that it was handed, as brokers count them
    """

    group: str
    topic: str
    written: int
    consumed: int
    per_second: float

    @property
    def lag(self) -> int:
        """How many messages wait for it."""
        return self.written - self.consumed


@dataclass(frozen=True, slots=True)
class Echo:
    """A message that went to a broker and was read back; times are epoch milliseconds.

    seconds    it took
    sent_at    when it was sent, by the clock here; answered_at when its answer was here
    stored_at  when it was stored, by the broker's clock
    """

    seconds: float
    sent_at: int
    answered_at: int
    stored_at: int

    @property
    def clock_skew(self) -> float:
        """Seconds that the broker's clock is ahead of the one here, below 0 behind; 0 within what the way explains."""
        if self.sent_at - 1 <= self.stored_at <= self.answered_at + 1:
            return 0.0
        nearest = self.sent_at if self.stored_at < self.sent_at else self.answered_at
        return (self.stored_at - nearest) / 1000


class Statistics(Part):
    """The part of ``AsyncAdmin`` about counters."""

    async def topic_traffic(self, topic: str) -> dict[str, Traffic]:
        """Return messages and bytes that each master of a topic stored, by broker; two requests a broker.

        raises  TopicNotExist, RouteNotFound without a master; the error of a broker that does not answer
        """
        deadline = self._servers.deadline()
        masters = await self._servers.masters_of(topic, deadline)
        wanted = dict.fromkeys(masters.values(), (("TOPIC_PUT_NUMS", topic), ("TOPIC_PUT_SIZE", topic)))
        return await self._traffic(masters, wanted, deadline)

    async def broker_traffic(self, *, cluster: str | None = None, broker: str | None = None) -> dict[str, Traffic]:
        """Return messages that each master stored and handed out, by broker; two requests a broker.

        raises  RouteNotFound where no such broker is registered; the error of a broker that does not answer
        """
        deadline = self._servers.deadline()
        views = list((await self._servers.views(deadline)).values())
        masters = masters_in(views, cluster, broker)
        clusters = {name: data.cluster for view in views for name, data in view.broker_addr_table.items()}
        wanted = {
            address: (("BROKER_PUT_NUMS", clusters[name]), ("BROKER_GET_NUMS", clusters[name]))
            for name, address in masters.items()
        }
        return await self._traffic(masters, wanted, deadline)

    async def group_traffic(self) -> list[GroupTraffic]:
        """Return every group in every topic that it has offsets in, sorted; one request a broker.

        A broker looks up store times for it: it costs more than all else here, and is not for each second.

        raises  RouteNotFound without a master; the error of a broker that does not answer
        """
        from rocketcore.protocol.bodies.stats import ConsumeStatsList

        def read(answer: RemotingCommand) -> ConsumeStatsList:
            return ConsumeStatsList.decode(answer.body)

        header = GetConsumeStatsInBrokerHeader(order=False)
        request = Request(RequestCode.GET_BROKER_CONSUME_STATS, "progress of all groups", read, header)
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        sums: dict[tuple[str, str], tuple[int, int, float]] = {}
        for answer in await self._servers.all(masters.values(), request, deadline):
            for groups in answer.consume_stats_list:
                for group, several in groups.items():
                    for stats in several:
                        for queue, each in stats.offset_table.items():
                            written, consumed, rate = sums.get((group, queue.topic), (0, 0, 0.0))
                            at = written + each.broker_offset, consumed + each.consumer_offset, rate
                            sums[group, queue.topic] = at
                        for topic in {queue.topic for queue in stats.offset_table}:
                            written, consumed, rate = sums[group, topic]
                            sums[group, topic] = written, consumed, rate + stats.consume_tps
        return [
            GroupTraffic(group, topic, written, consumed, rate)
            for (group, topic), (written, consumed, rate) in sorted(sums.items())
        ]

    async def echo(self) -> dict[str, Echo | RocketError]:
        """Send a small message to each master and read it back; return by broker how it went, or its error.

        It goes to the topic of the broker's name, which brokers have for it (Java: ``SendMsgStatusCommand``).

        raises  RouteNotFound without a master
        """
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        names = {address: name for name, address in masters.items()}

        async def ask(remoting: Remoting, address: str, timeout: float) -> Echo:
            within = Deadline(timeout, self._servers.clock)
            queue = MessageQueue(names[address], names[address], 0)
            began, sent_at = self._servers.clock.monotonic(), self._servers.clock.time_millis()
            place = await _echo_to(queue, sent_at)(remoting, address, timeout)
            answered_at = self._servers.clock.time_millis()
            body = await api.view_message(remoting, address, place, within.remaining())
            for message in messages_in(body, queue.broker):
                if message.body == _ECHO:
                    return Echo(self._servers.clock.monotonic() - began, sent_at, answered_at, message.store_timestamp)
            raise QueryNotFound(ResponseCode.QUERY_NOT_FOUND, f"{address} has another message at {place}")

        answers = await self._servers.each(masters.values(), ask, deadline)
        return {name: answers[address] for name, address in masters.items()}

    async def _traffic(
        self,
        masters: Mapping[str, str],
        wanted: Mapping[str, tuple[tuple[str, str], tuple[str, str]]],
        deadline: Deadline,
    ) -> dict[str, Traffic]:
        async def ask(remoting: Remoting, address: str, timeout: float) -> Traffic:
            within = Deadline(timeout, self._servers.clock)
            first, second = wanted[address]
            return Traffic(
                await _counter(*first)(remoting, address, timeout),
                await _counter(*second)(remoting, address, within.remaining()),
            )

        return await self._servers.by_name(masters, ask, deadline)


def _echo_to(queue: MessageQueue, millis: int) -> Request[int]:
    """Send the message; its answer is where it lies in the broker's log."""

    def read(answer: RemotingCommand) -> int:
        place = place_of(answer.header(SendMessageResponseHeader).msg_id)
        if place is None:
            raise RemoteProtocolError("the answer to a send has no offset message id")
        return place[1]

    header = SendMessageRequestHeaderV2(
        producer_group=CLIENT_INNER_PRODUCER_GROUP,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=1,
        queue_id=queue.queue_id,
        sys_flag=0,
        born_timestamp=millis,
        flag=0,
        properties=f"{UNIQ_KEY}{NAME_SEPARATOR}{new_uniq_key()}{PROPERTY_SEPARATOR}",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name=queue.broker,
    )
    return Request(RequestCode.SEND_MESSAGE_V2, f"message to topic {queue.topic!r}", read, header, _ECHO)


def _counter(name: str, key: str) -> Question[Counted | None]:
    """Ask for a counter; None where the broker has not counted anything."""

    def read(answer: RemotingCommand) -> BrokerStatsData:
        from rocketcore.protocol.bodies.stats import BrokerStatsData

        return BrokerStatsData.decode(answer.body)

    header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
    request = Request(RequestCode.VIEW_BROKER_STATS_DATA, f"counter {name} of {key!r}", read, header)

    async def ask(remoting: Remoting, address: str, timeout: float) -> Counted | None:
        try:
            found = await request(remoting, address, timeout)
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_ERROR and "not exist" in (error.remark or ""):
                return None
            raise
        spans = found.stats_minute, found.stats_hour, found.stats_day
        minute, hour, day = (0 if each is None else each.sum for each in spans)
        return Counted(minute, hour, day, 0.0 if spans[0] is None else spans[0].tps)

    return ask
