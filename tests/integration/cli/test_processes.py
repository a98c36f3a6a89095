"""The servers and commands as processes, as a user starts and ends them."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from rocketcore.admin.client import Admin
from rocketcore.cli.main import run
from rocketcore.client.sync import Producer
from rocketcore.errors import BrokerError
from rocketcore.local import LocalCluster
from rocketcore.message import Message, MessageQueue, ReceivedMessage
from tests.fixtures.commands import Rocket
from tests.fixtures.processes import Processes
from tests.fixtures.tls import FOLDER


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command that ends with the tests.

    The pipe that says so is none of ``communicate()``, which would close it at once.
    """
    theirs, ours = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "rocketcore.child", "rocketcore.cli.main", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=theirs, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    weakref.finalize(process, os.close, ours)
    return process


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 30)[0], "no line within 30 s"
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    decoded = json.loads(line)
    assert isinstance(decoded, dict)
    return decoded


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_servers_say_when_they_answer_and_end_by_signal(tmp_path: Path, number: signal.Signals, code: int) -> None:
    namesrv = start("namesrv", "start", "--listen", "127.0.0.1:0", "--home", str(tmp_path))
    address = ready(namesrv)["address"]
    broker = start(
        "broker", "start", "--listen", "127.0.0.1:0", "--namesrv", address, "--store", str(tmp_path / "store"),
        "--name", "solo", "--cluster", "one", "--flush", "async",
    )  # fmt: skip
    said = ready(broker)
    assert said == {
        "event": "ready", "address": said["address"], "broker": "solo", "cluster": "one", "pid": broker.pid,
        "store": str(tmp_path / "store"), "name_servers": {"asked": 1, "registered_at": 1},
    }  # fmt: skip
    with Admin(address) as admin:
        assert admin.cluster_info().cluster_addr_table == {"one": ["solo"]}
        broker.send_signal(number)
        out, _ = broker.communicate(timeout=30)
        assert (broker.returncode, out) == (code, "")
        assert admin.cluster_info().cluster_addr_table == {}
    namesrv.send_signal(number)
    out, err = namesrv.communicate(timeout=30)
    assert (namesrv.returncode, out) == (code, "")
    assert "Traceback" not in err


def test_the_ready_line_of_a_broker_says_what_it_reached(tmp_path: Path, cluster: LocalCluster) -> None:
    namesrv = f"{cluster.namesrv};127.0.0.1:1"
    broker = start(
        "broker", "start", "--name", "b-9", "--store", str(tmp_path), "--namesrv", namesrv, "--listen", "127.0.0.1:0"
    )
    try:
        said = ready(broker)
        assert said["name_servers"] == {"asked": 2, "registered_at": 1}
        assert (said["broker"], said["cluster"], said["store"]) == ("b-9", "DefaultCluster", str(tmp_path))
    finally:
        broker.terminate()
        broker.communicate(timeout=30)


def test_a_hang_up_ends_up_and_leaves_servers_alone(tmp_path: Path) -> None:
    """A closed terminal left the temporary folder behind; who asks a server to read its settings again keeps it."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    up = start("up", "--port", "0", "-o", "json", TMPDIR=str(folder))
    try:
        ready(up)
        assert list(folder.iterdir())
        up.send_signal(signal.SIGHUP)
        _, err = up.communicate(timeout=30)
    finally:
        up.kill()
    assert (up.returncode, list(folder.iterdir())) == (0, []), err
    server = start("namesrv", "start", "--listen", "127.0.0.1:0", "--home", str(tmp_path))
    try:
        address = ready(server)["address"]
        server.send_signal(signal.SIGHUP)
        assert run(["topic", "list", "--namesrv", address]) == 0
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=30)
    finally:
        server.kill()
    assert server.returncode == 0
    assert "SIGHUP ignored" in err


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="a machine without IPv6")
def test_a_broker_at_every_address_is_reached(tmp_path: Path) -> None:
    """``[::]`` was IPv6 only, and what was told to clients was the IPv4 address."""
    servers = []
    try:
        servers.append(start("namesrv", "start", "--listen", "[::]:0", "--home", str(tmp_path / "n"), "--insecure"))
        port = ready(servers[0])["address"].rpartition(":")[2]
        options = ["--store", str(tmp_path / "b"), "--namesrv", f"[::1]:{port}", "--insecure"]
        servers.append(start("broker", "start", "--listen", "[::]:0", *options))
        broker = ready(servers[1])
        assert broker["name_servers"] == {"asked": 1, "registered_at": 1}
        for host in ("127.0.0.1", "[::1]"):
            with Producer(f"{host}:{port}", group="p") as producer:
                assert producer.send("Everywhere", "x")
    finally:
        for server in servers:
            server.terminate()
            server.communicate(timeout=30)


def test_up(tmp_path: Path) -> None:
    process = start("up", "--port", "0", "--brokers", "2", "--store", str(tmp_path), "-o", "json")
    said = ready(process)
    assert said["event"] == "ready"
    with Admin(said["address"]) as admin:
        assert len(admin.cluster_info().broker_addr_table) == len(said["brokers"]) == 2
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    stores = [str(tmp_path / "broker-a"), str(tmp_path / "broker-b")]
    assert said["broker_stores"] == stores
    assert f"messages are in {', '.join(stores)}\n" in err
    for store in stores:
        assert run(["broker", "verify", store]) == 0


def test_several_brokers_of_up_are_a_process_each_and_end_with_one_that_dies(tmp_path: Path) -> None:
    up = start("up", "--port", "0", "--brokers", "2", "-o", "json", TMPDIR=str(tmp_path))
    try:
        ready(up)
        children = Path(f"/proc/{up.pid}/task/{up.pid}/children").read_text().split()
        brokers = [int(pid) for pid in children if b"broker-" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(brokers) == 2
        os.kill(brokers[1], signal.SIGKILL)
        _, err = up.communicate(timeout=30)
    finally:
        up.kill()
    assert (up.returncode, list(tmp_path.iterdir())) == (1, [])
    assert "broker-b was killed by SIGKILL; " in err


def test_up_names_the_file_of_a_wrong_setting_however_many_brokers_there_are(tmp_path: Path) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text("defaultTopicQueueNums=many\n")
    for count in ("1", "2"):
        up = start("up", "--port", "0", "--brokers", count, "-c", str(settings), "-o", "json")
        _, err = up.communicate(timeout=30)
        assert up.returncode == 2
        assert f"{settings}, line 1: defaultTopicQueueNums='many': not an integer" in err


def test_up_with_ports_a_name_and_settings(tmp_path: Path) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text("defaultTopicQueueNums=3\nmaxMessageSize=1000\nbrokerClusterName=other\n")
    with socket.create_server(("0.0.0.0", 0)) as one, socket.create_server(("0.0.0.0", 0)) as other:
        port, first = one.getsockname()[1], other.getsockname()[1]
    options = ["--port", str(port), "--broker-port", str(first), "--brokers", "2", "--cluster", "east"]
    process = start("up", *options, "--listen", "0.0.0.0", "--insecure", "-c", str(settings), "-o", "json")
    said = ready(process)
    try:
        assert said["address"] == f"127.0.0.1:{port}"
        assert [address.rpartition(":")[2] for address in said["brokers"]] == [str(first), str(first + 10)]
        with Admin(said["address"]) as admin:
            assert admin.cluster_info().cluster_addr_table == {"east": ["broker-a", "broker-b"]}
            config = admin.broker_config(said["brokers"][1])
            assert (config["defaultTopicQueueNums"], config["maxMessageSize"]) == ("3", "1000")
            assert config["bindAddress"] == "0.0.0.0"
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("listenPort=1", "line 2: listenPort is not for rocket up: --broker-port sets it"),
        ("storePathRootDir=/x", "line 2: storePathRootDir is not for rocket up: --store sets it"),
        ("tls.server.mode=enforcing", "line 2: tls.server.mode is not for rocket up"),
        ("maxMessageSize=x", "line 2: maxMessageSize='x': not an integer"),
        ("brokerPermission=9", "line 2: brokerPermission=9: must be 0 to 7"),
        ("aclEnable=true", "line 2: aclEnable=true: asks for access control"),
    ],
)
def test_settings_that_up_does_not_take(
    tmp_path: Path, line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text(f"\n{line}\n")
    process = start("up", "--port", "0", "-c", str(settings))
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert f"{settings}, {said}" in err
    assert run(["up", "--port", "0", "--listen", "0.0.0.0"]) == 2
    assert "allow it with --insecure" in capsys.readouterr().err


def test_up_misses_the_console_that_it_is_asked_for_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("rocketcore.local.LocalCluster", lambda *_, **__: pytest.fail("servers were started"))
    assert run(["up", "--console", "--port", "0"]) == 2
    assert "hint: pip install 'rocketcore[console]'" in capsys.readouterr().err


@pytest.mark.parametrize("emptied", [True, False], ids=["empty", "gone"])
def test_a_lost_log_is_named_at_the_start(processes: Processes, tmp_path: Path, emptied: bool) -> None:
    """The folder of the log was on a disk that is not mounted, say. Consumers have passed the offsets up to there."""
    namesrv = processes.namesrv().address
    store = tmp_path / "store"
    broker = processes.broker(namesrv, "--name", "b", store=store)
    queue = MessageQueue("Lost", "b", 0)
    with Admin(namesrv) as admin, Producer(namesrv, group="p") as producer:
        admin.create_topic("Lost", 3)
        producer.send_batch([Message("Lost", f"{i}") for i in range(5)], queue=queue)
        producer.send("Lost", "x", queue=MessageQueue("Lost", "b", 2))
    assert broker.stop() == 0
    shutil.rmtree(store / "commitlog")
    if emptied:
        (store / "commitlog").mkdir()
    again = processes.broker(namesrv, "--name", "b", store=store)
    said = "commit log missing path={} queues=2 messages=6 last_offset=4: the queues go on where they ended"
    assert said.format(store / "commitlog") in again.log.read_text()
    with Producer(namesrv, group="p") as producer:
        assert producer.send("Lost", "y", queue=queue).offset == 5
    assert again.stop() == 0
    third = processes.broker(namesrv, "--name", "b", store=store)
    assert "commit log missing" not in third.log.read_text()


def test_a_taken_port_is_an_error_without_a_traceback(cluster: LocalCluster) -> None:
    process = start("namesrv", "start", "--listen", cluster.namesrv)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert "address already in use" in err.lower()
    assert "hint: another process listens there" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_consume_leaves_and_says_130(cluster: LocalCluster, topic: str, number: signal.Signals) -> None:
    options = ["--from", "first", "--namesrv", cluster.namesrv, "-f", "%s"]
    process = start("consume", topic, "-g", f"{topic}-group", *options)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(5)] == [f"hello {i}\n" for i in range(5)]
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    with Admin(cluster.namesrv) as admin:
        assert admin.consumer_offset(f"{topic}-group", MessageQueue(topic, "broker-a", 0)) == 5


def test_a_message_that_was_shown_is_acknowledged_before_the_consumer_closes(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes while the first message is shown: that one counts, and no other is shown."""
    shown: list[bytes] = []

    def show(message: ReceivedMessage) -> bool:
        shown.append(message.body)
        signal.raise_signal(signal.SIGINT)
        [closing] = [thread for thread in threading.enumerate() if thread.name == "consume-close"]
        closing.join(0.2)
        assert closing.is_alive()
        return True

    monkeypatch.setattr("rocketcore.cli.messages.consume._printer", lambda line_format: show)
    group = f"{topic}-group"
    assert run(["consume", topic, "-g", group, "--from", "first", "--namesrv", cluster.namesrv]) == 130
    assert shown == [b"hello 0"]
    with Admin(cluster.namesrv) as admin:
        assert admin.consumer_offset(group, MessageQueue(topic, "broker-a", 0)) == 1


@pytest.mark.parametrize(
    "verb",
    [["tail", "-f", "%s", "-o", "start"], ["produce", "body", "-n", "1000000", "--rate", "100"]],
    ids=lambda verb: verb[0],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_a_hang_up_end_like_ctrl_c(
    cluster: LocalCluster, topic: str, verb: list[str], number: signal.Signals
) -> None:
    process = start(verb[0], topic, *verb[1:], "--namesrv", cluster.namesrv)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    if verb[0] == "produce":
        assert re.search(rf"^\d+ messages? sent to {topic} before this:$", err, re.MULTILINE)


def test_nohup(cluster: LocalCluster, topic: str) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start("tail", topic, "-o", "start", "--namesrv", cluster.namesrv)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    with Producer(cluster.namesrv, group="p") as producer:
        producer.send(topic, b"after it")
    while "after it" not in (line := process.stdout.readline()):
        assert line, "it has ended"
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 130


def started_reading(cluster: LocalCluster, verb: str, *options: str) -> subprocess.Popen[str]:
    """Start a verb on a topic of one message, and return when it has shown that."""
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("Watched", 1, exist_ok=True)
    with Producer(cluster.namesrv, group="p") as producer:
        producer.send("Watched", "it reads")
    process = start(verb, "Watched", *options, "--namesrv", cluster.namesrv)
    assert process.stdout is not None
    assert process.stdout.readline(), process.communicate()[1]
    return process


@pytest.mark.parametrize(
    "verb", [["consume", "-g", "g", "--from", "first"], ["tail", "-o", "start"]], ids=lambda verb: verb[0]
)
def test_a_cluster_that_goes_away_is_told(verb: list[str]) -> None:
    with LocalCluster() as cluster:
        process = started_reading(cluster, *verb)
        assert process.stderr is not None
        try:
            cluster.stop_broker(0)
            for line in process.stderr:
                if "waiting for the cluster" in line:
                    break
            cluster.start_broker(0)
            for line in process.stderr:
                if "the cluster answers again" in line:
                    break
        finally:
            process.terminate()
            _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err


def test_a_time_that_ends_while_nothing_answers() -> None:
    """Nothing to consume, 0, and nobody there are two things; with and without ``-q`` in one wait."""
    with LocalCluster() as cluster:
        options = ("--from", "first", "--timeout", "10s")
        loud = started_reading(cluster, "consume", "-g", "loud", *options)
        quiet = started_reading(cluster, "consume", "-g", "quiet", *options, "-q")
        cluster.stop_broker(0)
        errors = [process.communicate(timeout=60)[1] for process in (loud, quiet)]
    # The broker has signed off, and its topics with it.
    assert (loud.returncode, quiet.returncode) == (3, 3), errors
    assert ["waiting for the cluster" in err for err in errors] == [True, False]


def test_ctrl_c_does_not_wait_for_servers_that_are_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        both = ";".join(f"127.0.0.1:{silent.getsockname()[1]}" for silent in (one, other))
        process = start("cluster", "topology", "--namesrv", both, "--timeout", "60")
        asked = [silent.accept()[0] for silent in (one, other)]
        for connection in asked:
            assert connection.recv(1), "a request came"
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
            for connection in asked:
                connection.close()
    assert (process.returncode, out, err.strip()) == (130, "", "")


def test_a_closed_pipe_ends_quietly(cluster: LocalCluster, topic: str) -> None:
    process = start("tail", topic, "-o", "start", "-f", "%s", "--namesrv", cluster.namesrv)
    assert process.stdout is not None
    assert process.stdout.readline() == "hello 0\n"
    process.stdout.close()
    with Producer(cluster.namesrv, group="p") as producer:
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            producer.send(topic, b"more")
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(5) == 0, err
    assert "Traceback" not in err


def test_all_is_sent_though_nobody_reads_what_became_of_it(cluster: LocalCluster, topic: str) -> None:
    """``produce | head -1`` dropped the rest of its input."""
    process = start("produce", topic, "-n", "300", "body", "--namesrv", cluster.namesrv)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("SEND_OK")
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 0, err
    assert f"300 messages sent to {topic}" in err


def test_a_broker_that_refuses_midway(rocket: Rocket, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    send, bodies = Producer.send, []

    def refusing(producer: Producer, message: Any, *arguments: Any, **options: Any) -> Any:
        bodies.append(message)
        if len(bodies) == 3:
            raise BrokerError.of(14, "disk full")
        return send(producer, message, *arguments, **options)

    monkeypatch.setattr(Producer, "send", refusing)
    code, out, err = rocket("produce", topic, "a", "b", "c", "d")
    assert (code, len(out.splitlines())) == (1, 2)
    assert f"2 messages sent to {topic} before this:" in err
    assert "disk full" in err


def test_what_to_do_where_one_side_speaks_tls_and_the_other_does_not(
    rocket: Rocket, cluster: LocalCluster, processes: Processes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hint(*arguments: str) -> str:
        code, _, err = rocket("topic", "list", "-o", "json", *arguments)
        assert code == 5
        return str(json.loads(err)["error"]["hint"])

    assert "leave out --tls" in hint("--tls")
    assert hint("--tls", "--namesrv", "127.0.0.1:1").startswith("start one")
    settings = tmp_path / "tls.conf"
    settings.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={FOLDER / 'server.crt'}\n"
        f"tls.server.keyPath={FOLDER / 'server.key'}\n"
    )
    server = processes.namesrv("-c", str(settings))
    monkeypatch.setenv("ROCKET_NAMESRV", server.address)
    assert "give --tls" in hint()
    assert "--tls-ca" in hint("--tls")
    both = f"{server.address};{server.address.replace('127.0.0.1', 'localhost')}"
    assert "--tls-ca" in hint("--tls", "--namesrv", both)
    assert rocket("topic", "list", "--tls-ca", str(FOLDER / "ca.crt"))[0] == 0
