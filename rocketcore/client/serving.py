"""What a client answers when a broker asks: group changes, offset resets, status, a message to consume now.

RocketMQ 5.5.0: ``ClientRemotingProcessor``.
"""

from __future__ import annotations

import logging
import threading

from rocketcore.client.subscriber import Subscriber
from rocketcore.codes import CURRENT_VERSION, FRAME_MAX_BYTES, RequestCode, ResponseCode, Version
from rocketcore.errors import DecodeError
from rocketcore.message import MessageQueue, leave_namespace
from rocketcore.printable import printable
from rocketcore.protocol.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    GetConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketcore.protocol.message import decode_message
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.routes import Route

__all__ = ["serve_broker_requests"]

logger = logging.getLogger(__name__)


def serve_broker_requests(remoting: RemotingClient, consumer: Subscriber) -> None:
    """Register the answers of a consumer with its connections."""
    code, served = RequestCode, _Served(consumer, remoting)
    remoting.add_routes(
        (
            Route(code.NOTIFY_CONSUMER_IDS_CHANGED, served.consumer_ids_changed, NotifyConsumerIdsChangedRequestHeader),
            Route(
                code.RESET_CONSUMER_CLIENT_OFFSET,
                served.reset_offset,
                ResetOffsetRequestHeader,
                body_limit=FRAME_MAX_BYTES,
            ),
            Route(code.GET_CONSUMER_STATUS_FROM_CLIENT, served.consumer_status, GetConsumerStatusRequestHeader),
            Route(code.GET_CONSUMER_RUNNING_INFO, served.running_info, GetConsumerRunningInfoRequestHeader),
            Route(
                code.CONSUME_MESSAGE_DIRECTLY,
                served.consume_directly,
                ConsumeMessageDirectlyResultRequestHeader,
                body_limit=FRAME_MAX_BYTES,
            ),
            Route(code.CHECK_TRANSACTION_STATE, served.check_transaction_state, body_limit=FRAME_MAX_BYTES),
        )
    )


class _Served:
    """The handlers of one consumer; a broker is obeyed about its own queues and the consumer's own subscriptions."""

    def __init__(self, consumer: Subscriber, remoting: RemotingClient) -> None:
        self._consumer = consumer
        self._remoting = remoting

    def consumer_ids_changed(
        self, channel: Channel, request: RemotingCommand, header: NotifyConsumerIdsChangedRequestHeader
    ) -> None:
        if header.consumer_group == self._consumer.group:
            logger.info("group changed group=%s broker=%s", header.consumer_group, channel.remote_address)
            self._consumer.group_changed()

    async def reset_offset(self, channel: Channel, request: RemotingCommand, header: ResetOffsetRequestHeader) -> None:
        if header.group != self._consumer.group:
            return
        asked = _reset_table(request)
        offsets = {
            queue: offset for queue, offset in asked.items() if self._comes_from(channel, queue.broker) and offset >= 0
        }
        logger.log(
            logging.WARNING if len(offsets) < len(asked) else logging.INFO,
            "offset reset group=%s topic=%s queues=%d of_others=%d broker=%s",
            header.group,
            printable(header.topic),
            len(offsets),
            len(asked) - len(offsets),
            channel.remote_address,
        )
        await self._consumer.reset(offsets)

    def consumer_status(
        self, channel: Channel, request: RemotingCommand, header: GetConsumerStatusRequestHeader
    ) -> RemotingCommand:
        if header.group != self._consumer.group:
            return self._unknown_group(request, header.group)
        table = {
            process_queue.queue: process_queue.commit_offset
            for process_queue in self._consumer.process_queues()
            if process_queue.queue.topic == header.topic
        }
        return RemotingCommand.response(request, body=GetConsumerStatusBody(message_queue_table=table).encode())

    def running_info(
        self, channel: Channel, request: RemotingCommand, header: GetConsumerRunningInfoRequestHeader
    ) -> RemotingCommand:
        if header.consumer_group != self._consumer.group:
            return self._unknown_group(request, header.consumer_group)
        info = _running_info(self._consumer)
        if header.jstack_enable:
            info.jstack = _stacks()
        return RemotingCommand.response(request, body=info.encode())

    async def consume_directly(
        self, channel: Channel, request: RemotingCommand, header: ConsumeMessageDirectlyResultRequestHeader
    ) -> RemotingCommand:
        if header.consumer_group != self._consumer.group:
            return self._unknown_group(request, header.consumer_group)
        if not self._comes_from(channel, header.broker_name or ""):
            logger.warning("message to consume refused remote=%s", channel.remote_address)
            refusal = f"{channel.remote_address} is not known as broker {header.broker_name}"
            return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, refusal)
        message = decode_message(request.body, header.broker_name or "")
        if self._consumer.find_subscription(message.topic) is None:
            refusal = f"the consumer group {header.consumer_group} is not subscribed to topic {message.topic}"
            topic = printable(message.topic)
            logger.warning("message to consume refused topic=%s broker=%s", topic, channel.remote_address)
            return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, refusal)
        leave_namespace([message], self._consumer.config.namespace)
        began = self._consumer.clock.monotonic()
        result, remark = await self._consumer.consume_directly(message)
        answer = ConsumeMessageDirectlyResult(
            order=self._consumer.config.ordered,
            consume_result=result,
            remark=remark,
            spent_time_mills=round((self._consumer.clock.monotonic() - began) * 1000),
        )
        return RemotingCommand.response(request, body=answer.encode())

    def check_transaction_state(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        remark = "this client has no transaction producer: it cannot say how a transaction ended"
        logger.warning("transaction check refused broker=%s", channel.remote_address)
        return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, remark)

    def _comes_from(self, channel: Channel, broker: str) -> bool:
        """Say whether the other end of a connection is a broker of this name, and not another, or a name server."""
        address = self._remoting.address_of(channel)
        return address is not None and self._consumer.instance.routes.is_at(broker, address)

    def _unknown_group(self, request: RemotingCommand, group: str) -> RemotingCommand:
        remark = f"the consumer group {group} does not exist in client {self._consumer.client_id}"
        return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, remark)


def _reset_table(request: RemotingCommand) -> dict[MessageQueue, int]:
    """Read the new offsets: a map by queue, or the list that a broker writes for a C++ admin."""
    try:
        return ResetOffsetBody.decode(request.body).offset_table
    except DecodeError:
        entries = ResetOffsetBodyForC.decode(request.body).offset_table
        return {MessageQueue(entry.topic, entry.broker_name, entry.queue_id): entry.offset for entry in entries}


def _stacks() -> str:
    """Return what all threads of this process are doing, as ``jstack`` shows it."""
    import sys
    import traceback

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"{names.get(ident, 'unknown')} TID: {ident}\n" + "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()
    ]
    return "\n\n".join(stacks)


def _running_info(consumer: Subscriber) -> ConsumerRunningInfo:
    config = consumer.config
    return ConsumerRunningInfo(
        properties={
            "PROP_CLIENT_VERSION": Version(CURRENT_VERSION).name,
            "PROP_CONSUMEORDERLY": "true" if config.ordered else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_at),
            "PROP_CONSUME_TYPE": consumer.consume_type.name,
            "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in config.namesrv),
            "PROP_THREADPOOL_CORE_SIZE": str(config.threads),
        },
        subscription_set=consumer.subscriptions(),
        mq_table={
            process_queue.queue: consumer.process_queue_info(process_queue)
            for process_queue in consumer.process_queues()
        },
        status_table={subscription.topic: ConsumeStatus() for subscription in consumer.subscriptions()},
    )
