"""What a client asks of name servers and brokers: one coroutine per request.

Each takes the connections (``Remoting``), the address and the timeout in seconds, and returns a plain value. An answer
whose code is not a success raises its ``BrokerError`` with what was asked and where; codes that are an outcome rather
than a failure (nothing to pull, no offset yet) are values. Bodies that only consumers need are imported where they are
used, so that commands start without them.

RocketMQ 5.5.0: ``MQClientAPIImpl``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketcore.codes import MASTER_ID, RequestCode, ResponseCode
from rocketcore.errors import BrokerError, DecodeError
from rocketcore.message import MessageQueue, SendStatus
from rocketcore.protocol.bodies.route import ClusterInfo, TopicRouteData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import GetTopicStatsInfoRequestHeader
from rocketcore.protocol.headers.consumer import (
    GetConsumerListByGroupRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketcore.protocol.headers.message import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageRequestHeaderV2,
    ViewMessageRequestHeader,
)
from rocketcore.protocol.headers.nameserver import GetRouteInfoRequestHeader

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.heartbeat import HeartbeatData, SubscriptionData
    from rocketcore.transport.remoting import Remoting

__all__ = [
    "SEND_STATUSES",
    "PullHead",
    "PullResult",
    "PullStatus",
    "check_client_config",
    "consumer_ids",
    "earliest_store_time",
    "end_transaction",
    "heartbeat",
    "knows_brokers",
    "lock_queues",
    "max_offset",
    "min_offset",
    "pull_head",
    "pull_message",
    "query_consumer_offset",
    "query_message",
    "queue_bounds",
    "search_offset",
    "send_message",
    "send_message_back",
    "topic_route",
    "unlock_queues",
    "unregister_client",
    "update_consumer_offset",
    "view_message",
]

SEND_STATUSES: Final = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""Response codes that say that the message is stored."""

OFFSET_RESET: Final = "OFFSET_RESET"
"""Remark of a pull's answer that alone tells an administrator's reset from a queue that does not have the offset."""


class PullStatus(Enum):
    """How a pull ended (Java: ``PullStatus``)."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_PULL_STATUSES: Final = {int(status.value): status for status in PullStatus}


class PullHead(NamedTuple):
    """Answer to a pull, but for its body."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int
    offset_delta: int
    reset: bool


@dataclass(frozen=True, slots=True)
class PullResult:
    """Answer to a pull; ``body`` holds stored messages back to back (Java: ``PullResult``).

    reset  the group goes on elsewhere because an administrator asked for it
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int
    offset_delta: int
    reset: bool
    body: bytes


async def _ask(
    remoting: Remoting, address: str, request: RemotingCommand, timeout: float, what: str
) -> RemotingCommand:
    response = await remoting.invoke(address, request, timeout)
    response.raise_for_code(address, what)
    return response


async def topic_route(remoting: Remoting, name_server: str, topic: str, timeout: float) -> TopicRouteData:
    """Ask a name server which brokers serve a topic; raises TopicNotExist where it knows none."""
    header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
    response = await _ask(remoting, name_server, request, timeout, f"route of topic {topic!r}")
    return TopicRouteData.decode(response.body)


async def broker_masters(remoting: Remoting, name_server: str, timeout: float) -> tuple[str, ...]:
    """Ask a name server for the addresses of all masters that are registered with it."""
    brokers = (await _cluster(remoting, name_server, timeout)).broker_addr_table.values()
    return tuple(broker.broker_addrs[MASTER_ID] for broker in brokers if MASTER_ID in broker.broker_addrs)


async def knows_brokers(remoting: Remoting, name_server: str, timeout: float) -> bool:
    """Ask a name server whether any broker is registered with it."""
    return bool((await _cluster(remoting, name_server, timeout)).broker_addr_table)


async def _cluster(remoting: Remoting, name_server: str, timeout: float) -> ClusterInfo:
    request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    return ClusterInfo.decode((await _ask(remoting, name_server, request, timeout, "list of brokers")).body)


async def heartbeat(remoting: Remoting, address: str, data: HeartbeatData, timeout: float) -> int:
    """Tell a broker who this client is; return the broker's version."""
    request = RemotingCommand.request(RequestCode.HEART_BEAT, body=data.encode())
    return (await _ask(remoting, address, request, timeout, "heartbeat")).version


async def check_client_config(
    remoting: Remoting, address: str, client_id: str, group: str, subscription: SubscriptionData, timeout: float
) -> None:
    """Ask a broker whether it can serve a subscription's filter; raises what it refuses."""
    from rocketcore.protocol.bodies.heartbeat import CheckClientRequestBody

    body = CheckClientRequestBody(client_id=client_id, group=group, subscription_data=subscription)
    request = RemotingCommand.request(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())
    await _ask(remoting, address, request, timeout, f"subscription of group {group!r} to topic {subscription.topic!r}")


async def unregister_client(
    remoting: Remoting,
    address: str,
    client_id: str,
    timeout: float,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
) -> None:
    """Leave a group at a broker."""
    header = UnregisterClientRequestHeader(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    request = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header)
    await _ask(remoting, address, request, timeout, f"unregister client {client_id!r}")


async def send_message(
    remoting: Remoting, address: str, header: SendMessageRequestHeaderV2, body: bytes, timeout: float
) -> None:
    """Store a message."""
    response = await remoting.invoke(
        address, RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body), timeout
    )
    response.raise_for_code(address, f"send to topic {header.topic!r}", SEND_STATUSES)


async def end_transaction(
    remoting: Remoting, address: str, header: EndTransactionRequestHeader, timeout: float
) -> None:
    """Say how a transaction ended. Who does not know gets no answer."""
    if not header.commit_or_rollback:
        request = RemotingCommand.request(RequestCode.END_TRANSACTION, header, oneway=True)
        await remoting.invoke_oneway(address, request, timeout)
        return
    request = RemotingCommand.request(RequestCode.END_TRANSACTION, header)
    await _ask(remoting, address, request, timeout, f"end of transaction {header.msg_id}")


async def pull_message(
    remoting: Remoting, address: str, header: PullMessageRequestHeader, timeout: float
) -> PullResult:
    """Pull messages of one queue; the broker holds the request as long as the header says when there are none.

    raises  DecodeError for an answer to go on at an offset below 0, beside what a refusal raises
    """
    response = await remoting.invoke(address, RemotingCommand.request(RequestCode.PULL_MESSAGE, header), timeout)
    head = pull_head(response, address, header.topic, header.queue_id, header.queue_offset)
    return PullResult(*head, response.body)


def pull_head(response: RemotingCommand, address: str, topic: str, queue_id: int, queue_offset: int) -> PullHead:
    """Return what the answer to a pull says; raises as ``pull_message``."""
    status = _PULL_STATUSES.get(response.code)
    if status is None:
        raise BrokerError.of(
            response.code, response.remark, address, f"pull of {topic!r} queue {queue_id} at {queue_offset}"
        )
    answer = response.header(PullMessageResponseHeader)
    if answer.next_begin_offset < 0:
        raise DecodeError(f"pull of {topic!r} queue {queue_id}: go on at {answer.next_begin_offset}")
    return PullHead(
        status,
        answer.next_begin_offset,
        answer.min_offset,
        answer.max_offset,
        answer.suggest_which_broker_id,
        answer.offset_delta or 0,
        status is PullStatus.OFFSET_ILLEGAL and response.remark == OFFSET_RESET,
    )


async def query_consumer_offset(
    remoting: Remoting,
    address: str,
    group: str,
    queue: MessageQueue,
    timeout: float,
    *,
    set_zero_if_not_found: bool | None = None,
) -> int | None:
    """Return the offset that a group stored for a queue, None without one.

    set_zero_if_not_found  False: also None where a broker would say 0 because the queue's first message is in memory
    """
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        bname=queue.broker,
        set_zero_if_not_found=set_zero_if_not_found,
    )
    request = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
    response = await remoting.invoke(address, request, timeout)
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    response.raise_for_code(address, f"offset of group {group!r} in {queue}")
    return response.header(QueryConsumerOffsetResponseHeader).offset


async def update_consumer_offset(
    remoting: Remoting, address: str, group: str, queue: MessageQueue, offset: int, timeout: float
) -> None:
    """Store a group's offset of a queue."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset, bname=queue.broker
    )
    request = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    await _ask(remoting, address, request, timeout, f"commit of group {group!r} in {queue}")


async def max_offset(remoting: Remoting, address: str, queue: MessageQueue, timeout: float) -> int:
    """Return the offset that the next message of a queue will get; raises DecodeError for one below 0."""
    header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker)
    request = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, header)
    what = f"max offset of {queue}"
    response = await _ask(remoting, address, request, timeout, what)
    return _checked(response.header(GetMaxOffsetResponseHeader).offset, what, address)


async def min_offset(remoting: Remoting, address: str, queue: MessageQueue, timeout: float) -> int:
    """Return the offset of the first message that a queue still has; raises DecodeError for one below 0."""
    header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker)
    request = RemotingCommand.request(RequestCode.GET_MIN_OFFSET, header)
    what = f"min offset of {queue}"
    response = await _ask(remoting, address, request, timeout, what)
    return _checked(response.header(GetMinOffsetResponseHeader).offset, what, address)


def _checked(offset: int, what: str, address: str) -> int:
    """Return an offset that a broker named; raises DecodeError for one below 0."""
    if offset < 0:
        raise DecodeError(f"{what} at {address}: invalid offset {offset}")
    return offset


async def queue_bounds(remoting: Remoting, address: str, topic: str, timeout: float) -> dict[int, tuple[int, int]]:
    """Return queue id → minimum and maximum offset of a broker's queues of a topic, by one request.

    A broker of 4.9 leaves out queues that are only read. Raises DecodeError for what is no offset.
    """
    from rocketcore.protocol.bodies.stats import read_bounds

    request = RemotingCommand.request(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic=topic))
    what = f"offsets of topic {topic!r}"
    response = await _ask(remoting, address, request, timeout, what)
    try:
        return read_bounds(response.body)
    except DecodeError as error:
        raise DecodeError(f"{what} at {address}: {error}") from error


async def search_offset(remoting: Remoting, address: str, queue: MessageQueue, timestamp: int, timeout: float) -> int:
    """Return the offset of the first message of a queue that was stored at ``timestamp`` (milliseconds) or later."""
    header = SearchOffsetRequestHeader(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp, bname=queue.broker
    )
    request = RemotingCommand.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    response = await _ask(remoting, address, request, timeout, f"offset at time {timestamp} of {queue}")
    return response.header(SearchOffsetResponseHeader).offset


async def earliest_store_time(remoting: Remoting, address: str, queue: MessageQueue, timeout: float) -> int:
    """Return when the first message of a queue was stored, in milliseconds; -1 without one."""
    header = GetEarliestMsgStoretimeRequestHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker)
    request = RemotingCommand.request(RequestCode.GET_EARLIEST_MSG_STORETIME, header)
    response = await _ask(remoting, address, request, timeout, f"earliest store time of {queue}")
    return response.header(GetEarliestMsgStoretimeResponseHeader).timestamp


async def consumer_ids(remoting: Remoting, address: str, group: str, timeout: float) -> list[str]:
    """Return the client ids of a group's members that a broker knows."""
    from rocketcore.protocol.bodies.client import GetConsumerListByGroupResponseBody

    request = RemotingCommand.request(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader(consumer_group=group)
    )
    response = await _ask(remoting, address, request, timeout, f"members of group {group!r}")
    return GetConsumerListByGroupResponseBody.decode(response.body).consumer_id_list if response.body else []


async def lock_queues(
    remoting: Remoting, address: str, group: str, client_id: str, queues: Iterable[MessageQueue], timeout: float
) -> set[MessageQueue]:
    """Ask a broker for the locks of queues; return those that this client holds now."""
    from rocketcore.protocol.bodies.client import LockBatchRequestBody, LockBatchResponseBody

    body = LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=set(queues)).encode()
    request = RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, body=body)
    response = await _ask(remoting, address, request, timeout, f"queue locks of group {group!r}")
    return LockBatchResponseBody.decode(response.body).lock_ok_mq_set


async def unlock_queues(
    remoting: Remoting, address: str, group: str, client_id: str, queues: Iterable[MessageQueue], timeout: float
) -> None:
    """Give the locks of queues back."""
    from rocketcore.protocol.bodies.client import UnlockBatchRequestBody

    body = UnlockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=set(queues)).encode()
    request = RemotingCommand.request(RequestCode.UNLOCK_BATCH_MQ, body=body)
    await _ask(remoting, address, request, timeout, f"unlock of queues of group {group!r}")


async def send_message_back(
    remoting: Remoting, address: str, header: ConsumerSendMsgBackRequestHeader, timeout: float
) -> None:
    """Ask a broker to deliver one of its messages to a group again, or to put it into the group's DLQ."""
    request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    await _ask(remoting, address, request, timeout, f"redelivery to group {header.group!r} of {header.origin_msg_id}")


async def recall_message(remoting: Remoting, address: str, header: RecallMessageRequestHeader, timeout: float) -> str:
    """Take back a message that waits for its time; returns its id."""
    request = RemotingCommand.request(RequestCode.RECALL_MESSAGE, header)
    response = await _ask(remoting, address, request, timeout, f"recall of a message to topic {header.topic!r}")
    return RecallMessageResponseHeader.from_ext_fields(response.ext_fields).msg_id


async def view_message(remoting: Remoting, address: str, physical_offset: int, timeout: float) -> bytes:
    """Return the stored record at a place of a broker's log."""
    request = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=physical_offset))
    return (await _ask(remoting, address, request, timeout, f"message at {physical_offset}")).body


async def query_message(remoting: Remoting, address: str, header: QueryMessageRequestHeader, timeout: float) -> bytes:
    """Return the stored records that a broker's index has for a key; it goes by hash: check topic and key again."""
    request = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)
    response = await remoting.invoke(address, request, timeout)
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return b""
    response.raise_for_code(address, f"messages of topic {header.topic!r} by key {header.key!r}")
    return response.body
