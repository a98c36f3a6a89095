"""ClusterAdmin: what an operator asks of name servers, and of brokers as servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from rocketcore.admin.base import AdminBase, no_broker
from rocketcore.admin.requests import (
    BROKER_CONFIG,
    BROKER_RUNTIME_INFO,
    CLUSTER_INFO,
    CLUSTER_INFO_AND_VERSION,
    Request,
    broker_topics,
    delete_kv,
    delete_topic_in_namesrv,
    done,
    properties_in,
    property_lines,
    put_kv,
    table_in,
    topic_list,
)
from rocketcore.codes import MASTER_ID, ORDER_TOPIC_NAMESPACE, RequestCode, Version
from rocketcore.errors import (
    BrokerError,
    QueryNotFound,
    RequestNotSupported,
    RocketError,
    RouteNotFound,
    TransportError,
)
from rocketcore.protocol.bodies.route import (
    BrokerMemberGroup,
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from rocketcore.protocol.headers.nameserver import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    GetBrokerMemberGroupRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetTopicsByClusterRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterTopicRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.topic import DataVersion, TopicConfig
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.transport.remoting import Remoting

T = TypeVar("T")

__all__ = ["BrokerStatus", "ClusterAdmin"]

_NAMESRV_CONFIG: Final = Request(RequestCode.GET_NAMESRV_CONFIG, "settings of the name server", properties_in)

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


class ClusterAdmin(AdminBase):
    """The part of ``AsyncAdmin`` about clusters, brokers and name servers."""

    # Topics as name servers list them

    async def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of those of one cluster, sorted; system topics are included.

        A cluster that does not exist has none.
        """
        if cluster is None:
            return await self._listed(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        header = GetTopicsByClusterRequestHeader(cluster=cluster)
        what = f"list of topics of cluster {cluster!r}"
        return sorted((await self._ask(topic_list(RequestCode.GET_TOPICS_BY_CLUSTER, what, header))).topic_list)

    async def system_topics(self) -> list[str]:
        """Return the topics that no user made, sorted: names of clusters and brokers, and what a broker has for itself.

        The name server names a broker that it knows, which is asked as well (Java: ``getSystemTopicList``).
        """
        deadline = self._deadline()
        found = await self._ask(topic_list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS), deadline)
        names = set(found.topic_list)
        if found.broker_addr:
            of_broker = topic_list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, "system topics of the broker")
            answer = await of_broker(self._connections(), found.broker_addr, deadline.remaining())
            names.update(answer.topic_list)
        return sorted(names)

    async def unit_topics(self) -> list[str]:
        """Return the topics that belong to a unit, sorted (Java: ``getUnitTopicList``)."""
        return await self._listed(RequestCode.GET_UNIT_TOPIC_LIST)

    async def unit_sub_topics(self) -> list[str]:
        """Return the topics that a unit subscribes to, sorted (Java: ``getHasUnitSubTopicList``)."""
        return await self._listed(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)

    async def unit_sub_ununit_topics(self) -> list[str]:
        """Return those of them that belong to no unit, sorted (Java: ``getHasUnitSubUnUnitTopicList``)."""
        return await self._listed(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)

    async def delete_topic_in_namesrv(self, topic: str, *, cluster: str | None = None) -> None:
        """Make every name server forget a topic, or its queues on one cluster; no error where there is none.

        Brokers keep it, and bring it back when they register the next change of a topic: ``delete_topic`` deletes it
        there first (Java: ``deleteTopicInNameServer``).

        raises  PartlyDone where some name servers fail
        """
        await self._everywhere(delete_topic_in_namesrv(topic, cluster))

    async def register_topic(self, topic: str, queues: Sequence[QueueData]) -> None:
        """Tell every name server of queues that a topic has on registered brokers; the brokers are not asked [5.x].

        raises  RouteNotFound for a broker that a name server does not know, RequestNotSupported by one of 4.9,
                PartlyDone where some of them fail
        """

        what = f"registration of topic {topic!r}"
        header = RegisterTopicRequestHeader(topic=topic)
        body = TopicRouteData(queue_datas=list(queues)).encode()
        request = Request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, what, done, header, body)

        async def register(remoting: Remoting, address: str, timeout: float) -> None:
            deadline = Deadline(timeout, self._clock)
            info, version = await CLUSTER_INFO_AND_VERSION(remoting, address, timeout)
            if version < Version.V5_0_0:  # it would not answer
                refusal = "a name server of 4.9 takes no topics of others than brokers"
                raise RequestNotSupported(RequestNotSupported.response_code, refusal, address, what)
            # The server says nothing of a broker that it does not know, and leaves out what follows it.
            unknown = sorted({queue.broker_name for queue in queues} - info.broker_addr_table.keys())
            if unknown:
                raise RouteNotFound(f"{address} does not know {', '.join(unknown)}")
            await request(remoting, address, deadline.remaining())

        await self._everywhere(register, what)

    # Clusters and brokers

    async def cluster_info(self) -> ClusterInfo:
        """Return clusters, their broker names, and the addresses of each (Java: ``examineBrokerClusterInfo``)."""
        return await self._ask(CLUSTER_INFO)

    async def cluster_infos(self) -> dict[str, ClusterInfo | RocketError]:
        """Return the same as each name server sees it, by its address; the error of one that does not answer."""
        return await self._each(self._name_servers, CLUSTER_INFO)

    async def broker_member_group(self, cluster: str, broker: str) -> BrokerMemberGroup:
        """Return the addresses under a broker name by id, 0 is the master; none for a name that is not known."""

        def read(answer: RemotingCommand) -> BrokerMemberGroup:
            found = GetBrokerMemberGroupResponseBody.decode(answer.body).broker_member_group
            return found or BrokerMemberGroup(cluster, broker)

        header = GetBrokerMemberGroupRequestHeader(cluster_name=cluster, broker_name=broker)
        request = Request(RequestCode.GET_BROKER_MEMBER_GROUP, f"members of broker {broker!r}", read, header)

        async def members(remoting: Remoting, address: str, timeout: float) -> BrokerMemberGroup:
            deadline = Deadline(timeout, self._clock)
            info, version = await CLUSTER_INFO_AND_VERSION(remoting, address, timeout)
            if version >= Version.V5_0_0:  # an older one would not answer
                return await request(remoting, address, deadline.remaining())
            data = info.broker_addr_table.get(broker)
            return BrokerMemberGroup(cluster, broker, {} if data is None else data.broker_addrs)

        return await self._ask(members)

    async def broker_status(self, *, cluster: str | None = None, broker: str | None = None) -> list[BrokerStatus]:
        """Return every registered broker with what it says of itself; all are asked at the same time.

        One that does not answer, or not to all, is in the list with its error. Sorted by cluster, name and id.

        cluster, broker  only the brokers of this cluster, of this name
        raises           RouteNotFound where no such broker is registered
        """
        deadline = self._deadline()
        info = await self._ask(CLUSTER_INFO, deadline)
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
            within = Deadline(timeout, self._clock)
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

        answers = await self._each([address for *_, address, _ in wanted], ask, deadline)
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
        return await self._topics_of(address, self._deadline())

    async def _topics_of(self, address: str, deadline: Deadline) -> dict[str, TopicConfig]:
        result: dict[str, TopicConfig] = {}
        while True:
            request = broker_topics(len(result), _TOPICS_PER_PAGE)
            page, total = await request(self._connections(), address, deadline.remaining())
            before = len(result)
            result.update(page)
            if total is None or len(result) >= total or len(result) == before:
                return dict(sorted(result.items()))

    async def broker_runtime_info(self, address: str) -> dict[str, str]:
        """Return counters and state of a broker, by RocketMQ's names (Java: ``fetchBrokerRuntimeStats``)."""
        return await BROKER_RUNTIME_INFO(self._connections(), address, self.timeout)

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of a broker."""
        return await BROKER_CONFIG(self._connections(), address, self.timeout)

    async def update_broker_config(self, address: str, properties: Mapping[str, str]) -> str | None:
        """Change settings of a running broker; raises NoPermission for a protected one.

        returns  what the broker remarks: ours names the settings that do not count at once
        """
        request = _change_of(RequestCode.UPDATE_BROKER_CONFIG, properties, _remark)
        return await request(self._connections(), address, self.timeout)

    async def clean_broker(self, address: str, *, unused_topics: bool = False) -> None:
        """Have a broker delete what is older than its ``fileReservedTime``, now and not at its hour ``deleteWhen``.

        It does so soon after it answered. Files of consume queues that lead to what was deleted before go, too.

        unused_topics  delete the queues of topics that it has no settings for as well: their messages are gone then

        Java: ``deleteExpiredCommitLog``, ``cleanExpiredConsumerQueue``, ``cleanUnusedTopic``
        """
        deadline = self._deadline()
        requests = [
            Request(RequestCode.DELETE_EXPIRED_COMMITLOG, "deletion of old files of the log", done),
            Request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, "deletion of old files of queues", done),
        ]
        if unused_topics:
            requests.append(Request(RequestCode.CLEAN_UNUSED_TOPIC, "deletion of topics without settings", done))
        for request in requests:
            await request(self._connections(), address, deadline.remaining())

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
        counts = await self._everywhere(request, f"wiping the write permission of broker {broker!r}")
        return max(counts.values())

    async def add_write_permission(self, broker: str) -> int:
        """Give it back; return how many topics there are, 0 for a broker that no name server knows.

        Name servers keep no record of what was taken: every topic of the broker is readable and writable then, also one
        that the broker itself does not allow to be written (Java: ``addWritePermOfBroker``).

        raises  PartlyDone where some name servers fail
        """
        request = Request(
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            f"adding permissions of {broker!r}",
            lambda answer: answer.header(AddWritePermOfBrokerResponseHeader).add_topic_count,
            AddWritePermOfBrokerRequestHeader(broker_name=broker),
        )
        counts = await self._everywhere(request, f"adding the write permission of broker {broker!r}")
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

        deadline = self._deadline()
        data = (await self._ask(CLUSTER_INFO, deadline)).broker_addr_table.get(broker)
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
        return await self._each(self._name_servers, request, deadline)

    # Name servers

    async def namesrv_config(self, address: str | None = None) -> dict[str, str]:
        """Return the settings of a name server, of the first that answers where none is named."""
        if address is not None:
            return await _NAMESRV_CONFIG(self._connections(), address, self.timeout)
        return await self._ask(_NAMESRV_CONFIG)

    async def namesrv_configs(self) -> dict[str, dict[str, str] | RocketError]:
        """Return the settings of each name server by its address; the error of one that does not answer."""
        return await self._each(self._name_servers, _NAMESRV_CONFIG)

    async def update_namesrv_config(self, properties: Mapping[str, str]) -> None:
        """Change settings of every name server (Java: ``updateNameServerConfig``).

        A name that a server does not have changes nothing there and is no error.

        raises  NoPermission for a protected setting, PartlyDone where some name servers fail
        """
        await self._everywhere(_change_of(RequestCode.UPDATE_NAMESRV_CONFIG, properties, done))

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """Return a value of the name servers' key-value table; None where there is none."""
        try:
            return await self._ask(_value_of(namespace, key))
        except QueryNotFound:
            return None

    async def list_kv(self, namespace: str) -> dict[str, str]:
        """Return a namespace of that table; raises QueryNotFound where it was never used."""
        request = Request(
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            f"keys of namespace {namespace!r}",
            lambda answer: table_in(answer) if answer.body else {},
            GetKVListByNamespaceRequestHeader(namespace=namespace),
        )
        return await self._ask(request)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value at every name server; raises PartlyDone where some fail."""
        await self._everywhere(put_kv(namespace, key, value))

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value at every name server; one that is not there is no error. Raises PartlyDone where some fail."""
        await self._everywhere(delete_kv(namespace, key))

    async def _put_order(
        self,
        topic: str,
        write_queues: Mapping[str, int | None],
        name_servers: Iterable[str],
        deadline: Deadline,
        *,
        whole: bool = False,
    ) -> None:
        """Keep at every name server how many queues each broker has for an ordered topic; None: it has no order there.

        name_servers  those that answer; what they have of other brokers stays
        whole         these are all brokers: nothing of others stays
        """
        half = Deadline(deadline.remaining() / 2, self._clock)  # one that is silent by now leaves time for the change
        answers = await self._each(name_servers, _value_of(ORDER_TOPIC_NAMESPACE, topic), half)
        there = [value for value in answers.values() if isinstance(value, str)]
        counts: dict[str, object] = {}
        for value in () if whole else there:
            counts = dict(part.rpartition(":")[::2] for part in value.split(";") if ":" in part) | counts
        counts |= write_queues
        value = ";".join(f"{name}:{count}" for name, count in sorted(counts.items()) if count is not None)
        if value:
            change = put_kv(ORDER_TOPIC_NAMESPACE, topic, value)
        elif there:
            change = delete_kv(ORDER_TOPIC_NAMESPACE, topic)
        else:
            return
        await self._everywhere(change, f"order configuration of topic {topic!r}", deadline=deadline)

    async def _listed(self, code: RequestCode) -> list[str]:
        return sorted((await self._ask(topic_list(code))).topic_list)


def _value_of(namespace: str, key: str) -> Request[str | None]:
    return Request(
        RequestCode.GET_KV_CONFIG,
        f"value of {key!r} in {namespace!r}",
        lambda answer: answer.header(GetKVConfigResponseHeader).value,
        GetKVConfigRequestHeader(namespace=namespace, key=key),
    )


def _change_of(code: RequestCode, properties: Mapping[str, str], read: Callable[[RemotingCommand], T]) -> Request[T]:
    return Request(code, f"change of {', '.join(properties)}", read, body=property_lines(properties))


def _remark(answer: RemotingCommand) -> str | None:
    return answer.remark
