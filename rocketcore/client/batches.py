"""What ``send_batch`` makes of the messages that it is given: a batch for each topic, and for each message group.

RocketMQ 5.5.0: ``MessageBatch.generateFromList``, which takes one topic alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from rocketcore._fast.batch import encode_batch
from rocketcore.errors import ConfigError, MessageIllegal, PartlySent, RequestTimeout, RocketError
from rocketcore.ids import new_uniq_key
from rocketcore.message import BatchResult, Message, MessageQueue, SendResult
from rocketcore.service import Clock

__all__ = ["Batch", "batch_result", "batches_of", "send_each"]


class Batch(NamedTuple):
    """Messages that are stored together or not at all.

    places  of the messages among those that were given
    """

    topic: str
    message_group: str | None
    places: list[int]
    ids: tuple[str, ...]
    body: bytes

    @property
    def name(self) -> str:
        """What an error calls it."""
        return self.topic if self.message_group is None else f"{self.topic} (message_group {self.message_group!r})"

    def result(self, result: SendResult) -> SendResult:
        """Return the outcome with the ids of all messages, and those of the first in place of all in one text."""
        first = result.offset_msg_id.partition(",")[0]
        return replace(result, msg_id=self.ids[0], offset_msg_id=first, _batch_ids=self.ids)


def batches_of(
    messages: Sequence[Message],
    property_text: Callable[[Message, str], str],
    queue: MessageQueue | None,
    max_bytes: int,
) -> list[Batch]:
    """Return the batches of messages, in the order of their first; each message keeps its place among its own.

    raises  MessageIllegal for a batch of too many bytes, ConfigError where one queue is meant for several
    """
    places: dict[tuple[str, str | None], list[int]] = {}
    for place, message in enumerate(messages):
        places.setdefault((message.topic, message.message_group), []).append(place)
    if queue is not None and len(places) > 1:
        names = ", ".join(sorted({topic for topic, _ in places}))
        raise ConfigError(f"send_batch(): a queue is for one batch, got {len(places)} of {names}: leave it out")
    batches = []
    for (topic, message_group), own in places.items():
        ids = tuple(new_uniq_key() for _ in own)
        body = encode_batch(
            [messages[place].body for place in own],
            [property_text(messages[place], msg_id).encode() for place, msg_id in zip(own, ids, strict=True)],
            [messages[place].flag for place in own],
        )
        batch = Batch(topic, message_group, own, ids, body)
        if len(body) > max_bytes:
            raise MessageIllegal(
                f"a batch of {len(own)} messages to {batch.name} has {len(body)} bytes, {max_bytes} are allowed:"
                " it is stored as a whole. Give fewer, or use send_nowait, which makes batches by itself"
            )
        batches.append(batch)
    return batches


Outcome: TypeAlias = tuple[Batch, SendResult | RocketError]


async def send_each(
    batches: Iterable[Batch], send: Callable[[Batch, float], Awaitable[SendResult]], timeout: float, clock: Clock
) -> list[Outcome]:
    """Send batches one after the other, all within ``timeout`` seconds; return what became of each."""
    outcomes: list[Outcome] = []
    end = clock.monotonic() + timeout
    for batch in batches:
        left = end - clock.monotonic()
        try:
            if left <= 0:
                raise RequestTimeout(f"batch to {batch.name}: the {timeout:g} s were over before it was sent")
            outcomes.append((batch, batch.result(await send(batch, left))))
        except RocketError as error:
            outcomes.append((batch, error))
    return outcomes


def batch_result(messages: Sequence[Message], outcomes: Sequence[Outcome]) -> BatchResult:
    """Return what became of some messages; raises PartlySent, or the first error where no batch is stored."""
    ids = {place: msg_id for batch, _ in outcomes for place, msg_id in zip(batch.places, batch.ids, strict=True)}
    stored = {batch.name: result for batch, result in outcomes if isinstance(result, SendResult)}
    failed = {batch.name: error for batch, error in outcomes if isinstance(error, RocketError)}
    unsent = sorted(place for batch, _ in outcomes if batch.name in failed for place in batch.places)
    for place in unsent:
        del ids[place]
    results = BatchResult(tuple(stored.values()), tuple(ids[place] for place in sorted(ids)))
    if failed:
        first = next(iter(failed.values()))
        if not stored:
            raise first
        raise PartlySent(stored, failed, results, [messages[place] for place in unsent]) from first
    return results
