"""What a producer answers brokers that ask how a transaction ended (39).

The checker runs one question after the other, off the loop and off the thread that reads; a coroutine function runs on
the loop. What it raises, or returns that is no TransactionState, is UNKNOWN: the broker asks again later. So does one
whose question found ``HELD`` others waiting.

RocketMQ 5.5.0: ``ClientRemotingProcessor.checkTransactionState``, ``DefaultMQProducerImpl.checkTransactionState``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketcore.client import api
from rocketcore.client.config import Checker, ProducerConfig
from rocketcore.client.daemon import call_on_daemon
from rocketcore.client.runtime import ends_this_task, returns_coroutine
from rocketcore.codes import FRAME_MAX_BYTES, RequestCode
from rocketcore.errors import RocketError
from rocketcore.message import PRODUCER_GROUP, UNIQ_KEY, ReceivedMessage, TransactionState, leave_namespace
from rocketcore.naming import with_namespace
from rocketcore.printable import printable
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rocketcore.protocol.message import decode_message
from rocketcore.transport.blocking.client import run_sync
from rocketcore.transport.remoting import Remoting
from rocketcore.transport.routes import Route
from rocketcore.warning import Recurring

if TYPE_CHECKING:
    from rocketcore.client.trace import Tracer

__all__ = ["LoopChecks", "ThreadChecks"]

logger = logging.getLogger(__name__)

HELD: Final = 2000
"""Questions that wait at most (Java: ``checkRequestHoldMax``)."""


class _Question(NamedTuple):
    address: str
    header: CheckTransactionStateRequestHeader
    message: ReceivedMessage


class _Checks(ABC):
    """Takes questions and sends answers.

    address_of  where to answer whom a connection leads to; None for a connection that is over
    """

    def __init__(
        self,
        config: ProducerConfig,
        checker: Checker,
        remoting: Remoting,
        address_of: Callable[[Any], str | None],
    ) -> None:
        self._config = config
        self._checker = checker
        self._remoting = remoting
        self._address_of = address_of
        self._failures = Recurring(logger)
        self.tracer: Tracer | None = None
        """Told of each answer."""

    def routes(self) -> Iterable[Route]:
        code = RequestCode.CHECK_TRANSACTION_STATE
        return (Route(code, self._asked, CheckTransactionStateRequestHeader, body_limit=FRAME_MAX_BYTES),)

    def _asked(self, channel: Any, request: RemotingCommand, header: CheckTransactionStateRequestHeader) -> None:
        message = decode_message(request.body, header.bname or "")
        group = message.properties.get(PRODUCER_GROUP)
        address = self._address_of(channel)
        if group != self._config.group or address is None:
            text = "transaction check of another group=%s remote=%s"
            self._failures.warn("group", text, printable(str(group)), address)
            return
        leave_namespace([message], self._config.namespace)
        if not self._put(_Question(address, header, message)):
            text = "transaction check left to later, %d wait message=%s"
            self._failures.warn("late", text, HELD, printable(message.msg_id))

    @abstractmethod
    def _put(self, question: _Question) -> bool:
        """Keep a question until the checker has time for it; False where too many wait."""

    def _judged(self, message: ReceivedMessage, state: object) -> TransactionState:
        if isinstance(state, TransactionState):
            return state
        text = "checker returned no TransactionState, the broker will ask again message=%s returned=%r"
        kind = "returned", type(state)
        self._failures.warn(kind, text, printable(message.msg_id), state, level=logging.ERROR)
        return TransactionState.UNKNOWN

    def _failed(self, message: ReceivedMessage, error: BaseException) -> TransactionState:
        text = "checker failed, the broker will ask again message=%s error=%r"
        self._failures.warn(
            ("failed", type(error)), text, printable(message.msg_id), error, error=error, level=logging.ERROR
        )
        return TransactionState.UNKNOWN

    async def _answer(self, question: _Question, state: TransactionState) -> None:
        address, asked, message = question
        header = EndTransactionRequestHeader(
            producer_group=self._config.group,
            topic=with_namespace(message.topic, self._config.namespace),
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=state.sys_flag,
            from_transaction_check=True,
            msg_id=message.properties.get(UNIQ_KEY, message.msg_id),
            transaction_id=asked.transaction_id,
            bname=asked.bname,
        )
        try:
            await api.end_transaction(self._remoting, address, header, self._config.timeout)
        except RocketError as error:
            text = "transaction check not answered message=%s error=%s"
            self._failures.warn(("answer", type(error)), text, printable(message.msg_id), error)
            return
        if self.tracer is not None:
            self.tracer.transaction_ended(message, header.msg_id or message.msg_id, address, state, from_check=True)


class LoopChecks(_Checks):
    """Checks of an asyncio producer: a task of its loop."""

    _questions: asyncio.Queue[_Question]
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._questions = asyncio.Queue(HELD)
        self._task = asyncio.create_task(self._run(), name="producer-checks")

    async def stop(self) -> None:
        """Ask the checker nothing any more."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():  # a checker that closes its producer goes on
            task.cancel()
            await asyncio.wait([task])

    def _put(self, question: _Question) -> bool:
        if self._task is None or self._questions.full():
            return False
        self._questions.put_nowait(question)
        return True

    async def _run(self) -> None:
        while self._task is not None:
            question = await self._questions.get()
            await self._answer(question, await self._state(question.message))

    async def _state(self, message: ReceivedMessage) -> TransactionState:
        try:
            if returns_coroutine(self._checker):
                state: Any = self._checker(message)
            else:
                state = await call_on_daemon("producer-checker", self._checker, message)
            return self._judged(message, await state if inspect.isawaitable(state) else state)
        except BaseException as error:  # what would end the loop, or this task, is a failure of the checker
            if ends_this_task(error):
                raise
            return self._failed(message, error)


class ThreadChecks(_Checks):
    """Checks of a blocking producer: a daemon thread, which begins with the first question."""

    def __init__(
        self,
        config: ProducerConfig,
        checker: Checker,
        remoting: Remoting,
        address_of: Callable[[Any], str | None],
    ) -> None:
        super().__init__(config, checker, remoting, address_of)
        self._questions: queue.Queue[_Question | None] = queue.Queue(HELD)
        self._thread: threading.Thread | None = None

    def _put(self, question: _Question) -> bool:
        try:
            self._questions.put_nowait(question)
        except queue.Full:
            return False
        if self._thread is None:  # one thread serves requests
            self._thread = threading.Thread(target=self._run, name="producer-checks", daemon=True)
            self._thread.start()
        return True

    def stop(self) -> None:
        """Ask the checker nothing any more; what it is asked at the moment goes on."""
        while True:
            try:
                self._questions.get_nowait()
            except queue.Empty:
                break
        self._questions.put(None)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            run_sync(self._answer(question, self._state(question.message)))

    def _state(self, message: ReceivedMessage) -> TransactionState:
        try:
            state: Any = self._checker(message)
            if inspect.isawaitable(state):
                state = asyncio.run(_outcome(state))
            return self._judged(message, state)
        except BaseException as error:  # sys.exit() too: it would end this thread, and nobody would know
            return self._failed(message, error)


async def _outcome(awaitable: Awaitable[object]) -> object:
    return await awaitable
