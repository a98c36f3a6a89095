"""docs/operations.md and docs/servers.md: metrics, bounds, settings, units and probes are those of the source."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from rocketcore.broker import metrics
from rocketcore.config_file import property_name
from rocketcore.nameserver import metrics as nameserver_metrics
from rocketcore.transport import http_port
from rocketcore.transport.server.admission import ConnectionSettings
from tests.fixtures.pages import PAGES
from tests.unit.test_container import check

PAGE = (PAGES / "operations.md").read_text("utf-8")
SERVERS = (PAGES / "servers.md").read_text("utf-8")


@pytest.mark.parametrize(("heading", "module"), [("Broker", metrics), ("Name server", nameserver_metrics)])
def test_its_metrics_are_those_of_the_servers(heading: str, module: object) -> None:
    section = PAGE.split(f"### {heading}\n")[1].split("\n#")[0]
    told = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)
    source = Path(str(module.__file__)).read_text("utf-8")  # type: ignore[attr-defined]
    assert sorted(name for name, _ in told) == sorted({*re.findall(r'"(rocket(?:mq|core)_\w+)"', source)})
    assert all((kind == "counter") == name.endswith("_total") for name, kind in told)


def test_its_bounds_are_those_of_the_source() -> None:
    assert (http_port.MOST_CONNECTIONS, http_port.MOST_REQUEST_BYTES) == (32, 8 << 10)
    assert (http_port.REQUEST_SECONDS, http_port.ANSWER_SECONDS) == (5, 30)
    assert (metrics.MOST_SAMPLES, metrics.READ_SECONDS, nameserver_metrics.MOST_BROKERS) == (50_000, 5, 10_000)
    for text in ("32 connections", "8 KiB and takes 5 s", "takes 30 s", "50,000 samples", "5 s at most", "10,000"):
        assert text in PAGE


def test_its_settings_exist() -> None:
    names = {property_name(declared) for declared in fields(ConnectionSettings)}
    assert {"metricsPort", "metricsAddress"} <= names & set(re.findall(r"`(\w+)[`=]", PAGE))
    assert ConnectionSettings().metrics_port == -1


UNITS = dict(
    re.findall(r"`/etc/systemd/system/(rocketmq-\w+)\.service`(?:(?!```).)*```ini\n(.*?)```", SERVERS, re.DOTALL)
)


def test_there_is_a_unit_for_each_server() -> None:
    assert list(UNITS) == ["rocketmq-namesrv", "rocketmq-broker", "rocketmq-console"]


@pytest.mark.parametrize("name", UNITS)
def test_what_a_unit_starts_is_a_command(name: str) -> None:
    [line] = re.findall(r"^ExecStart=(.*)$", UNITS[name], re.MULTILINE)
    program, *arguments = line.split()
    assert Path(program).name == "rocket"
    check(arguments)


def test_a_container_starts_a_command_and_is_asked_at_its_port() -> None:
    [text] = re.findall(r"^ +args: \[(.*?)\]$", SERVERS, re.MULTILINE | re.DOTALL)
    arguments = [each.strip().strip('"') for each in text.split(",")]
    check(arguments)
    port = arguments[arguments.index("--metrics-port") + 1]
    assert re.findall(r"path: (\S+), port: (\d+)", SERVERS) == [("/livez", port), ("/readyz", port)]


@pytest.mark.parametrize("page", ["operations", "servers", "maintenance", "console"])
def test_what_a_page_has_for_a_shell_are_commands(page: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (PAGES / f"{page}.md").read_text("utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("rocket ")]
    assert lines
    for line in lines:
        check(shlex.split(line.partition(" >")[0], comments=True)[1:])


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_units(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    for other, text in UNITS.items():
        (tmp_path / f"{other}.service").write_text(text.replace("/opt/rocketcore/bin/rocket", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / f"{name}.service"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert not [line for line in done.stderr.splitlines() if "rocketmq" in line], done.stderr
    assert done.returncode == 0, done.stderr
