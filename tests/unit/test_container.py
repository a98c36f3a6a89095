"""Dockerfile and compose.yaml: what they start are verbs with options that there are, and ports agree."""

from __future__ import annotations

import json
import re
from importlib import import_module

import click
import pytest

from rocketcore.broker.config import BrokerConfig
from rocketcore.cli.main import COMMANDS, Entry, LazyGroup
from rocketcore.config_file import environment_properties
from tests.unit.test_package import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "compose.yaml").read_text()
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


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
    assert len(composed) == 2
    return [json.loads(text) for text in (default, *composed)]


@pytest.mark.parametrize("arguments", commands(), ids=lambda arguments: " ".join(arguments[:2]))
def test_what_is_started_can_be(arguments: list[str]) -> None:
    check(arguments)
    with pytest.raises(click.UsageError):
        check([*arguments, "--no-such-option"])


def test_each_line_of_the_dockerfile_is_an_instruction() -> None:
    lines = [line for line in DOCKERFILE.splitlines() if line.strip() and not line.startswith("#")]
    assert {line.split()[0] for line in lines} == INSTRUCTIONS
    assert lines[0].startswith("FROM ")
    assert [line for line in lines if line.startswith("USER")] == ["USER rocketmq"], "nothing runs as root"
    extras = set(re.findall(r"\[([a-z0-9,]+)\]", DOCKERFILE))
    assert extras == {"lz4,zstd,tls"}


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


def test_ports_and_settings_agree() -> None:
    [healthcheck] = re.findall(r"test: (\[.*\])", COMPOSE)
    words = json.loads(healthcheck)
    assert words[:2] == ["CMD", "rocket"]
    check(words[2:])
    assert {"9876", "10911"} <= set(re.findall(r"127\.0\.0\.1:(\d+):\1", COMPOSE))
    variables = dict(re.findall(r"^      (ROCKETCORE_\w+): \"(.*)\"$", COMPOSE, re.MULTILINE))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        assert environment_properties([BrokerConfig])["brokerIP1"] == "127.0.0.1"
