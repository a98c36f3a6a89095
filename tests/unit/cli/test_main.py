"""The command's frame: help, errors, exit codes, settings; no server runs here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest

from rocketcore.cli.main import COMMANDS, Entry, LazyGroup, rocket, run
from rocketcore.cli.shell.failures import CommandFailed, failure_of
from rocketcore.cli.shell.options import Settings
from rocketcore.errors import (
    BrokerError,
    ConfigError,
    ConnectError,
    ConnectionLost,
    DecodeError,
    NoPermission,
    PartlyDone,
    QueryNotFound,
    RequestTimeout,
    RouteNotFound,
    ServiceNotAvailable,
    StoreCorrupted,
    TopicNotExist,
)


def entries(group: dict[str, Entry | LazyGroup], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Entry]]:
    found = []
    for name, entry in group.items():
        if isinstance(entry, LazyGroup):
            found += entries(entry.entries, (*path, name))
        else:
            found.append(((*path, name), entry))
    return found


ALL = entries(COMMANDS)


@pytest.mark.parametrize("path", [path for path, _ in ALL], ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: rocket {' '.join(path)}")
    assert "--debug" in text


def test_help_imports_nothing_heavy() -> None:
    heavy = ["asyncio", "uvloop", "numpy", "msgspec", "json", "rocketcore.errors", "pyarrow"]
    program = (
        "import sys; from rocketcore.cli.main import run; run(['--help']); run(['topic', '--help']);"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "Commands:" in done.stdout
    assert done.stderr.strip() == "[]"


def test_a_name_server_starts_without_what_it_may_never_need() -> None:
    unneeded = [
        "msgspec",
        "random",
        "rocketcore.message",
        "rocketcore.nameserver.metrics",
        "rocketcore.protocol.headers.message",
        "rocketcore.transport.client",
        "rocketcore.transport.http_port",
    ]
    program = (
        "import sys, rocketcore.cli.servers.start, rocketcore.nameserver.server;"
        f"print([name for name in {unneeded} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_broker_starts_without_the_port_of_metrics() -> None:
    unneeded = ["http", "rocketcore.broker.metrics", "rocketcore.protocol.exposition", "rocketcore.transport.http_port"]
    program = (
        "import sys, rocketcore.cli.servers.start, rocketcore.broker.broker;"
        f"print([name for name in {unneeded} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"], ["topic", "nothing"], ["topic", "list", "--nothing"], ["topic", "create"],
        ["-o", "xml", "version"],
        *(["topic", "list", "--timeout", seconds] for seconds in ("0", "-1", "nan", "inf", "1e30", "x")),
    ],
)  # fmt: skip
def test_wrong_use_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "nothing", "-o", "json"], ["topic", "list", "--nothing", "-o", "jsonl"], ["-o", "json", "nothing"],
        ["topic", "list", "--timeout", "0", "--output=json"], ["topic", "route", "-ojson"], ["-o", "json"],
    ],
)  # fmt: skip
def test_wrong_use_is_json_where_that_is_asked_for(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["code"], error["hint"]) == ("USAGE", "see --help")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "route", "\udcff"], ["namesrv", "kv", "set", "n", "\udcff", "v"],
        ["topic", "list", "--cluster", "\udcff"], ["topic", "create", "t", "--attribute", "a=\udcff"],
        ["topic", "list", "--namesrv", "\udcff:1"],
    ],
)  # fmt: skip
def test_arguments_that_are_no_text_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """They would arrive at a server as question marks."""
    assert run(arguments) == 2
    assert "\\udcff" in capsys.readouterr().err


def process(
    *arguments: str, stdout: Any = subprocess.PIPE, stderr: Any = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rocketcore.cli.main", *arguments]
    return subprocess.run(
        command, stdout=stdout, stderr=stderr, text=True, timeout=60, env={**os.environ, **environment}, check=False
    )


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """A pipe that nobody reads any more."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.mark.parametrize("arguments", [["--help"], ["topic", "list", "--help"], ["version"]], ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(arguments: list[str], closed_pipe: int) -> None:
    done = process(*arguments, stdout=closed_pipe)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_was_found_is_no_success_because_its_reader_has_gone(tmp_path: Path, closed_pipe: int) -> None:
    """``rocket broker verify … | head -1`` exited with 0, as for a store that is whole."""
    (tmp_path / "checkpoint").write_bytes(b"?")
    for form in ("table", "json", "csv"):
        done = process("broker", "verify", str(tmp_path), "-o", form, stdout=closed_pipe)
        assert (done.returncode, "error" in done.stderr) == (1, False), done.stderr


def without(closed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command for which a shell closes a stream: ``>&-``."""
    line = f'"$0" -m rocketcore.cli.main "$@" {closed}'
    return subprocess.run(
        ["bash", "-c", line, sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


UNREACHABLE = ["topic", "list", "--namesrv", "127.0.0.1:1"]


@pytest.mark.parametrize(("arguments", "code"), [(UNREACHABLE, 5), ([*UNREACHABLE, "-o", "json"], 5), (["nothing"], 2)])
def test_the_exit_code_does_not_depend_on_stderr(arguments: list[str], code: int, closed_pipe: int) -> None:
    assert process(*arguments, stderr=closed_pipe).returncode == code
    with open("/dev/full", "w") as full:
        assert process(*arguments, stderr=full).returncode == code


@pytest.mark.parametrize("arguments", [["version"], ["namesrv", "start", "-p"], ["--help"]], ids=" ".join)
def test_a_full_disk(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = process(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == ["why: writing its output: No space left on device"]


@pytest.mark.parametrize(
    ("arguments", "closed", "code"),
    [
        (UNREACHABLE, "2>&-", 5), (["bench", "codec", "--seconds", "0.001"], "2>&-", 0),
        (["produce", "t", "--namesrv", "127.0.0.1:1"], "<&-", 0),
    ],
)  # fmt: skip
def test_a_process_without_its_streams(arguments: list[str], closed: str, code: int) -> None:
    done = without(closed, *arguments)
    assert done.returncode == code, done.stderr
    assert "error" not in done.stderr
    if closed == "2>&-":
        assert "crc-32 of" not in done.stdout.splitlines()[:1], "progress is no data"
        assert "error" not in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["version"], ["version", "-o", "json"], ["--version"], ["--help"], ["topic", "--help"], ["config", "path"],
        ["config", "show"], ["metrics", "rules"], ["completion", "bash"], ["namesrv", "start", "-p"],
        ["broker", "start", "-p"], ["bench", "codec", "--seconds", "0.001"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_result_that_has_nowhere_to_go(arguments: list[str]) -> None:
    done = without(">&-", *arguments)
    assert done.returncode == 1
    assert "writing its output: stdout is closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_runs_without_a_stdout(tmp_path: Path) -> None:
    line = 'exec "$0" -m rocketcore.cli.main namesrv start --listen 127.0.0.1:0 --home "$1" >&-'
    arguments = ["bash", "-c", line, sys.executable, str(tmp_path)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        assert any("name server started" in told for told in server.stderr)
        server.send_signal(signal.SIGTERM)
        _, told = server.communicate(timeout=30)
    assert server.returncode == 0, told


def test_a_locale_without_our_characters() -> None:
    done = process("bench", "codec", "--seconds", "0.001", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout.isascii()) == (0, True)
    assert "P50 \\xb5s" in done.stdout


def test_a_misspelt_command_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics"]) == 2
    assert "Did you mean topic?" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["protocol"] == "5.3.3"
    assert run(["-o", "jsonl", "version"]) == 0
    assert "python" in json.loads(capsys.readouterr().out)


def test_the_name_alone_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    captured = capsys.readouterr()
    assert "Usage: rocket" in captured.err
    assert "produce" in captured.err
    done = process()
    assert (done.returncode, "Traceback" in done.stderr, "Commands:" in done.stderr) == (2, False, True)


def test_the_version_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    name, version = capsys.readouterr().out.split()
    assert (name, version) == ("rocketcore", metadata.version("rocketcore"))


@pytest.mark.parametrize(
    ("error", "exit_code", "code"),
    [
        (ConfigError("x"), 2, "USAGE"),
        (TopicNotExist(17, "x"), 3, "TOPIC_NOT_EXIST"),
        (RouteNotFound("x"), 3, "TOPIC_NOT_EXIST"),
        (NoPermission(16, "x"), 4, "NO_PERMISSION"),
        (ConnectError("x"), 5, "UNREACHABLE"),
        (ConnectionLost("x"), 5, "CONNECTION_LOST"),
        (RequestTimeout("x"), 124, "TIMEOUT"),
        (BrokerError(1, "x"), 1, "SYSTEM_ERROR"),
        (OSError("x"), 1, "OS_ERROR"),
        (StoreCorrupted("x"), 1, "STORE_CORRUPTED"),
        (DecodeError("x"), 1, "DECODE_ERROR"),
        (ZeroDivisionError("x"), 1, "INTERNAL"),
        (CommandFailed("PARTLY", "x", exit_code=6), 6, "PARTLY"),
        (PartlyDone("x", ["a:1"], {"b:1": ConnectError("y")}), 6, "PARTLY_DONE"),
    ],
)
def test_exit_codes(error: Exception, exit_code: int, code: str) -> None:
    failure = failure_of(error, Settings(command="rocket topic list"))
    assert (failure.exit_code, failure.code) == (exit_code, code)


@pytest.mark.parametrize("address", ["", " "])
def test_no_cluster_is_meant_by_an_empty_address(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "delete", "orders", "--yes", "--namesrv", address]) == 2
    assert "--namesrv is empty" in capsys.readouterr().err
    assert run(["broker", "start", "-p", "--namesrv", ""]) == 0, "a broker may be alone"
    assert "namesrvAddr=\n" in capsys.readouterr().out


def test_errors_are_lines_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "list", "--namesrv", "127.0.0.1:1"]) == 5
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: rocket topic list failed"
    assert lines[1].startswith("why: ")
    assert lines[2].startswith("hint: ")
    assert run(["topic", "list", "--namesrv", "127.0.0.1:1", "-o", "json"]) == 5
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "UNREACHABLE"
    assert error["hint"]


def test_what_was_done_in_part_names_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    error = PartlyDone("setting 'k'", ["a:1"], {"b:1": ConnectError("nobody there")})
    failure_of(error, Settings(command="rocket x", output="json")).show(Settings(output="json"))
    said = json.loads(capsys.readouterr().err)["error"]
    assert (said["done"], said["failed"]) == (["a:1"], {"b:1": "nobody there"})
    assert said["message"] == "rocket x was done in part: setting 'k': done at a:1, not at b:1 (nobody there)"


def test_an_error_of_the_system_is_told_without_its_number() -> None:
    full, missing = OSError(28, "No space left on device"), OSError(2, "No such file or directory", b"/a/b")
    told = [failure_of(error, Settings(command="rocket x")).why for error in (full, missing, OSError("odd"))]
    assert told == ["writing its output: No space left on device", "/a/b: No such file or directory", "odd"]


def test_debug_lets_the_exception_out() -> None:
    with pytest.raises(ConnectError):
        run(["topic", "list", "--namesrv", "127.0.0.1:1", "--debug"])


def test_the_name_server_comes_from_option_environment_context_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click, "get_app_dir", lambda *_, **__: str(tmp_path))
    for variable in ("ROCKET_NAMESRV", "ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR", "ROCKET_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    assert Settings().namesrv == "127.0.0.1:9876"
    config = tmp_path / "config.toml"
    config.write_text('current = "a"\n[contexts.a]\nnamesrv = "a:1"\n[contexts.b]\nnamesrv = "b:1"\n')
    assert Settings().namesrv == "a:1"
    monkeypatch.setenv("ROCKET_CONTEXT", "b")
    assert Settings().namesrv == "b:1"
    monkeypatch.setenv("ROCKET_CONTEXT", "c")
    with pytest.raises(ConfigError, match="no context 'c'"):
        _ = Settings().namesrv
    for key, said in (('nameserver = "a:1"', "has a key 'nameserver'; there are namesrv"),
                      ("namesrv = 5", "must be text"),
                      ('namesrv = ""', "namesrv of context 'c' is empty"),
                      ('tls = "yes"', "must be true or false")):  # fmt: skip
        config.write_text(f"[contexts.c]\n{key}\n")
        with pytest.raises(ConfigError, match=said):
            _ = Settings().namesrv
    for odd in ("contexts = 1", "[[contexts]]", "[contexts]\nc = 1", "current = [1]"):
        config.write_text(odd)
        with pytest.raises(ConfigError, match="no context 'c'"):
            _ = Settings().namesrv
    config.unlink()
    with pytest.raises(
        ConfigError,
        match=r"ROCKET_CONTEXT names a context, but the file .*config\.toml does not "
        r"exist",
    ):
        _ = Settings().namesrv
    monkeypatch.setenv("NAMESRV_ADDR", "n:1")
    assert Settings().namesrv == "n:1"
    monkeypatch.setenv("ROCKET_NAMESRV", "r:1")
    assert Settings().namesrv == "r:1"
    assert Settings(namesrv_option="o:1").namesrv == "o:1"


@pytest.mark.parametrize("verb", [["up", "--store"], ["broker", "start", "--store"], ["namesrv", "start", "--home"]])
def test_a_folder_has_a_name(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """``--store "$STORE"`` without such a variable put a store into the folder that somebody happened to be in."""
    assert run([*verb, "", "--port" if verb[0] == "up" else "--listen", "x"]) == 2
    assert f"Invalid value for '{verb[-1]}': it is empty" in capsys.readouterr().err


def test_commas_between_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(namesrv_option="a:1,b:2").namesrv == "a:1;b:2"
    monkeypatch.setenv("ROCKET_NAMESRV", "a:1,b:2;c:3")
    assert Settings().namesrv == "a:1;b:2;c:3"


def test_the_secret_of_an_account_is_never_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click, "get_app_dir", lambda *_, **__: str(tmp_path))
    for variable in ("ROCKET_ACCESS_KEY", "ROCKET_SECRET_KEY", "ROCKET_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    assert Settings().credentials == {"access_key": "", "secret_key": ""}
    with pytest.raises(ConfigError, match="no secret for access key 'ann'"):
        _ = Settings(access_key="ann").credentials
    (tmp_path / "secret").write_text("s3\n")
    (tmp_path / "config.toml").write_text(
        'current = "a"\n[contexts.a]\naccess_key = "bob"\n'
        f'secret_key_env = "BOBS"\nsecret_key_file = "{tmp_path / "secret"}"\n'
    )
    assert Settings().credentials == {"access_key": "bob", "secret_key": "s3"}
    monkeypatch.setenv("BOBS", "s2")
    assert Settings().credentials["secret_key"] == "s2"
    monkeypatch.setenv("ROCKET_SECRET_KEY", "s1")
    assert Settings(access_key="ann").credentials == {"access_key": "ann", "secret_key": "s1"}
    (tmp_path / "config.toml").write_text('current = "a"\n[contexts.a]\nsecret_key = "s"\n')
    with pytest.raises(ConfigError, match="has a key 'secret_key'"):
        _ = Settings().namesrv


@pytest.mark.parametrize("verb", [["up"], ["broker", "start"], ["namesrv", "start"]], ids=" ".join)
def test_a_server_refuses_the_tls_of_clients(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It used to serve plainly."""
    assert run([*verb, "--tls"]) == 2
    assert "tls.server.certPath" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["yaml", "csv", "name"])
@pytest.mark.parametrize("verb", [["tail", "t"], ["consume", "t", "-g", "g"], ["produce", "t", "x"]], ids=" ".join)
def test_forms_that_a_stream_does_not_have(verb: list[str], form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*verb, "--output", form]) == 2
    assert f"-o {form} needs a list" in capsys.readouterr().err


def test_wrong_use_has_the_form_of_every_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "create", "t", "--queues", "99999"]) == 2
    what, hint = capsys.readouterr().err.splitlines()
    assert what.startswith("error: Invalid value for '--queues': 99999")
    assert hint == "hint: see --help of rocket topic create"


@pytest.mark.parametrize(
    ("error", "command", "hint"),
    [
        (ConnectError("PULL at 10.0.0.9:10911: refused"), "rocket produce", "see the registered brokers"),
        (ConnectError("ROUTE at n:1: refused"), "rocket produce", "start one with: rocket up"),
        (NoPermission(16, "x"), "rocket namesrv config set", "this setting is protected"),
        (NoPermission(16, "x"), "rocket produce", "see the topic's permission with rocket topic route"),
        (NoPermission(16, "subscription group no permission, g"), "rocket consume", "let the group consume again"),
        (TopicNotExist(17, "x"), "rocket dlq show", "see the groups with dead letters"),
        (QueryNotFound(22, "'7F' names no registered broker"), "rocket message status", "give its topic with --topic"),
        (ConfigError("x"), "rocket topic create", "see --help of rocket topic create"),
        (ServiceNotAvailable(14, "disk full"), "rocket produce", "rocket doctor"),
        (
            BrokerError(1, "The broker does not support consumer to filter message by SQL92"),
            "rocket tail",
            "enable it with rocket broker config set BROKER",
        ),
        (BrokerError(13, "timer message illegal, the delay …"), "rocket produce", "a message cannot wait longer than"),
        (
            ConfigError("it needs jinja2: pip install 'rocketcore[console]'"),
            "rocket up",
            "pip install 'rocketcore[console]'",
        ),
    ],
)
def test_hints_name_what_failed(error: Exception, command: str, hint: str) -> None:
    assert failure_of(error, Settings(command=command, namesrv_option="n:1;m:1")).hint.startswith(hint)
    odd = ConnectError("ROUTE at 0.0.0.0:1: refused")
    assert "127.0.0.1:9876" in failure_of(odd, Settings(namesrv_option="0.0.0.0:1")).hint


def test_printed_settings_show_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=1111\norderMessageEnable=true\n")
    monkeypatch.setenv("ROCKETCORE_LISTEN_PORT", "2222")
    assert run(["namesrv", "start", "-c", str(file), "-p", "--home", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"listenPort=2222", "orderMessageEnable=true", "scanNotActiveBrokerInterval=5000"} <= set(lines)
    assert f"configStorePath={file}" in lines
    assert run(["namesrv", "start", "-c", str(file), "-p", "--listen", "127.0.0.1:3333"]) == 0
    assert "listenPort=3333" in capsys.readouterr().out
    arguments = ["broker", "start", "-p", "--name", "b", "--flush", "async", "--store", "/s", "--namesrv", "n:1"]
    assert run([*arguments, "--id", "0", "--cluster", "c", "--listen", "127.0.0.1:0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = {
        "brokerName=b", "flushDiskType=ASYNC_FLUSH", "storePathRootDir=/s", "namesrvAddr=n:1", "brokerClusterName=c",
        "brokerId=0", "listenPort=0",
    }  # fmt: skip
    assert expected <= set(lines)


@pytest.mark.parametrize("server", ["namesrv", "broker"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nlistenPort=abc\n", "broker.conf, line 2: listenPort='abc': not an integer"),
        ("aclEnable = true", "broker.conf, line 1: aclEnable=true: asks for access control"),
        ("proxyProtocolEnable=yes", "neither true nor false"),
        ("a\x00\x01b", "no setting has such a name"),
    ],
)
def test_a_file_that_cannot_be_obeyed_ends_the_start(
    server: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    assert run([server, "start", "-c", str(file)]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("server", "line", "said"),
    [
        ("broker", "brokerPermission=9", "brokerPermission=9: must be 0 to 7"),
        ("broker", "listenPort=65536", "listenPort=65536: must be 0 to 65535"),
        ("broker", "flushConsumerOffsetInterval=-1", "flushConsumerOffsetInterval=-1: must be 1 to 31622400000"),
        ("broker", "shortPollingTimeMills=60001", "shortPollingTimeMills=60001: must be 1 to 60000"),
        ("broker", "flushIntervalCommitLog=0", "flushIntervalCommitLog=0: must be 1 to 31622400000"),
        ("broker", "maxMessageSize=0", "maxMessageSize=0: must be at least 1"),
        ("broker", "mappedFileSizeCommitLog=1000", "mappedFileSizeCommitLog=1000: too small"),
        ("broker", "mappedFileSizeCommitLog=3000000000", "mappedFileSizeCommitLog=3000000000: too large"),
        ("broker", "messageDelayLevel=1s 2x", "messageDelayLevel=1s 2x: '2x' is not a number"),
        ("broker", "brokerName=", "brokerName=: it must not be empty"),
        ("broker", "storePathRootDir=", "storePathRootDir='': empty, where a path has to be"),
        ("broker", "storePathCommitLog=~nobody-x/log", "storePathCommitLog='~nobody-x/log': no such user"),
        ("broker", "accessMessageInMemoryMaxRatio=101", "accessMessageInMemoryMaxRatio=101: must be 0 to 100"),
        ("namesrv", "scanNotActiveBrokerInterval=0", "scanNotActiveBrokerInterval=0: must be 1 to 31622400000"),
        ("namesrv", "waitSecondsForService=-1", "waitSecondsForService=-1: must be 0 to 3600"),
        ("namesrv", "rocketmqHome=", "rocketmqHome='': empty"),
        ("namesrv", "serverMaxConnections=0", "serverMaxConnections=0: must be at least 1"),
        ("namesrv", "proxyProtocolTrusted=here", "proxyProtocolTrusted=here: addresses and networks"),
        ("namesrv", "tls.server.mode=on", "tls.server.mode='on': must be disabled, permissive or enforcing"),
    ],
    ids=lambda text: text.partition("=")[0],
)
def test_what_a_setting_cannot_be(
    server: str, line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number out of its range was obeyed, or ended a later start; other refusals did not say where it stands."""
    file = tmp_path / "server.conf"
    file.write_text(f"# set\n{line}\n")
    assert run([server, "start", "-p", "-c", str(file)]) == 2
    assert f"{file}, line 2: {said}" in capsys.readouterr().err


def test_the_home_folder_in_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "broker.toml"
    file.write_text('# here\nstorePathRootDir = "~/messages"\n[tls.server]\nmode = "on"\n')
    assert run(["broker", "start", "-p", "-c", str(file)]) == 2
    assert f"{file}, line 4: tls.server.mode='on'" in capsys.readouterr().err
    file.write_text('storePathRootDir = "~/messages"\n')
    assert run(["broker", "start", "-p", "-c", str(file)]) == 0
    assert f"storePathRootDir={tmp_path}/messages\n" in capsys.readouterr().out


def test_a_variable_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROCKETCORE_LISTEN_PORT", "x")
    assert run(["broker", "start"]) == 2
    assert "ROCKETCORE_LISTEN_PORT: listenPort='x': not an integer" in capsys.readouterr().err


def test_what_a_file_asks_for_in_vain_is_told_when_settings_are_printed_too(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("destroyMapedFileIntervalForcibly=1\nbrokerNmae=b\n")
    done = process("broker", "start", "-p", "-c", str(file))
    assert done.returncode == 0
    assert "without effect here names=destroyMapedFileIntervalForcibly" in done.stderr
    assert f"name=brokerNmae nearest=brokerName where={file}, line 2" in done.stderr


def test_an_open_address_needs_to_be_allowed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["namesrv", "start", "--listen", "0.0.0.0:0"]) == 2
    assert "--insecure" in capsys.readouterr().err
    assert run(["namesrv", "start", "--listen", "nowhere"]) == 2
    monkeypatch.setenv("ROCKETCORE_METRICS_ADDRESS", "0.0.0.0")
    for server in ("namesrv", "broker"):
        assert run([server, "start", "--listen", "127.0.0.1:0", "--metrics-port", "0"]) == 2
        assert "0.0.0.0 can be reached from other machines" in capsys.readouterr().err
    assert run(["namesrv", "start", "-c", "/no/such/file"]) == 2


def test_completion(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert run(["completion", shell]) == 0
        assert f"_ROCKET_COMPLETE={shell}_complete" in capsys.readouterr().out
    assert run(["completion", "tcsh"]) == 2
    for words, found in (("rocket broker d", ["describe", "drain"]), ("rocket broker drain --y", ["--yes"])):
        done = process(_ROCKET_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
        assert done.stdout.splitlines() == [f"plain,{word}" for word in found]


def test_the_group_is_complete() -> None:
    assert isinstance(rocket, LazyGroup)
    verbs = {" ".join(path) for path, _ in ALL}
    assert {"up", "demo", "produce", "consume", "tail", "topic list", "namesrv kv set", "bench codec"} <= verbs
    assert {"cluster describe", "cluster topology", "broker describe", "broker drain", "broker undrain"} <= verbs
