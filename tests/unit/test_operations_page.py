"""docs/operations.md: its metrics, bounds and settings are those of the source."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from rocketcore.broker import metrics
from rocketcore.config_file import property_name
from rocketcore.nameserver import metrics as nameserver_metrics
from rocketcore.transport import http_port
from rocketcore.transport.server.admission import ConnectionSettings
from tests.fixtures.pages import PAGES

PAGE = (PAGES / "operations.md").read_text("utf-8")


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
    for text in ("32 connections", "8 KiB and takes 5 s", "answer 30 s", "50,000 samples", "5 s at most", "10,000"):
        assert text in PAGE


def test_its_settings_exist() -> None:
    names = {property_name(declared) for declared in fields(ConnectionSettings)}
    assert {"metricsPort", "metricsAddress"} <= names & set(re.findall(r"`(\w+)[`=]", PAGE))
    assert ConnectionSettings().metrics_port == -1
