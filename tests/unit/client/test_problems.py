"""Why a consumer receives nothing: in the log, in whoever waits, and on the standard error."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest

import rocketcore
from rocketcore.client.group_consumer import GroupConsumer
from rocketcore.client.problems import WARN_INTERVAL, Problems
from rocketcore.client.pull import PullConsumer
from rocketcore.client.push import PushConsumer
from rocketcore.client.subscriber import JOIN_GRACE
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import (
    BrokerSystemError,
    ConfigError,
    ConnectError,
    GroupNotExist,
    NoPermission,
    RequestTimeout,
    RocketError,
    RouteNotFound,
    SubscriptionParseFailed,
)
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.printable import is_printable
from rocketcore.protocol.bodies.client import GetConsumerListByGroupResponseBody
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock
from tests.unit.client.fakes import FakeRemoting, Outcome, route

FINAL = [
    (ResponseCode.NO_PERMISSION, NoPermission),
    (ResponseCode.SUBSCRIPTION_PARSE_FAILED, SubscriptionParseFailed),
    (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, GroupNotExist),
]


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await body()

    asyncio.run(main())


def test_a_name_in_a_route_makes_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock, problems = ManualClock(), Problems("G")
    caplog.set_level(logging.DEBUG)
    what = "topic=T broker=b\nCRITICAL disk full\x1b[2J"
    problems.note(what, ConnectError("refused"), clock)
    problems.note(what, ConnectError("refused"), clock)
    problems.over(what)
    assert [is_printable(record.message) for record in caplog.records] == [True] * 3


def test_a_problem_is_told_once_a_minute_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, problems = ManualClock(), Problems("G")
    caplog.set_level(logging.WARNING)
    for _ in range(int(2 * WARN_INTERVAL)):
        problems.note("topic=T", ConnectError("refused"), clock)
        clock.advance(1)
    assert [record.message for record in caplog.records] == ["nothing is received group=G topic=T error=refused"] * 2
    assert str(problems) == "topic=T: refused"
    for _ in range(2):
        problems.over("topic=T")
    assert [record.message for record in caplog.records][2:] == ["receiving again group=G topic=T"]
    assert not problems


def test_what_may_well_be_for_a_while_is_told_when_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    clock, problems = ManualClock(), Problems("G")
    caplog.set_level(logging.WARNING)
    for _ in range(5):
        problems.note("topic=T", ConnectError("refused"), clock, grace=5.0)
        clock.advance(1)
    problems.over("topic=T")
    problems.note("topic=T", ConnectError("refused"), clock, grace=5.0)
    assert not caplog.records
    clock.advance(5)
    problems.note("topic=T", ConnectError("refused"), clock, grace=5.0)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("configured", "lines"),
    [("", 1), ("logging.basicConfig()", 1), ("logging.getLogger('rocketcore').setLevel('ERROR')", 0)],
)
def test_it_is_seen_once_whoever_configured_logging(configured: str, lines: int) -> None:
    program = f"""if True:
        import logging
        import rocketcore
        {configured}
        consumer = rocketcore.PullConsumer("127.0.0.1:1", group="G", timeout=1.0)
        consumer.subscribe("T")
        assert consumer.poll(0.0) == []
        consumer.close()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    told = done.stderr.splitlines()
    assert len(told) == lines, told
    assert all("nothing is received group=G topic=T" in line and "127.0.0.1:1" in line for line in told)


class Refusing(FakeRemoting):
    """A broker of one topic that answers pulls and questions about filters with ``code``; 0: with nothing, later."""

    def __init__(self, consumer: GroupConsumer, *, pull: int = 0, filters: int = 0) -> None:
        super().__init__({"T": route("a", queues=1)}, self._serve)
        self._consumer = consumer
        self.pull = pull
        self.filters = filters
        self.pulled = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code == RequestCode.PULL_MESSAGE and not self.pull:
            self.pulled.set()
            await self.may_answer.wait()
            self.may_answer.clear()
        return await super().invoke(address, command, timeout)

    def _serve(self, address: str, request: RemotingCommand) -> Outcome:
        response = RemotingCommand.response(request)
        match request.code:
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                members = [self._consumer.client_id]
                response.body = GetConsumerListByGroupResponseBody(consumer_id_list=members).encode()
            case RequestCode.QUERY_CONSUMER_OFFSET:
                response.ext_fields = {"offset": "0"}
            case RequestCode.PULL_MESSAGE:
                response = RemotingCommand.response(request, self.pull or ResponseCode.PULL_NOT_FOUND, "no, and no")
                response.ext_fields = {
                    "nextBeginOffset": "0",
                    "minOffset": "0",
                    "maxOffset": "0",
                    "suggestWhichBrokerId": "0",
                }
            case RequestCode.CHECK_CLIENT_CONFIG if self.filters:
                return RemotingCommand.response(request, self.filters, "no such filter")
        return response


async def start(consumer: GroupConsumer, broker: FakeRemoting) -> None:
    """Start a consumer without a subscription and give it a cluster."""
    await consumer.start()
    consumer.instance.remoting = broker
    consumer.instance._name_servers._remoting = broker


def ignore(message: ReceivedMessage) -> None:
    """Be a handler."""


@pytest.mark.parametrize(("code", "error"), FINAL)
def test_a_refusal_that_waiting_does_not_change_ends_run(code: int, error: type[RocketError]) -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G")
        await start(consumer, Refusing(consumer, pull=code))
        await consumer.subscribe("T", handler=ignore)
        with pytest.raises(error, match="no, and no"):
            await consumer.run()
        assert consumer._closed

    run(body)


@pytest.mark.parametrize(("code", "error"), FINAL)
def test_a_refusal_ends_an_iteration_that_waits(code: int, error: type[RocketError]) -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G")
        broker = Refusing(consumer)
        await start(consumer, broker)
        await consumer.subscribe("T")
        waiting = asyncio.create_task(consumer.take(1))
        await broker.pulled.wait()
        broker.pull = code
        broker.may_answer.set()
        with pytest.raises(error):
            await waiting
        await consumer.close()

    run(body)


@pytest.mark.parametrize(("code", "error"), FINAL)
def test_a_refusal_ends_a_poll_and_is_forgotten_when_it_is_over(code: int, error: type[RocketError]) -> None:
    async def body() -> None:
        consumer = PullConsumer(group="G")
        broker = Refusing(consumer, pull=code)
        await start(consumer, broker)
        await consumer.subscribe("T")
        for _ in range(2):
            with pytest.raises(error) as raised:
                await consumer.poll(5.0)
        assert len(raised.traceback) < 10
        broker.pull = 0
        broker.may_answer.set()
        while consumer._refusals:
            await consumer._wait_for_news()
        assert await consumer.poll(0.0) == []
        await consumer.close()

    run(body)


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED])
def test_a_filter_that_a_broker_cannot_serve_is_refused_at_the_start(code: int) -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G")
        broker = Refusing(consumer, filters=code)
        await start(consumer, broker)
        with pytest.raises((BrokerSystemError, SubscriptionParseFailed), match="no such filter"):
            await consumer.subscribe("T", sql="a > 1")
        assert consumer.topics() == set()
        await consumer.close()

    run(body)


def test_a_broker_that_refuses_a_filter_only_when_pulled_from_ends_the_poll() -> None:
    async def body() -> None:
        consumer = PullConsumer(group="G")
        broker = Refusing(consumer, pull=ResponseCode.SYSTEM_ERROR)
        await start(consumer, broker)
        await consumer.subscribe("T", sql="a > 1")
        assert await consumer.poll(0.0) == [], "an error that may pass"
        broker.filters = ResponseCode.SYSTEM_ERROR
        with pytest.raises(BrokerSystemError, match="no such filter"):
            await consumer.poll(5.0)
        await consumer.close()

    run(body)


def test_nothing_to_wait_for_is_refused() -> None:
    async def body() -> None:
        push, pull = PushConsumer(group="G"), PullConsumer(group="G")
        for call in (push.run, push.wait_ready, lambda: push.take(1), pull.poll):
            with pytest.raises(ConfigError, match="no subscription"):
                await call()
        push.subscribe("T")
        with pytest.raises(ConfigError, match="no handler"):
            await push.run()
        assert not push._started

    run(body)


def test_who_waits_until_a_consumer_is_ready_is_told_what_is_missing() -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G")
        broker = Refusing(consumer)
        broker.routes.clear()
        await start(consumer, broker)
        consumer.subscribe("T", handler=ignore)
        with pytest.raises(RequestTimeout, match=r"not ready after 0\.05 s: .*topic=T: no name server knows topic 'T'"):
            await consumer.wait_ready(0.05)
        broker.routes["T"] = route("a", queues=1)
        waiting = asyncio.create_task(consumer.wait_ready(5.0))
        await asyncio.sleep(0)
        consumer.wake_rebalance()
        await waiting
        assert consumer.queues() == [MessageQueue("T", "a", 0)]
        await consumer.close()

    run(body)


def test_a_broker_that_does_not_answer_is_told_of_when_that_lasts(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        consumer = PullConsumer(group="G")
        consumer.clock = clock = ManualClock()
        queue = MessageQueue("T", "a", 0)
        await consumer.pull_failed(queue, ConnectError("refused"))
        assert not [record for record in caplog.records if record.levelname == "WARNING"]
        clock.advance(JOIN_GRACE)
        await consumer.pull_failed(queue, ConnectError("refused"))
        [told] = [record for record in caplog.records if record.levelname == "WARNING"]
        assert told.message == "nothing is received group=G topic=T broker=a error=refused"

    run(body)


def test_a_topic_that_is_not_there_yet_is_waited_for_and_nothing_frightens(caplog: pytest.LogCaptureFixture) -> None:
    clock, problems = ManualClock(), Problems("G")
    problems.note("topic=quotes", RouteNotFound("no name server knows topic 'quotes'"), clock)
    problems.over("topic=quotes")
    assert [record.message for record in caplog.records] == [
        "waiting for topic 'quotes', which no name server knows yet group=G",
        "receiving group=G topic=quotes",
    ]


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
def test_that_no_name_server_answers_is_told_at_once(
    kind: type[GroupConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        consumer = kind("127.0.0.1:1", group="G")  # type: ignore[arg-type, call-arg]
        consumer.add_subscription("T", None, None)
        await consumer.start()
        assert [record.message[:44] for record in caplog.records if record.levelno >= logging.WARNING] == [
            "nothing is received group=G topic=T error=ro"
        ]
        await consumer.close()

    run(body)


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
def test_a_consumer_that_is_closed_while_it_starts_says_nothing(
    kind: type[GroupConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        consumer = kind("127.0.0.1:1", group="G")  # type: ignore[arg-type, call-arg]
        consumer.add_subscription("T", None, None)
        starting = asyncio.create_task(consumer.start())
        await asyncio.sleep(0)
        await consumer.close()
        await asyncio.wait([starting])
        assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]

    run(body)


def test_run_refuses_topics_that_nobody_handles() -> None:
    async def body() -> None:
        consumer = PushConsumer("127.0.0.1:1", group="G")
        for topic in ("orders", "payments", "refunds"):
            consumer.subscribe(topic, handler=print if topic == "orders" else None)
        with pytest.raises(ConfigError, match="no handler for 'payments', 'refunds'"):
            await consumer.run()

    run(body)
    blocking = rocketcore.PushConsumer("127.0.0.1:1", group="G")
    blocking.subscribe("orders", handler=print)
    blocking.subscribe("payments")
    with pytest.raises(ConfigError, match="no handler for 'payments'"):
        blocking.run()
