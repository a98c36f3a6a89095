"""Sends messages in batches whose ids follow from a write id and the number of the message.

The counterpart of ``client.arrow_sender.RecordBatchSender`` for messages that are objects; the ids have its form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rocketcore._fast.batch import ELEMENT_FIXED_SIZE, encode_batch
from rocketcore.cli.messages.import_files import Line
from rocketcore.client.arrow_delivery import BATCH_BYTES, MAX_IN_FLIGHT, BodyDelivery, SendSummary
from rocketcore.client.outgoing import property_text, property_text_of_copy
from rocketcore.client.selectors import find_selector
from rocketcore.client.sender import Sender
from rocketcore.errors import MessageIllegal
from rocketcore.message import Message, MessageQueue

__all__ = ["LineSender", "row_id"]


def row_id(write_id: int, row: int) -> str:
    """Return the UNIQ_KEY of a message: 64 bits, and 64 of its number."""
    return f"{write_id:016X}{row:016X}"


class LineSender:
    """Sends the messages of one topic; those of one message group go to one queue, in order.

    first_row  number of the first message that it gets
    """

    def __init__(
        self, sender: Sender, topic: str, write_id: int, first_row: int, *, timeout: float, delivery_timeout: float
    ) -> None:
        self.summary = SendSummary()
        self._sender = sender
        self._topic = topic
        self._write_id = write_id
        self._row = first_row
        self._timeout = timeout
        self._select = find_selector(sender.config.selector)
        self._queues: list[MessageQueue] = []
        self._delivery = BodyDelivery(
            sender, self.summary, timeout=timeout, delivery_timeout=delivery_timeout, max_in_flight=MAX_IN_FLIGHT
        )

    async def send(self, lines: Iterable[Line]) -> None:
        """Send messages; returns when all are sent, the last of them perhaps not yet acknowledged.

        raises  MessageIllegal naming the line that no broker takes; what an earlier request failed with
        """
        by_queue: dict[MessageQueue | None, list[tuple[Message, bytes]]] = {}
        for message, msg_id, number in lines:
            try:
                self._sender.check(message)
                if msg_id is None:
                    text = property_text(message, row_id(self._write_id, self._row)).encode()
                else:
                    text = property_text_of_copy(message, msg_id).encode()
            except MessageIllegal as error:
                raise MessageIllegal(f"line {number}: {error}") from None
            by_queue.setdefault(await self._queue(message.message_group), []).append((message, text))
            self._row += 1
            self.summary.rows += 1
        for queue, group in by_queue.items():
            for body in _bodies(group):
                self.summary.sent_bytes += len(body)
                await self._delivery.submit(self._topic, queue, body)

    async def finish(self) -> SendSummary:
        """Wait until everything is acknowledged; raises what a request failed with."""
        await self._delivery.finish()
        return self.summary

    async def abandon(self) -> None:
        """Give up what is under way."""
        await self._delivery.abandon()

    async def _queue(self, message_group: str | None) -> MessageQueue | None:
        """Return the queue of a message group, the same throughout whatever the route becomes; None without one."""
        if message_group is None:
            return None
        if not self._queues:
            publisher = await self._sender.publisher(self._topic, self._timeout)
            self._queues = [target.queue for target in publisher.targets]
        return self._queues[self._select(message_group, len(self._queues)) % len(self._queues)]


def _bodies(messages: list[tuple[Message, bytes]]) -> Iterator[bytes]:
    """Yield batch bodies of at most ``BATCH_BYTES``, or of one message."""
    begin = size = 0
    for index, (message, text) in enumerate(messages):
        length = ELEMENT_FIXED_SIZE + len(message.body) + len(text)
        if size + length > BATCH_BYTES and begin < index:
            yield _encoded(messages[begin:index])
            begin, size = index, 0
        size += length
    if messages:
        yield _encoded(messages[begin:])


def _encoded(messages: list[tuple[Message, bytes]]) -> bytes:
    return encode_batch(
        [message.body for message, _ in messages],
        [text for _, text in messages],
        [message.flag for message, _ in messages],
    )
