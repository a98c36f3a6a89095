"""A request of administration as a value, and those that more than one operation makes.

Bodies are imported where they are read: to make their classes takes longer than most questions.

RocketMQ 5.5.0: ``MQClientAPIImpl``, methods of ``MQAdminExt``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from rocketcore.codes import AUTO_CREATE_TOPIC, RequestCode
from rocketcore.config_file import format_properties, parse_properties
from rocketcore.errors import ConfigError
from rocketcore.protocol.bodies.route import ClusterInfo
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import (
    CreateOnlyResponseHeader,
    CreateTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetAllTopicConfigResponseHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from rocketcore.protocol.headers.nameserver import (
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    PutKVConfigRequestHeader,
)

if TYPE_CHECKING:
    from rocketcore.message_queue import MessageQueue
    from rocketcore.protocol.bodies.stats import TopicOffset
    from rocketcore.protocol.bodies.topic import TopicConfig, TopicList
    from rocketcore.protocol.schema import Header
    from rocketcore.transport.remoting import Remoting

__all__ = [
    "BROKER_CONFIG",
    "BROKER_RUNTIME_INFO",
    "CLUSTER_INFO",
    "CLUSTER_INFO_AND_VERSION",
    "Request",
    "broker_topics",
    "change_of",
    "create_topic",
    "delete_kv",
    "delete_topic_in_namesrv",
    "done",
    "properties_in",
    "property_lines",
    "put_kv",
    "signed_attributes",
    "table_in",
    "topic_config",
    "topic_list",
    "topic_stats",
    "was_created",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """What is asked of one server, and how its answer is read.

    what  the request in words, for errors
    read  answer → value; it is called for an answer of success alone
    """

    code: RequestCode
    what: str
    read: Callable[[RemotingCommand], T]
    header: Header | None = None
    body: bytes = b""

    async def __call__(self, remoting: Remoting, address: str, timeout: float) -> T:
        """Ask a server, for at most ``timeout`` seconds; raises the BrokerError of a code that is not a success."""
        response = await remoting.invoke(address, RemotingCommand.request(self.code, self.header, self.body), timeout)
        response.raise_for_code(address, self.what)
        return self.read(response)


def done(_: RemotingCommand) -> None:
    """Read an answer that says no more than that it was done."""


def topics_in(answer: RemotingCommand) -> TopicList:
    """Read a list of topics; an answer without a body is an empty one."""
    from rocketcore.protocol.bodies.topic import TopicList

    return TopicList.decode(answer.body) if answer.body else TopicList()


def table_in(answer: RemotingCommand) -> dict[str, str]:
    """Read names and values."""
    from rocketcore.protocol.bodies.topic import KVTable

    return KVTable.decode(answer.body).table


def properties_in(answer: RemotingCommand) -> dict[str, str]:
    """Read the settings of a server."""
    return parse_properties(answer.body.decode("utf-8", "replace").replace("\\", "\\\\"))


def property_lines(properties: Mapping[str, str]) -> bytes:
    """Return settings as they are sent; raises ConfigError for one that would become another, or several."""
    for name, value in properties.items():
        if "=" in name or any(end in text for text in (name, value) for end in "\r\n"):
            raise ConfigError(f"a setting is a name without '=' and a value of one line, got {name!r}: {value!r}")
    return format_properties(properties).encode()


CLUSTER_INFO: Final = Request(
    RequestCode.GET_BROKER_CLUSTER_INFO, "list of brokers", lambda answer: ClusterInfo.decode(answer.body)
)
"""Clusters, their broker names, and the addresses of each."""

CLUSTER_INFO_AND_VERSION: Final = Request(
    RequestCode.GET_BROKER_CLUSTER_INFO,
    "list of brokers",
    lambda answer: (ClusterInfo.decode(answer.body), answer.version),
)
"""The same with the ordinal of the release that the name server is of, which every answer carries."""

BROKER_RUNTIME_INFO: Final = Request(RequestCode.GET_BROKER_RUNTIME_INFO, "state of the broker", table_in)
"""Counters and state of a broker, by RocketMQ's names."""


BROKER_CONFIG: Final = Request(RequestCode.GET_BROKER_CONFIG, "settings of the broker", properties_in)
"""The settings of a broker."""


def topic_stats(topic: str) -> Request[dict[MessageQueue, TopicOffset]]:
    """Ask for the bounds of a broker's queues of a topic."""

    def read(answer: RemotingCommand) -> dict[MessageQueue, TopicOffset]:
        from rocketcore.protocol.bodies.stats import TopicStatsTable

        return TopicStatsTable.decode(answer.body).offset_table

    header = GetTopicStatsInfoRequestHeader(topic=topic)
    return Request(RequestCode.GET_TOPIC_STATS_INFO, f"offsets of topic {topic!r}", read, header)


def topic_list(code: RequestCode, what: str = "list of topics", header: Header | None = None) -> Request[TopicList]:
    """Ask for one of the lists of topics."""
    return Request(code, what, topics_in, header)


def put_kv(namespace: str, key: str, value: str) -> Request[None]:
    """Set a value of a name server's key-value table."""
    header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
    return Request(RequestCode.PUT_KV_CONFIG, f"setting {key!r} in {namespace!r}", done, header)


def delete_kv(namespace: str, key: str) -> Request[None]:
    """Delete a value of that table."""
    header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
    return Request(RequestCode.DELETE_KV_CONFIG, f"deletion of {key!r} in {namespace!r}", done, header)


def delete_topic_in_namesrv(topic: str, cluster: str | None) -> Request[None]:
    """Make a name server forget a topic, or its queues on the brokers of one cluster."""
    header = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
    return Request(RequestCode.DELETE_TOPIC_IN_NAMESRV, f"deletion of topic {topic!r}", done, header)


def signed_attributes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return what makes one table of attributes the other, as brokers take it: ``+name`` to set, ``-name`` to delete.

    What stays is left out: brokers refuse to set some attributes twice.
    """
    added = {f"+{name}": value for name, value in after.items() if before.get(name) != value}
    return added | {f"-{name}": "" for name in before if name not in after}


def create_topic(config: TopicConfig, *, only: bool = False) -> Request[bool]:
    """Create a topic at a broker, or change it; its attributes are signed.

    only  create it: a broker of ours changes none that is there, and the answer is False
    """
    if config.topic_filter_type is None:
        raise ValueError("a topic needs a filter type")
    attributes = ",".join(
        name if name.startswith("-") else f"{name}={value}" for name, value in config.attributes.items()
    )
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
        rc_create_only=1 if only else None,
    )
    what = f"creation of topic {config.topic_name!r}"
    return Request(RequestCode.UPDATE_AND_CREATE_TOPIC, what, was_created, header)


def was_created(answer: RemotingCommand) -> bool:
    """Read the answer to a request that only creates: False where a broker of ours has left as it is what was there."""
    return answer.header(CreateOnlyResponseHeader).rc_existed != 1


def topic_config(topic: str) -> Request[TopicConfig]:
    """Ask for the settings of a topic; only brokers from 5.0 on know the request."""

    def read(answer: RemotingCommand) -> TopicConfig:
        from rocketcore.protocol.bodies.topic import TopicConfig

        return TopicConfig.decode(answer.body)

    header = GetTopicConfigRequestHeader(topic=topic)
    return Request(RequestCode.GET_TOPIC_CONFIG, f"settings of topic {topic!r}", read, header)


def broker_topics(first: int, most: int) -> Request[tuple[dict[str, TopicConfig], int | None]]:
    """Ask for the topics of a broker from a position on, and how many it has in all; None: these are all.

    ``most`` is a wish: brokers of 4.9, and ours, answer with every topic, others with at most 2000.
    """

    def read(answer: RemotingCommand) -> tuple[dict[str, TopicConfig], int | None]:
        from rocketcore.protocol.bodies.topic import TopicConfigSerializeWrapper

        total = answer.header(GetAllTopicConfigResponseHeader).total_topic_num
        return TopicConfigSerializeWrapper.decode(answer.body).topic_config_table, total

    header = GetAllTopicConfigRequestHeader(topic_seq=first, max_topic_num=most)
    return Request(RequestCode.GET_ALL_TOPIC_CONFIG, "topics of the broker", read, header)


def change_of(code: RequestCode, properties: Mapping[str, str], read: Callable[[RemotingCommand], T]) -> Request[T]:
    """Return the request that changes settings of a server."""
    return Request(code, f"change of {', '.join(properties)}", read, body=property_lines(properties))
