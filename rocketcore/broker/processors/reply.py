"""Replies to request messages: 324, 325 (Java: ``ReplyMessageProcessor``, 5.5.0).

A reply is sent on at once to the client that asked, as PUSH_REPLY_MESSAGE_TO_CLIENT over the connection of its
heartbeats, and stored as well unless ``storeReplyMessageEnable`` is off. Who replies is told what the client said of
it, or that it is not there; where the message was stored is in the answer either way.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore.broker.admission import Admission
from rocketcore.broker.context import BrokerContext
from rocketcore.broker.hosts import born_host
from rocketcore.broker.processors.acknowledge import Acknowledger
from rocketcore.broker.processors.send import SendHeader, SendProcessor
from rocketcore.broker.store import PutStatus, StoredMessage
from rocketcore.codes import FRAME_MAX_BYTES, OVERLOAD, RequestCode, ResponseCode
from rocketcore.errors import BrokerError, TransportError
from rocketcore.message import MSG_REGION, PUSH_REPLY_TIME, REPLY_TO_CLIENT, TRACE_ON
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

logger = logging.getLogger(__name__)

_PUSH_SECONDS = 10.0
"""How long a client may take to answer a reply that is sent on to it."""
_CONNECTIONS = 16
"""So many may have as many replies under way as one may."""


class ReplyProcessor:
    """Sends replies on to who asked for them."""

    def __init__(
        self, context: BrokerContext, sends: SendProcessor, acknowledger: Acknowledger, admission: Admission
    ) -> None:
        self._context = context
        self._sends = sends
        self._acknowledger = acknowledger
        self._admission = admission
        self._under_way: Counter[Channel] = Counter()
        """Bytes of the replies of each connection that wait for a client's answer."""
        self._owed: Counter[Channel] = Counter()
        """Bytes of the replies that each client has not answered."""

    def routes(self) -> Iterable[Route]:
        code, limits = RequestCode, (512 << 10, FRAME_MAX_BYTES)  # as of sends
        return (
            Route(code.SEND_REPLY_MESSAGE, self.reply, SendMessageRequestHeader, Right.PUB, *limits),
            Route(code.SEND_REPLY_MESSAGE_V2, self.reply, SendMessageRequestHeaderV2, Right.PUB, *limits),
        )

    async def reply(self, channel: Channel, request: RemotingCommand, header: SendHeader) -> RemotingCommand:
        size, most = len(request.body), self._context.config.max_pending_connection_bytes
        if self._under_way[channel] + size > most or self._owed.total() + size > _CONNECTIONS * most:
            return self._acknowledger.refusal(request, ResponseCode.SYSTEM_BUSY, OVERLOAD)
        self._under_way[channel] += size
        try:
            topic = self._sends.find_topic(channel, header) or await self._sends.create_topic(header)
            return await self._reply(channel, request, header, self._sends.queue_id(channel, header, topic))
        except BrokerError as error:
            return self._acknowledger.refusal(request, error.code, error.remark)
        finally:
            self._under_way[channel] -= size
            if not self._under_way[channel]:
                del self._under_way[channel]

    async def _reply(
        self, channel: Channel, request: RemotingCommand, header: SendHeader, queue_id: int
    ) -> RemotingCommand:
        message = StoredMessage(
            topic=header.topic,
            queue_id=queue_id,
            body=request.body,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=born_host(channel),
            reconsume_times=header.reconsume_times or 0,
        )
        config = self._context.config
        properties = decode_properties((header.properties or "").encode(errors="replace"))
        properties |= {MSG_REGION: config.region_id, TRACE_ON: "true" if config.trace_on else "false"}
        failure = await self._push(channel, message, header, properties)
        told = SendMessageResponseHeader(msg_id="0", queue_id=queue_id, queue_offset=0)
        if config.store_reply_message_enable:
            told = await self._store(message, properties) or told
        code = ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR
        return self._acknowledger.answer(request, code, failure, told)

    async def _push(
        self, channel: Channel, message: StoredMessage, header: SendHeader, properties: dict[str, str]
    ) -> str | None:
        """Hand a reply to the client that asked; returns why that failed."""
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        client = self._context.producers.channel_of(client_id)
        if client is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now = self._context.clock.time_millis()
        push = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=message.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=channel.remote_address,
            store_host=self._context.address,
            store_timestamp=now,
            properties=encode_properties(properties | {PUSH_REPLY_TIME: str(now)}).decode(),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode or False,
        )
        size = len(message.body)
        if self._owed[client] + size > self._context.config.max_pending_connection_bytes:
            return f"push reply message fail, {self._owed[client]} bytes of others wait for an answer of <{client_id}>."
        command = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, bytes(message.body))
        self._owed[client] += size
        try:
            answer = await client.invoke(command, _PUSH_SECONDS)
        except TransportError as error:
            why: object = error
        else:
            if answer.code == ResponseCode.SUCCESS:
                return None
            why = f"{answer.code} {answer.remark}"
        finally:
            self._owed[client] -= size
            if not self._owed[client]:
                del self._owed[client]
        logger.info("reply not taken client_id=%s remote=%s error=%s", client_id, client.remote_address, why)
        return f"push reply message to {client_id}fail."

    async def _store(self, message: StoredMessage, properties: dict[str, str]) -> SendMessageResponseHeader | None:
        """Store a reply; returns where it is, None where it could not be: it may have been handed over all the same."""
        try:
            result = self._admission.put(message, properties, is_sent=True)
            status, why = result.status, result.reason
            if status is PutStatus.PUT_OK:
                status = await self._admission.stored(result)
        except BrokerError as error:
            status, why = PutStatus.MESSAGE_ILLEGAL, error.remark
        if status in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT):
            return SendMessageResponseHeader(
                msg_id=result.msg_id.decode(), queue_id=message.queue_id, queue_offset=result.queue_offset
            )
        logger.warning("reply not stored topic=%s status=%s reason=%s", message.topic, status.value, why)
        return None
