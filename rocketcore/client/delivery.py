"""Delivery: one batch's way to a broker, attempt by attempt."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rocketcore._fast.message import encode_batch
from rocketcore.client.attempts import Attempts
from rocketcore.client.config import ProducerConfig
from rocketcore.client.future import Batch
from rocketcore.client.send_command import SendTarget
from rocketcore.client.sender import Sender
from rocketcore.errors import RocketError
from rocketcore.message import MessageQueue, SendResult, SendStatus
from rocketcore.service import Clock

__all__ = ["Delivery"]

logger = logging.getLogger(__name__)

BATCH_PROPERTIES: Final = "WAIT\x01true\x02"
_LEAST_TIMEOUT: Final = 0.001


class Delivery:
    """Makes attempts with batches, and judges what becomes of them; on the loop."""

    def __init__(self, logic: Sender, config: ProducerConfig, clock: Clock) -> None:
        self._logic = logic
        self._config = config
        self._clock = clock

    async def attempt(self, batch: Batch, target: SendTarget) -> SendResult:
        """Send a batch once; raises what the transport or the broker says against it."""
        if batch.request is None:
            batch.request = await self._encode(batch)
        body, properties, msg_id, sys_flag, flag = batch.request
        timeout = min(self._config.timeout, max(batch.end - self._clock.monotonic(), _LEAST_TIMEOUT))
        return await self._logic.attempt(
            target, body, properties, msg_id, timeout, sys_flag=sys_flag, flag=flag, batch=batch.count > 1
        )

    async def _encode(self, batch: Batch) -> tuple[bytes, str, str, int, int]:
        """Return body, properties, message ids, system flag and flag of a batch's request."""
        if batch.count > 1:
            _, bodies, properties, flags, *_ = map(list, zip(*batch.items, strict=True))
            return encode_batch(bodies, properties, flags), BATCH_PROPERTIES, batch.ids(), 0, 0
        [(future, body, text, flag, *_)] = batch.items
        sys_flag = 0
        if len(body) >= self._config.compress_over_bytes:
            body, sys_flag = await self._logic.packed(body)
        return body, text.decode(), future.msg_id, sys_flag, flag

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
        attempts = self._attempts(batch)
        logger.debug("send failed topic=%s address=%s error=%s", batch.topic, target.address, error)
        again = attempts.failed(target, error)
        if again and attempts.refresh_route and self._clock.monotonic() < batch.end:
            await self._logic.refresh_route(batch.topic, batch.end - self._clock.monotonic())
        if again and self._all_failed(batch, attempts):
            pause = attempts.pause()
            again = self._clock.monotonic() + pause < batch.end
            if again:
                await asyncio.sleep(pause)
        if again and self._clock.monotonic() < batch.end:
            return None
        return batch.result or attempts.error(self._config.delivery_timeout)

    def _all_failed(self, batch: Batch, attempts: Attempts) -> bool:
        publisher = self._logic.find_publisher(batch.topic)
        if publisher is None or isinstance(batch.key, MessageQueue):
            return True
        return all(target.broker_number in attempts.avoid for target in publisher.targets)
