"""Delivery: one batch's way to a broker, attempt by attempt."""

from __future__ import annotations

from typing import Final

from rocketcore._fast.batch import encode_batch
from rocketcore.client.attempts import Attempts
from rocketcore.client.config import ProducerConfig
from rocketcore.client.future import Batch
from rocketcore.client.outgoing import Outgoing, outgoing_batch
from rocketcore.client.send_command import SendTarget
from rocketcore.client.sender import Sender
from rocketcore.errors import RocketError
from rocketcore.message import MessageQueue, SendResult, SendStatus
from rocketcore.service import Clock

__all__ = ["Delivery"]

_LEAST_TIMEOUT: Final = 0.001


class Delivery:
    """Makes attempts with batches, and judges what becomes of them; on the loop."""

    def __init__(self, sender: Sender, config: ProducerConfig, clock: Clock) -> None:
        self._sender = sender
        self._config = config
        self._clock = clock

    async def attempt(self, batch: Batch, target: SendTarget) -> SendResult:
        """Send a batch once; raises what the transport or the broker says against it."""
        if batch.request is None:
            batch.request = await self._encode(batch)
        timeout = min(
            self._config.attempt_timeout or self._config.timeout,
            max(batch.end - self._clock.monotonic(), _LEAST_TIMEOUT),
        )
        return await self._sender.attempt(target, batch.request, timeout)

    async def _encode(self, batch: Batch) -> Outgoing:
        if batch.count > 1:
            futures, bodies, properties, flags, *_ = map(list, zip(*batch.items, strict=True))
            return outgoing_batch(encode_batch(bodies, properties, flags), [future.msg_id for future in futures])
        [(future, body, text, flag, *_)] = batch.items
        outgoing = Outgoing(body, text.decode(), future.msg_id, 0, flag)
        return await self._sender.compressed(outgoing) if len(body) >= self._config.compress_over_bytes else outgoing

    def _attempts(self, batch: Batch) -> Attempts:
        if batch.attempts is None:
            # Time is what bounds them, unless the user wants none.
            batch.attempts = Attempts(batch.topic, None if self._config.retries else 0)
        return batch.attempts

    def is_safe_enough(self, batch: Batch, target: SendTarget, result: SendResult) -> bool:
        """Say whether a broker that has a batch has it as safely as asked, or none will."""
        if result.status is SendStatus.SEND_OK or not self._config.retry_another_broker_when_not_store_ok:
            return True
        if isinstance(batch.key, MessageQueue):
            return True
        attempts = self._attempts(batch)
        return not attempts.not_safe(target) or attempts.count > self._config.retries

    async def after(self, batch: Batch, target: SendTarget, error: BaseException) -> SendResult | BaseException | None:
        """Return what a failed attempt means for its batch: the outcome, or None when it may be sent again now."""
        if not isinstance(error, RocketError):
            return error
        attempts, fixed = self._attempts(batch), isinstance(batch.key, MessageQueue)
        if await self._sender.another_follows(attempts, target, error, batch.end, fixed=fixed):
            return None
        return batch.result or attempts.error(self._config.delivery_timeout)
