"""The name server over the wire: every request code, with the answers of the original."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketcore.codes import RequestCode, SerializeType
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock
from rocketcore.transport.client import RemotingClient
from tests.integration.remoting_server import add_handler

TOPICS = ("orders", "payments", "%RETRY%billing")


class Peer:
    """A client of one name server; requests by code and raw ext fields."""

    def __init__(self, server: NameServer, client: RemotingClient) -> None:
        self.server = server
        self.client = client

    async def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = 479,
        kind: SerializeType = SerializeType.JSON,
    ) -> RemotingCommand:
        request = RemotingCommand.request(code, body=body, serialize_type=kind)
        request.ext_fields = fields
        request.version = version
        return await self.client.invoke(self.server.address, request, 5.0)

    async def register(
        self, *topics: str, name: str = "broker-a", broker_id: int = 0, counter: int = 1, **fields: str
    ) -> RemotingCommand:
        body = registration(topics or TOPICS, counter)
        header = {
            "brokerName": name, "brokerAddr": f"10.0.0.{broker_id}:10911", "clusterName": "c",
            "haServerAddr": f"10.0.0.{broker_id}:10912", "brokerId": str(broker_id),
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF), **fields,
        }  # fmt: skip
        return await self.ask(103, header, body)

    async def route(self, topic: str = "orders") -> dict[str, Any]:
        answer = await self.ask(105, {"topic": topic})
        assert answer.code == 0, answer
        decoded = json.loads(answer.body)
        assert isinstance(decoded, dict)
        return decoded


def registration(topics: tuple[str, ...], counter: int = 1) -> bytes:
    table = {
        topic: {"topicName": topic, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6, "topicFilterType": "SINGLE_TAG"}
        for topic in topics
    }
    version = {"stateVersion": 0, "timestamp": 1, "counter": counter}
    wrapper = {"topicConfigTable": table, "dataVersion": version}
    return json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()


@asynccontextmanager
async def name_server(tmp_path: Path, clock: ManualClock | None = None, **settings: Any) -> AsyncIterator[Peer]:
    config = NameServerConfig(listen_port=0, rocketmq_home=tmp_path, **settings)
    async with (
        NameServer(config, properties={"unknownKey": "kept"}, **({"clock": clock} if clock else {})) as server,  # type: ignore[arg-type]
        RemotingClient() as client,
    ):
        yield Peer(server, client)


def run(tmp_path: Path, scenario: Callable[[Peer], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), name_server(tmp_path, **settings) as peer:
            await scenario(peer)

    asyncio.run(main())


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - the state is the server's, only asking shows it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", list(SerializeType))
def test_register_and_ask_for_the_route(tmp_path: Path, kind: SerializeType) -> None:
    async def scenario(peer: Peer) -> None:
        missing = await peer.ask(105, {"topic": "orders"}, kind=kind)
        assert missing.code == 17
        assert missing.remark == (
            "No topic route info in name server for the topic: orders\n"
            "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
        )
        answer = await peer.register()
        assert (answer.code, answer.body, answer.remark) == (0, b"", None)
        for _ in range(2):  # the second is answered from cached bytes
            answer = await peer.ask(105, {"topic": "orders"}, kind=kind)
            assert answer.serialize_type == kind
            assert (answer.code, answer.remark) == (0, None)
            assert json.loads(answer.body) == {
                "brokerDatas": [
                    {
                        "brokerAddrs": {"0": "10.0.0.0:10911"}, "brokerName": "broker-a", "cluster": "c",
                        "enableActingMaster": False,
                    }
                ],
                "filterServerTable": {},
                "queueDatas": [
                    {"brokerName": "broker-a", "perm": 6, "readQueueNums": 8, "topicSysFlag": 0, "writeQueueNums": 8}
                ],
            }  # fmt: skip

    run(tmp_path, scenario)


def test_pipelined_questions_are_answered_each_with_its_own_route(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.register()
        channel = await peer.client.connect(peer.server.address)
        names = [*TOPICS, "nothing"] * 50
        futures = []
        for name in names:
            request = RemotingCommand.request(105)
            request.ext_fields = {"topic": name}
            futures.append(channel.invoke_nowait(request, 10))
        answers = await asyncio.gather(*futures)
        bodies = {name: (await peer.ask(105, {"topic": name})).body for name in names}
        for name, answer in zip(names, answers, strict=True):
            assert answer.code == (17 if name == "nothing" else 0)
            assert answer.body == bodies[name]

    run(tmp_path, scenario)


def test_a_slave_hears_of_its_master_and_order_configuration_comes_along(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.register()
        answer = await peer.register(broker_id=1)
        assert answer.ext_fields == {"haServerAddr": "10.0.0.0:10912", "masterAddr": "10.0.0.0:10911"}
        await peer.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "broker-a:8"})
        answer = await peer.register()
        assert json.loads(answer.body) == {"table": {"orders": "broker-a:8"}}

    run(tmp_path, scenario)


def test_refusals_of_a_registration(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        answer = await peer.register(bodyCrc32="1")
        assert (answer.code, answer.remark) == (1, "crc32 not match")
        answer = await peer.register("only")
        assert (answer.code, answer.remark) == (1, "register broker failed")
        answer = await peer.register(brokerId="x")
        assert answer.code == 1
        header = {"brokerName": "b", "brokerAddr": "b:1", "brokerId": "0"}
        answer = await peer.ask(103, header, b"{broken")
        assert answer.code == 1
        assert "Failed to decode RegisterBrokerBody" in (answer.remark or "")
        answer = await peer.ask(103, header)
        assert answer.code == 0, "no body is an empty table, no cluster name is allowed"

    run(tmp_path, scenario)


def test_closing_the_connection_unregisters(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        async with RemotingClient() as broker:
            await Peer(peer.server, broker).register()
            assert (await peer.route())["brokerDatas"]
        await eventually(lambda: _is_gone(peer))

    run(tmp_path, scenario)


async def _is_gone(peer: Peer, topic: str = "orders") -> bool:
    return (await peer.ask(105, {"topic": topic})).code == 17


def test_silence_expires_and_heartbeats_keep_alive(tmp_path: Path) -> None:
    clock = ManualClock()

    async def scenario(peer: Peer) -> None:
        await peer.register(heartbeatTimeoutMillis="10000")
        key = {"clusterName": "c", "brokerAddr": "10.0.0.0:10911", "brokerName": "broker-a"}
        clock.advance(9)
        assert (await peer.ask(904, key)).code == 0
        clock.advance(9)
        await asyncio.sleep(0.1)
        assert not await _is_gone(peer)
        clock.advance(2)
        async with RemotingClient() as other:  # the silent broker's connection is closed with it
            await eventually(lambda: _is_gone(Peer(peer.server, other)))

    run(tmp_path, scenario, clock=clock, scan_not_active_broker_interval=20)


def test_unregister(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.register()
        await peer.register(broker_id=1)
        key = {"clusterName": "c", "brokerName": "broker-a"}
        assert (await peer.ask(104, key)).code == 0, "what names nobody removes nobody"
        assert (await peer.ask(104, {**key, "brokerAddr": "10.0.0.0:10911", "brokerId": "0"})).code == 0
        assert (await peer.route())["brokerDatas"][0]["brokerAddrs"] == {"1": "10.0.0.1:10911"}
        assert (await peer.ask(104, {**key, "brokerAddr": "10.0.0.1:10911", "brokerId": "1"})).code == 0
        assert await _is_gone(peer)

    run(tmp_path, scenario)


def test_data_version_question(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        key = {"clusterName": "c", "brokerAddr": "10.0.0.0:10911", "brokerName": "broker-a", "brokerId": "0"}
        version = {"stateVersion": 0, "timestamp": 1, "counter": 1}
        answer = await peer.ask(322, key, json.dumps(version).encode())
        assert (answer.ext_fields, answer.body) == ({"changed": "true"}, b"")
        await peer.register()
        answer = await peer.ask(322, key, json.dumps(version).encode())
        assert answer.ext_fields == {"changed": "false"}
        assert json.loads(answer.body) == version
        answer = await peer.ask(322, key, json.dumps({**version, "counter": 2}).encode())
        assert answer.ext_fields == {"changed": "true"}
        assert (await peer.ask(322, key)).ext_fields == {"changed": "true"}
        assert (await peer.ask(322, {"brokerAddr": "x"})).code == 1

    run(tmp_path, scenario)


def test_lists_and_cluster_information(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        empty = await peer.ask(106)
        assert json.loads(empty.body) == {"brokerAddrTable": {}, "clusterAddrTable": {}}
        await peer.register()
        info = json.loads((await peer.ask(206)).body)
        assert sorted(info["topicList"]) == sorted(TOPICS)
        assert json.loads((await peer.ask(224, {"cluster": "none"})).body)["topicList"] == []
        assert len(json.loads((await peer.ask(224, {"cluster": "c"})).body)["topicList"]) == 3
        system = json.loads((await peer.ask(304)).body)
        assert system == {"topicList": ["c", "broker-a"], "brokerAddr": "10.0.0.0:10911"}
        for code in (311, 312, 313):
            assert json.loads((await peer.ask(code)).body) == {"topicList": []}
        answer = await peer.ask(901, {"clusterName": "c", "brokerName": "broker-a"})
        assert (answer.code, answer.remark) == (0, "not set any response code")
        assert b"10.0.0.0:10911" in answer.body

    run(tmp_path, scenario)


def test_topic_lists_can_be_switched_off(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        for code in (206, 224, 311, 312, 313):
            answer = await peer.ask(code, {"cluster": "c"})
            assert (answer.code, answer.remark) == (1, "disable")

    run(tmp_path, scenario, enable_all_topic_list=False, enable_topic_list=False)


def test_write_permission_is_wiped_and_added(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.register()
        assert (await peer.ask(205, {"brokerName": "broker-a"})).ext_fields == {"wipeTopicCount": "3"}
        assert (await peer.route())["queueDatas"][0]["perm"] == 4
        await peer.register()
        assert (await peer.route())["queueDatas"][0]["perm"] == 4, "an unchanged registration changes nothing"
        assert (await peer.ask(327, {"brokerName": "broker-a"})).ext_fields == {"addTopicCount": "3"}
        assert (await peer.route())["queueDatas"][0]["perm"] == 6
        assert (await peer.ask(205)).ext_fields == {"wipeTopicCount": "0"}

    run(tmp_path, scenario)


def test_a_deleted_topic_comes_back_with_the_next_registration(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.register()
        assert (await peer.ask(216, {"topic": "orders"})).code == 0
        assert await _is_gone(peer)
        await peer.register()
        assert not await _is_gone(peer)
        queues = {"brokerName": "broker-a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        body = json.dumps({"queueDatas": [queues]})
        assert (await peer.ask(217, {"topic": "made"}, body.encode())).code == 0
        assert (await peer.route("made"))["queueDatas"][0]["readQueueNums"] == 1
        assert (await peer.ask(217, {"topic": "made"})).code == 0
        assert (await peer.ask(217, {"topic": "made"}, b"no json")).code == 1
        for name in ("made\nCRITICAL\x1b[2J", "x" * 32_768):
            assert (await peer.ask(217, {"topic": name}, body.encode())).code == 1
            assert await _is_gone(peer, name)

    run(tmp_path, scenario)


def test_key_value_table(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        key = {"namespace": "n", "key": "k"}
        answer = await peer.ask(101, key)
        assert (answer.code, answer.remark) == (22, "No config item, Namespace: n Key: k")
        assert (await peer.ask(100, {**key, "value": "v"})).code == 0
        assert (await peer.ask(101, key)).ext_fields == {"value": "v"}
        assert json.loads((await peer.ask(219, {"namespace": "n"})).body) == {"table": {"k": "v"}}
        assert json.loads((tmp_path / "namesrv" / "kvConfig.json").read_bytes()) == {"configTable": {"n": {"k": "v"}}}
        assert (await peer.ask(102, key)).code == 0
        assert json.loads((await peer.ask(219, {"namespace": "n"})).body) == {"table": {}}
        assert (await peer.ask(219, {"namespace": "m"})).remark == "No config item, Namespace: m"
        answer = await peer.ask(100, {"namespace": "n", "value": "v"})
        assert (answer.code, answer.remark) == (1, "namespace or key is null")
        assert (await peer.ask(100, key)).code == 0

    run(tmp_path, scenario)


def test_values_survive_a_restart(tmp_path: Path) -> None:
    async def put(peer: Peer) -> None:
        await peer.ask(100, {"namespace": "n", "key": "k", "value": "v"})

    async def get(peer: Peer) -> None:
        assert (await peer.ask(101, {"namespace": "n", "key": "k"})).ext_fields == {"value": "v"}

    run(tmp_path, put)
    run(tmp_path, get)


def test_order_configuration_in_routes_follows_the_table(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.register()
        assert "orderTopicConf" not in await peer.route()
        await peer.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "broker-a:8"})
        assert (await peer.route())["orderTopicConf"] == "broker-a:8"
        await peer.ask(102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"})
        assert "orderTopicConf" not in await peer.route()

    run(tmp_path, scenario, order_message_enable=True)


def test_settings_are_shown_changed_and_saved(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        lines = (await peer.ask(319)).body.decode().splitlines()
        assert lines == sorted(lines)
        assert {"unknownKey=kept", "enableTopicList=true", f"listenPort={peer.server.port}"} <= set(lines)
        assert (await peer.ask(318, body=b"enableAllTopicList=false\nnewKey=1\nunknownKey=new")).code == 0
        assert (await peer.ask(206)).remark == "disable"
        lines = (await peer.ask(319)).body.decode().splitlines()
        assert "unknownKey=new" in lines
        assert not any(line.startswith("newKey") for line in lines)
        saved = (tmp_path / "namesrv" / "namesrv.properties").read_text()
        assert "enableAllTopicList=false\n" in saved
        assert (await peer.ask(318)).code == 0, "no body: no change"

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "text",
    [
        "kvConfigPath=/tmp/x", "configStorePath=/tmp/x", "configBlackList=", "rocketmqHome=/",
        "enableTopicList=false\nkvConfigPath=/tmp/x",
    ],
)  # fmt: skip
def test_protected_settings_are_refused_whole(tmp_path: Path, text: str) -> None:
    async def scenario(peer: Peer) -> None:
        before = (await peer.ask(319)).body
        answer = await peer.ask(318, body=text.encode())
        assert (answer.code, answer.remark) == (16, "Can not update config in black list.")
        assert (await peer.ask(319)).body == before
        assert not (tmp_path / "namesrv").exists()

    run(tmp_path, scenario)


def test_settings_that_do_not_parse(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        answer = await peer.ask(318, body=b"a=\\u12")
        assert (answer.code, answer.remark) == (1, "string2Properties error")
        assert (await peer.ask(318, body=b"enableTopicList=a\\nb")).code == 1

    run(tmp_path, scenario)


def test_route_questions_are_refused_while_it_warms_up(tmp_path: Path) -> None:
    clock = ManualClock()

    async def scenario(peer: Peer) -> None:
        await peer.register()
        answer = await peer.ask(105, {"topic": "orders"})
        assert (answer.code, answer.remark) == (1, "name server not ready")
        clock.advance(45)
        assert (await peer.ask(105, {"topic": "orders"})).code == 0

    run(tmp_path, scenario, clock=clock, need_wait_for_service=True)


def test_zone_filter(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.register(__ZONE_NAME="east")
        await peer.register(name="broker-b", brokerAddr="10.0.1.0:10911", __ZONE_NAME="west")
        assert len((await peer.route())["brokerDatas"]) == 2
        fields = {"topic": "orders", "__ZONE_MODE": "true", "__ZONE_NAME": "EAST"}
        for _ in range(2):
            route = json.loads((await peer.ask(105, fields)).body)
            assert [data["brokerName"] for data in route["brokerDatas"]] == ["broker-a"]
        route = json.loads((await peer.ask(105, {**fields, "__ZONE_MODE": "false"})).body)
        assert len(route["brokerDatas"]) == 2

    run(tmp_path, scenario)


@asynccontextmanager
async def listening_broker() -> AsyncIterator[tuple[str, asyncio.Queue[dict[str, str]]]]:
    """The address of a broker and what it is told of smallest ids."""
    from rocketcore.transport.server.server import RemotingServer

    told: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    def hear(channel: object, request: RemotingCommand) -> None:
        told.put_nowait(request.ext_fields or {})

    broker = RemotingServer(name="broker")
    add_handler(broker, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, hear)
    await broker.start()
    try:
        yield broker.address, told
    finally:
        await broker.stop()


def test_brokers_are_told_of_a_new_smallest_id(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        async with listening_broker() as (address, told):
            await peer.register(broker_id=1, brokerAddr=address, enableActingMaster="true")
            await peer.register(broker_id=0, enableActingMaster="true")
            async with asyncio.timeout(5):
                assert await told.get() == {
                    "brokerName": "broker-a", "minBrokerId": "0", "minBrokerAddr": "10.0.0.0:10911",
                    "haBrokerAddr": "10.0.0.0:10912",
                }  # fmt: skip

    run(tmp_path, scenario, notify_min_broker_id_changed=True)


def test_an_address_that_is_none_keeps_no_news_from_others(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        async with listening_broker() as (address, told):
            for number, odd in enumerate(["x" * 70 + ":1", "\0:1", "h:" + "9" * 5000, "nowhere"]):
                await peer.register(name=f"odd-{number}", broker_id=1, brokerAddr=odd)
                await peer.register(name=f"odd-{number}", broker_id=0, brokerAddr=f"10.0.1.{number}:1")
            await peer.register(broker_id=1, brokerAddr=address)
            await peer.register(broker_id=0)
            async with asyncio.timeout(5):
                assert (await told.get())["brokerName"] == "broker-a"

    run(tmp_path, scenario, notify_min_broker_id_changed=True)


def test_a_name_server_that_stops_tells_nobody_that_brokers_left(tmp_path: Path) -> None:
    """Their connections end because it closes them."""

    async def main() -> None:
        config = NameServerConfig(listen_port=0, rocketmq_home=tmp_path, notify_min_broker_id_changed=True)
        async with listening_broker() as (address, told), RemotingClient() as master, RemotingClient() as slave:
            async with NameServer(config) as server:
                await Peer(server, master).register(broker_id=0, enableActingMaster="true")
                await Peer(server, slave).register(broker_id=1, brokerAddr=address, enableActingMaster="true")
            await asyncio.sleep(0.1)
            assert told.empty()
            assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("nameserver")]

    asyncio.run(main())


def test_missing_fields_and_unknown_codes_never_hang(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        expected = {
            105: 17, 101: 22, 219: 22, 102: 0, 205: 0, 216: 0, 224: 0, 104: 0, 103: 1, 322: 1, 904: 1, 100: 1, 217: 0,
            901: 0, 327: 0,
        }  # fmt: skip
        for code, response in expected.items():
            assert (await peer.ask(code)).code == response, code
        answer = await peer.ask(105)
        assert "for the topic: null" in (answer.remark or "")
        answer = await peer.ask(9999)
        assert (answer.code, answer.remark) == (3, " request type 9999 not supported")

    run(tmp_path, scenario)
