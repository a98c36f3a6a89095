"""Headers of the administration of topics, groups and brokers, and of their statistics."""

from __future__ import annotations

from rocketcore.protocol.schema import Header, Long, RpcHeader, TopicHeader, wire


class CreateTopicRequestHeader(TopicHeader):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str = wire(absent="")
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    topic_sys_flag: int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False
    rc_create_only: int | None = None
    """Ours: 1 leaves a topic that is there as it is; the answer then has ``rcExisted``."""


class CreateGroupRequestHeader(Header):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200): ours alone; what Apache's clients say is in the body."""

    rc_create_only: int | None = None


class CreateOnlyResponseHeader(Header):
    """Answer to UPDATE_AND_CREATE_TOPIC and UPDATE_AND_CREATE_SUBSCRIPTIONGROUP with ``rcCreateOnly``."""

    rc_existed: int | None = None


class DeleteTopicRequestHeader(TopicHeader):
    """DELETE_TOPIC_IN_BROKER (215)."""

    topic: str = wire(absent="")


class GetTopicConfigRequestHeader(TopicHeader):
    """GET_TOPIC_CONFIG (351)."""

    topic: str


class GetAllTopicConfigRequestHeader(Header):
    """GET_ALL_TOPIC_CONFIG (21)."""

    topic_seq: int
    data_version: str | None = None
    max_topic_num: int | None = None


class GetAllTopicConfigResponseHeader(Header):
    """Answer to GET_ALL_TOPIC_CONFIG (21)."""

    total_topic_num: int | None = None


class GetTopicStatsInfoRequestHeader(TopicHeader):
    """GET_TOPIC_STATS_INFO (202)."""

    topic: str


class GetSubscriptionGroupConfigRequestHeader(RpcHeader):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


class GetAllSubscriptionGroupRequestHeader(Header):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""

    group_seq: int
    data_version: str | None = None
    max_group_num: int | None = None


class GetAllSubscriptionGroupResponseHeader(Header):
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""

    total_group_num: int | None = None


class DeleteSubscriptionGroupRequestHeader(RpcHeader):
    """DELETE_SUBSCRIPTIONGROUP (207); 4.9 reads ``remove_offset``, 5.x ``clean_offset``."""

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False


class UpdateGroupForbiddenRequestHeader(TopicHeader):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str = wire(absent="")
    readable: bool | None = None


class GetConsumeStatsRequestHeader(TopicHeader):
    """GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumeStatsInBrokerHeader(Header):
    """GET_BROKER_CONSUME_STATS (317)."""

    order: bool = wire("isOrder", absent=False)


class GetConsumerConnectionListRequestHeader(RpcHeader):
    """GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(RpcHeader):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class QueryTopicConsumeByWhoRequestHeader(TopicHeader):
    """QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str


class QueryTopicsByConsumerRequestHeader(RpcHeader):
    """QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class QueryConsumeTimeSpanRequestHeader(TopicHeader):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class QueryCorrectionOffsetHeader(TopicHeader):
    """QUERY_CORRECTION_OFFSET (308)."""

    filter_groups: str | None = None
    compare_group: str = wire(absent="")
    topic: str


class QuerySubscriptionByConsumerRequestHeader(TopicHeader):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str | None = None


class QueryConsumeQueueRequestHeader(TopicHeader):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str | None = None
    queue_id: int = 0
    index: Long = 0
    count: int = 0
    consumer_group: str | None = None


class ViewBrokerStatsDataRequestHeader(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class GetBrokerConfigResponseHeader(Header):
    """Answer to GET_BROKER_CONFIG (26); ``version`` is a DataVersion as JSON."""

    version: str
