"""Transactions of our producers on our broker, on threads and on a loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster, aio
from rocketcore.codes import RequestCode
from rocketcore.protocol.command import RemotingCommand
from tests.fixtures.topics import new_group, new_topic

COMMIT, ROLLBACK, UNKNOWN = rmq.TransactionState.COMMIT, rmq.TransactionState.ROLLBACK, rmq.TransactionState.UNKNOWN
SECONDS = 10.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {"transactionCheckInterval": "50", "transactionTimeOut": "100", "transactionCheckMax": "10000"}
    with LocalCluster(properties=settings) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return new_topic(cluster.namesrv, queues=1)


class Checker:
    """Says what it is told to, and notes what it was asked."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: queue.Queue[rmq.ReceivedMessage] = queue.Queue()
        self.threads: set[str] = set()

    def __call__(self, message: rmq.ReceivedMessage) -> Any:
        self.threads.add(threading.current_thread().name)
        self.asked.put(message)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def never(message: rmq.ReceivedMessage) -> rmq.TransactionState:
    raise AssertionError("nothing is undecided")


class Wire:
    """A hook that loses the ends of transactions."""

    def before_request(self, address: str, command: RemotingCommand) -> None:
        if (
            command.code == RequestCode.END_TRANSACTION
            and not (command.ext_fields or {}).get("fromTransactionCheck") == "true"
        ):
            raise rmq.RequestTimeout("the end was lost")

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        pass


def received(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    """Wait for so many messages; return all that are there."""
    bodies: list[bytes] = []
    with rmq.PullConsumer(cluster.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic)
        while len(bodies) < count and (messages := consumer.poll(timeout=SECONDS)):
            bodies += [message.body for message in messages]
        bodies += [message.body for message in consumer.poll(timeout=0.0)]
    return bodies


def test_a_normal_exit_commits_and_an_exception_rolls_back(cluster: LocalCluster, topic: str) -> None:
    with rmq.Producer(cluster.namesrv, group=new_group(), checker=never) as producer:
        with producer.transaction(rmq.Message(topic, b"committed", keys="o-1")) as transaction:
            assert transaction.result
            assert (transaction.state, transaction.told) == (UNKNOWN, False)
        assert (transaction.state, transaction.told) == (COMMIT, True)
        with pytest.raises(ZeroDivisionError), producer.transaction(rmq.Message(topic, b"rolled back")) as other:
            raise ZeroDivisionError
        assert (other.state, other.told) == (ROLLBACK, True)
        producer.send(topic, b"last")
    assert received(cluster, topic, 2) == [b"committed", b"last"]


def test_by_hand(cluster: LocalCluster, topic: str) -> None:
    with rmq.Producer(cluster.namesrv, group=new_group(), checker=never) as producer:
        transaction = producer.transaction(rmq.Message(topic, b"x" * 9000))
        with pytest.raises(rmq.ConfigError, match="has not begun"):
            transaction.commit()
        result = transaction.begin()
        assert result.status is rmq.SendStatus.SEND_OK
        with pytest.raises(rmq.ConfigError, match="has begun"):
            transaction.begin()
        transaction.commit()
        transaction.commit()
        with pytest.raises(rmq.ConfigError, match="has ended: COMMIT"):
            transaction.rollback()
        with producer.transaction(rmq.Message(topic, b"decided inside")) as inside:
            inside.rollback()
        assert repr(inside) == f"<Transaction topic={topic!r} msg_id={inside.result.msg_id!r} state=ROLLBACK told=True>"  # type: ignore[union-attr]
    assert received(cluster, topic, 1) == [b"x" * 9000]


def test_on_a_loop(cluster: LocalCluster, topic: str) -> None:
    async def main() -> None:
        async with aio.Producer(cluster.namesrv, group=new_group(), checker=never) as producer:
            async with producer.transaction(rmq.Message(topic, b"committed")):
                pass
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction(rmq.Message(topic, b"rolled back")):
                    raise ZeroDivisionError
            transaction = producer.transaction(rmq.Message(topic, b"by hand"))
            await transaction.begin()
            await transaction.commit()
            assert transaction.told

    asyncio.run(main())
    assert received(cluster, topic, 2) == [b"committed", b"by hand"]


@pytest.mark.parametrize(
    "answers", [(COMMIT,), (UNKNOWN, COMMIT), (ValueError("no"), COMMIT), ("commit", SystemExit(1), COMMIT)]
)
def test_the_checker_says_what_the_broker_did_not_hear(
    cluster: LocalCluster, topic: str, answers: tuple[object, ...], caplog: pytest.LogCaptureFixture
) -> None:
    checker = Checker(*answers)
    with rmq.Producer(cluster.namesrv, group=new_group(), checker=checker, hooks=[Wire()]) as producer:
        with producer.transaction(rmq.Message(topic, b"lost", keys="o-1", tag="t")) as transaction:
            pass
        assert (transaction.state, transaction.told) == (COMMIT, False)
        assert "outcome not told, the broker will ask" in caplog.text
        asked = [checker.asked.get(timeout=SECONDS) for _ in answers]
        assert received(cluster, topic, 1) == [b"lost"]
    first = asked[0]
    assert (first.topic, first.keys, first.tag, first.body) == (topic, ("o-1",), "t", b"lost")
    assert transaction.result is not None
    assert {message.msg_id for message in asked} == {transaction.result.msg_id}
    assert [message.properties["TRANSACTION_CHECK_TIMES"] for message in asked] == [
        str(number) for number in range(1, len(asked) + 1)
    ]
    assert checker.threads == {"producer-checks"}
    failures = [record for record in caplog.records if "checker" in record.message and record.levelno == logging.ERROR]
    assert len(failures) == sum(not isinstance(answer, rmq.TransactionState) for answer in answers)


def test_the_checker_may_say_that_it_failed(cluster: LocalCluster, topic: str) -> None:
    checker = Checker(ROLLBACK)
    with rmq.Producer(cluster.namesrv, group=new_group(), checker=checker) as producer:
        producer.transaction(rmq.Message(topic, b"forgotten")).begin()
        checker.asked.get(timeout=SECONDS)
        with producer.transaction(rmq.Message(topic, b"last")):
            pass
    assert received(cluster, topic, 1) == [b"last"]


def coroutine_checker(ask: Checker) -> Callable[[rmq.ReceivedMessage], Any]:
    async def check(message: rmq.ReceivedMessage) -> rmq.TransactionState:
        await asyncio.sleep(0)
        state: rmq.TransactionState = ask(message)
        return state

    return check


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_checker_of_a_loop(cluster: LocalCluster, topic: str, *, coroutine: bool) -> None:
    """A function runs on another thread, a coroutine function on the loop."""
    ask = Checker(ValueError("no"), StopIteration(), SystemExit(3), asyncio.CancelledError(), COMMIT)
    checker = coroutine_checker(ask) if coroutine else ask

    async def main() -> None:
        async with aio.Producer(cluster.namesrv, group=new_group(), checker=checker) as producer:
            await producer.transaction(rmq.Message(topic, b"lost")).begin()
            assert await asyncio.to_thread(received, cluster, topic, 1) == [b"lost"]

    asyncio.run(main())
    assert (threading.current_thread().name in ask.threads) is coroutine


def test_a_checker_that_hangs_keeps_no_loop_from_ending(cluster: LocalCluster, topic: str) -> None:
    asked, released = threading.Event(), threading.Event()

    def hang(half: rmq.ReceivedMessage) -> rmq.TransactionState:
        asked.set()
        released.wait()
        return COMMIT

    async def main() -> None:
        async with aio.Producer(cluster.namesrv, group=new_group(), checker=hang) as producer:
            await producer.transaction(rmq.Message(topic, b"left behind")).begin()
            assert await asyncio.to_thread(asked.wait, SECONDS)

    try:
        asyncio.run(main())
    finally:
        released.set()


def test_a_checker_closes_its_producer(cluster: LocalCluster, topic: str) -> None:
    async def main() -> None:
        closed = asyncio.Event()

        async def check(half: rmq.ReceivedMessage) -> rmq.TransactionState:
            await producer.close()
            closed.set()
            return COMMIT

        producer = aio.Producer(cluster.namesrv, group=new_group(), checker=check)
        await producer.transaction(rmq.Message(topic, b"left behind")).begin()
        async with asyncio.timeout(SECONDS):
            await closed.wait()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("producer-housekeeping")]

    asyncio.run(main())


def test_a_coroutine_checker_on_threads(cluster: LocalCluster, topic: str) -> None:
    checker = coroutine_checker(Checker(COMMIT))
    with rmq.Producer(cluster.namesrv, group=new_group(), checker=checker) as producer:
        producer.transaction(rmq.Message(topic, b"lost")).begin()
        assert received(cluster, topic, 1) == [b"lost"]


@pytest.mark.parametrize("world", ["threads", "loop"])
def test_another_producer_of_the_group_is_asked(cluster: LocalCluster, topic: str, world: str) -> None:
    """It has sent nothing: its route to the broker is that of the default topic."""
    group, checker = new_group(), Checker(COMMIT)
    with rmq.Producer(cluster.namesrv, group=group, checker=never) as gone:
        gone.transaction(rmq.Message(topic, b"left behind")).begin()

    async def on_loop() -> None:
        async with aio.Producer(cluster.namesrv, group=group, checker=checker):
            assert await asyncio.to_thread(received, cluster, topic, 1) == [b"left behind"]

    if world == "loop":
        asyncio.run(on_loop())
        return
    with rmq.Producer(cluster.namesrv, group=group, checker=checker):
        assert received(cluster, topic, 1) == [b"left behind"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(), asyncio.CancelledError()])
def test_what_is_no_failure_of_the_work_leaves_it_to_the_checker(
    cluster: LocalCluster, topic: str, stop: BaseException
) -> None:
    checker = Checker(COMMIT)
    with rmq.Producer(cluster.namesrv, group=new_group(), checker=checker) as producer:
        with pytest.raises(type(stop)), producer.transaction(rmq.Message(topic, b"done")) as transaction:
            raise stop
        assert (transaction.state, transaction.told) == (UNKNOWN, False)
        assert received(cluster, topic, 1) == [b"done"]


def test_wrong_use(cluster: LocalCluster, topic: str) -> None:
    message = rmq.Message(topic, b"x")
    producer = rmq.Producer(cluster.namesrv, group=new_group())
    with producer, pytest.raises(rmq.ConfigError, match=r"Producer\(checker=…\)"):
        producer.transaction(message)
    with pytest.raises(rmq.ConfigError, match="checker must be a function or a coroutine function, got int"):
        rmq.Producer(cluster.namesrv, checker=5)  # type: ignore[arg-type]
    with rmq.Producer(cluster.namesrv, group=new_group(), checker=never) as producer:
        with pytest.raises(rmq.MessageIllegal, match="cannot be delayed"):
            producer.transaction(rmq.Message(topic, b"x", delay_level=3)).begin()
        with pytest.raises(TypeError, match="a Message, got str"):
            producer.transaction(topic).begin()  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="queue must be a MessageQueue, got int"):
            producer.transaction(message, queue=3).begin()  # type: ignore[arg-type]


def test_a_transaction_keeps_its_producer(cluster: LocalCluster, topic: str) -> None:
    """One that nobody else refers to would be closed, and the outcome told to nobody."""
    producer = rmq.Producer(cluster.namesrv, group=new_group(), checker=never)
    transactions = [producer.transaction(rmq.Message(topic, b"x"))]
    del producer
    with transactions[0]:
        gc.collect()
    assert transactions[0].told
    with pytest.warns(ResourceWarning, match="unclosed producer"):
        transactions.clear()


def test_a_forked_child_is_asked_too(cluster: LocalCluster, topic: str) -> None:
    checker = Checker(COMMIT)
    with rmq.Producer(cluster.namesrv, group=new_group(), checker=checker) as producer:
        producer.send(topic, b"parent")
        child = os.fork()
        if not child:
            producer.transaction(rmq.Message(topic, b"child")).begin()
            checker.asked.get(timeout=SECONDS)
            producer.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert received(cluster, topic, 2) == [b"parent", b"child"]
