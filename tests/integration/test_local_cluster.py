"""LocalCluster in this process and beside it, the administration client, and the pytest plugin."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvloop

from rocketcore.admin.client import Admin, AsyncAdmin
from rocketcore.broker.broker import Broker
from rocketcore.broker.store.message_store import MessageStore
from rocketcore.client.sync import Producer, PullConsumer
from rocketcore.codes import Permission
from rocketcore.errors import (
    ConfigError,
    ConnectError,
    MessageIllegal,
    PartlyDone,
    RocketError,
    RouteNotFound,
    TopicNotExist,
)
from rocketcore.local import LocalCluster
from rocketcore.message import Message, MessageQueue

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv) as client:
        yield client


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_servers_end_with_the_process_that_started_them_however_it_ends(end: str) -> None:
    program = f"""
        import os, signal, threading
        from rocketcore.local import LocalCluster

        cluster = LocalCluster(in_process=False, properties={{"mappedFileSizeCommitLog": str(16 << 20)}})
        starting = threading.Thread(target=cluster.start)
        starting.start()
        starting.join()  # that the thread ends is no end of the process
        print(*(process.pid for process in cluster._host._processes.values()), cluster.store, flush=True)
        input()
        {end}
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        *pids, store = parent.stdout.readline().split()
        servers = [os.pidfd_open(int(pid)) for pid in pids]
        try:
            assert len(servers) == 2
            assert not select.select(servers, [], [], 0)[0]
            parent.stdin.write("\n")
            parent.stdin.flush()
            parent.wait(20)
            for server in servers:
                assert select.select([server], [], [], 30)[0], "a server outlives its parent"
        finally:
            for server in servers:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(server, signal.SIGKILL)
                os.close(server)
            shutil.rmtree(store)


@pytest.mark.parametrize("forks", [False, True], ids=["alone", "a forked child lives on"])
def test_servers_of_the_demonstration_end_with_it(tmp_path: Path, forks: bool) -> None:
    program = f"""
        import os, signal
        from pathlib import Path
        from rocketcore.local import ServerProcess

        folder = Path({str(tmp_path)!r})
        server = ServerProcess(
            "name server", "namesrv", "start", "--listen", "127.0.0.1:0", "--home", str(folder), log=folder / "log"
        )
        child = os.fork() if {forks} else os.getpid()
        if child == 0:
            signal.alarm(60)
            os.closerange(0, 3)
            signal.pause()
        print(server.pid, child, flush=True)
        input()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        server, child = map(os.pidfd_open, map(int, parent.stdout.readline().split()))
        try:
            parent.communicate("\n", timeout=20)
            assert select.select([server], [], [], 30)[0], "the server outlives its parent"
            assert bool(select.select([child], [], [], 0)[0]) is not forks
        finally:
            for process in (server, child):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                os.close(process)


def test_it_is_up_when_start_returns(cluster: LocalCluster, admin: Admin) -> None:
    info = admin.cluster_info()
    assert info.cluster_addr_table == {"DefaultCluster": ["broker-a", "broker-b"]}
    addresses = {name: data.broker_addrs for name, data in info.broker_addr_table.items()}
    assert addresses == {
        name: {0: address} for name, address in zip(cluster.broker_names, cluster.broker_addresses, strict=True)
    }


def test_a_stopped_cluster_leaves_nothing(tmp_path: Path) -> None:
    threads = threading.active_count()
    with LocalCluster() as cluster:
        folder, namesrv = cluster.store, cluster.namesrv
        assert folder.is_dir()
    assert not folder.exists()
    assert threading.active_count() == threads
    with pytest.raises(ConfigError, match="not running"):
        _ = cluster.namesrv
    with Admin(namesrv, timeout=1) as admin, pytest.raises(ConnectError):
        admin.topics()
    cluster.stop()


def test_messages_survive_in_a_folder_of_ones_own(tmp_path: Path) -> None:
    properties = {"mappedFileSizeCommitLog": str(16 << 20)}
    with LocalCluster(tmp_path / "data", properties=properties) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("kept", 1)
        with Producer(cluster.namesrv, group="p") as producer:
            assert producer.send("kept", b"hello")
    with LocalCluster(tmp_path / "data", properties=properties) as cluster:
        with Admin(cluster.namesrv) as admin:
            [queue] = admin.queues("kept")
            assert admin.max_offset(queue) == 1
        with PullConsumer(cluster.namesrv, group="TOOLS_CONSUMER", start_from="first") as consumer:
            consumer.assign([queue])
            assert [message.body for message in consumer.poll(5)] == [b"hello"]


def test_a_broker_stops_and_comes_back_at_its_address(cluster: LocalCluster, admin: Admin) -> None:
    before = cluster.broker_addresses
    cluster.stop_broker(1)
    assert list(admin.cluster_info().broker_addr_table) == ["broker-a"]
    host, _, port = before[1].rpartition(":")
    with socket.socket() as another, pytest.raises(OSError, match="in use"):
        another.bind((host, int(port)))  # nobody gets it meanwhile, and nobody is answered there
    with socket.socket() as another:
        assert another.connect_ex((host, int(port))) == errno.ECONNREFUSED
    cluster.start_broker(1)
    assert cluster.broker_addresses == before
    assert sorted(admin.cluster_info().broker_addr_table) == ["broker-a", "broker-b"]
    with pytest.raises(ConfigError, match="in_process=False"):
        cluster.stop_broker(0, kill=True)


@pytest.mark.parametrize("in_process", [True, False])
def test_a_broker_is_started_and_stopped_once(tmp_path: Path, in_process: bool) -> None:
    properties = {"mappedFileSizeCommitLog": str(16 << 20)}
    with LocalCluster(tmp_path, in_process=in_process, properties=properties) as cluster:
        with pytest.raises(ConfigError, match="broker-a is running"):
            cluster.start_broker()
        for index in (-1, 1):
            with pytest.raises(ConfigError, match="0 to 0"):
                cluster.start_broker(index)
        cluster.stop_broker()
        with pytest.raises(ConfigError, match="broker-a is not running"):
            cluster.stop_broker()
        cluster.start_broker()


def test_servers_as_processes_survive_a_kill(tmp_path: Path) -> None:
    properties = {"mappedFileSizeCommitLog": str(16 << 20)}
    with LocalCluster(tmp_path, in_process=False, properties=properties) as cluster, Admin(cluster.namesrv) as admin:
        admin.create_topic("kept", 1)
        with Producer(cluster.namesrv, group="p") as producer:
            assert producer.send("kept", b"hello")
        cluster.stop_broker(kill=True)
        cluster.start_broker()
        [(queue, bounds)] = admin.topic_stats("kept").items()
        assert (queue, bounds.max_offset) == (MessageQueue("kept", "broker-a", 0), 1)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "broker-a").write_text("not a folder")
    with pytest.raises(RocketError, match=r"broker-a ended with exit code 1; error: .*broker-a.*; its log is .*a\.log"):
        LocalCluster(tmp_path, in_process=False).start()


def test_a_cluster_without_an_event_loop_says_so_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(uvloop, "new_event_loop", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OSError, match="Too many"):
        LocalCluster().start()
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_fails_to_stop_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stop = Broker.stop

    async def fail(self: Broker) -> None:
        await stop(self)
        raise OSError(errno.EIO, f"{self.config.broker_name} fails")

    cluster = LocalCluster(tmp_path, brokers=2, properties={"mappedFileSizeCommitLog": str(16 << 20)}).start()
    with monkeypatch.context() as patch:
        patch.setattr(Broker, "stop", fail)
        with pytest.raises(OSError, match="broker-a fails"):
            cluster.stop()
    with cluster:
        assert len(cluster.broker_addresses) == 2


def test_a_broker_that_was_not_ready_in_time_can_be_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load, recovered, cancelled = MessageStore.load, threading.Event(), threading.Event()
    stop = MessageStore.stop

    def recover(self: MessageStore) -> None:
        recovered.wait(10.0)
        load(self)

    async def stopped(self: MessageStore) -> None:
        await stop(self)
        cancelled.set()

    with LocalCluster(tmp_path, properties={"mappedFileSizeCommitLog": str(16 << 20)}) as cluster:
        cluster.stop_broker()
        with monkeypatch.context() as patch:
            patch.setattr(MessageStore, "load", recover)
            patch.setattr(MessageStore, "stop", stopped)
            patch.setattr("rocketcore.local.START_SECONDS", 0.05)
            with pytest.raises(RocketError, match=r"broker-a is not ready after 0\.05 s"):
                cluster.start_broker()
            recovered.set()
            assert cancelled.wait(10.0)
        cluster.start_broker()


# Administration


def test_topics_are_created_shown_and_deleted(admin: Admin) -> None:
    created = admin.create_topic("orders", 3)
    assert (created.read_queues, created.brokers) == (3, ("broker-a", "broker-b"))
    assert "orders" in admin.topics()
    assert "orders" in admin.topics("DefaultCluster")
    assert admin.topics("other") == []
    queues = admin.queues("orders")
    assert queues == [MessageQueue("orders", broker, i) for broker in ("broker-a", "broker-b") for i in range(3)]
    assert list(admin.topic_stats("orders")) == queues
    assert admin.delete_topic("orders") == ["broker-a", "broker-b"]
    with pytest.raises(TopicNotExist):
        admin.topic_route("orders")
    with pytest.raises(TopicNotExist):
        admin.delete_topic("orders")


def test_a_topic_on_one_broker_with_its_own_numbers(admin: Admin) -> None:
    admin.create_topic("narrow", read_queues=4, write_queues=2, perm=Permission.READ, broker="broker-b")
    [queues] = admin.topic_route("narrow").queue_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == ("broker-b", 4, 2, 4)
    with pytest.raises(RouteNotFound, match="no broker 'nobody'"):
        admin.create_topic("narrow", broker="nobody")
    with pytest.raises(MessageIllegal):
        admin.create_topic("with space")
    with pytest.raises(ConfigError):
        admin.create_topic("narrow", -1)


def test_order_configuration_comes_and_goes_with_its_topic(admin: Admin) -> None:
    admin.create_topic("steps", 2, order=True)
    assert admin.get_kv("ORDER_TOPIC_CONFIG", "steps") == "broker-a:2;broker-b:2"
    admin.update_topic("steps", write_queues=1, broker="broker-b")
    assert admin.get_kv("ORDER_TOPIC_CONFIG", "steps") == "broker-a:2;broker-b:1", "the other broker's stays"
    admin.update_topic("steps", 3, broker="broker-a")
    assert admin.get_kv("ORDER_TOPIC_CONFIG", "steps") == "broker-a:3;broker-b:1"
    admin.put_kv("ORDER_TOPIC_CONFIG", "steps", "broker-a:3;broker-b:1;broker-gone:2")
    admin.update_topic("steps", 2, order=True)
    assert admin.get_kv("ORDER_TOPIC_CONFIG", "steps") == "broker-a:2;broker-b:2", "all brokers were named"
    admin.update_topic("steps", order=False)
    assert admin.get_kv("ORDER_TOPIC_CONFIG", "steps") is None, "or brokers would take the order from it again"
    admin.delete_topic("steps")
    admin.create_topic("steps", 2, order=True)
    assert admin.get_kv("ORDER_TOPIC_CONFIG", "steps") == "broker-a:2;broker-b:2"
    admin.delete_topic("steps")
    assert admin.get_kv("ORDER_TOPIC_CONFIG", "steps") is None


def test_offsets_of_a_queue(cluster: LocalCluster, admin: Admin) -> None:
    admin.create_topic("offsets", 1)
    queue = MessageQueue("offsets", "broker-a", 0)
    began = datetime.now(UTC)
    with Producer(cluster.namesrv, group="p") as producer:
        for i in range(3):
            producer.send(Message("offsets", str(i)), queue=queue)
    assert (admin.min_offset(queue), admin.max_offset(queue)) == (0, 3)
    assert admin.search_offset(queue, began - timedelta(hours=1)) == 0
    assert admin.search_offset(queue, began + timedelta(hours=1)) == 3
    assert abs(admin.earliest_store_time(queue) - began.timestamp() * 1000) < 60_000
    admin.create_group("auditors")
    assert admin.consumer_offset("auditors", queue) is None
    admin.update_consumer_offset("auditors", queue, 2)
    assert admin.consumer_offset("auditors", queue) == 2
    assert admin.consume_stats("auditors", "offsets")[queue].consumer_offset == 2
    with pytest.raises(RouteNotFound, match="nobody"):
        admin.max_offset(MessageQueue("offsets", "nobody", 0))


def test_groups(cluster: LocalCluster, admin: Admin) -> None:
    assert admin.create_group("team", retry_max_times=3).brokers == ("broker-a", "broker-b")
    assert admin.groups()["team"].retry_max_times == 3
    assert admin.consumer_connections("team") == []
    admin.create_topic("work", 1)
    with PullConsumer(cluster.namesrv, group="team") as consumer:
        consumer.subscribe("work")
        assert [member.client_id for member in admin.consumer_connections("team")] == [consumer.client_id]
    assert admin.delete_group("team") == ["broker-a", "broker-b"]
    assert "team" not in admin.groups()


def test_brokers_and_name_servers_show_and_change_their_settings(cluster: LocalCluster, admin: Admin) -> None:
    address = cluster.broker_addresses[0]
    assert admin.broker_config(address)["brokerName"] == "broker-a"
    assert admin.broker_runtime_info(address)["brokerVersionDesc"]
    admin.update_broker_config(address, {"defaultTopicQueueNums": "5"})
    assert admin.broker_config(address)["defaultTopicQueueNums"] == "5"
    admin.update_namesrv_config({"waitSecondsForService": "7"})
    assert admin.namesrv_config()["waitSecondsForService"] == "7"
    assert admin.namesrv_config(cluster.namesrv)["waitSecondsForService"] == "7"
    admin.put_kv("space", "key", "value")
    assert admin.list_kv("space") == {"key": "value"}
    admin.delete_kv("space", "key")
    assert admin.list_kv("space") == {}


def test_write_permissions(admin: Admin) -> None:
    admin.create_topic("guarded", 1)
    assert admin.wipe_write_permission("broker-a") == admin.add_write_permission("broker-a") > 0


def test_the_next_name_server_is_asked_when_one_is_away(cluster: LocalCluster) -> None:
    with Admin(f"127.0.0.1:1;{cluster.namesrv}") as admin:
        assert admin.topics()
        with pytest.raises(PartlyDone) as caught:
            admin.put_kv("n", "k", "v")
        assert caught.value.done == (cluster.namesrv,)
        assert [(address, type(error)) for address, error in caught.value.failed.items()] == [
            ("127.0.0.1:1", ConnectError)
        ]
        assert admin.get_kv("n", "k") == "v"


def test_asyncio_has_the_same(cluster: LocalCluster) -> None:
    async def main() -> None:
        async with AsyncAdmin(cluster.namesrv) as admin:
            await admin.create_topic("async-made", 2)
            assert len(await admin.queues("async-made")) == 4
            assert await admin.delete_topic("async-made")
        await admin.close()

    asyncio.run(main())


def test_both_clients_have_the_same_methods() -> None:
    def methods(cls: type) -> dict[str, str]:
        return {
            name: str(inspect.signature(function))
            for name, function in inspect.getmembers(cls, inspect.isfunction)
            if not name.startswith("_")
        }

    assert methods(Admin) == methods(AsyncAdmin)


# The plugin


def test_the_pytest_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        textwrap.dedent(
            """
            import pytest

            def test_order_is_published(rocketmq):
                topic = rocketmq.topic(queues=2)
                with rocketmq.producer() as producer:
                    producer.send(topic, b"hello", tag="created")
                [message] = rocketmq.drain(topic, expect=1, timeout=2)
                assert (message.tag, message.body) == ("created", b"hello")

            def test_topics_are_not_shared(rocketmq):
                assert rocketmq.topic() != rocketmq.topic()
                assert rocketmq.drain(rocketmq.topic()) == []
                with pytest.raises(AssertionError, match="0 messages after 0.2 s, 1 were expected"):
                    rocketmq.drain(rocketmq.topic(), expect=1, timeout=0.2)

            def test_consumers(rocketmq):
                topic = rocketmq.topic()
                rocketmq.producer().send(topic, b"1")
                [message] = rocketmq.pull_consumer(topic).poll(10)
                assert message.body == b"1"
                for message in rocketmq.consumer(topic):
                    message.ack()
                    break
                assert topic in rocketmq.admin().topics()
            """
        )
    )
    arguments = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
