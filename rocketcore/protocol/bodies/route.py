"""Routes: what a name server says of a topic and of its brokers."""

from __future__ import annotations

from dataclasses import field

from rocketcore.codes import MASTER_ID
from rocketcore.protocol import fastjson
from rocketcore.protocol.bodies.base import Body, body


@body
class QueueData(Body):
    """A topic's queues on one broker name."""

    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


@body
class BrokerData(Body):
    """A broker name and the addresses of its master (id 0) and slaves."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None

    @property
    def master_address(self) -> str | None:
        return self.broker_addrs.get(MASTER_ID)


@body
class TopicQueueMappingInfo(Body):
    """Which physical queues of a broker carry which logical queues of a static topic [5.x]."""

    topic: str = ""
    scope: str = "__global__"
    bname: str = ""
    total_queues: int = 0
    epoch: int = 0
    dirty: bool = False
    curr_id_map: dict[int, int] = field(default_factory=dict)


@body
class TopicRouteData(Body):
    """Answer to GET_ROUTEINFO_BY_TOPIC (105)."""

    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    order_topic_conf: str | None = None
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None

    def encode_standard(self) -> bytes:
        """Return standard JSON (broker ids quoted), for requests of version 401 and up or that ask for it."""
        return fastjson.dumps(self.to_json())


@body
class ClusterInfo(Body):
    """Answer to GET_BROKER_CLUSTER_INFO (106)."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


@body
class BrokerMemberGroup(Body):
    """The live brokers of one broker name [5.x]."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = field(default_factory=dict)


@body
class GetBrokerMemberGroupResponseBody(Body):
    """Answer to GET_BROKER_MEMBER_GROUP (901) [5.x]."""

    broker_member_group: BrokerMemberGroup | None = None
