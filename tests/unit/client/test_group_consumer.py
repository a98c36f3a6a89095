"""Joining a group without sockets: shares, first offsets, what brokers ask."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from rocketcore.client.instance import HEARTBEAT_TIMEOUT, SILENT_BROKER_SECONDS, ClientInstance
from rocketcore.client.offset_store import RemoteOffsetStore
from rocketcore.client.pull import PullConsumer
from rocketcore.client.push import PushConsumer
from rocketcore.client.rebalance import Rebalancer
from rocketcore.client.runtime import ASYNCIO
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import ConfigError, ConnectError, MessageIllegal, RequestTimeout, TransportError
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.client import (
    GetConsumerListByGroupResponseBody,
)
from rocketcore.protocol.bodies.heartbeat import ConsumeType, HeartbeatData, MessageModel
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import (
    NotifyConsumerIdsChangedRequestHeader,
)
from rocketcore.service import ManualClock
from tests.unit.client.fakes import FakeRemoting, ManualRuntime, Outcome, route
from tests.unit.client.groups import LIST, STORE, Channel, LockingBrokers, answering, ask, run, start_with


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


def test_the_queues_of_a_broker_that_hangs_hold_up_no_others() -> None:
    async def body() -> None:
        broker = Group()
        asked: list[str] = []
        all_of_b = asyncio.Event()

        async def first_offset(queue: MessageQueue) -> int:
            asked.append(queue.broker)
            if asked.count("b") == 4:
                all_of_b.set()
            if queue.broker == "a":
                await asyncio.wait_for(all_of_b.wait(), 20)  # nobody waits for this one
                raise RequestTimeout("hanging")
            return 7

        consumer = PushConsumer(group="G")
        consumer._started = True
        wire(consumer, broker)
        consumer.first_offset = first_offset  # type: ignore[method-assign]
        owned: list[MessageQueue] = []
        consumer.own = lambda queue, offset: owned.append(queue)  # type: ignore[assignment, method-assign, return-value]
        share = [MessageQueue("T", name, number) for name in ("a", "b") for number in range(4)]
        assert await consumer._take_share("T", share) == (True, False)
        assert owned == share[4:]
        assert asked.count("a") == 1, "the others of that broker would only wait for the same"

    run(body)


def test_a_broker_that_hangs_is_waited_for_once_a_round_not_for_each_topic() -> None:
    async def body() -> None:
        asked: list[str] = []

        async def first_offset(queue: MessageQueue) -> int:
            asked.append(queue.broker)
            if queue.broker == "a":
                raise RequestTimeout("hanging")
            return 7

        consumer = PushConsumer(group="G")
        consumer._started = True
        wire(consumer, Group())
        consumer.first_offset = first_offset  # type: ignore[method-assign]
        owned: list[MessageQueue] = []
        consumer.own = lambda queue, offset: owned.append(queue)  # type: ignore[assignment, method-assign, return-value]
        for topic in "TUV":
            await consumer._take_share(topic, [MessageQueue(topic, name, 0) for name in "ab"])
        assert sorted(asked) == ["a", "b", "b", "b"]
        assert owned == [MessageQueue(topic, "b", 0) for topic in "TUV"]
        consumer._rebalance_lock = asyncio.Lock()
        await consumer._balance()
        assert asked.count("a") == 1, "no topic is subscribed to"
        await consumer._take_share("T", [MessageQueue("T", "a", 0)])
        assert asked.count("a") == 2, "the next round asks again"

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


class Emptied(LockingBrokers):
    """Brokers that have lost all offsets."""

    def _serve(self, address: str, request: RemotingCommand) -> Outcome:
        response = RemotingCommand.response(request)
        match request.code:
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return RemotingCommand.response(request, ResponseCode.QUERY_NOT_FOUND, "none")
            case RequestCode.GET_MAX_OFFSET:
                response.ext_fields = {"offset": "100"}
                return response
        return super()._serve(address, request)


def test_a_broker_that_came_back_is_told_at_once_what_it_may_have_lost() -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G", persist_interval=3600.0)
        consumer.subscribe("T", handler=lambda message: None)
        brokers = LockingBrokers("a")
        await start_with(consumer, brokers)
        queue = MessageQueue("T", "a", 0)
        try:
            consumer.own(queue, 17).process_queue.put([], 40)
            await consumer.persist_offsets()
            assert consumer.offsets.written(queue) == 40
            consumer.instance.remoting = back = Emptied("a")
            consumer.pulled(queue)
            await back.storing.wait()
        finally:
            await consumer.close()
        [stored] = [request.ext_fields or {} for _, request in back.asked if request.code == STORE]
        assert stored["commitOffset"] == "40"

    run(body)
