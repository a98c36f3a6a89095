"""Clusters: what name servers know of brokers, and what an operator asks of brokers as servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketcore.admin.requests import (
    BROKER_CONFIG,
    BROKER_RUNTIME_INFO,
    CLUSTER_INFO,
    CLUSTER_INFO_AND_VERSION,
    Request,
    broker_topics,
    change_of,
    done,
)
from rocketcore.admin.servers import Part, no_broker
from rocketcore.codes import MASTER_ID, RequestCode, Version
from rocketcore.errors import BrokerError, RocketError, TransportError
from rocketcore.protocol.bodies.route import BrokerMemberGroup, ClusterInfo, GetBrokerMemberGroupResponseBody
from rocketcore.protocol.headers.nameserver import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    GetBrokerMemberGroupRequestHeader,
    QueryDataVersionRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.topic import DataVersion, TopicConfig
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.transport.remoting import Remoting

__all__ = ["BrokerStatus", "Clusters"]

_TOPICS_PER_PAGE: Final = 2000
"""Topics that are asked of a broker at once; no 5.x broker sends more."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One registered broker, and what it said when it was asked (Java: a line of ``ClusterListSubCommand``).

    broker_id    0 is the master
    zone         zone of the broker, None without one
    runtime      its counters and state by RocketMQ's names, None where it did not say
    topic_count  topics it has, system topics included; None where it did not say
    error        why it did not answer, or what it refused to say: a broker of 4.9 that has just started knows its
                 topics, and no rates for a second
    """

    cluster: str
    broker: str
    broker_id: int
    address: str
    zone: str | None
    runtime: Mapping[str, str] | None
    topic_count: int | None
    error: RocketError | None

    @property
    def alive(self) -> bool:
        """Whether it answered; a refusal is an answer."""
        return not isinstance(self.error, TransportError)


class Clusters(Part):
    """The part of ``AsyncAdmin`` about clusters and brokers."""

    async def cluster_info(self) -> ClusterInfo:
        """Return clusters, their broker names, and the addresses of each (Java: ``examineBrokerClusterInfo``)."""
        return await self._servers.ask(CLUSTER_INFO)

    async def cluster_infos(self) -> dict[str, ClusterInfo | RocketError]:
        """Return the same as each name server sees it, by its address; for a server without an answer, its error."""
        return await self._servers.each(self._servers.name_servers, CLUSTER_INFO)

    async def broker_member_group(self, cluster: str, broker: str) -> BrokerMemberGroup:
        """Return the addresses under a broker name by id, 0 is the master; none for a name that is not known."""

        def read(answer: RemotingCommand) -> BrokerMemberGroup:
            found = GetBrokerMemberGroupResponseBody.decode(answer.body).broker_member_group
            return found or BrokerMemberGroup(cluster, broker)

        header = GetBrokerMemberGroupRequestHeader(cluster_name=cluster, broker_name=broker)
        request = Request(RequestCode.GET_BROKER_MEMBER_GROUP, f"members of broker {broker!r}", read, header)

        async def members(remoting: Remoting, address: str, timeout: float) -> BrokerMemberGroup:
            deadline = Deadline(timeout, self._servers.clock)
            info, version = await CLUSTER_INFO_AND_VERSION(remoting, address, timeout)
            if version >= Version.V5_0_0:  # an older one would not answer
                return await request(remoting, address, deadline.remaining())
            data = info.broker_addr_table.get(broker)
            return BrokerMemberGroup(cluster, broker, {} if data is None else data.broker_addrs)

        return await self._servers.ask(members)

    async def broker_status(self, *, cluster: str | None = None, broker: str | None = None) -> list[BrokerStatus]:
        """Return every registered broker with what it says of itself; all are asked at the same time.

        A broker that does not answer all requests is in the list with its error. Sorted by cluster, name and id.

        cluster, broker  only the brokers of this cluster, of this name
        raises           RouteNotFound where no such broker is registered
        """
        deadline = self._servers.deadline()
        info = await self._servers.ask(CLUSTER_INFO, deadline)
        wanted = [
            (data.cluster, name, broker_id, address, data.zone_name)
            for name, data in info.broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
            if broker in (None, name) and (cluster is None or name in info.cluster_addr_table.get(cluster, ()))
        ]
        if not wanted and (broker is not None or cluster is not None):
            raise no_broker(broker, cluster)

        async def ask(
            remoting: Remoting, address: str, timeout: float
        ) -> tuple[dict[str, str] | None, int | None, BrokerError | None]:
            within = Deadline(timeout, self._servers.clock)
            runtime, count, refusal = None, None, None
            try:
                runtime = await BROKER_RUNTIME_INFO(remoting, address, timeout)
            except BrokerError as error:
                refusal = error
            try:
                topics, total = await broker_topics(0, 1)(remoting, address, within.remaining())
                count = len(topics) if total is None else total
            except BrokerError as error:
                refusal = refusal or error
            return runtime, count, refusal

        answers = await self._servers.each([address for *_, address, _ in wanted], ask, deadline)
        result = []
        for member in sorted(wanted, key=lambda each: each[:3]):
            answer = answers[member[3]]
            if isinstance(answer, RocketError):
                result.append(BrokerStatus(*member, None, None, answer))
            else:
                result.append(BrokerStatus(*member, *answer))
        return result

    async def broker_topics(self, address: str) -> dict[str, TopicConfig]:
        """Return the topics that a broker has, by name, system topics included (Java: ``getAllTopicConfig``)."""
        return await self.topics_at(address, self._servers.deadline())

    async def topics_at(self, address: str, deadline: Deadline) -> dict[str, TopicConfig]:
        """As ``broker_topics``, within a time."""
        topics = await self._servers.paged(lambda known: broker_topics(known, _TOPICS_PER_PAGE), address, deadline)
        return dict(sorted(topics.items()))

    async def broker_runtime_info(self, address: str) -> dict[str, str]:
        """Return counters and state of a broker, by RocketMQ's names (Java: ``fetchBrokerRuntimeStats``)."""
        return await BROKER_RUNTIME_INFO(self._servers.connections(), address, self._servers.timeout)

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of a broker."""
        return await BROKER_CONFIG(self._servers.connections(), address, self._servers.timeout)

    async def update_broker_config(self, address: str, properties: Mapping[str, str]) -> str | None:
        """Change settings of a running broker; raises NoPermission for a protected one.

        returns  the broker's remark: ours names the settings that do not take effect at once
        """
        request = change_of(RequestCode.UPDATE_BROKER_CONFIG, properties, _remark)
        return await request(self._servers.connections(), address, self._servers.timeout)

    async def clean_broker(self, address: str, *, unused_topics: bool = False) -> None:
        """Have a broker delete what is older than its ``fileReservedTime``, now and not at its hour ``deleteWhen``.

        It does so soon after it answered. Files of consume queues that lead to what was deleted before go, too.

        unused_topics  delete the queues of topics that it has no settings for as well: their messages are gone then

        Java: ``deleteExpiredCommitLog``, ``cleanExpiredConsumerQueue``, ``cleanUnusedTopic``
        """
        deadline = self._servers.deadline()
        requests = [
            Request(RequestCode.DELETE_EXPIRED_COMMITLOG, "deletion of old files of the log", done),
            Request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, "deletion of old files of queues", done),
        ]
        if unused_topics:
            requests.append(Request(RequestCode.CLEAN_UNUSED_TOPIC, "deletion of topics without settings", done))
        for request in requests:
            await request(self._servers.connections(), address, deadline.remaining())

    async def wipe_write_permission(self, broker: str) -> int:
        """Take the write permission from a broker's topics at every name server; return how many topics there are.

        Producers go elsewhere when they next refresh their routes, every 30 s by default; consumers read on. It lasts
        until the broker registers a change of a topic, or restarts. 0 says that no name server knows the broker
        (Java: ``wipeWritePermOfBroker``).

        raises  PartlyDone where some name servers fail
        """
        request = Request(
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            f"wiping permissions of {broker!r}",
            lambda answer: answer.header(WipeWritePermOfBrokerResponseHeader).wipe_topic_count,
            WipeWritePermOfBrokerRequestHeader(broker_name=broker),
        )
        counts = await self._servers.everywhere(request, f"wiping the write permission of broker {broker!r}")
        return max(counts.values())

    async def add_write_permission(self, broker: str) -> int:
        """Give it back; return how many topics there are, 0 for a broker that no name server knows.

        Name servers keep no record of the old permissions: afterwards every topic of the broker is readable and
        writable, even if the broker itself forbids writing (Java: ``addWritePermOfBroker``).

        raises  PartlyDone where some name servers fail
        """
        request = Request(
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            f"adding permissions of {broker!r}",
            lambda answer: answer.header(AddWritePermOfBrokerResponseHeader).add_topic_count,
            AddWritePermOfBrokerRequestHeader(broker_name=broker),
        )
        counts = await self._servers.everywhere(request, f"adding the write permission of broker {broker!r}")
        return max(counts.values())

    async def data_versions(
        self, broker: str, *, broker_id: int = MASTER_ID
    ) -> dict[str, DataVersion | RocketError | None]:
        """Return which version of a broker's topics each name server holds, by the name server's address.

        None where it does not know the broker, its error where it does not answer. A name server of 5.x takes the
        question for a sign of life of the broker (Java: ``QUERY_DATA_VERSION``).

        raises  RouteNotFound for a broker that is not registered
        """
        from rocketcore.protocol.bodies.topic import DataVersion

        deadline = self._servers.deadline()
        data = (await self._servers.ask(CLUSTER_INFO, deadline)).broker_addr_table.get(broker)
        if data is None or broker_id not in data.broker_addrs:
            raise no_broker(broker, None)
        request = Request(
            RequestCode.QUERY_DATA_VERSION,
            f"data version of broker {broker!r}",
            lambda answer: DataVersion.decode(answer.body) if answer.body else None,
            QueryDataVersionRequestHeader(
                broker_name=broker,
                broker_addr=data.broker_addrs[broker_id],
                cluster_name=data.cluster,
                broker_id=broker_id,
            ),
            DataVersion().encode(),
        )
        return await self._servers.each(self._servers.name_servers, request, deadline)


def _remark(answer: RemotingCommand) -> str | None:
    return answer.remark
