"""What servers that ``rocket`` runs tell monitors: the port of metrics and health."""

from __future__ import annotations

import urllib.request

import pytest

from tests.fixtures.processes import Processes
from tests.reference.exposition import read_exposition


def read(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def test_servers_have_a_port_of_metrics_where_it_is_asked_for(processes: Processes) -> None:
    namesrv = processes.namesrv("--metrics-port", "0")
    broker = processes.broker(namesrv.address, "--metrics-port", "0", "--name", "broker-a")
    for server, name in ((namesrv, "rocketcore_broker_members"), (broker, "rocketmq_broker_permission")):
        address = server.ready["metrics"]
        assert read(address, "/livez") == read(address, "/readyz") == "ok\n"
        kinds, _ = read_exposition(read(address, "/metrics"))
        assert kinds[name] == "gauge"
        assert server.stop() == 0


@pytest.mark.parametrize("server", ["namesrv", "broker"])
def test_there_is_none_otherwise(processes: Processes, server: str) -> None:
    namesrv = processes.namesrv()
    started = namesrv if server == "namesrv" else processes.broker(namesrv.address)
    assert "metrics" not in started.ready
