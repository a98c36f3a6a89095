"""Joining a group without sockets: shares, first offsets, what brokers ask."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from rocketcore.broker.state.queue_locks import QueueLocks
from rocketcore.client.instance import HEARTBEAT_TIMEOUT, SILENT_BROKER_SECONDS, ClientInstance
from rocketcore.client.offset_store import RemoteOffsetStore
from rocketcore.client.pull import PullConsumer
from rocketcore.client.push import LOCK_EXPIRES, LOCK_INTERVAL, PushConsumer
from rocketcore.client.rebalance import Rebalancer
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.serving import serve_broker_requests
from rocketcore.codes import LanguageCode, RequestCode, ResponseCode
from rocketcore.errors import ConfigError, ConnectError, MessageIllegal, RequestTimeout, TransportError
from rocketcore.message import ConsumeResult, MessageQueue, ReceivedMessage
from rocketcore.printable import is_printable
from rocketcore.protocol.bodies.client import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerListByGroupResponseBody,
    GetConsumerStatusBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ResetOffsetBody,
    UnlockBatchRequestBody,
)
from rocketcore.protocol.bodies.heartbeat import ConsumeType, HeartbeatData, MessageModel
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketcore.protocol.schema import Header
from rocketcore.service import ManualClock
from rocketcore.transport.routes import Routes
from tests.reference.message import Stored, encode
from tests.reference.routes import Rows
from tests.unit.client.fakes import FakeRemoting, ManualRuntime, Outcome, route


class Group:
    """A broker that knows the members of a group and the bounds of its queues."""

    def __init__(self, *members: str) -> None:
        self.members = list(members)
        self.heartbeats: list[HeartbeatData] = []
        self.asked: list[int] = []

    def __call__(self, address: str, request: RemotingCommand) -> Outcome:
        self.asked.append(request.code)
        response = RemotingCommand.response(request)
        match request.code:
            case RequestCode.HEART_BEAT:
                self.heartbeats.append(HeartbeatData.decode(request.body))
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                if not self.members:
                    return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, "no consumer for this group")
                response.body = GetConsumerListByGroupResponseBody(consumer_id_list=self.members).encode()
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return RemotingCommand.response(request, ResponseCode.QUERY_NOT_FOUND, "none")
            case RequestCode.GET_MAX_OFFSET:
                response.ext_fields = {"offset": "100"}
            case RequestCode.GET_MIN_OFFSET:
                response.ext_fields = {"offset": "40"}
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                response.ext_fields = {"offset": str(int((request.ext_fields or {})["timestamp"]) // 1000)}
        return response


def wire(consumer: Any, broker: Group) -> None:
    """Give a consumer that is not started an instance over a fake cluster."""
    remoting = FakeRemoting({"T": route("a", "b", queues=4)}, broker)
    consumer.instance = ClientInstance(consumer.config, remoting, ASYNCIO)
    consumer.instance.register_consumer(consumer)
    consumer.offsets = RemoteOffsetStore(consumer.instance, consumer.group)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await body()

    asyncio.run(main())


def test_a_share_is_taken_among_the_members_the_broker_names() -> None:
    async def body() -> None:
        broker = Group()
        consumer = PushConsumer(group="G")
        wire(consumer, broker)
        rebalancer = Rebalancer(
            consumer.instance, "G", lambda own, queues, ids: list(queues[: len(ids)]), broadcast=False
        )
        assert await rebalancer.share("T") is None
        broker.members = ["stranger"]
        assert await rebalancer.share("T") is None
        broker.members = ["stranger", consumer.instance.client_id]
        assert await rebalancer.share("T") == [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)]
        assert await rebalancer.share("Unknown") is None
        assert len(broker.heartbeats) == 2

    run(body)


@pytest.mark.parametrize(("others", "begins"), [([], 0), (["stranger"], 40)])
def test_who_joins_others_begins_where_they_are_when_they_have_been_told(others: list[str], begins: int) -> None:
    stored = 0

    async def body() -> None:
        broker = Group()

        def serve(address: str, request: RemotingCommand) -> Outcome:
            response = broker(address, request)
            if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
                response = RemotingCommand.response(request)
                response.ext_fields = {"offset": str(stored)}
            elif request.code == RequestCode.PULL_MESSAGE:
                return ConnectError("nothing to pull here")
            return response

        def store() -> None:
            nonlocal stored
            stored = 40

        consumer = PushConsumer(group="G")
        await consumer.start()
        remoting = FakeRemoting({"T": route("a", queues=4)}, serve)
        consumer.instance.remoting = consumer.instance._name_servers._remoting = remoting
        runtime = consumer.instance.runtime = ManualRuntime(ManualClock())
        runtime.events.append(store)
        broker.members = [*others, consumer.client_id]
        await consumer.subscribe("T", handler=lambda message: None)
        assert consumer.queues()
        assert {consumer._readers[queue].process_queue.commit_offset for queue in consumer.queues()} == {begins}
        assert bool(runtime.pauses) == bool(others)
        await consumer.close()

    run(body)


def test_broadcasting_takes_all_queues_and_asks_no_one() -> None:
    async def body() -> None:
        broker = Group()
        consumer = PushConsumer(group="G", broadcast=True)
        wire(consumer, broker)
        rebalancer = Rebalancer(consumer.instance, "G", lambda own, queues, ids: [], broadcast=True)
        assert len(await rebalancer.share("T") or []) == 8
        assert RequestCode.GET_CONSUMER_LIST_BY_GROUP not in broker.asked

    run(body)


@pytest.mark.parametrize(
    ("start_from", "topic", "expected"),
    [
        ("last", "T", 100),
        ("first", "T", 40),
        (datetime(1970, 1, 1, 0, 1, tzinfo=UTC), "T", 60),
        ("last", "%RETRY%G", 0),
        ("first", "%RETRY%G", 0),
    ],
)
def test_the_first_offset_of_a_group_without_one(start_from: Any, topic: str, expected: int) -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G", start_from=start_from)
        wire(consumer, Group())
        await consumer.instance.route("T")
        assert await consumer.first_offset(MessageQueue(topic, "a", 0)) == expected

    run(body)


def test_a_heartbeat_says_what_the_consumer_wants() -> None:
    async def body() -> None:
        broker = Group()
        consumer = PushConsumer(group="G", start_from="first")
        wire(consumer, broker)
        consumer.subscribe("T", tag="a || b")
        await consumer.instance.route("T")
        await consumer.instance.heartbeat()
        assert len(broker.heartbeats) == 2
        [data] = broker.heartbeats[0].consumer_data_set
        assert (data.group_name, data.consume_type) == ("G", ConsumeType.CONSUME_PASSIVELY)
        assert data.message_model is MessageModel.CLUSTERING
        assert {each.topic: each.sub_string for each in data.subscription_data_set} == {"T": "a || b", "%RETRY%G": "*"}
        pull = PullConsumer(group="G")
        pull.add_subscription("T", None, None)
        assert pull.consumer_data().consume_type is ConsumeType.CONSUME_ACTIVELY
        assert [each.topic for each in pull.consumer_data().subscription_data_set] == ["T"]

    run(body)


@pytest.mark.parametrize("outcome", [RequestTimeout("hanging"), ConnectError("no connection within 3 s")])
def test_a_broker_that_hangs_holds_up_one_rebalance_not_each(outcome: TransportError) -> None:
    async def body() -> None:
        clock = ManualClock()
        asked: list[str] = []

        def serve(address: str, request: RemotingCommand) -> Outcome:
            if request.code != RequestCode.HEART_BEAT:
                members = GetConsumerListByGroupResponseBody(consumer_id_list=[consumer.instance.client_id])
                return RemotingCommand.response(request, body=members.encode())
            asked.append(address)
            if address == "b:1":
                clock.advance(HEARTBEAT_TIMEOUT)
                return outcome
            return RemotingCommand.response(request)

        consumer: Any = PushConsumer(group="G")
        remoting = FakeRemoting({topic: route("a", "b") for topic in "TUV"}, serve, clock)
        consumer.instance = ClientInstance(consumer.config, remoting, ASYNCIO, clock=clock)
        consumer.instance.register_consumer(consumer)
        rebalancer = Rebalancer(consumer.instance, "G", lambda own, queues, ids: list(queues), broadcast=False)
        for topic in "TUV":
            assert len(await rebalancer.share(topic) or []) == 4
        assert asked == ["a:1", "b:1"]
        assert clock.monotonic() == HEARTBEAT_TIMEOUT
        await consumer.instance.heartbeat()
        assert asked == ["a:1", "b:1"] * 2
        clock.advance(SILENT_BROKER_SECONDS)
        await rebalancer.share("T")
        assert asked == [*["a:1", "b:1"] * 2, "b:1"]

    run(body)


def test_wrong_subscriptions_are_refused() -> None:
    consumer = PushConsumer(group="G")
    with pytest.raises(ConfigError, match="not both"):
        consumer.subscribe("T", tag="a", sql="b > 1")
    with pytest.raises(MessageIllegal):
        consumer.subscribe("no spaces")
    with pytest.raises(ConfigError):
        consumer.subscribe("T", tag="||")
    for nothing_to_call in (5, "handle"):
        with pytest.raises(ConfigError, match=rf"handler of topic 'T' .*got {type(nothing_to_call).__name__}"):
            consumer.subscribe("T", handler=nothing_to_call)  # type: ignore[arg-type]
    assert consumer.topics() == set()
    with pytest.raises(ConfigError, match="ordered"):
        PullConsumer(group="G", ordered=True)


async def start(consumer: PushConsumer) -> None:
    """Start a consumer that finds no cluster."""
    await consumer.start()
    consumer.instance.remoting = FakeRemoting({})


class Channel:
    """A connection to a broker."""

    def __init__(self, address: str = "a:1") -> None:
        self.remote_address = address


class Connections(Rows):
    """Knows the channels of this test by what they were made to."""

    def address_of(self, channel: Channel) -> str | None:
        return channel.remote_address or None


def answering(consumer: PushConsumer) -> Callable[[Channel, RemotingCommand], Any]:
    """Return what answers a broker's request."""
    connections: Any = Connections(Routes())
    serve_broker_requests(connections, consumer)
    return lambda channel, request: connections.table[request.code].serve(channel, request)


def ask(code: RequestCode, header: Header, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(code, header, body)


def test_what_an_administrator_is_shown() -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G", threads=3)
        consumer.subscribe("T", handler=lambda message: None)
        await start(consumer)
        try:
            reader = consumer.own(MessageQueue("T", "a", 0), 17)
            served = answering(consumer)
            answer = served(
                Channel(),
                ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, GetConsumerStatusRequestHeader(topic="T", group="G")),
            )
            assert GetConsumerStatusBody.decode(answer.body).message_queue_table == {MessageQueue("T", "a", 0): 17}
            header = GetConsumerRunningInfoRequestHeader(consumer_group="G", client_id=consumer.client_id)
            answer = served(Channel(), ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
            info = ConsumerRunningInfo.decode(answer.body)
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "3"
            assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) == consumer.started_at
            assert info.mq_table[MessageQueue("T", "a", 0)].commit_offset == 17
            header = GetConsumerRunningInfoRequestHeader(consumer_group="other", client_id="x")
            answer = served(Channel(), ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
            assert (answer.code, "other" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            assert reader.process_queue.next_offset == 17
        finally:
            await consumer.close()

    run(body)


def test_an_offset_reset_moves_the_owned_queues() -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G")
        await start_with(consumer, LockingBrokers("a", "b"))
        try:
            queue, other = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
            before, kept = consumer.own(queue, 17), consumer.own(other, 20)
            header = ResetOffsetRequestHeader(topic="T", group="G", timestamp=0, force=True)
            table = ResetOffsetBody(offset_table={queue: 5, MessageQueue("T", "a", 1): 9, other: 2}).encode()
            served = answering(consumer)
            for stranger in ("", "c:1"):
                request = ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, table)
                await served(Channel(stranger), request)
            assert not before.process_queue.dropped, "a broker says nothing about the queues of another"
            await served(Channel(), ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, table))
            assert {each.queue: each.next_offset for each in consumer.process_queues()} == {queue: 5, other: 20}
            assert before.process_queue.dropped
            assert not kept.process_queue.dropped
            cpp = b'{"offsetTable":[{"brokerName":"a","offset":7,"queueId":0,"topic":"T"}]}'
            request = ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, cpp)
            request.language = LanguageCode.CPP
            await served(Channel(), request)
            assert {each.queue: each.next_offset for each in consumer.process_queues()} == {queue: 7, other: 20}
        finally:
            await consumer.close()

    run(body)


def test_a_queue_taken_while_locks_are_renewed_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G", ordered=True)
        await start(consumer)
        try:
            renewed, lost, taken = (MessageQueue("T", "a", queue_id) for queue_id in range(3))
            for queue in (renewed, lost):
                consumer.own(queue, 0)

            async def lock(queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
                consumer.own(taken, 0)
                return {renewed: True, lost: False}

            monkeypatch.setattr(consumer, "_lock", lock)
            await consumer._renew_locks()
            held = {
                process_queue.queue
                for process_queue in consumer.process_queues()
                if process_queue.last_lock is not None
            }
            assert held == {renewed, taken}
        finally:
            await consumer.close()

    run(body)


STORE, LIST = RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.GET_CONSUMER_LIST_BY_GROUP


class LockingBrokers(FakeRemoting):
    """Brokers that lock queues and store offsets, as late as a test wants; nothing can be pulled from them."""

    def __init__(self, *names: str) -> None:
        super().__init__({"T": route(*names)}, self._serve)
        self.locks = QueueLocks()
        self.asked_to_lock: list[str] = []
        self.silent: set[str] = set()
        self.locking = asyncio.Event()
        self.may_lock = asyncio.Event()
        self.listing = asyncio.Event()
        self.storing = asyncio.Event()
        self.may_store = asyncio.Event()
        self.may_store.set()

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code == RequestCode.LOCK_BATCH_MQ:
            self.asked_to_lock.append(address)
            self.locking.set()
            await self.may_lock.wait()
        if command.code == STORE:
            self.storing.set()
            await self.may_store.wait()
        answer = await super().invoke(address, command, timeout)
        if command.code == LIST:
            self.listing.set()
        return answer

    def _serve(self, address: str, request: RemotingCommand) -> Outcome:
        match request.code:
            case RequestCode.LOCK_BATCH_MQ if address in self.silent:
                return RequestTimeout("no answer")
            case RequestCode.LOCK_BATCH_MQ:
                asked = LockBatchRequestBody.decode(request.body)
                held = self.locks.lock(asked.consumer_group, asked.mq_set, asked.client_id)
                return RemotingCommand.response(request, body=LockBatchResponseBody(set(held)).encode())
            case RequestCode.UNLOCK_BATCH_MQ:
                left = UnlockBatchRequestBody.decode(request.body)
                self.locks.unlock(left.consumer_group, left.mq_set, left.client_id)
            case RequestCode.PULL_MESSAGE:
                return ConnectError("nothing to pull here")
        return RemotingCommand.response(request)


async def start_with(consumer: PushConsumer, brokers: FakeRemoting) -> None:
    """Start a consumer and let it find a cluster after that; it owns nothing yet."""
    await consumer.start()
    consumer.instance.remoting = brokers
    consumer.instance.routes.update("T", brokers.routes["T"], inherited=False)


class InOrder:
    """A consumer in order whose handler is busy with the first of two messages of a queue, until it may ``go_on``."""

    queue = MessageQueue("T", "a", 0)

    def __init__(self) -> None:
        self.consumer = PushConsumer(group="G", ordered=True)
        self.brokers = LockingBrokers("a")
        self.handled: list[int] = []
        self.go_on = asyncio.Event()
        self._begun = asyncio.Event()

    async def __aenter__(self) -> InOrder:
        self.consumer.subscribe("T", handler=self._handle)
        await start_with(self.consumer, self.brokers)
        self.process_queue = self.consumer.own(self.queue, 0).process_queue
        self.process_queue.put([ReceivedMessage("T", b"", self.queue, offset, "id", "id") for offset in range(2)], 2)
        self.consumer._service.arrived(self.process_queue)
        await self._begun.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.go_on.set()
        self.brokers.may_lock.set()
        await self.consumer.close()

    async def _handle(self, message: ReceivedMessage) -> None:
        self.handled.append(message.offset)
        self._begun.set()
        await self.go_on.wait()

    async def give_up(self) -> asyncio.Task[None]:
        """Begin to give the queue up, which waits for the handler."""
        task = asyncio.create_task(self.consumer._give_up([self.queue]))
        await asyncio.sleep(0)
        return task


def test_a_queue_that_is_given_up_is_not_handed_out_by_a_renewal_of_its_lock() -> None:
    async def body() -> None:
        async with InOrder() as busy:
            renewal = asyncio.create_task(busy.consumer._renew_locks())
            await busy.brokers.locking.wait()
            leaving = await busy.give_up()
            busy.brokers.may_lock.set()
            await renewal
            await busy.consumer._renew_locks()
            assert busy.brokers.asked_to_lock == ["a:1"]
            busy.go_on.set()
            await leaving
            assert busy.handled == [0]
            assert busy.consumer.queues() == []

    run(body)


def test_a_queue_that_is_kept_after_all_goes_on() -> None:
    async def body() -> None:
        async with InOrder() as busy:
            leaving = await busy.give_up()
            leaving.cancel()
            await asyncio.wait([leaving])
            busy.go_on.set()
            while len(busy.process_queue):
                await busy.consumer._service.progress()
            assert busy.handled == [0, 1]

    run(body)


def test_a_lock_that_is_given_back_is_not_taken_again_by_a_renewal_on_its_way() -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G", ordered=True)
        brokers = LockingBrokers("a", "b")
        await start_with(consumer, brokers)
        try:
            queue = MessageQueue("T", "a", 0)
            consumer.own(queue, 0)
            consumer.own(MessageQueue("T", "b", 0), 0)
            renewal = asyncio.create_task(consumer._renew_locks())
            await brokers.locking.wait()
            leaving = asyncio.create_task(consumer._give_up([queue]))
            await brokers.storing.wait()
            for _ in range(10):  # what it does next, it does now
                await asyncio.sleep(0)
            assert brokers.asked_to_lock == ["a:1", "b:1"], "a broker that hangs keeps no other from being asked"
            brokers.may_lock.set()
            await renewal
            await leaving
            assert brokers.locks.lock("G", [queue], "the next owner") == [queue]
        finally:
            brokers.may_lock.set()
            await consumer.close()

    run(body)


def test_a_renewal_without_an_answer_takes_no_lock_away_before_its_time() -> None:
    async def body() -> None:
        clock = ManualClock()
        consumer = PushConsumer(group="G", ordered=True)
        consumer.clock = clock
        brokers = LockingBrokers("a", "b")
        brokers.may_lock.set()
        await start_with(consumer, brokers)
        try:
            silent, well = (consumer.own(MessageQueue("T", name, 0), 0).process_queue for name in "ab")
            gone = consumer.own(MessageQueue("T", "gone", 0), 0).process_queue
            brokers.silent.add("a:1")
            clock.advance(LOCK_INTERVAL)
            await consumer._renew_locks()
            assert [consumer._consumable(process_queue) for process_queue in (silent, gone, well)] == [True, True, True]
            clock.advance(LOCK_EXPIRES - LOCK_INTERVAL)
            assert [consumer._consumable(process_queue) for process_queue in (silent, gone, well)] == [
                False,
                False,
                True,
            ]
            brokers.locks.unlock("G", [well.queue], consumer.client_id)
            brokers.locks.lock("G", [well.queue], "another")
            await consumer._renew_locks()
            assert not consumer._consumable(well)
        finally:
            await consumer.close()

    run(body)


def test_a_failed_message_comes_again_though_the_timer_is_a_little_early() -> None:
    """The clock stands: by it the time is not over when the loop says so, and the loop says it once."""

    async def body() -> None:
        handled: list[int] = []
        both = asyncio.Event()

        async def fail_first(message: ReceivedMessage) -> None:
            handled.append(message.offset)
            if len(handled) == 1:
                raise ValueError("the first time it fails")
            if message.offset == 1:
                both.set()

        consumer = PushConsumer(group="G", ordered=True, suspend_time=0.01)
        consumer.clock = ManualClock()
        consumer.subscribe("T", handler=fail_first)
        await start_with(consumer, LockingBrokers("a"))
        try:
            queue = MessageQueue("T", "a", 0)
            process_queue = consumer.own(queue, 0).process_queue
            process_queue.put([ReceivedMessage("T", b"", queue, offset, "id", "id") for offset in range(2)], 2)
            consumer._service.arrived(process_queue)
            await both.wait()
            assert handled == [0, 0, 1]
        finally:
            await consumer.close()

    run(body)


def test_a_queue_is_given_up_though_who_asked_for_it_does_not_wait() -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G")
        consumer.subscribe("T")
        brokers = LockingBrokers("a")
        await start_with(consumer, brokers)
        try:
            consumer.own(MessageQueue("T", "a", 0), 0)
            brokers.may_store.clear()
            leaving = asyncio.create_task(consumer.unsubscribe("T"))
            await brokers.storing.wait()
            leaving.cancel()
            await asyncio.wait([leaving])
            assert consumer.queues() == []
        finally:
            brokers.may_store.set()
            await consumer.close()

    run(body)


def test_what_is_done_is_stored_before_a_changed_group_shares_out_again() -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G")
        consumer.subscribe("T", handler=lambda message: None)
        brokers = LockingBrokers("a")
        await start_with(consumer, brokers)
        try:
            process_queue = consumer.own(MessageQueue("T", "a", 0), 17).process_queue
            process_queue.put([], 40)
            header = NotifyConsumerIdsChangedRequestHeader(consumer_group="G")
            served = answering(consumer)
            brokers.asked.clear()
            served(Channel(), ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))
            await brokers.listing.wait()
            asked = [request for _, request in brokers.asked if request.code in (STORE, LIST)]
            assert [request.code for request in asked] == [STORE, LIST]
            assert (asked[0].ext_fields or {})["commitOffset"] == "40"
        finally:
            await consumer.close()

    run(body)


def test_a_message_is_consumed_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G")
        seen: list[str] = []

        def handle(message: ReceivedMessage) -> ConsumeResult:
            seen.append(message.text())
            return ConsumeResult.RETRY

        consumer.subscribe("T", handler=handle)
        await start_with(consumer, LockingBrokers("a"))
        try:
            message = ReceivedMessage("T", b"now", MessageQueue("T", "a", 0), 3, "id", "offset-id")
            monkeypatch.setattr("rocketcore.client.serving.decode_message", lambda data, broker: message)
            header = ConsumeMessageDirectlyResultRequestHeader(consumer_group="G", broker_name="a")
            served = answering(consumer)
            for stranger in ("", "c:1", "namesrv:9876"):
                request = ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, b"x")
                answer = await served(Channel(stranger), request)
                assert (answer.code, seen) == (ResponseCode.SYSTEM_ERROR, []), "it is not broker a"
            answer = await served(Channel(), ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, b"x"))
            result = ConsumeMessageDirectlyResult.decode(answer.body)
            assert (result.consume_result, seen) == (CMResult.CR_LATER, ["now"])
            await consumer.unsubscribe("T")
            answer = await served(Channel(), ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, b"x"))
            assert (answer.code, seen) == (ResponseCode.SYSTEM_ERROR, ["now"])
            assert "is not subscribed to topic T" in (answer.remark or "")
        finally:
            await consumer.close()

    run(body)


def test_no_name_that_a_broker_gives_makes_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    forged = "x\n2026-01-01 CRITICAL disk full\x1b[2J"

    async def body() -> None:
        consumer = PushConsumer(group="G")
        await start_with(consumer, LockingBrokers("a"))
        try:
            served = answering(consumer)
            news = NotifyConsumerIdsChangedRequestHeader(consumer_group=forged)
            served(Channel(), ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, news))
            reset = ResetOffsetRequestHeader(topic=forged, group="G", timestamp=0, force=True)
            table = ResetOffsetBody(offset_table={}).encode()
            await served(Channel(), ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset, table))
            record = encode(Stored(forged.encode(), b"now", body_crc=zlib.crc32(b"now")))
            header = ConsumeMessageDirectlyResultRequestHeader(consumer_group="G", broker_name="a")
            request = ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, record)
            assert (await served(Channel(), request)).code == ResponseCode.SYSTEM_ERROR
        finally:
            await consumer.close()

    run(body)
    assert "offset reset" in caplog.text
    assert "message to consume refused topic" in caplog.text
    assert [record.message for record in caplog.records if not is_printable(record.message)] == []
