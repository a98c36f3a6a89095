"""How administration asks several servers: in turn, side by side, all or in part; the servers are functions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rocketcore.admin.logic import AsyncAdmin
from rocketcore.codes import RequestCode, ResponseCode, Version
from rocketcore.errors import (
    BrokerError,
    BrokerSystemError,
    ClientClosed,
    ConfigError,
    ConnectError,
    NoPermission,
    PartlyDone,
    RemoteProtocolError,
    RequestNotSupported,
    RequestTimeout,
    RocketError,
    RouteNotFound,
    TopicNotExist,
)
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.client import Connection, ConsumerConnection
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rocketcore.protocol.bodies.route import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from rocketcore.protocol.bodies.stats import ConsumeStats, OffsetWrapper
from rocketcore.protocol.bodies.topic import DataVersion, KVTable, TopicConfig, TopicConfigSerializeWrapper, TopicList
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import (
    GetAllSubscriptionGroupResponseHeader,
    GetAllTopicConfigRequestHeader,
    GetAllTopicConfigResponseHeader,
)
from rocketcore.protocol.headers.nameserver import QueryDataVersionResponseHeader, WipeWritePermOfBrokerResponseHeader
from rocketcore.service import ManualClock

Server = Callable[[RemotingCommand], RemotingCommand]


class Servers:
    """Stands in for the connections: a function answers for each address, nobody for the others."""

    def __init__(self, **servers: Server) -> None:
        self.servers = servers
        self.asked: list[tuple[str, int]] = []
        self.timeouts: list[float] = []
        self.together = 0
        self._running = 0

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        self.asked.append((address, command.code))
        self.timeouts.append(timeout)
        self._running += 1
        self.together = max(self.together, self._running)
        await asyncio.sleep(0)
        self._running -= 1
        name = address.partition(":")[0]
        if name not in self.servers:
            raise ConnectError(f"nobody at {address}")
        return self.servers[name](command)

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        raise AssertionError("administration asks for answers")

    def close_channel(self, address: str) -> None:
        raise AssertionError("administration closes no connection")


def fine(request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response(request)


def refusing(request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response(request, ResponseCode.NO_PERMISSION, "no")


def late(request: RemotingCommand) -> RemotingCommand:
    raise RequestTimeout("no answer")


def answering(table: dict[int, Callable[[RemotingCommand], RemotingCommand]], version: int = Version.V5_5_0) -> Server:
    def answer(request: RemotingCommand) -> RemotingCommand:
        response = table[request.code](request)
        response.version = version
        return response

    return answer


def saying(body: bytes, **options: Any) -> Server:
    return lambda request: RemotingCommand.response(request, body=body, **options)


def run(servers: Servers, names: str, call: Callable[[AsyncAdmin], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    namesrv = ";".join(f"{name}:9876" for name in names)
    return asyncio.run(call(AsyncAdmin(namesrv, remoting=servers, **options)))


INFO = ClusterInfo(
    {
        "m": BrokerData("c", "m", {0: "up:1", 1: "down:1"}, zone_name="z"),
        "other": BrokerData("d", "other", {0: "other:1"}),
    },
    {"c": ["m"], "d": ["other"]},
)


def test_a_question_goes_to_the_next_server_and_starts_there_the_next_time() -> None:
    servers = Servers(b=saying(TopicList(["z", "a"]).encode()))

    async def ask(admin: AsyncAdmin) -> list[list[str]]:
        return [await admin.topics(), await admin.topics()]

    assert run(servers, "ab", ask, timeout=4.0) == [["a", "z"], ["a", "z"]]
    assert [address for address, _ in servers.asked] == ["a:9876", "b:9876", "b:9876"]
    assert servers.timeouts[0] <= 2.0 < servers.timeouts[1] <= 4.0, "the first may take its share, no more"


def test_a_question_that_nobody_answers_fails_as_the_last_did() -> None:
    with pytest.raises(RequestTimeout, match=r"^nobody at a:9876; no answer$"):
        run(Servers(b=late), "ab", lambda admin: admin.topics())
    with pytest.raises(ConnectError, match=r"^nobody at a:9876$"):
        run(Servers(), "a", lambda admin: admin.topics())


def test_a_refusal_is_an_answer() -> None:
    servers = Servers(a=refusing, b=saying(TopicList().encode()))
    with pytest.raises(NoPermission):
        run(servers, "ab", lambda admin: admin.topics())
    assert len(servers.asked) == 1


def test_a_change_goes_to_all_servers_side_by_side() -> None:
    servers = Servers(a=fine, b=fine, c=fine)
    run(servers, "abc", lambda admin: admin.put_kv("n", "k", "v"))
    assert servers.asked == [(f"{name}:9876", RequestCode.PUT_KV_CONFIG) for name in "abc"]
    assert servers.together == 3


@pytest.mark.parametrize(
    ("servers", "error"),
    [
        (Servers(), ConnectError),
        (Servers(a=late), RequestTimeout),
        (Servers(a=late, b=refusing), NoPermission),
        (Servers(a=refusing, b=refusing), NoPermission),
    ],
)
def test_a_change_that_no_server_made_fails_for_a_reason_of_theirs(servers: Servers, error: type[RocketError]) -> None:
    with pytest.raises(error):
        run(servers, "ab", lambda admin: admin.delete_kv("n", "k"))
    assert len(servers.asked) == 2


def test_a_change_in_part_says_where() -> None:
    with pytest.raises(PartlyDone) as caught:
        run(Servers(a=fine, c=refusing), "abc", lambda admin: admin.update_namesrv_config({"x": "1"}))
    error = caught.value
    assert error.done == ("a:9876",)
    assert {address: type(reason) for address, reason in error.failed.items()} == {
        "b:9876": ConnectError, "c:9876": NoPermission
    }  # fmt: skip
    assert str(error).startswith("change of x: done at a:9876, not at b:9876, c:9876 (")
    assert isinstance(error.__cause__, NoPermission)


def test_permissions_are_counted_where_the_broker_is_known() -> None:
    def counting(count: int) -> Server:
        header = WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count)
        return lambda request: RemotingCommand.response(request, header=header)

    servers = Servers(a=counting(0), b=counting(7))
    assert run(servers, "ab", lambda admin: admin.wipe_write_permission("m")) == 7


def test_views_of_all_name_servers() -> None:
    servers = Servers(a=saying(INFO.encode()), b=saying(ClusterInfo().encode()))
    views = run(servers, "abc", lambda admin: admin.cluster_infos())
    assert views["a:9876"] == INFO
    assert views["b:9876"] == ClusterInfo()
    assert isinstance(views["c:9876"], ConnectError)


def test_data_versions() -> None:
    def known(request: RemotingCommand) -> RemotingCommand:
        assert request.ext_fields == {
            "brokerName": "m", "brokerAddr": "down:1", "clusterName": "c", "brokerId": "1"
        }  # fmt: skip
        header = QueryDataVersionResponseHeader(changed=True)
        return RemotingCommand.response(request, header=header, body=DataVersion(1, 2, 3).encode())

    def unknown(request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, header=QueryDataVersionResponseHeader(changed=True))

    info = saying(INFO.encode())
    servers = Servers(
        a=answering({RequestCode.GET_BROKER_CLUSTER_INFO: info, RequestCode.QUERY_DATA_VERSION: known}),
        b=answering({RequestCode.QUERY_DATA_VERSION: unknown}),
    )
    versions = run(servers, "abc", lambda admin: admin.data_versions("m", broker_id=1))
    assert versions["a:9876"] == DataVersion(1, 2, 3)
    assert versions["b:9876"] is None
    assert isinstance(versions["c:9876"], ConnectError)
    for broker, broker_id in (("nobody", 0), ("m", 5)):
        with pytest.raises(RouteNotFound):
            run(servers, "abc", lambda admin, b=broker, i=broker_id: admin.data_versions(b, broker_id=i))


def status_servers() -> Servers:
    return Servers(
        a=saying(INFO.encode()),
        up=answering(
            {
                RequestCode.GET_BROKER_RUNTIME_INFO: saying(KVTable({"putTps": "1.5 1 1"}).encode()),
                RequestCode.GET_ALL_TOPIC_CONFIG: saying(
                    TopicConfigSerializeWrapper({"t": TopicConfig("t")}).encode(),
                    header=GetAllTopicConfigResponseHeader(total_topic_num=40),
                ),
            }
        ),
        other=refusing,
    )


def test_status_of_brokers_is_asked_in_one_round() -> None:
    servers = status_servers()
    up, down, other = run(servers, "a", lambda admin: admin.broker_status())
    assert servers.together == 3
    assert (up.cluster, up.broker, up.broker_id, up.address, up.zone, up.topic_count) == ("c", "m", 0, "up:1", "z", 40)
    assert (up.runtime, up.alive) == ({"putTps": "1.5 1 1"}, True)
    assert (down.broker_id, down.alive, down.runtime, down.topic_count) == (1, False, None, None)
    assert isinstance(down.error, ConnectError)
    assert isinstance(other.error, NoPermission)
    assert other.alive


def test_what_a_broker_refuses_to_say_hides_nothing_else() -> None:
    """A broker of 4.9 answers 28 with an error until it has counted for a second."""

    def starting(request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, "NoSuchElementException")

    runtime, topics = RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_ALL_TOPIC_CONFIG
    two = saying(TopicConfigSerializeWrapper({"t": TopicConfig("t"), "u": TopicConfig("u")}).encode())
    rates = saying(KVTable({"putTps": "1.5 1 1"}).encode())
    for up, known in (
        (answering({runtime: starting, topics: two}), (None, 2)),
        (answering({runtime: rates, topics: starting}), ({"putTps": "1.5 1 1"}, None)),
    ):
        servers = Servers(a=saying(INFO.encode()), up=up)
        [member] = run(servers, "a", lambda admin: admin.broker_status(broker="m"))[:1]
        assert (member.runtime, member.topic_count, member.alive) == (*known, True)
        assert isinstance(member.error, BrokerSystemError)


def test_status_of_some_brokers() -> None:
    def of(**chosen: str) -> list[str]:
        members = run(status_servers(), "a", lambda admin: admin.broker_status(**chosen))
        return [member.address for member in members]

    assert of(cluster="c") == of(broker="m") == ["up:1", "down:1"]
    assert of(cluster="d") == ["other:1"]
    for nowhere in ({"broker": "nobody"}, {"cluster": "none"}, {"cluster": "d", "broker": "m"}):
        with pytest.raises(RouteNotFound):
            of(**nowhere)


def test_topics_of_a_broker_come_in_pages() -> None:
    every = [f"t{i:03}" for i in range(25)]
    pages: list[int] = []

    def page(request: RemotingCommand) -> RemotingCommand:
        first = request.header(GetAllTopicConfigRequestHeader).topic_seq
        pages.append(first)
        table = {name: TopicConfig(name) for name in every[first : first + 10]}
        header = GetAllTopicConfigResponseHeader(total_topic_num=len(every))
        return RemotingCommand.response(request, header=header, body=TopicConfigSerializeWrapper(table).encode())

    assert list(run(Servers(broker=page), "a", lambda admin: admin.broker_topics("broker:1"))) == every
    assert pages == [0, 10, 20]


def test_a_broker_of_4_9_sends_all_its_topics_at_once() -> None:
    body = TopicConfigSerializeWrapper({"b": TopicConfig("b"), "a": TopicConfig("a")}).encode()
    servers = Servers(broker=saying(body))
    assert list(run(servers, "a", lambda admin: admin.broker_topics("broker:1"))) == ["a", "b"]
    assert len(servers.asked) == 1


def test_a_page_without_anything_new_ends_the_reading() -> None:
    body = TopicConfigSerializeWrapper({"a": TopicConfig("a")}).encode()
    servers = Servers(broker=saying(body, header=GetAllTopicConfigResponseHeader(total_topic_num=9)))
    assert list(run(servers, "a", lambda admin: admin.broker_topics("broker:1"))) == ["a"]
    assert len(servers.asked) == 2


def test_member_groups_of_both_lines() -> None:
    group = BrokerMemberGroup("c", "m", {0: "new:1"})
    new = answering(
        {
            RequestCode.GET_BROKER_CLUSTER_INFO: saying(INFO.encode()),
            RequestCode.GET_BROKER_MEMBER_GROUP: saying(GetBrokerMemberGroupResponseBody(group).encode()),
        }
    )
    assert run(Servers(a=new), "a", lambda admin: admin.broker_member_group("c", "m")) == group
    old = answering({RequestCode.GET_BROKER_CLUSTER_INFO: saying(INFO.encode())}, Version.V4_9_7)
    found = run(Servers(a=old), "a", lambda admin: admin.broker_member_group("c", "m"))
    assert found == BrokerMemberGroup("c", "m", {0: "up:1", 1: "down:1"})
    assert run(Servers(a=old), "a", lambda admin: admin.broker_member_group("c", "x")).broker_addrs == {}


def test_topics_are_registered_only_where_that_can_be_done() -> None:
    table = {
        RequestCode.GET_BROKER_CLUSTER_INFO: saying(INFO.encode()),
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: fine,
    }

    def register(broker: str, version: int) -> Servers:
        servers = Servers(a=answering(table, version))
        run(servers, "a", lambda admin: admin.register_topic("t", [QueueData(broker, 4, 4, 6)]))
        return servers

    assert register("m", Version.V5_0_0).asked[-1] == ("a:9876", RequestCode.REGISTER_TOPIC_IN_NAMESRV)
    with pytest.raises(RouteNotFound, match="does not know x"):
        register("x", Version.V5_0_0)
    with pytest.raises(RequestNotSupported):
        register("m", Version.V4_9_7)


def test_system_topics_are_the_name_servers_and_one_brokers() -> None:
    servers = Servers(
        a=saying(TopicList(["c", "m"], broker_addr="broker:1").encode()), broker=saying(TopicList(["TBW102"]).encode())
    )
    assert run(servers, "a", lambda admin: admin.system_topics()) == ["TBW102", "c", "m"]
    assert run(Servers(a=saying(TopicList([]).encode())), "a", lambda admin: admin.system_topics()) == []


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (AsyncAdmin.unit_topics, RequestCode.GET_UNIT_TOPIC_LIST),
        (AsyncAdmin.unit_sub_topics, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST),
        (AsyncAdmin.unit_sub_ununit_topics, RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    ],
)
def test_unit_topics(call: Callable[[AsyncAdmin], Coroutine[Any, Any, list[str]]], code: RequestCode) -> None:
    servers = Servers(a=saying(TopicList(["b", "a"]).encode()))
    assert run(servers, "a", call) == ["a", "b"]
    assert servers.asked == [("a:9876", code)]


def test_a_topic_stays_at_name_servers_until_every_broker_has_deleted_it() -> None:
    def name_server(request: RemotingCommand) -> RemotingCommand:
        assert request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        brokers = [BrokerData("c", name, {0: f"{name}:1"}) for name in ("up", "down")]
        return RemotingCommand.response(request, body=TopicRouteData([], brokers).encode())

    servers = Servers(a=name_server, up=fine)
    with pytest.raises(PartlyDone) as caught:
        run(servers, "a", lambda admin: admin.delete_topic("t"))
    assert (caught.value.done, list(caught.value.failed)) == (("up:1",), ["down:1"])
    assert isinstance(caught.value.__cause__, ConnectError)


def test_what_a_server_says_wrong_is_its_own_failure() -> None:
    servers = Servers(a=saying(b"{"), b=saying(INFO.encode()))
    views = run(servers, "ab", lambda admin: admin.cluster_infos())
    assert isinstance(views["a:9876"], RocketError)
    assert not isinstance(views["a:9876"], BrokerError)
    assert views["b:9876"] == INFO


def masters(**brokers: Server) -> Servers:
    """Return a name server that lists brokers in this order, and those brokers."""
    table = {name: BrokerData("c", name, {0: f"{name}:1"}) for name in brokers}
    return Servers(a=saying(ClusterInfo(table, {"c": list(table)}).encode()), **brokers)


def groups_of(*names: str) -> Server:
    return saying(SubscriptionGroupWrapper({name: SubscriptionGroupConfig(name) for name in names}).encode())


def members_of(*ids: str, host: str) -> Server:
    return saying(ConsumerConnection([Connection(name, host) for name in ids]).encode())


def progress_of(broker: str, offset: int) -> Server:
    return saying(ConsumeStats({MessageQueue("t", broker, 0): OffsetWrapper(9, offset)}).encode())


def nobody_there(request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response(request, ResponseCode.CONSUMER_NOT_ONLINE, "no such consumer")


def test_masters_are_asked_about_groups_side_by_side() -> None:
    servers = masters(z=groups_of("g", "z"), x=groups_of("g", "a"), y=groups_of())
    assert list(run(servers, "a", lambda admin: admin.groups())) == ["a", "g", "z"]
    assert servers.together == 3

    servers = masters(z=progress_of("z", 1), x=progress_of("x", 2), y=progress_of("y", 3))
    stats = run(servers, "a", lambda admin: admin.consume_stats("g"))
    assert [(queue.broker, each.consumer_offset) for queue, each in stats.items()] == [("x", 2), ("y", 3), ("z", 1)]
    assert servers.together == 3

    servers = masters(z=members_of("1", "3", host="z"), x=members_of("2", "1", host="x"), y=nobody_there)
    connections = run(servers, "a", lambda admin: admin.consumer_connections("g"))
    assert [(each.client_id, each.client_addr) for each in connections] == [("2", "x"), ("1", "z"), ("3", "z")]
    assert servers.together == 3
    servers = masters(x=nobody_there, y=nobody_there)
    assert run(servers, "a", lambda admin: admin.consumer_connections("g")) == []


def test_groups_come_in_pages() -> None:
    names = [f"g{number}" for number in range(5)]

    def page(request: RemotingCommand) -> RemotingCommand:
        first = int((request.ext_fields or {})["groupSeq"])
        table = {name: SubscriptionGroupConfig(name) for name in names[first : first + 2]}
        header = GetAllSubscriptionGroupResponseHeader(total_group_num=len(names))
        return RemotingCommand.response(request, header=header, body=SubscriptionGroupWrapper(table).encode())

    servers = masters(x=page)
    assert list(run(servers, "a", lambda admin: admin.groups())) == names
    assert [code for _, code in servers.asked].count(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG) == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.groups(),
        lambda admin: admin.consume_stats("g"),
        lambda admin: admin.consumer_connections("g"),
    ],
)
def test_the_error_of_the_first_master_that_fails_is_raised(
    call: Callable[[AsyncAdmin], Coroutine[Any, Any, Any]],
) -> None:
    with pytest.raises(NoPermission):
        run(masters(z=late, y=refusing, x=groups_of()), "a", call)
    with pytest.raises(RequestTimeout):
        run(masters(z=refusing, y=late, x=groups_of()), "a", call)


def test_a_name_server_that_has_just_started_hides_no_master() -> None:
    part = ClusterInfo({"m": INFO.broker_addr_table["m"]}, {"c": ["m"]})
    servers = Servers(a=saying(part.encode()), b=saying(INFO.encode()), up=fine, other=fine)
    assert run(servers, "abx", lambda admin: admin.create_group("g")) == ["m", "other"]
    assert {address for address, code in servers.asked if code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP} == {
        "up:1", "other:1",
    }  # fmt: skip


def test_without_a_name_server_no_master_is_looked_for() -> None:
    with pytest.raises(ConnectError, match="nobody at"):
        run(Servers(), "ab", lambda admin: admin.create_group("g"))


class Silent(Servers):
    """Servers of which those without a function take all the time that they are given."""

    def __init__(self, **servers: Server) -> None:
        super().__init__(**servers)
        self.clock = ManualClock()

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if address.partition(":")[0] not in self.servers:
            self.asked.append((address, command.code))
            self.clock.advance(timeout)
            raise RequestTimeout(f"no answer of {address}")
        return await super().invoke(address, command, timeout)


ROUTE = TopicRouteData([QueueData("m", 4, 4, 6)], [BrokerData("c", "m", {0: "up:1"})])


def name_server(request: RemotingCommand) -> RemotingCommand:
    bodies = {
        RequestCode.GET_BROKER_CLUSTER_INFO: INFO.encode(),
        RequestCode.GET_ROUTEINFO_BY_TOPIC: ROUTE.encode(),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: TopicList(["c"], broker_addr="up:1").encode(),
    }
    return RemotingCommand.response(request, body=bodies.get(RequestCode(request.code), b""))


QUEUE = MessageQueue("t", "m", 0)


@pytest.mark.parametrize("up", [True, False], ids=["brokers answer", "brokers are silent"])
@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.topics(),
        lambda admin: admin.system_topics(),
        lambda admin: admin.topic_stats("t"),
        lambda admin: admin.create_topic("t", 4, order=True, broker="m"),
        lambda admin: admin.delete_topic("t"),
        lambda admin: admin.max_offset(QUEUE),
        lambda admin: admin.min_offset(QUEUE),
        lambda admin: admin.search_offset(QUEUE, 1),
        lambda admin: admin.earliest_store_time(QUEUE),
        lambda admin: admin.consumer_offset("g", QUEUE),
        lambda admin: admin.update_consumer_offset("g", QUEUE, 1),
        lambda admin: admin.groups(),
        lambda admin: admin.consume_stats("g"),
        lambda admin: admin.consumer_connections("g"),
        lambda admin: admin.describe_group("g"),
        lambda admin: admin.group_members("g"),
        lambda admin: admin.group_lag("g"),
        lambda admin: admin.plan_reset("g", "t", "latest"),
        lambda admin: admin.producers(),
        lambda admin: admin.dead_letter_queues("g"),
        lambda admin: admin.broker_status(),
        lambda admin: admin.data_versions("m"),
        lambda admin: admin.put_kv("n", "k", "v"),
    ],
)
def test_one_deadline_for_all_that_a_call_asks(
    call: Callable[[AsyncAdmin], Coroutine[Any, Any, Any]], up: bool
) -> None:
    """The first of two name servers is silent."""
    servers = Silent(b=name_server, **({"up": fine, "other": fine} if up else {}))
    with contextlib.suppress(RocketError):
        run(servers, "ab", call, timeout=4.0, clock=servers.clock)
    assert servers.clock.monotonic() <= 4.001


def test_a_topic_is_created_though_a_name_server_is_silent() -> None:
    servers = Silent(b=name_server, up=fine, other=fine)
    made = run(servers, "ab", lambda admin: admin.create_topic("t", 4, broker="m"), timeout=4.0, clock=servers.clock)
    assert made.brokers == ("m",)
    assert ("b:9876", RequestCode.GET_ROUTEINFO_BY_TOPIC) in servers.asked, "who answers is asked whether it shows it"
    assert servers.clock.monotonic() <= 2.001, "who was silent is not waited for again"


def test_a_deletion_is_finished_at_the_name_server_that_missed_it() -> None:
    def done(request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return RemotingCommand.response(request)

    servers = Servers(a=done, b=name_server, up=fine)
    assert run(servers, "ab", lambda admin: admin.delete_topic("t")) == ["m"]
    assert {address for address, code in servers.asked if code == RequestCode.DELETE_TOPIC_IN_NAMESRV} == {
        "a:9876", "b:9876",
    }  # fmt: skip
    with pytest.raises(TopicNotExist):
        run(Servers(a=done), "ab", lambda admin: admin.delete_topic("t"))
    with pytest.raises(ConnectError):
        run(Servers(), "ab", lambda admin: admin.delete_topic("t"))


def test_an_answer_that_cannot_be_read_says_whose_it_is() -> None:
    with pytest.raises(RemoteProtocolError, match="answer of a:9876: ClusterInfo: no body"):
        run(Servers(a=fine), "a", lambda admin: admin.cluster_info())


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf"), 1e30])
def test_a_timeout_that_is_none(timeout: float) -> None:
    with pytest.raises(ConfigError, match="timeout is a number of seconds"):
        AsyncAdmin("a:1", timeout=timeout)


@pytest.mark.parametrize("setting", [("a", "1\nb=2"), ("a", "1\rb=2"), ("a\nb", "1"), ("a=b", "1")])
def test_a_setting_that_would_become_another(setting: tuple[str, str]) -> None:
    servers = Servers(a=fine, broker=fine)
    with pytest.raises(ConfigError, match="value of one line"):
        run(servers, "a", lambda admin: admin.update_namesrv_config(dict([setting])))
    with pytest.raises(ConfigError, match="value of one line"):
        run(servers, "a", lambda admin: admin.update_broker_config("broker:1", dict([setting])))
    assert servers.asked == []


def test_a_closed_client_makes_no_connection() -> None:
    async def scenario() -> None:
        async with AsyncAdmin("127.0.0.1:1") as admin:
            pass
        await admin.close()
        with pytest.raises(ClientClosed):
            await admin.topics()

    asyncio.run(scenario())


@pytest.mark.parametrize("unused_topics", [False, True])
def test_a_broker_is_asked_to_delete_what_is_old(unused_topics: bool) -> None:
    servers = Servers(broker=fine)
    run(servers, "a", lambda admin: admin.clean_broker("broker:1", unused_topics=unused_topics))
    codes = [RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE]
    assert servers.asked == [("broker:1", each) for each in codes + [RequestCode.CLEAN_UNUSED_TOPIC] * unused_topics]
    with pytest.raises(NoPermission):
        run(Servers(broker=refusing), "a", lambda admin: admin.clean_broker("broker:1"))
