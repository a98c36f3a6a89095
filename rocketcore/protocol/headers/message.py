"""Headers of sending, of reading messages and of transactions."""

from __future__ import annotations

from rocketcore.protocol.schema import Header, Long, RpcHeader, TopicHeader, wire


class SendMessageRequestHeader(TopicHeader, strict=True):
    """SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324): the long form."""

    producer_group: str = wire(absent="")
    topic: str
    default_topic: str = wire(absent="")
    default_topic_queue_nums: int = wire(absent=0)
    queue_id: int
    sys_flag: int
    born_timestamp: Long
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: int | None = None


class SendMessageRequestHeaderV2(TopicHeader, strict=True):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and SEND_REPLY_MESSAGE_V2 (325): names of one letter."""

    producer_group: str = wire("a", absent="")
    topic: str = wire("b")
    default_topic: str = wire("c", absent="")
    default_topic_queue_nums: int = wire("d", absent=0)
    queue_id: int = wire("e")
    sys_flag: int = wire("f")
    born_timestamp: Long = wire("g")
    flag: int = wire("h")
    properties: str | None = wire("i", default=None)
    reconsume_times: int | None = wire("j", default=None)
    unit_mode: bool | None = wire("k", default=None)
    max_reconsume_times: int | None = wire("l", default=None)
    batch: bool | None = wire("m", default=None)
    broker_name: str | None = wire("n", default=None)
    rc_first_id: int | None = None
    """Ours, not RocketMQ's: of a batch the answer needs the id of the first message only; 1."""


class SendMessageResponseHeader(Header):
    """Answer to the sends; ``msg_id`` is the offset message id, for a batch several joined by commas."""

    msg_id: str
    queue_id: int
    queue_offset: Long
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = wire("MSG_REGION", default=None)
    trace_on: bool | None = wire("TRACE_ON", default=None)


class ReplyMessageRequestHeader(TopicHeader):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: Long
    flag: int
    born_host: str
    store_host: str
    store_timestamp: Long = wire(absent=0)
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool = False


class ConsumerSendMsgBackRequestHeader(RpcHeader):
    """CONSUMER_SEND_MSG_BACK (36)."""

    offset: Long
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


class RecallMessageRequestHeader(TopicHeader):
    """RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str = wire(absent="")
    producer_group: str | None = None


class RecallMessageResponseHeader(Header):
    """Answer to RECALL_MESSAGE (370)."""

    msg_id: str


class PullMessageRequestHeader(TopicHeader, strict=True):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: Long
    max_msg_nums: int
    sys_flag: int
    commit_offset: Long = wire(absent=0)
    suspend_timeout_millis: Long = wire(absent=0)
    sub_version: Long = wire(absent=0)
    lite_topic: str | None = None
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    request_source: int | None = None
    proxy_forward_client_id: str | None = wire("proxyFrowardClientId", default=None)
    rc_pull: int | None = None
    """Ours, not RocketMQ's: the client takes a long answer (broker settings maxPullBytes and maxPullCount); 1."""


class PullMessageResponseHeader(Header):
    """Answer to PULL_MESSAGE (11); the four offsets are there also where nothing was found."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None


class ViewMessageRequestHeader(Header):
    """VIEW_MESSAGE_BY_ID (33)."""

    offset: Long
    topic: str | None = None


class QueryMessageRequestHeader(TopicHeader):
    """QUERY_MESSAGE (12)."""

    topic: str = wire(absent="")
    key: str = wire(absent="")
    max_num: int
    begin_timestamp: Long
    end_timestamp: Long
    index_type: str | None = None
    last_key: str | None = None
    unique_key_query: bool | None = wire("_UNIQUE_KEY_QUERY", default=None)


class QueryMessageResponseHeader(Header):
    """Answer to QUERY_MESSAGE (12)."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


class EndTransactionRequestHeader(RpcHeader):
    """END_TRANSACTION (37)."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: int
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(RpcHeader):
    """CHECK_TRANSACTION_STATE (39)."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE (323)."""

    topic: str | None = None
    msg_id: str | None = None
