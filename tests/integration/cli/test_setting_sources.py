"""Where servers have their settings from: a file, a variable or an option, for each of the commands that start one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from rocketcore.admin.client import Admin
from rocketcore.cli.main import run
from tests.fixtures.processes import SMALL_FILES, START_SECONDS, Processes, first_line

UP = ("up", "--port", "0", "--no-console", "-o", "json")
COMMANDS = {
    "up": UP,
    "up --brokers": (*UP, "--brokers", "2"),
    "broker start": ("broker", "start", "--listen", "127.0.0.1:0", "--namesrv", "127.0.0.1:1"),
    "namesrv start": ("namesrv", "start", "--listen", "127.0.0.1:0"),
}
FOLDER = {"up": "--store", "up --brokers": "--store", "broker start": "--store", "namesrv start": "--home"}
OF_BROKERS = {
    "fileReservedTime": "ROCKETCORE_FILE_RESERVED_TIME",
    "transactionCheckMax": "ROCKETCORE_TRANSACTION_CHECK_MAX",
}
OF_NAMESRV = {
    "orderMessageEnable": "ROCKETCORE_ORDER_MESSAGE_ENABLE",
    "waitSecondsForService": "ROCKETCORE_WAIT_SECONDS_FOR_SERVICE",
}
OF_BOTH = {"slowRequestMillis": "ROCKETCORE_SLOW_REQUEST_MILLIS"}
VALUES = {
    "fileReservedTime": "7",
    "transactionCheckMax": "9",
    "orderMessageEnable": "true",
    "waitSecondsForService": "11",
    "slowRequestMillis": "77",
}


@pytest.mark.parametrize("source", ["file", "variable"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_setting_counts_wherever_it_is_set(command: str, source: str, processes: Processes, tmp_path: Path) -> None:
    taken = {**OF_BOTH, **(OF_BROKERS if command != "namesrv start" else {})}
    if command != "broker start":
        taken |= OF_NAMESRV
    arguments = [*COMMANDS[command], FOLDER[command], str(tmp_path / "folder")]
    variables = {}
    if source == "file":
        file = tmp_path / "settings.conf"
        file.write_text("".join(f"{name}={VALUES[name]}\n" for name in taken))
        arguments += ["-c", str(file)]
    else:
        variables = {variable: VALUES[name] for name, variable in taken.items()}
    server = processes.start(*arguments, env=variables)
    found: dict[str, str] = {}
    with Admin(server.address if command != "broker start" else "127.0.0.1:1") as admin:
        if command != "namesrv start":
            for address in server.ready.get("brokers", [server.address]):
                found |= {name: admin.broker_config(address)[name] for name in taken if name not in OF_NAMESRV}
        if command != "broker start":
            config = admin.namesrv_config()
            assert config["slowRequestMillis"] == "77"
            found |= {name: config[name] for name in taken if name in OF_NAMESRV or command == "namesrv start"}
    assert found == {name: VALUES[name] for name in taken}
    assert "no broker has such a setting" not in server.log.read_text()


@pytest.mark.parametrize("source", ["file", "variable"])
@pytest.mark.parametrize("setting", ["cannot be read", "out of range"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_setting_that_cannot_be_ends_the_start_also_where_an_option_wins(
    command: str, setting: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    value = "soon" if setting == "cannot be read" else "70000"
    arguments = [*COMMANDS[command], FOLDER[command], str(tmp_path / "folder"), "--metrics-port", "0"]
    where = "ROCKETCORE_METRICS_PORT"
    if source == "file":
        file = tmp_path / "settings.conf"
        file.write_text(f"# one\nmetricsPort={value}\n")
        arguments += ["-c", str(file)]
        where = f"{file}, line 2"
    else:
        monkeypatch.setenv("ROCKETCORE_METRICS_PORT", value)
    assert run(arguments) == 2
    said = json.loads(capsys.readouterr().err)["error"]["message"] if "json" in arguments else capsys.readouterr().err
    assert f"{where}: metricsPort=" in said
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "ROCKETCORE_LISTEN_PORT",
            "1",
            "ROCKETCORE_LISTEN_PORT: listenPort is not for rocket up: --broker-port sets it",
        ),
        ("ROCKETCORE_STORE_PATH_ROOT_DIR", "/x", "storePathRootDir is not for rocket up: --store sets it"),
        ("ROCKETCORE_ROCKETMQ_HOME", "/x", "rocketmqHome is not for rocket up: --store sets it"),
        ("ROCKETCORE_TLS_SERVER_MODE", "enforcing", "tls.server.mode is not for rocket up"),
        ("ROCKETCORE_ACL_ENABLE", "true", "ROCKETCORE_ACL_ENABLE: aclEnable=true: asks for access control"),
        ("ROCKETCORE_BROKER_PERMISSION", "9", "ROCKETCORE_BROKER_PERMISSION: brokerPermission=9: must be 0 to 7"),
        (
            "ROCKETCORE_DEFAULT_TOPIC_QUEUE_NUMS",
            "",
            "ROCKETCORE_DEFAULT_TOPIC_QUEUE_NUMS: defaultTopicQueueNums='': not an integer",
        ),
    ],
)
def test_variables_that_up_does_not_take(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    assert run(["up", "--port", "0", "--no-console"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["namesrv start", "broker start"])
def test_variables_that_no_setting_has(command: str, tmp_path: Path) -> None:
    variables = {
        "ROCKETCORE_LISTNE_PORT": "1", "rocketcore_slow_request_millis": "7", "ROCKETCORE_ZEBRA": "1",
        # of the other server, of clients, of Kubernetes
        "ROCKETCORE_FLUSH_DISK_TYPE": "ASYNC_FLUSH", "ROCKETCORE_SUPPORT_ACTING_MASTER": "true",
        "ROCKETCORE_DEBUG": "1", "ROCKETCORE_X_SERVICE_PORT_HTTP": "80", "ROCKETCORE_X_PORT_80_TCP_ADDR": "10.0.0.1",
        "ROCKETCORE_X_PORT": "tcp://10.0.0.1:80",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "rocketcore.cli.main", *command.split(), "-p"],
        env={**os.environ, "HOME": str(tmp_path), **variables}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    told = [line.partition("ignored ")[2] for line in done.stderr.splitlines() if "no setting has such" in line]
    assert told == [
        "name=ROCKETCORE_LISTNE_PORT nearest=ROCKETCORE_LISTEN_PORT", "name=ROCKETCORE_ZEBRA",
        "name=rocketcore_slow_request_millis nearest=ROCKETCORE_SLOW_REQUEST_MILLIS",
    ]  # fmt: skip


def test_variables_win_over_the_file_and_options_over_both(processes: Processes, tmp_path: Path) -> None:
    file = tmp_path / "settings.conf"
    file.write_text("fileReservedTime=1\nbrokerClusterName=of-file\nmaxMessageSize=1000\n")
    variables = {"ROCKETCORE_FILE_RESERVED_TIME": "2", "ROCKETCORE_BROKER_CLUSTER_NAME": "of-variable"}
    server = processes.start(*UP, "-c", str(file), "--cluster", "of-option", env=variables)
    with Admin(server.address) as admin:
        config = admin.broker_config(server.ready["brokers"][0])
    assert [config[name] for name in ("fileReservedTime", "brokerClusterName", "maxMessageSize")] == [
        "2",
        "of-option",
        "1000",
    ]


def test_clients_are_told_the_address_that_a_variable_says(processes: Processes) -> None:
    variables = {"ROCKETCORE_BROKER_IP1": "127.0.0.1"}
    server = processes.start(*UP, "--listen", "0.0.0.0", "--insecure", env=variables)
    with Admin(server.address) as admin:
        (data,) = admin.cluster_info().broker_addr_table.values()
    assert data.broker_addrs[0].startswith("127.0.0.1:")


def free_ports() -> int:
    """Return a port with free ones where ``up`` takes them: one and ten behind it."""
    while True:
        with socket.socket() as first, socket.socket() as second, socket.socket() as third:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                third.bind(("127.0.0.1", port + 10))
            except (OSError, OverflowError):
                continue
            return port


@pytest.mark.parametrize("brokers", ["1", "2"])
def test_up_has_the_ports_of_monitoring(brokers: str, processes: Processes) -> None:
    port = free_ports()
    processes.start(*UP, "--brokers", brokers, "--metrics-port", str(port))
    for number in [port, port + 1, *([port + 10] if brokers == "2" else [])]:
        with urllib.request.urlopen(f"http://127.0.0.1:{number}/readyz", timeout=10) as answer:
            assert answer.status == 200


NOWHERE = "host.invalid"


def failed_start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "rocketcore.cli.main", *arguments]
    environment = {**os.environ, **SMALL_FILES, **variables}
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("command", "where", "setting"),
    [
        ("broker start --listen host.invalid:0", "the command line", "bindAddress"),
        ("broker start --listen 127.0.0.1:0", "ROCKETCORE_BROKER_IP1", "brokerIP1"),
        ("broker start --listen 127.0.0.1:0", "ROCKETCORE_METRICS_ADDRESS", "metricsAddress"),
        ("namesrv start --listen host.invalid:0", "the command line", "bindAddress"),
        ("namesrv start --listen 127.0.0.1:0", "ROCKETCORE_METRICS_ADDRESS", "metricsAddress"),
        ("up --port 0 --no-console --listen host.invalid", "the command line", "bindAddress"),
        ("up --port 0 --no-console", "ROCKETCORE_BROKER_IP1", "brokerIP1"),
        ("up --port 0 --no-console", "ROCKETCORE_METRICS_ADDRESS", "metricsAddress"),
    ],
)
def test_a_host_without_an_address_is_told_with_its_setting(command: str, where: str, setting: str) -> None:
    variables = {} if where == "the command line" else {where: NOWHERE}
    done = failed_start(*command.split(), "--metrics-port", "0", "--insecure", **variables)
    assert done.returncode == 2
    assert f"error: {where}: {setting}={NOWHERE}: this machine finds no address of that host" in done.stderr
    assert "hint: correct it or remove it" in done.stderr


def test_the_listen_of_a_console_that_has_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["console", "--readonly", "--listen", f"{NOWHERE}:0"]) == 2
    assert f"listen={NOWHERE}: this machine finds no address of that host" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "which", "said"),
    [
        ("up --port 0 --no-console", 0, "metricsPort={port}: "),
        ("up --port 0 --no-console", 1, "metricsPort={port}: the name server has the port behind it, {taken}: "),
        ("broker start --listen 127.0.0.1:0", 0, "metricsPort={port}: "),
        ("namesrv start --listen 127.0.0.1:0", 0, "metricsPort={port}: "),
    ],
)
def test_a_port_of_monitoring_that_is_taken(command: str, which: int, said: str, tmp_path: Path) -> None:
    port = free_ports()
    with socket.create_server(("127.0.0.1", port + which)):
        done = failed_start(*command.split(), FOLDER[command.partition(" --")[0]], str(tmp_path / "folder"),
                            "--metrics-port", str(port))  # fmt: skip
    assert done.returncode == 1
    assert f"error: the command line: {said.format(port=port, taken=port + which)}" in done.stderr
    assert "hint: another process listens there" in done.stderr


def test_what_is_odd_in_the_settings_of_shards_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("listnePort=1\n")
    variables = {**os.environ, **SMALL_FILES, "ROCKETCORE_ZEBRA": "1"}
    line = [sys.executable, "-m", "rocketcore.child", "rocketcore.cli.main", "broker", "start", "--shards", "2",
            "-c", str(file), "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0"]  # fmt: skip
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr,
        subprocess.Popen(line, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as shards,
    ):
        first_line(shards, log, START_SECONDS)
        shards.terminate()
        assert shards.wait(30) == 0
    told = log.read_text()
    assert told.count("name=ROCKETCORE_ZEBRA") == 1
    assert told.count("name=listnePort") == 1


def test_ports_of_monitoring_that_other_machines_reach_have_to_be_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCKETCORE_METRICS_ADDRESS", "0.0.0.0")
    assert run(["up", "--port", "0", "--no-console", "--metrics-port", "1"]) == 2
    assert "0.0.0.0 can be reached from other machines" in capsys.readouterr().err


def test_a_setting_that_counts_later_is_not_shown_as_one_in_effect(
    processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    server = processes.start(*UP)
    at = ["--namesrv", server.address, "-o", "json", "broker", "config"]
    broker = server.ready["broker_names"][0] if "broker_names" in server.ready else "broker-a"

    def get(name: str) -> dict[str, str]:
        assert run([*at, "get", broker, name]) == 0
        [row] = json.loads(capsys.readouterr().out)
        return row

    for name, value, before, remark in (
        ("fileReservedTime", "48", "72", "from the next start on: fileReservedTime"),
        ("traceOn", "false", "true", None),
    ):
        assert run([*at, "set", broker, name, value]) == 0
        said = capsys.readouterr()
        asked = {"broker": broker, "name": name, "before": before, "value": value}
        assert json.loads(said.out) == asked | ({"remark": remark} if remark else {})
        assert (f"note: {remark}" in said.err) is (remark is not None)
    assert get("fileReservedTime") == {"name": "fileReservedTime", "value": "72", "next_start": "48"}
    assert get("traceOn") == {"name": "traceOn", "value": "false"}
