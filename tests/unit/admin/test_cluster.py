"""How administration asks several servers: in turn, side by side, all or in part; the servers are functions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rocketcore.admin.logic import AsyncAdmin
from rocketcore.codes import RequestCode, ResponseCode, Version
from rocketcore.errors import (
    BrokerError,
    BrokerSystemError,
    ConnectError,
    NoPermission,
    PartlyDone,
    RequestNotSupported,
    RequestTimeout,
    RocketError,
    RouteNotFound,
)
from rocketcore.protocol.bodies.route import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from rocketcore.protocol.bodies.topic import DataVersion, KVTable, TopicConfig, TopicConfigSerializeWrapper, TopicList
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import (
    GetAllTopicConfigRequestHeader,
    GetAllTopicConfigResponseHeader,
)
from rocketcore.protocol.headers.nameserver import QueryDataVersionResponseHeader, WipeWritePermOfBrokerResponseHeader
from tests.unit.admin.servers import INFO, Server, Servers, fine, late, refusing, run, saying


def answering(table: dict[int, Callable[[RemotingCommand], RemotingCommand]], version: int = Version.V5_5_0) -> Server:
    def answer(request: RemotingCommand) -> RemotingCommand:
        response = table[request.code](request)
        response.version = version
        return response

    return answer


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
            run(servers, "abc", lambda admin, b=broker, i=broker_id: admin.data_versions(b, broker_id=i))  # type: ignore[misc]


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
        servers = Servers(a=answering(table, version))  # type: ignore[arg-type]
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
