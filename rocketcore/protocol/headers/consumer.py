"""Headers of offsets, queue locks, heartbeats and of requests that a broker sends to a client."""

from __future__ import annotations

from rocketcore.codes import BoundaryType
from rocketcore.protocol.schema import Header, Long, RpcHeader, TopicHeader, wire


class HeartbeatResponseHeader(Header):
    """Answer to HEART_BEAT (34) of 5.x; Java sets these two fields without a header class."""

    support_heartbeat_v2: bool | None = wire("IS_SUPPORT_HEART_BEAT_V2", default=None)
    sub_change: bool | None = wire("IS_SUB_CHANGE", default=None)


class UnregisterClientRequestHeader(RpcHeader):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = wire("clientID", absent="")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(RpcHeader):
    """GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(RpcHeader):
    """NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    consumer_group: str


class QueryConsumerOffsetRequestHeader(TopicHeader):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str = wire(absent="")
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponseHeader(Header):
    """Answer to QUERY_CONSUMER_OFFSET (14)."""

    offset: Long


class UpdateConsumerOffsetRequestHeader(TopicHeader):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str = wire(absent="")
    topic: str
    queue_id: int
    commit_offset: Long


class SearchOffsetRequestHeader(TopicHeader):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: int
    timestamp: Long
    lite_topic: str | None = None
    boundary_type: BoundaryType | None = None


class SearchOffsetResponseHeader(Header):
    """Answer to SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    offset: Long


class GetMaxOffsetRequestHeader(TopicHeader):
    """GET_MAX_OFFSET (30)."""

    topic: str
    queue_id: int
    committed: bool = True


class GetMaxOffsetResponseHeader(Header):
    """Answer to GET_MAX_OFFSET (30)."""

    offset: Long


class GetMinOffsetRequestHeader(TopicHeader):
    """GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: int


class GetMinOffsetResponseHeader(Header):
    """Answer to GET_MIN_OFFSET (31)."""

    offset: Long


class GetEarliestMsgStoretimeRequestHeader(TopicHeader):
    """GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: int


class GetEarliestMsgStoretimeResponseHeader(Header):
    """Answer to GET_EARLIEST_MSG_STORETIME (32)."""

    timestamp: Long


class ResetOffsetRequestHeader(TopicHeader):
    """INVOKE_BROKER_TO_RESET_OFFSET (222) and RESET_CONSUMER_CLIENT_OFFSET (220)."""

    group: str = wire(absent="")
    topic: str
    timestamp: Long = wire(absent=0)
    force: bool = wire("isForce", absent=False)
    queue_id: int = -1
    offset: Long | None = None


class GetConsumerStatusRequestHeader(TopicHeader):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequestHeader(RpcHeader):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(TopicHeader):
    """CONSUME_MESSAGE_DIRECTLY (309)."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


class CloneGroupOffsetRequestHeader(RpcHeader):
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str = wire(absent="")
    dest_group: str = wire(absent="")
    topic: str | None = None
    offline: bool = False
