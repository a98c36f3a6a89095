"""Single messages: by their place in the log, by key, by unique id, by tag. Codes 33, 12.

Java: ``QueryMessageProcessor`` (5.5.0).
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketcore.broker.context import BrokerContext
from rocketcore.broker.store import IndexQuery
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.message import KeyKind
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

__all__ = ["QueryProcessor"]

QUERY_SECONDS = 5.0
"""A query waits for the index, and searches, no longer: Java's client waits for 15 s."""
NOT_FOUND = "can not find message, maybe time range not correct"


class QueryProcessor:
    """Answers questions for single messages.

    default_max  messages that a query by unique id answers at most
    """

    def __init__(self, context: BrokerContext, default_max: int) -> None:
        self._context = context
        self._default_max = default_max

    def routes(self) -> Iterable[Route]:
        code, right = RequestCode, Right
        return (
            Route(code.VIEW_MESSAGE_BY_ID, self.view_message, ViewMessageRequestHeader, right.GET),
            Route(code.QUERY_MESSAGE, self.query_message, QueryMessageRequestHeader, right.SUB),
        )

    async def view_message(
        self, channel: Channel, request: RemotingCommand, header: ViewMessageRequestHeader
    ) -> RemotingCommand:
        physical_offset = header.offset
        store = self._context.store
        record = await store.reads.read(channel, store.lookup, physical_offset)
        if record is None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}")
        return RemotingCommand.response(request, body=record)

    async def query_message(
        self, channel: Channel, request: RemotingCommand, header: QueryMessageRequestHeader
    ) -> RemotingCommand:
        """Answer messages by key; what is not known yet is no "not found"."""
        kind, max_count = self._asked(header)
        query = IndexQuery(header.topic, header.key, kind, header.begin_timestamp, header.end_timestamp)
        try:
            result = await self._context.store.query(query, max_count, QUERY_SECONDS)
        except TimeoutError as error:
            reason = f"query by key {header.key!r}: {error}; ask for less time"
            raise BrokerError.of(ResponseCode.SYSTEM_BUSY, reason) from error
        if result is None:
            raise BrokerError.of(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                "this broker keeps no index (messageIndexEnable=false): messages cannot be found by key",
            )
        behind = f"the index is {result.behind} bytes of the log behind, ask again" if result.behind else ""
        if not result.records:
            if behind:
                reason = f"no message found by key {header.key!r} so far: {behind}"
                raise BrokerError.of(ResponseCode.SYSTEM_BUSY, reason)
            return RemotingCommand.response(request, ResponseCode.QUERY_NOT_FOUND, NOT_FOUND, _answer(0, 0))
        answer = _answer(result.last_timestamp, result.last_offset)
        return RemotingCommand.response(request, 0, behind or None, answer, b"".join(result.records))

    def _asked(self, header: QueryMessageRequestHeader) -> tuple[KeyKind, int]:
        """Return what a key is and how many messages are wanted; on Apache, too, an unknown index type is none."""
        if header.unique_key_query:
            return KeyKind.UNIQUE, self._default_max
        try:
            return KeyKind(header.index_type or "K"), header.max_num
        except ValueError:
            return KeyKind.KEY, header.max_num


def _answer(last_timestamp: int, last_offset: int) -> QueryMessageResponseHeader:
    return QueryMessageResponseHeader(
        index_last_update_timestamp=last_timestamp, index_last_update_phyoffset=last_offset
    )
