"""Delivery of batch bodies to queues, without brokers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from rocketcore.client.arrow_delivery import BodyDelivery, SendSummary, body_sender
from rocketcore.client.config import ClientConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import Runtime
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import ConnectionLost, MessageIllegal, MessageRefused, NoPermission, RocketError
from rocketcore.message import MessageQueue, SendStatus
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import SYSTEM_CLOCK
from tests.unit.client.fakes import FakeRemoting, Outcome, route

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
    has_send_hooks = False

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

    def begin_batch(self, *_: Any) -> None:
        """Every body takes a task."""

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


class Pipelining(FakeRemoting):
    """Brokers over connections that are open; ``begun`` counts what was asked without waiting."""

    begun = 0

    def invoke_nowait(
        self, address: str, command: RemotingCommand, timeout: float
    ) -> asyncio.Future[RemotingCommand] | None:
        self.begun += 1
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        outcome = self.serve(address, command)
        if isinstance(outcome, RocketError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
        return answer


class Hasty(Runtime):
    async def pause(self, seconds: float) -> None:
        """No time passes."""


class Brokers:
    """Answers each send request with the next of some outcomes, then well; ``asked`` are the brokers."""

    def __init__(self, *outcomes: RocketError | int) -> None:
        self._outcomes = list(outcomes)
        self.asked: list[str] = []
        self.remoting = Pipelining({"T": route("a", "b")}, self._serve)

    def _serve(self, address: str, request: RemotingCommand) -> Outcome:
        if request.code == RequestCode.HEART_BEAT:
            return RemotingCommand.response(request)
        assert request.code == RequestCode.SEND_BATCH_MESSAGE
        self.asked.append(address.partition(":")[0])
        outcome = self._outcomes.pop(0) if self._outcomes else 0
        if isinstance(outcome, RocketError):
            return outcome
        if outcome:
            return RemotingCommand.response(request, outcome, "no")
        answer = RemotingCommand.response(request)
        answer.ext_fields = {"msgId": "7F00000100002A9F0000000000000064", "queueId": "0", "queueOffset": "7"}
        return answer

    async def _deliver(self, count: int) -> SendSummary:
        remoting = self.remoting
        instance = ClientInstance(ClientConfig(namesrv=("n:1",)), remoting, Hasty(), clock=remoting.clock)
        summary = SendSummary()
        sender = body_sender(instance, "g", 3.0)
        bodies = BodyDelivery(sender, summary, timeout=3.0, delivery_timeout=120.0, max_in_flight=2)
        for _ in range(count):
            await bodies.submit("T", None, b"body")
        await bodies.finish()
        return summary

    def deliver(self, count: int) -> SendSummary:
        return asyncio.run(self._deliver(count))


def test_a_body_that_is_stored_at_once_takes_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "ensure_future", None)
    brokers = Brokers()
    assert brokers.deliver(9).batches == len(brokers.asked) == brokers.remoting.begun == 9


def test_a_first_attempt_that_failed_is_followed_by_one_at_another_broker() -> None:
    brokers = Brokers(ConnectionLost("gone"), ConnectionLost("gone"))
    summary = brokers.deliver(1)
    assert (summary.batches, summary.retries, brokers.remoting.begun) == (1, 2, 1)
    assert len(brokers.asked) == 3
    assert brokers.asked[0] != brokers.asked[1] != brokers.asked[2]


def test_a_refusal_ends_the_delivery_and_names_the_topic() -> None:
    with pytest.raises(MessageRefused, match=r"send to topic 'T' \(1 attempt\)"):
        Brokers(ResponseCode.MESSAGE_ILLEGAL).deliver(3)


def test_a_broker_that_goes_away_is_asked_over_another_connection() -> None:
    """It has not looked at the body: this is no failed attempt."""
    brokers = Brokers(ResponseCode.GO_AWAY)
    summary = brokers.deliver(1)
    assert (summary.batches, summary.retries) == (1, 0)
    assert brokers.asked[0] == brokers.asked[1]
