"""Asking producers how transactions ended.

Java: ``TransactionalMessageServiceImpl.check``, ``AbstractTransactionalMessageCheckListener`` (5.5.0).

Every ``transactionCheckInterval`` one round looks at the undecided half messages, the oldest first; between rounds they
cost nothing. One that is old enough is put at the end of its queue, with one more in TRANSACTION_CHECK_TIMES, and when
that is stored, a producer of its group is asked about the copy (39). Where none is connected the question counts all
the same, as in Apache's broker. TRAN_PREPARED_QUEUE_OFFSET of a copy says where the message was stored first, so that
a producer's own decision, which names that place, ends the copy.

A message that was asked about ``transactionCheckMax`` times is set aside in TRANS_CHECK_MAX_TIME_TOPIC; so is one whose
questions had no answer for ``fileReservedTime`` while the broker ran. What cannot be read is named and passed over,
when a second round cannot read it either.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from rocketcore._fast.message_id import offset_msg_id
from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore._fast.record import encode_stored
from rocketcore.broker.admission import Admission
from rocketcore.broker.context import BrokerContext
from rocketcore.broker.record import StoredRecord
from rocketcore.broker.store import PutResult, PutStatus
from rocketcore.broker.transactions.half_messages import HalfState
from rocketcore.broker.transactions.service import (
    QUEUE,
    TransactionService,
    first_offset,
    immunity_millis,
    real_place,
)
from rocketcore.codes import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, RequestCode
from rocketcore.errors import StoreCorrupted, TransportError
from rocketcore.message import (
    PRODUCER_GROUP,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_PREPARED_QUEUE_OFFSET,
    UNIQ_KEY,
)
from rocketcore.printable import printable
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import CheckTransactionStateRequestHeader

logger = logging.getLogger(__name__)

ROUND_SECONDS: Final = 60.0
"""What is not looked at after this time is for the next round."""

_AT_ONCE: Final = 32
_AGAIN_SECONDS: Final = 1.0
_REFUSED_FOR_GOOD: Final = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


class _Question(NamedTuple):
    """A copy that a producer is asked about."""

    record: StoredRecord
    properties: dict[str, str]
    copy: PutResult


class _Stop(Exception):
    """The rest is for the next round."""


class TransactionCheck:
    """Rounds over the undecided half messages; ``round`` is called at the interval.

    is_gone  (topic, physical offset): whether the topic was deleted after a message for it was stored there
    """

    def __init__(
        self,
        context: BrokerContext,
        admission: Admission,
        transactions: TransactionService,
        is_gone: Callable[[str, int], bool],
    ) -> None:
        self.skipped = 0
        """Half messages that could not be read, since the start."""
        self._context = context
        self._admission = admission
        self._transactions = transactions
        self._is_gone = is_gone
        self._turn = 0
        self._unread = -1
        """Queue offset at which the last round could not read."""
        self._last: PutResult | None = None
        self._not_asked: Counter[str] = Counter()

    async def round(self) -> float | None:
        """Look at what is undecided; the first round only finds out what is.

        returns  seconds until the next round, where that is to be sooner than planned
        """
        transactions = self._transactions
        try:
            if not transactions.is_loaded:
                await transactions.read_back()
            else:
                await self._check_halves()
        except (StoreCorrupted, OSError) as error:
            logger.error("half messages not read error=%s", error)
            return None if transactions.is_loaded else _AGAIN_SECONDS
        finally:
            self._complain()
        return None

    async def _check_halves(self) -> None:
        transactions, store, clock = self._transactions, self._context.store, self._context.clock
        halves = transactions.halves
        deadline = clock.monotonic() + ROUND_SECONDS
        transactions.settle()
        transactions.write_ops()
        end = store.max_offset(TRANS_HALF_TOPIC, QUEUE)
        halves.grow(end)
        at = halves.begin
        try:
            while clock.monotonic() < deadline:
                at, behind = halves.next_open(at, end)
                if at >= end:
                    break
                at = await self._some(at, min(behind - at, _AT_ONCE))
                await asyncio.sleep(0)
        except _Stop:
            pass
        transactions.advance()
        transactions.settle()

    async def _some(self, at: int, count: int) -> int:
        """Look at a few messages; return where to go on; raises _Stop."""
        transactions = self._transactions
        try:
            records, behind = await transactions.read(TRANS_HALF_TOPIC, at, count)
        except StoreCorrupted as error:
            if self._unread != at:
                self._unread = at
                raise
            self._pass_over(at, at + 1, str(error))
            return at + 1
        questions: list[_Question] = []
        self._last = None
        stopped = True
        try:
            for record in records:
                self._pass_over(at, record.queue_offset, "damaged")
                at = record.queue_offset
                if transactions.halves.state(at) is HalfState.OPEN:
                    self._look_at(record, questions)
                at += 1
            if not records:
                self._pass_over(at, min(behind, at + count), "damaged")
            stopped = False
        except _Stop:
            pass
        transactions.write_ops()
        if self._last is not None and await self._admission.stored(self._last) is not PutStatus.PUT_OK:
            raise _Stop
        for question in questions:
            if transactions.halves.state(question.copy.queue_offset) is HalfState.OPEN:
                self._ask(question)
        if stopped:
            raise _Stop
        return max(at, behind)

    def _look_at(self, record: StoredRecord, questions: list[_Question]) -> None:
        """Set one message aside, move it, ask about it, or raise _Stop where it is too young."""
        config, transactions = self._context.config, self._transactions
        properties = decode_properties(record.message.properties)
        age_millis = transactions.age(record, properties) * 1000
        place = real_place(properties)
        if place is None or self._is_gone(place.topic, record.physical_offset):
            why = "it has no real topic" if place is None else f"topic {place.topic} was deleted"
            logger.warning("half message given up queue_offset=%d reason=%s", record.queue_offset, printable(why))
            self._end(record, properties, HalfState.ENDED)
            return
        checks = _checks(properties)
        kept_millis = self._context.store.config.file_reserved_time * 3_600_000
        is_kept = not checks or min(age_millis, transactions.uptime() * 1000) <= kept_millis
        if checks >= config.transaction_check_max or not is_kept:
            self._set_aside(record, properties)
            return
        immunity = immunity_millis(properties, config.transaction_time_out)
        if immunity is not None and age_millis < immunity:
            self._move(record, properties)
            return
        if immunity is None and not checks and age_millis < config.transaction_time_out:
            raise _Stop
        properties[TRANSACTION_CHECK_TIMES] = str(checks + 1)
        copy = self._move(record, properties)
        if copy is not None:
            questions.append(_Question(record, properties, copy))

    def _move(self, record: StoredRecord, properties: dict[str, str]) -> PutResult | None:
        """Put a message at the end of its queue; None where its properties have no room for that: it is set aside."""
        transactions = self._transactions
        first = first_offset(record, properties)
        properties[TRANSACTION_PREPARED_QUEUE_OFFSET] = str(first)
        result = transactions.put_half(record.message, properties)
        if result.status in _REFUSED_FOR_GOOD:
            self._set_aside(record, decode_properties(record.message.properties))
            return None
        if result.status is not PutStatus.PUT_OK:
            logger.warning("half message not moved queue_offset=%d reason=%s", record.queue_offset, result.reason)
            raise _Stop
        transactions.moved(record, first, result.queue_offset)
        self._last = result
        return result

    def _set_aside(self, record: StoredRecord, properties: dict[str, str]) -> None:
        """Move a message to where an operator finds it; request 323 has it checked again."""
        self._context.topics.ensure(TRANS_CHECK_MAX_TIME_TOPIC, 1)
        message = replace(record.message, topic=TRANS_CHECK_MAX_TIME_TOPIC, queue_id=0)
        result = self._admission.count(message.topic, self._context.store.put(message), message.queue_id)
        if result.status is not PutStatus.PUT_OK:
            logger.warning("half message not set aside queue_offset=%d reason=%s", record.queue_offset, result.reason)
            raise _Stop
        self._last = result
        self._end(record, properties, HalfState.DISCARDED)
        logger.warning(
            "half message set aside group=%s queue_offset=%d checks=%d born=%d topic=%s",
            *(printable(properties.get(PRODUCER_GROUP, "")), record.queue_offset, _checks(properties)),
            *(record.message.born_timestamp, TRANS_CHECK_MAX_TIME_TOPIC),
        )

    def _end(self, record: StoredRecord, properties: dict[str, str], state: HalfState) -> None:
        self._transactions.halves.end_one(record.queue_offset, state, first_offset(record, properties))
        self._transactions.no_longer_open(record.queue_offset)

    def _pass_over(self, begin: int, end: int, reason: str) -> None:
        """Give up messages that cannot be read."""
        if end <= begin:
            return
        self.skipped += end - begin
        logger.error("half messages passed over queue_offset=%d messages=%d reason=%s", begin, end - begin, reason)
        for queue_offset in range(begin, end):
            self._transactions.halves.end_one(queue_offset, HalfState.ENDED, queue_offset)

    # ------------------------------------------------------------------ asking

    def _ask(self, question: _Question) -> None:
        """Ask a producer of the message's group, each in turn."""
        group = question.properties.get(PRODUCER_GROUP, "")
        producers = self._context.producers.find(group)
        self._turn += 1
        request = self._request(question)
        for number in range(len(producers)):
            channel = producers[(self._turn + number) % len(producers)].channel
            try:
                channel.invoke_oneway(request)
            except TransportError as error:
                logger.info("producer not asked group=%s error=%s", printable(group), error)
            else:
                return
        self._not_asked[group] += 1

    def _request(self, question: _Question) -> RemotingCommand:
        record, properties, copy = question
        message, store_host = record.message, self._context.store.store_host
        place = real_place(properties)
        assert place is not None, "looked at before"
        unique = properties.get(UNIQ_KEY)
        header = CheckTransactionStateRequestHeader(
            topic=TRANS_HALF_TOPIC,
            tran_state_table_offset=copy.queue_offset,
            commit_log_offset=copy.physical_offset,
            msg_id=unique,
            transaction_id=unique,
            offset_msg_id=offset_msg_id(store_host, copy.physical_offset).decode(),
            bname=self._context.config.broker_name,
        )
        body = encode_stored(
            topic=place.topic.encode(),
            queue_id=place.queue_id,
            flag=message.flag,
            queue_offset=copy.queue_offset,
            physical_offset=copy.physical_offset,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=copy.store_timestamp,
            store_host=store_host,
            reconsume_times=message.reconsume_times,
            prepared_offset=0,
            body=message.body,
            properties=encode_properties(properties),
        )
        return RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header, body, oneway=True)

    def _complain(self) -> None:
        """Name the groups that have no producer to ask."""
        for group, count in self._not_asked.most_common(10):
            logger.warning("no producer to ask how transactions ended group=%s messages=%d", printable(group), count)
        self._not_asked.clear()


def _checks(properties: dict[str, str]) -> int:
    """How often producers were asked about a message."""
    text = properties.get(TRANSACTION_CHECK_TIMES, "")
    return int(text) if text.isascii() and text.isdigit() else 0
