"""Delivery of batch bodies to queues, without brokers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from rocketcore.client.arrow_delivery import BodyDelivery, SendSummary
from rocketcore.errors import ConnectionLost, MessageIllegal, NoPermission, RocketError
from rocketcore.message import MessageQueue, SendStatus
from rocketcore.service import SYSTEM_CLOCK

QUEUES = [MessageQueue("T", broker, number) for broker in "ab" for number in range(2)]


class Logic:
    """Queues in turn; each send does what the test says."""

    def __init__(self, *outcomes: RocketError | None) -> None:
        self.outcomes = list(outcomes)
        self.sent: list[MessageQueue] = []
        self.instance = SimpleNamespace(clock=SYSTEM_CLOCK, runtime=self, try_refresh=self.pause)
        targets = [SimpleNamespace(queue=queue, broker_number=ord(queue.broker)) for queue in QUEUES]
        self._publisher = SimpleNamespace(targets=targets, brokers=2, by_queue=dict(zip(QUEUES, targets, strict=True)))
        self._turn = -1

    concurrent = True

    async def pause(self, *_: Any, **__: Any) -> None:
        """No time passes."""

    async def publisher(self, topic: str, timeout: float) -> Any:
        return self._publisher

    def find_publisher(self, topic: str) -> Any:
        return self._publisher

    def target(self, publisher: Any, group: None, queue: None, avoid: Collection[int] = ()) -> Any:
        while True:
            self._turn = (self._turn + 1) % len(QUEUES)
            target = publisher.targets[self._turn]
            if target.broker_number not in avoid:
                return target

    async def send_encoded_batch(self, topic: str, group: None, queue: MessageQueue, *_: Any) -> Any:
        self.sent.append(queue)
        await asyncio.sleep(0)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        return SimpleNamespace(status=SendStatus.SEND_OK)


def delivery(logic: Logic, summary: SendSummary | None = None) -> BodyDelivery:
    return BodyDelivery(
        logic,  # type: ignore[arg-type]
        summary or SendSummary(),
        timeout=1.0,
        delivery_timeout=120.0,
        max_in_flight=4,
    )


async def deliver(logic: Logic, *queues: MessageQueue | None) -> SendSummary:
    summary = SendSummary()
    sender = delivery(logic, summary)
    for queue in queues:
        await sender.submit("T", queue, b"")
    await sender.finish()
    return summary


def test_failures_are_never_counted() -> None:
    """Twenty in a row are no reason to fail as long as there is time."""
    logic = Logic(*[ConnectionLost("gone")] * 20)
    summary = asyncio.run(deliver(logic, None))
    assert (summary.batches, summary.retries) == (1, 20)
    # each attempt leaves the broker of the one before
    assert [queue.broker for queue in logic.sent] == ["a", "b"] * 10 + ["a"]


def test_a_batch_of_a_queue_stays_there() -> None:
    logic = Logic(*[ConnectionLost("gone")] * 3)
    asyncio.run(deliver(logic, QUEUES[1]))
    assert logic.sent == [QUEUES[1]] * 4


def test_a_refusal_by_all_brokers_is_final() -> None:
    logic = Logic(*[NoPermission(16, "no")] * 9)
    with pytest.raises(NoPermission):
        asyncio.run(deliver(logic, None))
    assert len(logic.sent) == 3


def test_several_failures_at_once_are_one_error(caplog: pytest.LogCaptureFixture) -> None:
    """The others were reported as "never retrieved", each with its traceback."""
    logic = Logic(*[MessageIllegal("no")] * 4)
    with caplog.at_level("ERROR"):
        with pytest.raises(MessageIllegal):
            asyncio.run(deliver(logic, *QUEUES))
        gc.collect()
    assert len(logic.sent) == 4
    assert caplog.text == ""
