"""Administration, statistics, unknown codes, and registration with name servers."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store.message_store import MessageStore
from rocketcore.broker.store.opening.recovery import Recovery
from rocketcore.codes import CURRENT_VERSION, RequestCode, ResponseCode, Version
from rocketcore.config_file import parse_properties
from rocketcore.errors import StoreLocked
from rocketcore.message import MessageQueue
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.bodies.client import ConsumerConnection, ProducerConnection
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rocketcore.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from rocketcore.protocol.bodies.replication import HARuntimeInfo
from rocketcore.protocol.bodies.route import TopicRouteData
from rocketcore.protocol.bodies.stats import ConsumerOffsetSerializeWrapper, ConsumeStats, TopicStatsTable
from rocketcore.protocol.bodies.topic import (
    DataVersion,
    GroupList,
    KVTable,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from rocketcore.protocol.headers.consumer import UpdateConsumerOffsetRequestHeader
from rocketcore.protocol.headers.message import RecallMessageRequestHeader, ViewMessageRequestHeader
from rocketcore.protocol.headers.nameserver import GetRouteInfoRequestHeader
from rocketcore.transport.client import RemotingClient
from tests.integration.broker_client import TIMEOUT, BrokerClient, running_broker, store_config


def play(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), running_broker(folder, **settings) as client:
            await scenario(client)

    asyncio.run(run())


def create(topic: str, queues: int = 4, attributes: str | None = None) -> CreateTopicRequestHeader:
    return CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        attributes=attributes,
    )


# Topics


def test_the_life_of_a_topic(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        made = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create("T", 2, "+message.type=FIFO"))
        assert made.code == 0
        one = await client.ask(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic="T"))
        assert TopicConfig.decode(one.body) == TopicConfig("T", 2, 2, 6, attributes={"message.type": "FIFO"})
        everything = await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        table = TopicConfigSerializeWrapper.decode(everything.body).topic_config_table
        assert (everything.ext_fields or {})["totalTopicNum"] == str(len(table))
        assert table["T"].write_queue_nums == 2
        await client.send("T", queue_id=1)
        gone = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))
        assert gone.code == 0
        missing = await client.ask(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic="T"))
        assert (missing.code, missing.remark) == (17, "No topic in this broker. topic: T")
        assert client.broker._store.max_offset("T", 1) == 0

    async def later(client: BrokerClient) -> None:
        missing = await client.ask(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic="T"))
        assert missing.code == 17
        assert client.broker._store.max_offset("T", 1) == 0

    play(tmp_path, scenario)
    play(tmp_path, later)


@pytest.mark.parametrize(
    ("header", "code", "remark"),
    [
        (create("a b"), 29, "illegal characters"),
        (create("TBW102"), 29, "The topic[TBW102] is conflict with system topic."),
        (create("T", attributes="+colour=red"), 1, "unsupported key: colour"),
    ],
)
def test_topics_that_cannot_be_made(tmp_path: Path, header: CreateTopicRequestHeader, code: int, remark: str) -> None:
    async def scenario(client: BrokerClient) -> None:
        answer = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert answer.code == code
        assert remark in (answer.remark or "")

    play(tmp_path, scenario)


def test_an_unknown_filter_type_is_refused(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        header = create("T")
        header.topic_filter_type = "NO_TAG"
        answer = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert (answer.code, answer.remark) == (1, "topicFilterType = [NO_TAG] value invalid")

    play(tmp_path, scenario)


def test_system_topics_cannot_be_deleted(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for topic in ("TBW102", "DefaultCluster", "rmq_sys_x"):
            answer = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic))
            assert answer.code == ResponseCode.INVALID_PARAMETER
        listed = TopicList.decode((await client.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body)
        assert {"TBW102", "DefaultCluster", "broker-a"} <= set(listed.topic_list)

    play(tmp_path, scenario)


def test_topic_statistics(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(3):
            await client.send("T", queue_id=1)
        answer = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="T"))
        table = TopicStatsTable.decode(answer.body).offset_table
        [*_, last] = await client.records("T", 1)
        found = table[MessageQueue("T", "broker-a", 1)]
        assert (found.min_offset, found.max_offset, found.last_update_timestamp) == (0, 3, last.store_timestamp)
        assert table[MessageQueue("T", "broker-a", 0)].last_update_timestamp == 0
        unknown = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="U"))
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST

    play(tmp_path, scenario)


# Groups


def test_the_life_of_a_group(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        group = SubscriptionGroupConfig(group_name="g", retry_max_times=3)
        body = group.encode()
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
        header = GetSubscriptionGroupConfigRequestHeader(group="g")
        found = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        assert SubscriptionGroupConfig.decode(found.body) == group
        everything = await client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = SubscriptionGroupWrapper.decode(everything.body).subscription_group_table
        assert (everything.ext_fields or {})["totalGroupNum"] == str(len(table))
        await client.send("T")
        commit = UpdateConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0, commit_offset=1)
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        gone = DeleteSubscriptionGroupRequestHeader(group_name="g", clean_offset=True)
        assert (await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)).code == 0
        offsets = ConsumerOffsetSerializeWrapper.decode((await client.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)
        assert [key for key in offsets.offset_table if key.endswith("@g")] == []
        bad = GetSubscriptionGroupConfigRequestHeader(group="a b")
        refused = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, bad)
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    play(tmp_path, scenario)


def test_progress_and_connections_of_a_group(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(4):
            await client.send("T")
        await client.heartbeat("T", group="g", client_id="c-1")
        await client.pull("T", 0, 0, group="g", commit=3)
        stats = await client.ask(RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="g"))
        decoded = ConsumeStats.decode(stats.body)
        progress = decoded.offset_table[MessageQueue("T", "broker-a", 0)]
        records = await client.records("T")
        assert (progress.broker_offset, progress.consumer_offset, progress.pull_offset) == (4, 3, 4)
        assert progress.last_timestamp == records[2].store_timestamp
        assert decoded.total_diff == 1
        who = await client.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, QueryTopicConsumeByWhoRequestHeader(topic="T"))
        assert GroupList.decode(who.body).group_list == ["g"]
        what = await client.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, QueryTopicsByConsumerRequestHeader(group="g"))
        assert TopicList.decode(what.body).topic_list == ["T"]
        header = GetConsumerConnectionListRequestHeader(consumer_group="g")
        connection = ConsumerConnection.decode(
            (await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)).body
        )
        [member] = connection.connection_set
        assert (member.client_id, member.version) == ("c-1", CURRENT_VERSION)
        assert list(connection.subscription_table) == ["T"]
        offline = GetConsumerConnectionListRequestHeader(consumer_group="h")
        answer = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, offline)
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE

    play(tmp_path, scenario)


def test_connections_of_producers(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        body = HeartbeatData("p-1", [ProducerData("p")]).encode()
        await client.ask(RequestCode.HEART_BEAT, body=body)
        header = GetProducerConnectionListRequestHeader(producer_group="p")
        answer = await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        assert [each.client_id for each in ProducerConnection.decode(answer.body).connection_set] == ["p-1"]
        unknown = GetProducerConnectionListRequestHeader(producer_group="q")
        assert (await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, unknown)).code == 1

    play(tmp_path, scenario)


# The broker


def test_run_time_information(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketcore.broker.runtime_info.used_ratio", lambda folder: 0.42)

    async def scenario(client: BrokerClient) -> None:
        await client.send("T", b"12345")
        await client.records("T")
        table = KVTable.decode((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        assert table["brokerVersionDesc"] == Version(CURRENT_VERSION).name
        assert (table["putMessageTimesTotal"], table["msgGetTotalTodayNow"]) == ("1", "1")
        assert len(table["putTps"].split()) == 3
        assert table["scheduleMessageOffset_18"] == "0,0"
        assert json.loads(table["changedSettings"])["listenPort"] == "10911"
        assert "brokerPermission" not in table["changedSettings"]
        assert table["commitLogDiskRatio"] == table["consumeQueueDiskRatio"] == "0.42", "what old files are deleted by"
        assert int(table["commitLogMaxOffset"]) > 0
        assert int(table["earliestMessageTimeStamp"]) == (await client.records("T"))[0].store_timestamp
        for pool in ("send", "pull"):
            assert int(table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"]) == 0

    play(tmp_path, scenario)


def test_run_time_information_counts_what_the_store_found_wrong(tmp_path: Path) -> None:
    trouble = ("damagedMessages", "damagedLogBytes", "tornLogBytes", "logReadErrors", "repairedConsumeQueues")
    trouble += ("arrivalListenerErrors",)  # type: ignore[assignment]

    async def run() -> None:
        async with asyncio.timeout(30), running_broker(tmp_path) as client:
            for _ in range(3):
                await client.send("T", b"12345")
            found = await client.records("T")
            table = KVTable.decode((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
            assert {name: table[name] for name in trouble} == dict.fromkeys(trouble, "0")
            flip(found[1].physical_offset + 88)
            assert len(await client.records("T")) == 2
            table = KVTable.decode((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
            assert {name: table[name] for name in trouble} == dict.fromkeys(trouble, "0") | {"damagedMessages": "1"}
        shutil.rmtree(tmp_path / "consumequeue")
        async with asyncio.timeout(30), running_broker(tmp_path) as client:
            table = KVTable.decode((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
            assert int(table["damagedLogBytes"]) == found[2].physical_offset - found[1].physical_offset

    def flip(position: int) -> None:
        with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(position)
            log.write(b"X")

    asyncio.run(run())


def test_live_settings_change_and_others_do_not(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        changed = await client.ask(
            RequestCode.UPDATE_BROKER_CONFIG, body=b"traceOn=false\nautoCreateTopicEnable=false\n"
        )
        assert changed.code == 0
        answer = await client.ask(RequestCode.GET_BROKER_CONFIG)
        settings = parse_properties(answer.body.decode())
        assert (settings["traceOn"], settings["brokerName"], settings["flushDiskType"]) == (
            "false",
            "broker-a",
            "SYNC_FLUSH",
        )
        assert DataVersion.decode((answer.ext_fields or {})["version"].encode()).counter == 1
        assert (await client.send("T")).code == ResponseCode.TOPIC_NOT_EXIST
        for text in (b"storePathRootDir=/tmp/x\n", b"traceOn=true\nnamesrvAddr=evil:1\n"):
            refused = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text)
            assert refused.code == ResponseCode.NO_PERMISSION
        assert not client.broker.config.trace_on

    play(tmp_path, scenario)


def test_what_is_live_counts_from_the_next_request_on(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        async def change(text: str) -> int:
            return (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())).code

        half: dict[str, Any] = {"properties": {"TRAN_MSG": "true", "PGROUP": "shop"}, "sys_flag": 4}
        assert (await client.send("T", **half)).code == 0
        assert await change("rejectTransactionMessage=true") == 0
        assert (await client.send("T", **half)).code == ResponseCode.NO_PERMISSION
        assert await change("transactionTimeOut=x") == ResponseCode.INVALID_PARAMETER
        header = RecallMessageRequestHeader(topic="T", recall_handle="?")
        forbidden = await client.ask(RequestCode.RECALL_MESSAGE, header)
        remark = "recall failed, operation is forbidden: recallMessageEnable is false"
        assert (forbidden.code, forbidden.remark) == (16, remark)
        assert await change("recallMessageEnable=true") == 0
        assert (await client.ask(RequestCode.RECALL_MESSAGE, header)).code != 16

    play(tmp_path, scenario)


def test_a_message_is_viewed_by_its_place(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T", b"here")
        [record] = await client.records("T")
        found = await client.ask(
            RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=record.physical_offset)
        )
        assert b"here" in found.body
        missing = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=1 << 40))
        assert (missing.code, missing.remark) == (1, f"can not find message by the offset, {1 << 40}")

    play(tmp_path, scenario)


@pytest.mark.parametrize("code", [27, 47, 354, 513, 200070, 9999])
def test_what_is_not_served_is_answered_clearly(tmp_path: Path, code: int) -> None:
    async def scenario(client: BrokerClient) -> None:
        answer = await client.ask(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")

    play(tmp_path, scenario)


@pytest.mark.parametrize("code", [17, 38, 14, 15, 30, 33, 36, 310, 11, 351])
def test_a_request_without_its_fields_is_an_error_not_a_crash(tmp_path: Path, code: int) -> None:
    async def scenario(client: BrokerClient) -> None:
        answer = await client.ask(code)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
        assert (await client.send("T")).code == 0

    play(tmp_path, scenario)


# Registration


async def _route(client: RemotingClient, namesrv: str, topic: str) -> TopicRouteData | None:
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
    answer = await client.invoke(namesrv, request, TIMEOUT)
    return TopicRouteData.decode(answer.body) if answer.code == 0 else None


async def _route_appears(client: RemotingClient, namesrv: str, topic: str) -> TopicRouteData:
    while (route := await _route(client, namesrv, topic)) is None:  # noqa: ASYNC110 - nothing tells of a route
        await asyncio.sleep(0.01)
    return route


def _name_server(folder: Path, port: int = 0) -> NameServer:
    return NameServer(NameServerConfig(listen_port=port, rocketmq_home=folder))


def test_a_broker_is_listed_while_it_runs(tmp_path: Path) -> None:
    async def run() -> None:
        name_server = _name_server(tmp_path / "namesrv")
        await name_server.start()
        async with asyncio.timeout(20), RemotingClient() as asker:
            async with running_broker(tmp_path / "store", namesrv=name_server.address) as client:
                route = await _route(asker, name_server.address, "TBW102")
                assert route is not None
                [data] = route.broker_datas
                assert (data.broker_name, data.broker_addrs) == ("broker-a", {0: client.broker.address})
                await client.send("T")
                created = await _route_appears(asker, name_server.address, "T")
                assert [(each.write_queue_nums, each.perm) for each in created.queue_datas] == [(4, 6)]
            assert await _route(asker, name_server.address, "TBW102") is None
        await name_server.stop()

    asyncio.run(run())


def test_a_read_only_broker_registers_read_only_topics(tmp_path: Path) -> None:
    async def run() -> None:
        name_server = _name_server(tmp_path / "namesrv")
        await name_server.start()
        async with (
            asyncio.timeout(20),
            RemotingClient() as asker,
            running_broker(tmp_path / "store", namesrv=name_server.address) as client,
        ):
            await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")
            route = await _route_appears(asker, name_server.address, "TBW102")
            while route.queue_datas[0].perm & 2:
                route = await _route_appears(asker, name_server.address, "TBW102")
            assert route.queue_datas[0].perm == 4
        await name_server.stop()

    asyncio.run(run())


def test_a_broker_starts_without_its_name_server_and_finds_it_later(tmp_path: Path) -> None:
    async def run() -> None:
        first = _name_server(tmp_path / "namesrv")
        await first.start()
        namesrv = first.address
        port = int(namesrv.rpartition(":")[2])
        await first.stop()
        async with (
            asyncio.timeout(20),
            RemotingClient() as asker,
            running_broker(tmp_path / "store", namesrv=namesrv) as client,
        ):
            assert (await client.send("T")).code == 0
            for _ in range(2):
                restarted = _name_server(tmp_path / "namesrv", port)
                await restarted.start()
                async with asyncio.timeout(1.5):
                    await _route_appears(asker, namesrv, "T")
                await restarted.stop()
                asker.close_channel(namesrv)

    asyncio.run(run())


def test_one_dead_name_server_does_not_hold_up_the_other(tmp_path: Path) -> None:
    async def run() -> None:
        dead = _name_server(tmp_path / "dead")
        await dead.start()
        dead_address = dead.address
        await dead.stop()
        alive = _name_server(tmp_path / "alive")
        await alive.start()
        async with (
            asyncio.timeout(20),
            RemotingClient() as asker,
            running_broker(tmp_path / "store", namesrv=f"{dead_address};{alive.address}") as client,
        ):
            assert await _route(asker, alive.address, "TBW102") is not None
            await client.send("T")
            await _route_appears(asker, alive.address, "T")
        await alive.stop()

    asyncio.run(run())


def test_the_store_of_a_running_broker_is_locked(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), running_broker(tmp_path) as client:
            second = Broker(BrokerConfig(broker_name="b", listen_port=0), store_config(tmp_path))
            with pytest.raises(StoreLocked):
                await second.start()
            await second.stop()
            assert (await client.send("T")).code == 0

    asyncio.run(run())


def test_a_taken_port_leaves_nothing_behind(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), running_broker(tmp_path / "first") as client:
            taken = BrokerConfig(broker_name="b", listen_port=client.broker.port)
            with pytest.raises(OSError, match="in use"):
                await Broker(taken, store_config(tmp_path / "second")).start()
            async with running_broker(tmp_path / "second") as other:
                assert (await other.send("T")).code == 0

    asyncio.run(run())


def test_a_start_that_is_cancelled_while_the_store_recovers_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = MessageStore.load

    def slow(store: MessageStore) -> Recovery:
        time.sleep(0.2)
        return load(store)

    async def run() -> None:
        monkeypatch.setattr(MessageStore, "load", slow)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await Broker(BrokerConfig(broker_name="b", listen_port=0), store_config(tmp_path)).start()
        monkeypatch.undo()
        async with asyncio.timeout(20), running_broker(tmp_path) as client:
            assert (await client.send("T")).code == 0

    asyncio.run(run())


def test_what_a_broker_has_none_of(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        status = HARuntimeInfo.decode((await client.ask(RequestCode.GET_BROKER_HA_STATUS)).body)
        assert (status.master, status.in_sync_slave_nums, status.ha_connection_info) == (True, 0, [])
        assert status.master_commit_log_max_offset > 0
        told = await client.ask(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
        assert b'"configTable": {}' in told.body

    play(tmp_path, scenario)


def test_thresholds_of_cold_reads_and_read_ahead_are_kept_and_shown(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        async def table() -> dict[str, int]:
            told = json.loads((await client.ask(2003)).body)
            assert told.keys() == {
                "runtimeTable", "configTable", "cgColdReadThreshold", "globalColdReadThreshold", "globalAcc"
            }  # fmt: skip
            return dict(told["configTable"])

        assert await table() == {}
        for text in (b"g1=1000\n", b"g1=2000\ng2=abc\na b=7\n", b""):
            assert (await client.ask(2001, body=text)).code == 0
        assert await table() == {"g1": 2000}
        for text in (b"nobody", b"g1"):
            assert (await client.ask(2002, body=text)).code == 0
        assert await table() == {}
        many = "".join(f"g{number}=1\n" for number in range(5_000))
        for begin, code in (("a", 0), ("b", 0), ("c", 1)):
            text = many.replace("g", begin).encode()
            assert (await client.ask(2001, body=text)).code == code
        assert len(await table()) == 10_000

        for mode, code, ahead in (
            ("0", 0, "true"), ("1", 0, "false"), ("2", 29, "false"), ("x", 1, "false"), ("", 1, "false")
        ):  # fmt: skip
            request = RemotingCommand.request(2004)
            request.ext_fields = {"READ_AHEAD_MODE": mode}
            answer = await client.client.invoke(client.broker.address, request, 10.0)
            assert answer.code == code, mode
            settings = parse_properties((await client.ask(RequestCode.GET_BROKER_CONFIG)).body.decode())
            assert settings["dataReadAheadEnable"] == ahead

    play(tmp_path, scenario)


def test_settings_of_apaches_are_taken_and_shown(tmp_path: Path) -> None:
    """One that counts later, or not at all, is named by the remark."""

    async def scenario(client: BrokerClient) -> None:
        answer = await client.ask(
            RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=48\nsendThreadPoolQueueCapacity=9\n"
        )
        assert (answer.code, answer.remark) == (
            0, "from the next start on: fileReservedTime; without effect here: sendThreadPoolQueueCapacity"
        )  # fmt: skip
        for refused in (b"aclEnable=true", b"authConfigPath=/tmp/x", b"notASetting=1", b"brokerName=x"):
            assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=refused)).code == 16
        settings = parse_properties((await client.ask(RequestCode.GET_BROKER_CONFIG)).body.decode())
        assert (settings["fileReservedTime"], settings["sendThreadPoolQueueCapacity"]) == ("72", "9")
        assert settings["rcNextStart"] == '{"fileReservedTime": "48"}'
        assert settings["listenPort"] == client.broker.address.rpartition(":")[2]
        assert "aclEnable" not in settings

    play(tmp_path, scenario)


def test_what_tools_look_for_in_settings_and_runtime_information(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        settings = parse_properties((await client.ask(RequestCode.GET_BROKER_CONFIG)).body.decode())
        assert settings["brokerRole"] == "ASYNC_MASTER"
        table = KVTable.decode((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        assert float(table["putLatency99"]) > 0
        assert sum(int(part.rpartition(":")[2]) for part in table["putMessageDistributeTime"].split()) == 1
        for name in ("putLatency999", "putMessageEntireTimeMax", "getMessageEntireTimeMax", "dispatchMaxBuffer",
                     "remainHowManyDataToCommit", "remainHowManyDataToFlush", "remainTransientStoreBufferNumbs",
                     "EndTransactionQueueSize", "timerEnqueueTps", "timerDequeueTps"):  # fmt: skip
            assert float(table[name]) >= 0, name

    play(tmp_path, scenario)
