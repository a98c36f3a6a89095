"""Which name server is asked, and what a client believes of its answers."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from rocketcore.client.config import ClientConfig, ProducerConfig
from rocketcore.client.instance import HOLD_SECONDS, ClientInstance
from rocketcore.client.name_servers import NameServerList
from rocketcore.client.sender import Sender
from rocketcore.codes import AUTO_CREATE_TOPIC, RequestCode, ResponseCode
from rocketcore.errors import (
    BrokerSystemError,
    ConnectError,
    DecodeError,
    NoBrokerRegistered,
    RequestTimeout,
    RouteNotFound,
    SystemBusy,
    TopicNotExist,
)
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock
from rocketcore.transport.blocking.client import run_sync
from rocketcore.transport.remoting import Remoting
from tests.unit.client.fakes import ManualRuntime, answer_heartbeat_or_send, decoded, route

Routes = Mapping[str, TopicRouteData]


class Network:
    """Name servers and brokers by address; each can be dead, silent, or say what it knows."""

    def __init__(self, **name_servers: Routes) -> None:
        self.clock = ManualClock()
        self.name_servers: dict[str, Routes] = {f"{name}:1": routes for name, routes in name_servers.items()}
        self.dead: set[str] = set()
        self.silent: set[str] = set()
        self.refusing: set[str] = set()
        self.leaving: set[str] = set()
        self.down: set[str] = set()
        self.confused: set[str] = set()
        self.slow: dict[str, float] = {}
        self.asked: list[tuple[str, int]] = []
        self.closed: list[str] = []

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        request = decoded(command)
        self.asked.append((address, request.code))
        if address in self.dead:
            raise ConnectError(f"{address}: connection refused")
        if address in self.silent:
            self.clock.advance(timeout)
            raise RequestTimeout(f"{address}: no answer within {timeout:g} s")
        if address in self.down:
            self.clock.advance(timeout)
            raise ConnectError(f"{address}: no connection within {timeout:g} s")
        if address in self.confused:
            return RemotingCommand.response(request, body=b"<html>")
        self.clock.advance(self.slow.get(address, 0.0))
        if address in self.refusing:
            return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, "name server not ready")
        if address in self.leaving:
            return RemotingCommand.response(request, ResponseCode.GO_AWAY, "please go away")
        if address not in self.name_servers:
            return answer_heartbeat_or_send(request)
        routes = self.name_servers[address]
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            brokers = {broker.broker_name: broker for data in routes.values() for broker in data.broker_datas}
            return RemotingCommand.response(request, body=ClusterInfo(broker_addr_table=brokers).encode())
        data = routes.get((request.ext_fields or {})["topic"])
        if data is None:
            return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, "no route")
        return RemotingCommand.response(request, body=data.encode())

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        raise AssertionError("nothing here is one-way")

    def close_channel(self, address: str) -> None:
        self.closed.append(address)

    def asked_for_routes(self) -> list[str]:
        """Return the name servers that were asked for routes since the last call, in order."""
        asked = [address for address, code in self.asked if code == RequestCode.GET_ROUTEINFO_BY_TOPIC]
        self.asked.clear()
        return asked


class InOrder(random.Random):
    """Leaves everything in the order it was given."""

    def sample(self, population, k, *, counts=None):  # type: ignore[no-untyped-def]
        return list(population)[:k]


def client(network: Network, *, runtime: ManualRuntime | None = None) -> ClientInstance:
    config = ClientConfig(namesrv=tuple(network.name_servers))
    runtime = runtime or ManualRuntime(network.clock)
    return ClientInstance(config, network, runtime, clock=network.clock, rng=InOrder(1))


def brokers(instance: ClientInstance, topic: str = "T") -> list[str]:
    """Return the brokers that a client would send to."""
    found = instance.routes.find(topic)
    assert found is not None
    return sorted({queue.broker for queue in found.publish})


def producer(network: Network, runtime: ManualRuntime) -> Sender:
    config = ProducerConfig(namesrv=tuple(network.name_servers))
    instance = ClientInstance(config, network, runtime, clock=network.clock, rng=InOrder(1))
    return Sender(config, instance, network.clock)


FULL = {"T": route("a", "b", "c")}


# The choice


def test_a_dead_name_server_is_passed_over_and_asked_last_from_then_on() -> None:
    network = Network(n1=FULL, n2=FULL)
    network.dead = {"n1:1"}
    instance = client(network)
    assert run_sync(instance.refresh_topic("T"))
    assert network.asked_for_routes() == ["n1:1", "n2:1"]
    run_sync(instance.refresh_topic("T"))
    assert network.asked_for_routes() == ["n2:1"]


def test_a_last_attempt_that_had_no_time_is_not_what_is_told() -> None:
    class Refused(Network):
        """Refuses a connection, unless it is given no time to."""

        async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
            self.dead, self.silent = (set(), {address}) if timeout < 0.04 else ({address}, set())
            self.hurried = timeout < 0.04
            return await super().invoke(address, command, timeout)

    hurried = 0
    for hundredths in range(20, 300):
        network = Refused(n1=FULL)
        with pytest.raises(ConnectError, match="connection refused"):
            run_sync(client(network).await_route("T", default_queue_nums=0, timeout=hundredths / 100))
        hurried += network.hurried
    assert hurried > 5


def test_a_name_server_that_answers_rubbish_is_passed_over() -> None:
    network = Network(n1=FULL, n2=FULL)
    network.confused = {"n1:1"}
    instance = client(network)
    for _ in range(2):
        run_sync(instance.refresh_topic("T"))
    assert network.asked_for_routes() == ["n1:1", "n2:1", "n2:1"]
    network.confused.add("n2:1")
    with pytest.raises(DecodeError):
        run_sync(instance.refresh_topic("T"))


def test_a_broker_that_registers_between_two_questions_brings_its_topics() -> None:
    """The route was asked for before it came, and whether there are brokers after that."""

    class Late(Network):
        async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
            if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                self.name_servers[address] = FULL
            return await super().invoke(address, command, timeout)

    network = Late(n1={})
    assert run_sync(client(network).route("T", timeout=3.0)).publish
    with pytest.raises(RouteNotFound, match="no name server knows topic 'X'"):
        run_sync(client(network).route("X", timeout=3.0))


def test_a_machine_that_is_down_is_not_asked_for_a_second_opinion_again() -> None:
    """A blocking client calls it a ConnectError; what tells is that the time is gone."""
    network = Network(n1={}, n2={})
    network.down = {"n2:1"}
    instance = client(network)
    for waited in (1.0, 1.0):
        with pytest.raises(NoBrokerRegistered):
            run_sync(instance.route("T", timeout=3.0))
        assert network.clock.monotonic() == pytest.approx(waited)
    network.clock.advance(10.0)
    with pytest.raises(NoBrokerRegistered):
        run_sync(instance.route("T", timeout=3.0))
    assert network.clock.monotonic() == pytest.approx(12.0)


def test_a_name_server_that_is_going_is_left() -> None:
    network = Network(n1=FULL, n2=FULL)
    network.leaving = {"n1:1"}
    instance = client(network)
    run_sync(instance.refresh_topic("T"))
    run_sync(instance.refresh_topic("T"))
    assert network.asked_for_routes() == ["n1:1", "n2:1", "n2:1"]


def test_a_silent_name_server_gets_its_part_of_the_time_and_a_new_connection() -> None:
    network = Network(n1=FULL, n2=FULL, n3=FULL)
    network.silent = {"n1:1", "n2:1"}
    instance = client(network)
    run_sync(instance.refresh_topic("T", timeout=3.0))
    assert network.clock.monotonic() == pytest.approx(2.0)
    assert network.closed == ["n1:1", "n2:1"]
    assert network.asked_for_routes() == ["n1:1", "n2:1", "n3:1"]
    network.silent.add("n3:1")
    before = network.clock.monotonic()
    with pytest.raises(RequestTimeout):
        run_sync(instance.refresh_topic("T", timeout=3.0))
    assert network.clock.monotonic() - before == pytest.approx(3.0)
    assert brokers(instance) == ["a", "b", "c"]


@pytest.mark.parametrize("state", ["empty", "not ready"])
def test_a_name_server_that_does_not_know_yet_has_not_the_last_word(state: str) -> None:
    network = Network(n1={}, n2=FULL)
    if state == "not ready":
        network.refusing = {"n1:1"}
    instance = client(network)
    run_sync(instance.refresh_topic("T"))
    assert brokers(instance) == ["a", "b", "c"]
    assert network.asked_for_routes() == ["n1:1", "n2:1"]
    run_sync(instance.refresh_topic("T"))
    assert network.asked_for_routes() == ["n2:1"], "the one that knew is asked first from then on"


def test_other_questions_take_a_refusal_for_the_answer() -> None:
    network = Network(n1={}, n2=FULL)
    network.refusing = {"n1:1"}

    async def question(remoting: Remoting, address: str, timeout: float) -> str:
        request = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        (await remoting.invoke(address, request, timeout)).raise_for_code(address, "topics")
        return address

    with pytest.raises(BrokerSystemError, match="not ready"):
        run_sync(client(network).ask_name_server(question))


def test_without_an_answer_the_refusal_is_raised_rather_than_the_failure() -> None:
    network = Network(n1={}, n2={})
    names = NameServerList(("n1:1", "n2:1"), network, network.clock, InOrder(1))

    async def question(remoting: Remoting, address: str, timeout: float) -> None:
        if address == "n1:1":
            raise SystemBusy(2, "later")
        raise ConnectError("dead")

    with pytest.raises(SystemBusy):
        run_sync(names.ask(question, 1.0, not_final=(SystemBusy, TopicNotExist)))


def test_a_failure_that_two_callers_meet_at_once_counts_once() -> None:
    network = Network(n1={}, n2={})
    names = NameServerList(("n1:1", "n2:1"), network, network.clock, InOrder(1))
    asked = []

    async def dead(remoting: Remoting, address: str, timeout: float) -> str:
        if address == "n1:1":
            raise ConnectError("dead")
        return address

    async def meanwhile(remoting: Remoting, address: str, timeout: float) -> str:
        asked.append(address)
        if address == "n1:1":
            assert await names.ask(dead, 1.0) == "n2:1"
        return await dead(remoting, address, timeout)

    assert run_sync(names.ask(meanwhile, 1.0)) == "n2:1"
    assert asked == ["n1:1", "n2:1"]
    assert names.addresses == ("n2:1", "n1:1")


# What is believed


def test_a_known_route_survives_name_servers_that_know_nothing() -> None:
    network = Network(n1=FULL, n2=FULL)
    instance = client(network)
    run_sync(instance.refresh_topic("T"))
    network.name_servers = {"n1:1": {}, "n2:1": {AUTO_CREATE_TOPIC: route("b")}}
    assert not run_sync(instance.refresh_topic("T", default_queue_nums=4))
    assert brokers(instance) == ["a", "b", "c"]
    assert run_sync(instance.refresh()) is None
    assert brokers(instance) == ["a", "b", "c"]


def test_a_broker_that_answers_stays_though_a_restarted_name_server_leaves_it_out() -> None:
    network = Network(n1=FULL)
    instance = client(network)
    run_sync(instance.refresh_topic("T"))
    known = instance.routes.find("T")
    network.name_servers = {"n1:1": {"T": route("b")}}
    sooner = run_sync(instance.refresh())
    assert sooner is not None
    assert sooner <= 1.0
    assert instance.routes.find("T") is known
    network.name_servers = {"n1:1": FULL}
    assert run_sync(instance.refresh()) is None
    assert instance.routes.find("T") is known


def test_a_broker_that_is_left_out_for_long_is_given_up() -> None:
    network = Network(n1=FULL)
    instance = client(network)
    run_sync(instance.refresh_topic("T"))
    network.name_servers = {"n1:1": {"T": route("b")}}
    run_sync(instance.refresh())
    network.clock.advance(HOLD_SECONDS - 0.1)
    run_sync(instance.refresh())
    assert brokers(instance) == ["a", "b", "c"]
    network.clock.advance(0.2)
    assert run_sync(instance.refresh()) is None
    assert brokers(instance) == ["b"]
    # The addresses go one round later: what the consumer of the lost queues has to store can still be stored.
    assert instance.routes.find_publish_address("a") == "a:1"
    run_sync(instance.refresh())
    assert instance.routes.find_publish_address("a") is None


def test_each_broker_is_held_from_when_it_was_left_out() -> None:
    network = Network(n1=FULL)
    instance = client(network)
    run_sync(instance.refresh_topic("T"))
    network.name_servers = {"n1:1": {"T": route("b", "c")}}
    run_sync(instance.refresh())
    network.clock.advance(HOLD_SECONDS - 1.0)
    run_sync(instance.refresh())
    network.name_servers = {"n1:1": {"T": route("c")}}
    network.clock.advance(2.0)
    assert run_sync(instance.refresh()) is not None
    assert brokers(instance) == ["b", "c"]
    network.clock.advance(HOLD_SECONDS)
    assert run_sync(instance.refresh()) is None
    assert brokers(instance) == ["c"]


def test_without_time_to_find_out_no_broker_is_given_up_and_no_name_server_blamed() -> None:
    network = Network(n1={"T": route("b")}, n2=FULL)
    instance = client(network)
    instance.routes.update("T", FULL["T"])
    network.slow = {"n1:1": 3.0}
    network.silent = {"a:1", "c:1"}
    run_sync(instance.refresh_topic("T", timeout=3.2))
    assert network.clock.monotonic() == pytest.approx(3.2)
    assert brokers(instance) == ["a", "b", "c"]
    assert network.closed == []
    assert network.asked_for_routes() == ["n1:1"]


def test_a_broker_that_does_not_answer_is_given_up_at_once() -> None:
    network = Network(n1=FULL)
    instance = client(network)
    run_sync(instance.refresh_topic("T"))
    network.name_servers = {"n1:1": {"T": route("b")}}
    network.dead = {"a:1"}
    run_sync(instance.refresh_topic("T"))
    assert brokers(instance) == ["b", "c"]


def test_another_name_server_completes_the_route() -> None:
    network = Network(n1=FULL, n2=FULL)
    instance = client(network)
    run_sync(instance.refresh_topic("T"))
    network.name_servers = {"n1:1": {"T": route("b")}, "n2:1": {"T": route("a", "b", "c", queues=5)}}
    assert run_sync(instance.refresh()) is None
    found = instance.routes.find("T")
    assert found is not None
    assert MessageQueue("T", "a", 4) in found.publish
    network.asked_for_routes()
    run_sync(instance.refresh())
    assert network.asked_for_routes() == ["n2:1"]


def test_a_master_that_is_left_out_is_missed_as_a_broker_is() -> None:
    members = {0: "a:1", 1: "a1:1"}
    queue = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
    whole, headless = (
        TopicRouteData([queue], [BrokerData(cluster="c", broker_name="a", broker_addrs=addresses)])
        for addresses in (members, {1: "a1:1"})
    )
    network = Network(n1={"T": whole})
    instance = client(network)
    run_sync(instance.refresh_topic("T"))
    network.name_servers = {"n1:1": {"T": headless}}
    run_sync(instance.refresh_topic("T"))
    assert brokers(instance) == ["a"]
    network.dead = {"a:1"}
    run_sync(instance.refresh_topic("T"))
    assert brokers(instance) == []
    assert instance.routes.subscribe_address("a") == ("a1:1", 1)


def test_a_kept_broker_is_kept_at_its_newest_address() -> None:
    network = Network(n1={"T": route("a", "b"), "U": route("a")})
    instance = client(network)
    for topic in ("T", "U"):
        run_sync(instance.refresh_topic(topic))
    moved = route("a")
    moved.broker_datas[0].broker_addrs = {0: "elsewhere:1"}
    network.name_servers = {"n1:1": {"U": moved, "T": route("b")}}
    run_sync(instance.refresh_topic("U"))
    run_sync(instance.refresh_topic("T"))
    assert brokers(instance) == ["a", "b"]
    assert instance.routes.publish_address("a") == "elsewhere:1"


def test_a_topic_that_someone_only_asked_for_can_still_be_created() -> None:
    network = Network(n1={AUTO_CREATE_TOPIC: route("a", queues=8)})
    instance = client(network)
    with pytest.raises(RouteNotFound):
        run_sync(instance.route("T"))
    assert len(run_sync(instance.route("T", default_queue_nums=2)).publish) == 2


def test_the_real_route_of_a_new_topic_replaces_the_default_one_whole() -> None:
    network = Network(n1={AUTO_CREATE_TOPIC: route("a", "b", "c", perm=7)})
    instance = client(network)
    run_sync(instance.refresh_topic("T", default_queue_nums=2))
    assert brokers(instance) == ["a", "b", "c"]
    network.name_servers = {"n1:1": {"T": route("b")}}
    run_sync(instance.refresh_topic("T"))
    assert brokers(instance) == ["b"]


def test_fewer_queues_and_no_write_permission_are_believed_at_once() -> None:
    network = Network(n1={"T": route("a", "b", queues=8)})
    instance = client(network)
    run_sync(instance.refresh_topic("T"))
    network.name_servers = {
        "n1:1": {
            "T": TopicRouteData(
                [*route("a", queues=2).queue_datas, *route("b", perm=4).queue_datas], route("a", "b").broker_datas
            )
        }
    }
    run_sync(instance.refresh_topic("T"))
    found = instance.routes.find("T")
    assert found is not None
    assert found.publish == (MessageQueue("T", "a", 0), MessageQueue("T", "a", 1))


def test_a_route_that_means_nothing_keeps_no_other_from_being_refreshed() -> None:
    network = Network(n1={"T": route("a"), "U": route("a")})
    instance = client(network)
    for topic in ("T", "U"):
        run_sync(instance.refresh_topic(topic))
    wrong = route("a")
    wrong.order_topic_conf = "a"
    network.name_servers = {"n1:1": {"T": wrong, "U": route("a", "b")}}
    assert run_sync(instance.refresh()) is None
    assert brokers(instance, "U") == ["a", "b"]
    assert brokers(instance, "T") == ["a"]


# Waiting


def test_routes_are_asked_for_again_soon_while_no_name_server_answers() -> None:
    network = Network(n1={"T": route("a"), "U": route("a")})
    instance = client(network)
    for topic in ("T", "U"):
        run_sync(instance.refresh_topic(topic))
    network.dead = {"n1:1"}
    network.asked_for_routes()
    waits = [run_sync(instance.refresh()) for _ in range(8)]
    assert network.asked_for_routes() == ["n1:1"] * 8, "one failure ends the round"
    assert waits[0] is not None
    assert waits[0] <= 1.0
    assert max(wait for wait in waits if wait is not None) > 10
    network.dead.clear()
    assert run_sync(instance.refresh()) is None


@pytest.mark.parametrize("state", ["dead", "no broker yet"])
def test_a_first_send_waits_for_name_servers_that_start(state: str) -> None:
    network = Network(n1={}, n2={})
    runtime = ManualRuntime(network.clock)
    if state == "dead":
        network.dead = {"n1:1", "n2:1"}

    def up() -> None:
        network.dead.clear()
        network.name_servers["n2:1"] = FULL

    runtime.events = [lambda: None, lambda: None, up]
    assert run_sync(producer(network, runtime).send("T", b"x")).queue.broker in {"a", "b", "c"}
    assert len(runtime.pauses) == 3
    assert network.clock.monotonic() < 1.0


@pytest.mark.parametrize(("dead", "error"), [(True, ConnectError), (False, NoBrokerRegistered)])
def test_a_first_send_waits_no_longer_than_it_may(dead: bool, error: type[Exception]) -> None:
    network = Network(n1={}, n2={})
    network.dead = {"n1:1", "n2:1"} if dead else set()
    with pytest.raises(error):
        run_sync(producer(network, ManualRuntime(network.clock)).send("T", b"x", timeout=2.0))
    assert 1.0 < network.clock.monotonic() <= 2.0


def test_a_topic_that_does_not_exist_is_no_reason_to_wait() -> None:
    network = Network(n1={}, n2={"U": route("a")})
    runtime = ManualRuntime(network.clock)
    with pytest.raises(RouteNotFound, match="no broker creates topics"):
        run_sync(producer(network, runtime).send("T", b"x"))
    assert runtime.pauses == []


def test_who_waited_for_another_ones_question_does_not_ask_without_time() -> None:
    network = Network(n1=FULL)
    network.silent = {"n1:1"}
    instance = client(network)

    class Taken:
        def __init__(self, lets_go: bool) -> None:
            self.lets_go = lets_go

        async def acquire(self, timeout: float) -> bool:
            assert timeout == 3.0
            network.clock.advance(timeout)
            return self.lets_go

        def release(self) -> None:
            assert self.lets_go

    for lets_go in (True, False):
        instance.runtime.lock = lambda lets_go=lets_go: Taken(lets_go)  # type: ignore[method-assign, misc]
        with pytest.raises(RequestTimeout):
            run_sync(instance.route(f"T{lets_go}", timeout=3.0))
    assert network.asked_for_routes() == []
