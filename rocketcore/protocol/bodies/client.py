"""Clients of a broker: connections, queue locks, and what a broker asks of a client."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from rocketcore.codes import LanguageCode
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.bodies.base import Body, body, wire
from rocketcore.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData


@body
class Connection(Body):
    """One connected client."""

    client_id: str = ""
    client_addr: str = ""
    language: LanguageCode | None = None
    version: int = 0


@body
class ConsumerConnection(Body):
    """Answer to GET_CONSUMER_CONNECTION_LIST (203)."""

    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


@body
class ProducerConnection(Body):
    """Answer to GET_PRODUCER_CONNECTION_LIST (204)."""

    connection_set: list[Connection] = field(default_factory=list)


@body
class ProducerInfo(Body):
    """One producer as GET_ALL_PRODUCER_INFO shows it; the time in epoch milliseconds."""

    client_id: str = ""
    remote_ip: str = field(default="", metadata=wire("remoteIP"))
    language: LanguageCode | None = None
    version: int = 0
    last_update_timestamp: int = 0


@body
class ProducerTableInfo(Body):
    """Answer to GET_ALL_PRODUCER_INFO (328): producers by group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


@body
class GetConsumerListByGroupResponseBody(Body):
    """Answer to GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_id_list: list[str] = field(default_factory=list)


@body
class LockBatchRequestBody(Body):
    """Body of LOCK_BATCH_MQ (41)."""

    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: set[MessageQueue] = field(default_factory=set)


@body
class LockBatchResponseBody(Body):
    """Answer to LOCK_BATCH_MQ (41): the queues that are locked for the client now."""

    lock_ok_mq_set: set[MessageQueue] = field(default_factory=set, metadata=wire("lockOKMQSet"))


@body
class UnlockBatchRequestBody(Body):
    """Body of UNLOCK_BATCH_MQ (42)."""

    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: set[MessageQueue] = field(default_factory=set)


@body
class ProcessQueueInfo(Body):
    """A queue as the consumer that owns it sees it; times in epoch milliseconds."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = field(default=0, metadata=wire("cachedMsgSizeInMiB"))
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = field(default=False, metadata=wire("droped"))
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@body
class PopProcessQueueInfo(Body):
    """The same of a POP consumer [5.x]."""

    wait_ack_count: int = 0
    dropped: bool = field(default=False, metadata=wire("droped"))
    last_pop_timestamp: int = 0


@body
class ConsumeStatus(Body):
    """Rates of one topic in a consumer; round-trip times in milliseconds."""

    pull_rt: float = field(default=0.0, metadata=wire("pullRT"))
    pull_tps: float = field(default=0.0, metadata=wire("pullTPS"))
    consume_rt: float = field(default=0.0, metadata=wire("consumeRT"))
    consume_ok_tps: float = field(default=0.0, metadata=wire("consumeOKTPS"))
    consume_failed_tps: float = field(default=0.0, metadata=wire("consumeFailedTPS"))
    consume_failed_msgs: int = 0


@body
class ConsumerRunningInfo(Body):
    """Answer to GET_CONSUMER_RUNNING_INFO (307).

    mqadmin reads PROP_CONSUMER_START_TIMESTAMP and PROP_CONSUME_TYPE of ``properties`` and needs both.
    """

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None


class CMResult(Enum):
    """What became of a message that was consumed on request."""

    CR_SUCCESS = 0
    CR_LATER = 1
    CR_ROLLBACK = 2
    CR_COMMIT = 3
    CR_THROW_EXCEPTION = 4
    CR_RETURN_NULL = 5


@body
class ConsumeMessageDirectlyResult(Body):
    """Answer to CONSUME_MESSAGE_DIRECTLY (309); the time in milliseconds."""

    order: bool = False
    auto_commit: bool = True
    consume_result: CMResult | None = None
    remark: str | None = None
    spent_time_mills: int = 0


@body
class GetConsumerStatusBody(Body):
    """Answer to 221 (a client's offsets) and 223 (offsets by client id)."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


@body
class ResetOffsetBody(Body):
    """Body of RESET_CONSUMER_CLIENT_OFFSET (220), answer to INVOKE_BROKER_TO_RESET_OFFSET (222)."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


@body
class MessageQueueForC(Body):
    """A queue and an offset of it."""

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0
    offset: int = 0


@body
class ResetOffsetBodyForC(Body):
    """Body of RESET_CONSUMER_CLIENT_OFFSET (220) where the request came from a C++ admin."""

    offset_table: list[MessageQueueForC] = field(default_factory=list)
