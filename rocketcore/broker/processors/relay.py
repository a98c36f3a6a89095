"""What a tool asks a consumer through its broker: 223, 307, 309 (Java: ``AdminBrokerProcessor``, ``Broker2Client``).

The broker knows the client's connection by its heartbeats, asks it there, and gives its answer to the tool as it came,
with the client's language and version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from rocketcore.broker.context import BrokerContext
from rocketcore.broker.state.client_table import ClientChannel, ConsumerGroup
from rocketcore.codes import LanguageCode, RequestCode, ResponseCode, Version
from rocketcore.errors import BrokerError, DecodeError, RequestTimeout, TransportError
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.bodies.client import GetConsumerStatusBody
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

logger = logging.getLogger(__name__)

_RELAY_SECONDS = 10.0
_STATUS_SECONDS = 5.0
_STATUS_BYTES = 1 << 20
"""Of the offsets of one client, which are some 80 bytes a queue."""
_OFFSET_DIGITS = 16
_OFFSET_MASK = (1 << 63) - 1
"""A message id ends in the physical offset, in hexadecimal digits."""


class RelayProcessor:
    """Hands questions on to consumers."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def routes(self) -> Iterable[Route]:
        code, right = RequestCode, Right
        return (
            Route(
                code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.consumer_status, GetConsumerStatusRequestHeader,
                right.GET,
            ),
            Route(
                code.GET_CONSUMER_RUNNING_INFO, self.running_info, GetConsumerRunningInfoRequestHeader, right.GET,
                waits=True,
            ),
            Route(
                code.CONSUME_MESSAGE_DIRECTLY, self.consume_directly, ConsumeMessageDirectlyResultRequestHeader,
                right.UPDATE, waits=True,
            ),
        )  # fmt: skip

    async def running_info(
        self, channel: Channel, request: RemotingCommand, header: GetConsumerRunningInfoRequestHeader
    ) -> RemotingCommand:
        return await self._relay(request, header.consumer_group, header.client_id, dict(request.ext_fields or {}))

    async def consume_directly(
        self, channel: Channel, request: RemotingCommand, header: ConsumeMessageDirectlyResultRequestHeader
    ) -> RemotingCommand:
        """Send a client one message to consume now, with the name of its broker."""
        context = self._context
        client_id = header.client_id or ""
        self._find(header.consumer_group, client_id)
        record = await context.store.reads.read(channel, context.store.lookup, _physical_offset(header.msg_id or ""))
        if record is None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"can not find message by the id {header.msg_id}")
        fields = dict(request.ext_fields or {}) | {"brokerName": context.config.broker_name}
        group = context.groups.find(header.consumer_group)
        if group is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        return await self._relay(request, header.consumer_group, client_id, fields, bytes(record))

    def _find(self, group: str, client_id: str) -> ClientChannel:
        members = self._context.consumers.find(group)
        client = None if members is None else members.find_client(client_id)
        if client is None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if client.version < Version.V3_1_8_SNAPSHOT:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{client.version}> too low to finish, please "
                "upgrade it to V3_1_8_SNAPSHOT",
            )
        return client

    async def _relay(
        self, request: RemotingCommand, group: str, client_id: str, ext_fields: dict[str, str], body: bytes = b""
    ) -> RemotingCommand:
        """Ask a client what a tool asks, and return its answer as the tool's."""
        client = self._find(group, client_id)
        question = RemotingCommand.request(request.code, body=body or request.body)
        question.ext_fields = ext_fields
        try:
            answer = await client.channel.invoke(question, _RELAY_SECONDS)
        except RequestTimeout as error:
            raise BrokerError.of(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {error}"
            ) from error
        except TransportError as error:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}> Exception: {error}"
            ) from error
        relayed = RemotingCommand.response(request, answer.code, answer.remark, body=answer.body)
        relayed.ext_fields = dict(answer.ext_fields or {}) or None
        relayed.language = answer.language if answer.language >= 0 else LanguageCode.OTHER
        relayed.version = answer.version
        return relayed

    async def consumer_status(
        self, channel: Channel, request: RemotingCommand, header: GetConsumerStatusRequestHeader
    ) -> RemotingCommand:
        """Ask the clients of a group, or the one named, where they are; who does not answer is left out."""
        group = self._context.consumers.find(header.group)
        if group is None:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        clients = require_version(group, Version.V3_0_7_SNAPSHOT)
        asked = [client for client in clients if header.client_addr in (None, "", client.client_id)]
        tables = await asyncio.gather(*(self._status_of(client, header) for client in asked))
        found = {client.client_id: table for client, table in zip(asked, tables, strict=True) if table is not None}
        return RemotingCommand.response(request, body=GetConsumerStatusBody(consumer_table=found).encode())

    async def _status_of(
        self, client: ClientChannel, header: GetConsumerStatusRequestHeader
    ) -> dict[MessageQueue, int] | None:
        question = RemotingCommand.request(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            GetConsumerStatusRequestHeader(topic=header.topic, group=header.group),
        )
        try:
            answer = await client.channel.invoke(question, _STATUS_SECONDS)
            answer.raise_for_code(client.client_id, "consumer status")
            if len(answer.body) > _STATUS_BYTES:
                raise DecodeError(f"{len(answer.body)} bytes, {_STATUS_BYTES} at most")
            return (await self._context.cooperative.decoded(GetConsumerStatusBody, answer.body)).message_queue_table
        except (TransportError, BrokerError, DecodeError) as error:
            logger.info("no status group=%s client_id=%s error=%s", header.group, client.client_id, error)
            return None


def require_version(group: ConsumerGroup, version: Version) -> list[ClientChannel]:
    """Return the clients of a group; raises BrokerError where one is older than a release."""
    clients = list(group.clients.values())
    for client in clients:
        if client.version < version:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={client.version}",
            )
    return clients


def _physical_offset(msg_id: str) -> int:
    """Return where the message of an offset message id lies; raises BrokerError for what is no such id."""
    try:
        if len(msg_id) not in (32, 56):
            raise ValueError(f"{len(msg_id)} characters")
        return int(msg_id[-_OFFSET_DIGITS:], 16) & _OFFSET_MASK
    except ValueError as error:
        raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"{msg_id!r} is no offset message id: {error}") from None
