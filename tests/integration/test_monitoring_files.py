"""Alert rules and dashboard name metrics of ours only, and what we export is read by Prometheus' own parser."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import rocketcore as rmq
from rocketcore.cli.main import run
from tests.fixtures.processes import Processes
from tests.fixtures.promtool import PROMTOOL, check_metrics

ROOT = Path(__file__).resolve().parents[2]
METRIC = re.compile(r"\b(?:rocketmq|rocketcore)_[a-z0-9_]+\b")
LABEL = re.compile(r"by \(([a-z_, ]+)\)|([a-z_]+)=~?\"")


@pytest.fixture
def exported(processes: Processes) -> dict[str, set[str]]:
    """The labels of each sample that a broker with some traffic and its name server export."""
    namesrv = processes.namesrv("--metrics-port", "0")
    broker = processes.broker(namesrv.address, "--metrics-port", "0")
    with rmq.Producer(namesrv.address, group="makers") as producer:
        for _ in range(4):
            producer.send("Watched", b"x")
        with rmq.PushConsumer(namesrv.address, group="readers", start_from="first", max_reconsume_times=0) as consumer:
            consumer.subscribe("Watched")
            seen: set[str] = set()
            for message in consumer:
                if seen:
                    message.ack()
                else:
                    message.retry(delay=1)
                seen.add(message.msg_id)
                if len(seen) == 4:
                    break
            found: dict[str, set[str]] = {}
            texts: dict[str, str] = {}
            wanted = {  # what a broker hears of by heartbeats, and a little later
                "rocketmq_send_to_dlq_messages_total",
                "rocketmq_consumer_connections",
                "rocketmq_producer_connections",
            }
            while not wanted <= found.keys():
                for server in (namesrv, broker):
                    with urllib.request.urlopen(f"http://{server.ready['metrics']}/metrics", timeout=10) as answer:
                        text = answer.read().decode()
                    for family in text_string_to_metric_families(text):
                        assert family.documentation
                        assert family.type in ("counter", "gauge", "histogram")
                        for sample in family.samples:
                            found.setdefault(sample.name, set()).update(sample.labels)
                    texts[server.address] = text
        for text in texts.values():
            check_metrics(text)
    return found


def named(text: str) -> set[str]:
    return set(METRIC.findall(text))


def rules() -> str:
    return (ROOT / "rocketcore" / "monitoring" / "alerts.yml").read_text()


def expressions() -> list[str]:
    dashboard = json.loads((ROOT / "rocketcore" / "monitoring" / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_what_is_named_is_exported(exported: dict[str, set[str]]) -> None:
    lines = [line for line in rules().splitlines() if not line.startswith("#")]
    in_rules = named("\n".join(lines))
    in_dashboard = named("\n".join(expressions()))
    assert len(in_rules) > 10
    assert len(in_dashboard) > 15
    assert in_rules | in_dashboard <= exported.keys(), (in_rules | in_dashboard) - exported.keys()
    known = set().union(*exported.values()) | {"job", "instance", "severity"}
    for expression in expressions():
        labels = {each.strip() for one, two in LABEL.findall(expression) for each in (one or two).split(",")}
        assert labels <= known, expression


def test_each_rule_says_what_and_what_to_do() -> None:
    alerts = re.split(r"^      - alert: ", rules(), flags=re.MULTILINE)[1:]
    names = [alert.splitlines()[0] for alert in alerts]
    assert len(set(names)) == len(names) > 10
    for alert in alerts:
        for key in ("expr:", "labels: {severity: ", "summary:", "action:"):
            assert alert.count(f" {key}") == 1, (alert, key)
    verbs = {
        match for alert in alerts for match in re.findall(r"rocket ((?:[a-z]+ )?[a-z]+)", alert.split("action:")[1])
    }
    assert verbs >= {"dlq show", "group describe", "broker undrain"}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not there")
def test_promtool_takes_the_rules() -> None:
    command = [str(PROMTOOL), "check", "rules", str(ROOT / "rocketcore" / "monitoring" / "alerts.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_has_no_panels_over_one_another() -> None:
    dashboard = json.loads((ROOT / "rocketcore" / "monitoring" / "dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_files_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["metrics", "rules"]) == 0
    assert capsys.readouterr().out == rules()
    assert run(["metrics", "dashboards"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "RocketMQ"
