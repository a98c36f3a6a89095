"""Request and reply: a producer sends a message and waits for the message that answers it.

The request carries CORRELATION_ID, and REPLY_TO_CLIENT, by which a broker finds the producer: whoever consumes the
request sends a reply with both to the broker, which sends it on here over the connection of our heartbeats (326).

RocketMQ 5.5.0: ``DefaultMQProducerImpl.request``, ``RequestFutureHolder``, ``ClientRemotingProcessor``.
"""

from __future__ import annotations

import copy
import logging
import uuid
from collections.abc import Awaitable, Callable
from types import MappingProxyType

from rocketcore._fast.properties import decode_properties
from rocketcore.client.instance import HEARTBEAT_TIMEOUT, ClientInstance
from rocketcore.client.runtime import Runtime, Signal
from rocketcore.codes import FRAME_MAX_BYTES, REPLY_TOPIC_SUFFIX, MessageSysFlag, RequestCode, ResponseCode
from rocketcore.errors import ClientClosed, DecodeError, RequestTimeout, RocketError, RouteNotFound
from rocketcore.message import (
    ARRIVE_TIME,
    CORRELATION_ID,
    REPLY_TO_CLIENT,
    REQUEST_TTL,
    UNIQ_KEY,
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.compression import decompress
from rocketcore.protocol.headers.message import ReplyMessageRequestHeader
from rocketcore.service import Clock, Deadline
from rocketcore.transport.remoting import ServedRemoting
from rocketcore.transport.routes import Right, Route

__all__ = ["Requests"]

logger = logging.getLogger(__name__)

_COMPRESSED = int(MessageSysFlag.COMPRESSED)


class _Waiting:
    """A request without a reply yet."""

    __slots__ = ("arrived", "reply")

    def __init__(self, arrived: Signal) -> None:
        self.arrived = arrived
        self.reply: ReceivedMessage | None = None


class Requests:
    """The requests of one producer that wait for their replies; as many as callers wait."""

    def __init__(self, instance: ClientInstance, remoting: ServedRemoting, runtime: Runtime, clock: Clock) -> None:
        self._instance = instance
        self._remoting = remoting
        self._runtime = runtime
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}
        self._closed = False
        self._without_route: set[str] = set()
        self._known_by: dict[str, object] = {}
        """Address → the connection over which its broker has had a heartbeat."""
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        limits = Right.ANY, 512 << 10, FRAME_MAX_BYTES  # as of the reply that a broker has taken
        remoting.add_routes([Route(code, self._arrived, ReplyMessageRequestHeader, *limits)])

    async def ask(
        self, message: Message, send: Callable[[Message, float], Awaitable[SendResult]], deadline: Deadline
    ) -> ReceivedMessage:
        """Send a request and return its reply.

        send    sends a message within so many seconds
        raises  what ``send`` raises; RequestTimeout where no reply comes in time
        """
        timeout = deadline.timeout
        correlation_id = str(uuid.uuid4())
        request = copy.copy(message)
        request.properties = message.properties | {
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: self._instance.client_id,
            REQUEST_TTL: str(max(1, round(timeout * 1000))),
        }
        waiting = self._waiting[correlation_id] = _Waiting(self._runtime.signal())
        try:
            # A broker that does not know this producer yet could not send the reply on.
            await self._find_reply_brokers(message.topic, deadline)
            await self._be_known(deadline)
            sent = await send(request, deadline.remaining())
            if waiting.reply is None:
                await self._be_known(deadline)  # the send may have found the connection broken, and made another
                with self._remoting.expecting():
                    await waiting.arrived.wait(deadline.remaining())
        finally:
            del self._waiting[correlation_id]
        if waiting.reply is None and self._closed:
            raise ClientClosed(
                f"the producer was closed before request {sent.msg_id} to topic {message.topic!r} had a reply"
            )
        if waiting.reply is None:
            raise RequestTimeout(
                f"request {sent.msg_id} to topic {message.topic!r}: stored in {sent.queue} at offset {sent.offset}, "
                f"no reply within {timeout:g} s"
            )
        return waiting.reply

    def give_up(self) -> None:
        """Wait for no reply any more: the producer is closed."""
        self._closed = True
        for waiting in list(self._waiting.values()):
            waiting.arrived.set()

    async def _be_known(self, deadline: Deadline) -> None:
        """Have the brokers know this producer by the connections that there are now: older ones may have ended.

        One that does not answer takes a quarter of the time: the reply may come by another.
        """
        instance, connection_to = self._instance, self._remoting.connection_to
        addresses = instance.routes.addresses(masters_only=True)
        for address in addresses:
            connection = connection_to(address)
            if connection is None or connection is not self._known_by.get(address):
                instance.broker_versions.pop(address, None)
        await instance.send_missing_heartbeats(min(HEARTBEAT_TIMEOUT, deadline.remaining() / 4))
        self._known_by = {
            address: connection_to(address) for address in addresses if address in instance.broker_versions
        }

    async def _find_reply_brokers(self, topic: str, deadline: Deadline) -> None:
        """Learn of the brokers that take replies: more of the cluster, perhaps, than have the topic of the request.

        RocketMQ does not; there a reply that goes to one of these comes by another attempt of who replies.
        """
        for cluster in self._instance.routes.clusters_of(topic):
            reply_topic = cluster + REPLY_TOPIC_SUFFIX
            if reply_topic in self._without_route:
                continue
            try:
                await self._instance.route(reply_topic, timeout=deadline.remaining() / 2)
            except RouteNotFound:
                self._without_route.add(reply_topic)
            except RocketError as error:
                logger.debug("brokers of replies not known topic=%s error=%s", reply_topic, error)

    def _arrived(self, channel: object, request: RemotingCommand, header: ReplyMessageRequestHeader) -> RemotingCommand:
        """Take a reply; one that nobody waits for any more is taken too, so that the broker is content."""
        try:
            reply = self._received(request, header)
        except DecodeError as error:
            logger.warning("reply not decoded topic=%s error=%s", header.topic, error)
            return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, f"process reply message fail: {error}")
        waiting = self._waiting.get(reply.properties.get(CORRELATION_ID, ""))
        if waiting is None:
            logger.info("reply without a request msg_id=%s born_host=%s", reply.msg_id, reply.born_host)
        else:
            waiting.reply = reply
            waiting.arrived.set()
        return RemotingCommand.response(request)

    def _received(self, request: RemotingCommand, header: ReplyMessageRequestHeader) -> ReceivedMessage:
        properties = decode_properties((header.properties or "").encode(errors="replace"))
        properties[ARRIVE_TIME] = str(self._clock.time_millis())
        body, sys_flag = bytes(request.body), header.sys_flag
        if sys_flag & _COMPRESSED and body:
            body, sys_flag = decompress(body, sys_flag), sys_flag & ~_COMPRESSED
        return ReceivedMessage(
            topic=header.topic,
            body=body,
            queue=MessageQueue(header.topic, header.bname or "", header.queue_id),
            offset=-1,
            msg_id=properties.get(UNIQ_KEY, ""),
            offset_msg_id="",
            properties=MappingProxyType(properties),
            flag=header.flag,
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            store_timestamp=header.store_timestamp,
            born_host=header.born_host,
            store_host=header.store_host,
            reconsume_times=header.reconsume_times or 0,
        )
