"""What administration asks of name servers and brokers beyond what clients ask: one coroutine per request.

Each takes the connections (``Remoting``), the address and the timeout in seconds, and returns a plain value; an answer
whose code is not a success raises its ``BrokerError``. Bodies are looked up when they are used: to make all their
classes takes longer than most questions. RocketMQ 5.5.0: ``MQClientAPIImpl``, methods of ``MQAdminExt``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rocketcore.codes import AUTO_CREATE_TOPIC, RequestCode, ResponseCode
from rocketcore.config_file import format_properties, parse_properties
from rocketcore.errors import ConfigError
from rocketcore.protocol.bodies.client import ConsumerConnection
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rocketcore.protocol.bodies.route import (
    BrokerMemberGroup,
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from rocketcore.protocol.bodies.stats import ConsumeStats, TopicStatsTable
from rocketcore.protocol.bodies.topic import DataVersion, KVTable, TopicConfig, TopicConfigSerializeWrapper, TopicList
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetAllTopicConfigResponseHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from rocketcore.protocol.headers.nameserver import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterTopicRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)

if TYPE_CHECKING:
    from rocketcore.protocol.schema import Header
    from rocketcore.transport.client import Remoting

__all__ = [
    "add_write_permission",
    "broker_config",
    "broker_member_group",
    "broker_runtime_info",
    "broker_topics",
    "cluster_info",
    "cluster_info_and_version",
    "consume_stats",
    "consumer_connection",
    "create_group",
    "create_topic",
    "data_version",
    "delete_group",
    "delete_kv",
    "delete_topic_in_broker",
    "delete_topic_in_name_server",
    "get_kv",
    "groups",
    "list_kv",
    "namesrv_config",
    "put_kv",
    "register_topic",
    "system_topics_of_broker",
    "topic_list",
    "topic_stats",
    "topics_of_cluster",
    "update_broker_config",
    "update_namesrv_config",
    "wipe_write_permission",
]


async def _ask(
    remoting: Remoting,
    address: str,
    code: RequestCode,
    timeout: float,
    what: str,
    header: Header | None = None,
    body: bytes = b"",
) -> RemotingCommand:
    response = await remoting.invoke(address, RemotingCommand.request(code, header, body), timeout)
    response.raise_for_code(address, what)
    return response


# Name servers


async def topic_list(
    remoting: Remoting,
    address: str,
    timeout: float,
    code: RequestCode = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
) -> TopicList:
    """Return the names of all topics, system topics included; another ``code`` asks for another of the lists."""
    response = await _ask(remoting, address, code, timeout, "list of topics")
    return TopicList.decode(response.body) if response.body else TopicList()


async def topics_of_cluster(remoting: Remoting, address: str, cluster: str, timeout: float) -> list[str]:
    """Return the topics of a cluster; none where no name server knows the cluster."""
    response = await _ask(
        remoting, address, RequestCode.GET_TOPICS_BY_CLUSTER, timeout, f"list of topics of cluster {cluster!r}",
        GetTopicsByClusterRequestHeader(cluster=cluster),
    )  # fmt: skip
    return TopicList.decode(response.body).topic_list if response.body else []


async def cluster_info(remoting: Remoting, address: str, timeout: float) -> ClusterInfo:
    """Return clusters, their broker names, and the addresses of each."""
    info, _ = await cluster_info_and_version(remoting, address, timeout)
    return info


async def cluster_info_and_version(remoting: Remoting, address: str, timeout: float) -> tuple[ClusterInfo, int]:
    """Return the same with the ordinal of the release that the name server is of, which every answer carries."""
    response = await _ask(remoting, address, RequestCode.GET_BROKER_CLUSTER_INFO, timeout, "list of brokers")
    return ClusterInfo.decode(response.body), response.version


async def delete_topic_in_name_server(
    remoting: Remoting, address: str, topic: str, cluster: str | None, timeout: float
) -> None:
    """Make a name server forget a topic, or its queues on the brokers of one cluster."""
    await _ask(
        remoting, address, RequestCode.DELETE_TOPIC_IN_NAMESRV, timeout, f"deletion of topic {topic!r}",
        DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster),
    )  # fmt: skip


async def register_topic(remoting: Remoting, address: str, topic: str, queues: list[QueueData], timeout: float) -> None:
    """Tell a name server of a topic [5.x]; one of 4.9 does not answer."""
    await _ask(
        remoting, address, RequestCode.REGISTER_TOPIC_IN_NAMESRV, timeout, f"registration of topic {topic!r}",
        RegisterTopicRequestHeader(topic=topic), TopicRouteData(queue_datas=queues).encode(),
    )  # fmt: skip


async def broker_member_group(
    remoting: Remoting, address: str, cluster: str, broker_name: str, timeout: float
) -> BrokerMemberGroup:
    """Return the addresses under a broker name by id [5.x]; one of 4.9 does not answer."""
    response = await _ask(
        remoting, address, RequestCode.GET_BROKER_MEMBER_GROUP, timeout, f"members of broker {broker_name!r}",
        GetBrokerMemberGroupRequestHeader(cluster_name=cluster, broker_name=broker_name),
    )  # fmt: skip
    found = GetBrokerMemberGroupResponseBody.decode(response.body).broker_member_group
    return found or BrokerMemberGroup(cluster, broker_name)


async def data_version(
    remoting: Remoting,
    address: str,
    cluster: str,
    broker_name: str,
    broker_id: int,
    broker_address: str,
    timeout: float,
) -> DataVersion | None:
    """Return the version of a broker's topics that a name server holds; None where it does not know the broker."""
    response = await _ask(
        remoting, address, RequestCode.QUERY_DATA_VERSION, timeout, f"data version of broker {broker_name!r}",
        QueryDataVersionRequestHeader(
            broker_name=broker_name, broker_addr=broker_address, cluster_name=cluster, broker_id=broker_id
        ),
        DataVersion().encode(),
    )  # fmt: skip
    return DataVersion.decode(response.body) if response.body else None


async def get_kv(remoting: Remoting, address: str, namespace: str, key: str, timeout: float) -> str | None:
    """Return a value of the key-value table; None where there is none."""
    request = RemotingCommand.request(RequestCode.GET_KV_CONFIG, GetKVConfigRequestHeader(namespace=namespace, key=key))
    response = await remoting.invoke(address, request, timeout)
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    response.raise_for_code(address, f"value of {key!r} in {namespace!r}")
    return response.header(GetKVConfigResponseHeader).value


async def list_kv(remoting: Remoting, address: str, namespace: str, timeout: float) -> dict[str, str]:
    """Return a namespace of the key-value table; raises QueryNotFound where it was never used."""
    response = await _ask(
        remoting, address, RequestCode.GET_KVLIST_BY_NAMESPACE, timeout, f"keys of namespace {namespace!r}",
        GetKVListByNamespaceRequestHeader(namespace=namespace),
    )  # fmt: skip
    return KVTable.decode(response.body).table if response.body else {}


async def put_kv(remoting: Remoting, address: str, namespace: str, key: str, value: str, timeout: float) -> None:
    """Set a value at one name server."""
    await _ask(
        remoting, address, RequestCode.PUT_KV_CONFIG, timeout, f"setting {key!r} in {namespace!r}",
        PutKVConfigRequestHeader(namespace=namespace, key=key, value=value),
    )  # fmt: skip


async def delete_kv(remoting: Remoting, address: str, namespace: str, key: str, timeout: float) -> None:
    """Delete a value at one name server."""
    await _ask(
        remoting, address, RequestCode.DELETE_KV_CONFIG, timeout, f"deletion of {key!r} in {namespace!r}",
        DeleteKVConfigRequestHeader(namespace=namespace, key=key),
    )  # fmt: skip


async def namesrv_config(remoting: Remoting, address: str, timeout: float) -> dict[str, str]:
    """Return the settings of a name server."""
    response = await _ask(remoting, address, RequestCode.GET_NAMESRV_CONFIG, timeout, "settings of the name server")
    return _properties(response.body)


async def update_namesrv_config(
    remoting: Remoting, address: str, properties: Mapping[str, str], timeout: float
) -> None:
    """Change settings of a name server; raises NoPermission for a protected one."""
    await _ask(
        remoting, address, RequestCode.UPDATE_NAMESRV_CONFIG, timeout, f"change of {', '.join(properties)}",
        body=_property_lines(properties),
    )  # fmt: skip


async def wipe_write_permission(remoting: Remoting, address: str, broker_name: str, timeout: float) -> int:
    """Take the write permission from the topics of a broker at one name server; return how many there are."""
    response = await _ask(
        remoting, address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, timeout, f"wiping permissions of {broker_name!r}",
        WipeWritePermOfBrokerRequestHeader(broker_name=broker_name),
    )  # fmt: skip
    return response.header(WipeWritePermOfBrokerResponseHeader).wipe_topic_count


async def add_write_permission(remoting: Remoting, address: str, broker_name: str, timeout: float) -> int:
    """Give the topics of a broker the write permission at one name server; return how many there are."""
    response = await _ask(
        remoting, address, RequestCode.ADD_WRITE_PERM_OF_BROKER, timeout, f"adding permissions of {broker_name!r}",
        AddWritePermOfBrokerRequestHeader(broker_name=broker_name),
    )  # fmt: skip
    return response.header(AddWritePermOfBrokerResponseHeader).add_topic_count


# Brokers


async def create_topic(remoting: Remoting, address: str, config: TopicConfig, timeout: float) -> None:
    """Create a topic at one broker, or change it."""
    if config.topic_filter_type is None:
        raise ValueError("a topic needs a filter type")
    attributes = ",".join(f"+{name}={value}" for name, value in config.attributes.items())
    header = CreateTopicRequestHeader(
        topic=config.topic_name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type.name,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=attributes or None,
    )
    await _ask(
        remoting, address, RequestCode.UPDATE_AND_CREATE_TOPIC, timeout, f"creation of topic {config.topic_name!r}",
        header,
    )  # fmt: skip


async def delete_topic_in_broker(remoting: Remoting, address: str, topic: str, timeout: float) -> None:
    """Delete a topic and its messages at one broker."""
    await _ask(
        remoting, address, RequestCode.DELETE_TOPIC_IN_BROKER, timeout, f"deletion of topic {topic!r}",
        DeleteTopicRequestHeader(topic=topic),
    )  # fmt: skip


async def topic_stats(remoting: Remoting, address: str, topic: str, timeout: float) -> TopicStatsTable:
    """Return the bounds of a topic's queues at one broker."""
    response = await _ask(
        remoting, address, RequestCode.GET_TOPIC_STATS_INFO, timeout, f"offsets of topic {topic!r}",
        GetTopicStatsInfoRequestHeader(topic=topic),
    )  # fmt: skip
    return TopicStatsTable.decode(response.body)


async def broker_topics(
    remoting: Remoting, address: str, first: int, most: int, timeout: float
) -> tuple[dict[str, TopicConfig], int | None]:
    """Return topics of a broker from a position on and how many it has in all; None: these are all.

    ``most`` is a wish: brokers of 4.9, and ours, answer with every topic, others with at most 2000.
    """
    response = await _ask(
        remoting, address, RequestCode.GET_ALL_TOPIC_CONFIG, timeout, "topics of the broker",
        GetAllTopicConfigRequestHeader(topic_seq=first, max_topic_num=most),
    )  # fmt: skip
    total = response.header(GetAllTopicConfigResponseHeader).total_topic_num
    return TopicConfigSerializeWrapper.decode(response.body).topic_config_table, total


async def system_topics_of_broker(remoting: Remoting, address: str, timeout: float) -> list[str]:
    """Return the topics that a broker made for itself."""
    response = await _ask(
        remoting, address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, timeout, "system topics of the broker"
    )
    return TopicList.decode(response.body).topic_list if response.body else []


async def broker_runtime_info(remoting: Remoting, address: str, timeout: float) -> dict[str, str]:
    """Return counters and state of a broker, by RocketMQ's names."""
    response = await _ask(remoting, address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout, "state of the broker")
    return KVTable.decode(response.body).table


async def broker_config(remoting: Remoting, address: str, timeout: float) -> dict[str, str]:
    """Return the settings of a broker."""
    response = await _ask(remoting, address, RequestCode.GET_BROKER_CONFIG, timeout, "settings of the broker")
    return _properties(response.body)


async def update_broker_config(remoting: Remoting, address: str, properties: Mapping[str, str], timeout: float) -> None:
    """Change settings of a broker; raises NoPermission for a protected one."""
    await _ask(
        remoting, address, RequestCode.UPDATE_BROKER_CONFIG, timeout, f"change of {', '.join(properties)}",
        body=_property_lines(properties),
    )  # fmt: skip


async def consumer_connection(remoting: Remoting, address: str, group: str, timeout: float) -> ConsumerConnection:
    """Return the members of a group that one broker sees; raises ConsumerNotOnline without any."""
    response = await _ask(
        remoting, address, RequestCode.GET_CONSUMER_CONNECTION_LIST, timeout, f"members of group {group!r}",
        GetConsumerConnectionListRequestHeader(consumer_group=group),
    )  # fmt: skip
    return ConsumerConnection.decode(response.body)


async def consume_stats(
    remoting: Remoting, address: str, group: str, topic: str | None, timeout: float
) -> ConsumeStats:
    """Return where a group is in its queues at one broker, in one topic or in all."""
    response = await _ask(
        remoting, address, RequestCode.GET_CONSUME_STATS, timeout, f"offsets of group {group!r}",
        GetConsumeStatsRequestHeader(consumer_group=group, topic=topic),
    )  # fmt: skip
    return ConsumeStats.decode(response.body)


async def groups(remoting: Remoting, address: str, timeout: float) -> dict[str, SubscriptionGroupConfig]:
    """Return the consumer groups of one broker by name."""
    response = await _ask(
        remoting, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout, "list of groups",
        GetAllSubscriptionGroupRequestHeader(group_seq=0),
    )  # fmt: skip
    return SubscriptionGroupWrapper.decode(response.body).subscription_group_table


async def create_group(remoting: Remoting, address: str, config: SubscriptionGroupConfig, timeout: float) -> None:
    """Create a consumer group at one broker, or change it."""
    await _ask(
        remoting, address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, timeout,
        f"creation of group {config.group_name!r}", body=config.encode(),
    )  # fmt: skip


async def delete_group(remoting: Remoting, address: str, group: str, timeout: float, *, offsets: bool) -> None:
    """Delete a consumer group at one broker, its offsets as well if asked."""
    await _ask(
        remoting, address, RequestCode.DELETE_SUBSCRIPTIONGROUP, timeout, f"deletion of group {group!r}",
        DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=offsets, remove_offset=offsets),
    )  # fmt: skip


def _property_lines(properties: Mapping[str, str]) -> bytes:
    """Return settings as they are sent; raises ConfigError for one that would become another, or several."""
    for name, value in properties.items():
        if "=" in name or any(end in text for text in (name, value) for end in "\r\n"):
            raise ConfigError(f"a setting is a name without '=' and a value of one line, got {name!r}: {value!r}")
    return format_properties(properties).encode()


def _properties(body: bytes) -> dict[str, str]:
    return parse_properties(body.decode("utf-8", "replace").replace("\\", "\\\\"))
