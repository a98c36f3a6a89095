"""Transactions of a producer: a message that is seen when the local work beside it succeeded.

The half message is sent first, then the local work is done, then its outcome is told. Where the broker does not hear of
it, it asks a producer of the group: ``transaction_checks``.

RocketMQ 5.5.0: ``DefaultMQProducerImpl.sendMessageInTransaction``, ``endTransaction``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rocketcore.client import api
from rocketcore.client.blocking import blocking
from rocketcore.client.sender import Sender
from rocketcore.errors import BrokerError, ConfigError, RocketError, TransactionAborted
from rocketcore.ids import place_of
from rocketcore.message import Message, MessageQueue, SendResult, SendStatus, TransactionState
from rocketcore.naming import with_namespace
from rocketcore.protocol.headers.message import EndTransactionRequestHeader
from rocketcore.service import Deadline
from rocketcore.transport.blocking.client import run_sync
from rocketcore.warning import Recurring

__all__ = ["AsyncTransaction", "Transaction"]

logger = logging.getLogger(__name__)
_failures = Recurring(logger)


class AsyncTransaction:
    """One transaction, public through ``rocketcore.aio.Producer.transaction``.

    ``async with`` begins it; a normal exit commits, an exception rolls back. What is no failure of the work, such as a
    cancellation, tells the broker nothing: it asks the checker. So does an outcome that the broker did not hear.

    message  what is sent
    result   what became of the half message, None before ``begin``
    state    what was decided; UNKNOWN before that
    told     whether the broker has confirmed it
    """

    def __init__(
        self,
        sender: Sender,
        message: Message,
        queue: MessageQueue | None,
        timeout: float | None,
        producer: object = None,
        enter: Callable[[], object] = lambda: None,
    ) -> None:
        if sender.config.checker is None:
            raise ConfigError("a transaction needs Producer(checker=…): a broker that did not hear the outcome asks it")
        self.message = message
        self.result: SendResult | None = None
        self.state = TransactionState.UNKNOWN
        self.told = False
        self._sender = sender
        self._producer = producer  # not to be forgotten, and closed, before this ends
        self._queue = queue
        self._timeout = timeout
        self._enter = enter  # refuses any event loop but the producer's

    async def begin(self) -> SendResult:
        """Send the half message, which no consumer sees; the local work comes after this.

        raises  as ``send``; TransactionAborted where it is not stored as safely as asked: it is rolled back
        """
        self._enter()
        if self.result is not None:
            raise ConfigError("this transaction has begun")
        clock, timeout = self._sender.instance.clock, self._sender.config.timeout
        deadline = Deadline(timeout if self._timeout is None else self._timeout, clock)
        result = await self._sender.send_half(self.message, queue=self._queue, timeout=self._timeout)
        self.result = result
        if result.status is not SendStatus.SEND_OK:
            await self._end_quietly(TransactionState.ROLLBACK)
            raise TransactionAborted(f"half message {result.msg_id} to {self.message.topic!r}: {result.status.value}")
        await self._sender.instance.introduce(self._address(result), deadline.remaining())
        return result

    async def commit(self) -> None:
        """Have consumers see the message; returns when its broker has stored that.

        raises  TransportError where it is not known whether the broker heard: it asks the checker, or the call may be
                repeated; BrokerError where it refused; ConfigError after ``rollback``
        """
        await self._end(TransactionState.COMMIT)

    async def rollback(self) -> None:
        """Have nobody ever see the message; raises as ``commit``."""
        await self._end(TransactionState.ROLLBACK)

    async def leave(self, error: BaseException | None) -> None:
        """End the block: commit, or roll back for an ``error`` of it, unless that was done by hand."""
        if self.state is not TransactionState.UNKNOWN:
            return
        if error is None:
            await self._end_quietly(TransactionState.COMMIT)
        elif isinstance(error, Exception):
            await self._end_quietly(TransactionState.ROLLBACK, refusals=True)
        else:
            _failures.warn(type(error), "transaction left to the checker message=%s reason=%r", self._msg_id, error)

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave(error)

    async def _end_quietly(self, state: TransactionState, *, refusals: bool = False) -> None:
        """Tell the outcome; where the broker may not have heard it, that is no failure of the work.

        refusals  neither is its refusal: an error is on its way already
        """
        try:
            await self._end(state)
        except RocketError as error:
            if isinstance(error, (BrokerError, ConfigError)) and not refusals:
                raise
            text = "outcome not told, the broker will ask message=%s state=%s error=%s"
            _failures.warn((state, type(error)), text, self._msg_id, state.name, error)

    async def _end(self, state: TransactionState) -> None:
        self._enter()
        result = self.result
        if result is None:
            raise ConfigError("the transaction has not begun")
        if self.state is not TransactionState.UNKNOWN and self.state is not state:
            raise ConfigError(f"the transaction has ended: {self.state.name}")
        if self.told:
            return
        self.state = state
        place = place_of(result.offset_msg_id)
        if place is None:
            raise ConfigError(f"message id {result.offset_msg_id!r} does not say where the half message lies")
        config = self._sender.config
        header = EndTransactionRequestHeader(
            producer_group=config.group,
            topic=with_namespace(self.message.topic, config.namespace),
            tran_state_table_offset=result.offset,
            commit_log_offset=place[1],
            commit_or_rollback=state.sys_flag,
            msg_id=result.msg_id,
            transaction_id=result.transaction_id or result.msg_id,
            bname=result.queue.broker,
        )
        timeout = config.timeout if self._timeout is None else self._timeout
        await api.end_transaction(self._sender.instance.remoting, self._address(result), header, timeout)
        self.told = True
        self._sender._note_end(self.message, result, state)

    def _address(self, result: SendResult) -> str:
        return self._sender.instance.routes.publish_address(result.queue.broker)

    @property
    def _msg_id(self) -> str | None:
        return None if self.result is None else self.result.msg_id

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} topic={self.message.topic!r} msg_id={self._msg_id!r} state={self.state.name} "
            f"told={self.told}>"
        )


class Transaction:
    """One transaction, public through ``rocketcore.Producer.transaction``; see ``AsyncTransaction``."""

    def __init__(self, logic: AsyncTransaction) -> None:
        self._transaction = logic

    _run = staticmethod(run_sync)

    def _logic(self) -> AsyncTransaction:
        return self._transaction

    begin = blocking(AsyncTransaction.begin)
    commit = blocking(AsyncTransaction.commit)
    rollback = blocking(AsyncTransaction.rollback)

    @property
    def message(self) -> Message:
        """What is sent."""
        return self._transaction.message

    @property
    def result(self) -> SendResult | None:
        """What became of the half message, None before ``begin``."""
        return self._transaction.result

    @property
    def state(self) -> TransactionState:
        """What was decided; UNKNOWN before that."""
        return self._transaction.state

    @property
    def told(self) -> bool:
        """Whether the broker has confirmed it."""
        return self._transaction.told

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_sync(self._transaction.leave(error))

    def __repr__(self) -> str:
        return repr(self._transaction).replace("AsyncTransaction", "Transaction")
