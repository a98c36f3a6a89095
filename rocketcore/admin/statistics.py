"""StatisticsAdmin: what brokers counted in the last minute, hour and day, of a topic and in all.

A broker knows a counter once something was counted, RocketMQ's for as long as that goes on: of others it says that
they do not exist, which is None here. RocketMQ 5.5.0: ``StatsAllSubCommand``, ``BrokerStatsManager``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketcore.admin.base import AdminBase, masters_in
from rocketcore.admin.requests import Request
from rocketcore.codes import MASTER_ID, RequestCode, ResponseCode
from rocketcore.errors import BrokerError, RouteNotFound
from rocketcore.protocol.headers.admin import ViewBrokerStatsDataRequestHeader
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketcore.admin.base import Question
    from rocketcore.protocol.bodies.stats import BrokerStatsData
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.transport.client import Remoting

__all__ = ["Counted", "StatisticsAdmin", "Traffic"]


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


class StatisticsAdmin(AdminBase):
    """The part of ``AsyncAdmin`` about counters."""

    async def topic_traffic(self, topic: str) -> dict[str, Traffic]:
        """Return messages and bytes that each master of a topic stored, by broker; two requests a broker.

        raises  TopicNotExist, RouteNotFound without a master; the error of one that does not answer
        """
        deadline = self._deadline()
        route = await self._route(topic, deadline)
        masters = {
            each.broker_name: each.broker_addrs[MASTER_ID]
            for each in route.broker_datas
            if MASTER_ID in each.broker_addrs
        }
        if not masters:
            raise RouteNotFound(f"topic {topic!r} has no master")
        wanted = dict.fromkeys(masters.values(), (("TOPIC_PUT_NUMS", topic), ("TOPIC_PUT_SIZE", topic)))
        return await self._traffic(masters, wanted, deadline)

    async def broker_traffic(self, *, cluster: str | None = None, broker: str | None = None) -> dict[str, Traffic]:
        """Return messages that each master stored and handed out, by broker; two requests a broker.

        raises  RouteNotFound where no such broker is registered; the error of one that does not answer
        """
        deadline = self._deadline()
        views = list((await self._views(deadline)).values())
        masters = dict(sorted(masters_in(views, cluster, broker).items()))
        clusters = {name: data.cluster for view in views for name, data in view.broker_addr_table.items()}
        wanted = {
            address: (("BROKER_PUT_NUMS", clusters[name]), ("BROKER_GET_NUMS", clusters[name]))
            for name, address in masters.items()
        }
        return await self._traffic(masters, wanted, deadline)

    async def _traffic(
        self,
        masters: Mapping[str, str],
        wanted: Mapping[str, tuple[tuple[str, str], tuple[str, str]]],
        deadline: Deadline,
    ) -> dict[str, Traffic]:
        async def ask(remoting: Remoting, address: str, timeout: float) -> Traffic:
            within = Deadline(timeout, self._clock)
            first, second = wanted[address]
            return Traffic(
                await _counter(*first)(remoting, address, timeout),
                await _counter(*second)(remoting, address, within.remaining()),
            )

        answers = await self._all(masters.values(), ask, deadline)
        return dict(zip(masters, answers, strict=True))


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
