"""The end of transactions: 37, and what is asked about again: 323.

Java: ``EndTransactionProcessor``, ``AdminBrokerProcessor.resumeCheckHalfMessage`` (5.5.0).
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketcore._fast.properties import decode_properties
from rocketcore.broker.admission import Admission
from rocketcore.broker.context import BrokerContext
from rocketcore.broker.record import RecordReader
from rocketcore.broker.store import PutStatus
from rocketcore.broker.transactions.service import TransactionService, real_place
from rocketcore.codes import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANSACTION_MASK,
    MessageSysFlag,
    RequestCode,
    ResponseCode,
)
from rocketcore.errors import BrokerError
from rocketcore.ids import place_of
from rocketcore.message import TRANSACTION_CHECK_TIMES, TRANSACTION_PREPARED_QUEUE_OFFSET
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

__all__ = ["TransactionProcessor"]

_ENDS = (MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK)


class TransactionProcessor:
    """Takes what producers, and operators, say of half messages."""

    def __init__(self, context: BrokerContext, admission: Admission, transactions: TransactionService) -> None:
        self._context = context
        self._admission = admission
        self._transactions = transactions
        self._reader = RecordReader(1)

    def routes(self) -> Iterable[Route]:
        code, right = RequestCode, Right
        return (
            Route(code.END_TRANSACTION, self.end_transaction, EndTransactionRequestHeader, right.PUB),
            Route(code.RESUME_CHECK_HALF_MESSAGE, self.resume_check, ResumeCheckHalfMessageRequestHeader, right.UPDATE),
        )

    async def end_transaction(
        self, channel: Channel, request: RemotingCommand, header: EndTransactionRequestHeader
    ) -> RemotingCommand | None:
        """Commit or roll back. One who does not know yet gets no answer, even where he asks for one, as in Apache."""
        if header.commit_or_rollback & ~TRANSACTION_MASK or header.commit_or_rollback not in (0, *_ENDS):
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, f"commitOrRollback field wrong: {header.commit_or_rollback}"
            )
        if header.commit_or_rollback == 0:
            return None
        await self._transactions.end(channel, header)
        return RemotingCommand.response(request)

    async def resume_check(
        self, channel: Channel, request: RemotingCommand, header: ResumeCheckHalfMessageRequestHeader
    ) -> RemotingCommand:
        """Put a message that was asked about too often back among the half messages, as one that never was."""
        store = self._context.store
        place = place_of(header.msg_id or "")
        data = None if place is None else await store.reads.read(channel, store.lookup, place[1])
        record = None if data is None else next(self._reader.read(data))
        properties = {} if record is None else decode_properties(record.message.properties)
        if record is None or record.message.topic != TRANS_CHECK_MAX_TIME_TOPIC or real_place(properties) is None:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, f"{header.msg_id} is no message of {TRANS_CHECK_MAX_TIME_TOPIC}"
            )
        properties[TRANSACTION_CHECK_TIMES] = "0"
        properties.pop(TRANSACTION_PREPARED_QUEUE_OFFSET, None)
        result = self._transactions.put_half(record.message, properties)
        if result.status is not PutStatus.PUT_OK or await self._admission.stored(result) is not PutStatus.PUT_OK:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"Put message back to {TRANS_HALF_TOPIC} failed.")
        return RemotingCommand.response(request)
