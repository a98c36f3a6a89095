"""Dockerfile and compose.yaml: what they start are verbs with options that there are, and ports agree."""

from __future__ import annotations

import json
import re
from importlib import import_module

import click
import pytest

from rocketcore.broker.config import BrokerConfig
from rocketcore.cli.main import COMMANDS, Entry, LazyGroup
from rocketcore.config_file import environment_properties, setting_variables
from rocketcore.nameserver.config import NameServerConfig
from tests.unit.test_package import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "compose.yaml").read_text()
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "ENV", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
INSTRUCTIONS |= {"ENTRYPOINT", "CMD"}
SERVICES = ("namesrv", "broker", "console")
PROBE = re.compile(
    r"import urllib.request; urllib.request.build_opener\(urllib.request.ProxyHandler\({}\)\)"
    r".open\('http://127.0.0.1:(\d+)/readyz', timeout=5\)"
)
"""It asks the port itself, whatever ``http_proxy`` says."""


def verb_of(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """Return the verb that arguments begin with, and what follows it."""
    entries, rest = COMMANDS, arguments
    while True:
        entry = entries[rest[0]]
        rest = rest[1:]
        if isinstance(entry, Entry):
            verb = getattr(import_module(f"rocketcore.cli.{entry.module}"), entry.function)
            assert isinstance(verb, click.Command)
            return verb, rest
        assert isinstance(entry, LazyGroup)
        entries = entry.entries


def check(arguments: list[str]) -> None:
    """Have click read a command line as the program would."""
    verb, rest = verb_of(arguments)
    verb.make_context("rocket", list(rest), resilient_parsing=False)


def commands() -> list[list[str]]:
    [default] = [line.removeprefix("CMD ") for line in DOCKERFILE.splitlines() if line.startswith("CMD ")]
    composed = re.findall(r"^    command: (\[.*\])$", COMPOSE, re.MULTILINE)
    assert len(composed) == len(SERVICES)
    return [json.loads(text) for text in (default, *composed)]


@pytest.mark.parametrize("arguments", commands(), ids=lambda arguments: " ".join(arguments[:2]))
def test_what_is_started_can_be(arguments: list[str]) -> None:
    check(arguments)
    with pytest.raises(click.UsageError):
        check([*arguments, "--no-such-option"])


def instructions() -> list[str]:
    """The lines of the Dockerfile, those that go on in one."""
    text = DOCKERFILE.replace("\\\n", "")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_each_line_of_the_dockerfile_is_an_instruction() -> None:
    lines = instructions()
    assert {line.split()[0] for line in lines} == INSTRUCTIONS
    assert lines[0].startswith("FROM ")
    extras = set(re.findall(r"\[([a-z0-9,]+)\]", DOCKERFILE))
    assert extras == {"console,lz4,zstd,tls"}


def test_nothing_runs_as_root_and_the_user_is_a_number() -> None:
    """``runAsNonRoot`` of Kubernetes refuses an image whose user is a name."""
    [user] = [line.split()[1] for line in instructions() if line.startswith("USER")]
    [made] = re.findall(r"useradd .*--uid (\d+)", DOCKERFILE)
    assert user == f"{made}:{made}"
    assert int(made) > 0


def test_compose_has_mappings_two_spaces_deep_each() -> None:
    depths = [0]
    for number, line in enumerate(COMPOSE.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        depth = len(line) - len(line.lstrip())
        assert re.fullmatch(r" *[A-Za-z0-9_]+:( (\[.*\]|\{\}|\"[^\"]*\"|[A-Za-z0-9.:/-]+))?", line), (number, line)
        assert depth in depths or depth == depths[-1] + 2, (number, line)
        depths = [*[each for each in depths if each < depth], depth]
        value = line.split(": ", 1)[1] if ": " in line else ""
        if value.startswith("["):
            assert all(isinstance(each, str) for each in json.loads(value)), (number, line)


def probes() -> dict[str, str]:
    """The ports that are asked whether a service is ready."""
    texts = re.findall(r"^      test: (\[.*\])$", COMPOSE, re.MULTILINE)
    [default] = [line.partition(" CMD ")[2] for line in instructions() if line.startswith("HEALTHCHECK")]
    found = {}
    for name, words in zip(("image", *SERVICES), [json.loads(default), *map(json.loads, texts)], strict=True):
        *command, program = words if name == "image" else words[1:]
        assert command == ["python", "-I", "-c"]
        match = PROBE.fullmatch(program)
        assert match is not None
        found[name] = match[1]
    return found


def test_each_service_is_asked_whether_it_is_ready_where_it_answers() -> None:
    asked = probes()
    for name, command in zip(("image", *SERVICES), commands(), strict=True):
        port = command[command.index("--metrics-port") + 1] if name != "console" else "9880"
        assert asked[name] == port
        assert port in re.findall(r"\d+", *re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE))
        assert name == "image" or f'"127.0.0.1:{port}:{port}"' in COMPOSE


def test_ports_and_settings_agree() -> None:
    assert {"9876", "10911"} <= set(re.findall(r"127\.0\.0\.1:(\d+):\1", COMPOSE))
    variables = dict(re.findall(r"^      (ROCKETCORE_\w+): \"(.*)\"$", COMPOSE, re.MULTILINE))
    variables |= dict(re.findall(r"^ENV (ROCKETCORE_\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        found = environment_properties(setting_variables([BrokerConfig]))
        assert found == {"brokerIP1": "127.0.0.1", "metricsAddress": "0.0.0.0"}
        assert environment_properties(setting_variables([NameServerConfig])) == {"metricsAddress": "0.0.0.0"}
