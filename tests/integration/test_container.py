"""What the image starts and how it is asked for its health, run here as they stand but for folders and ports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from rocketcore.client.sync import Producer
from tests.fixtures.processes import Processes
from tests.integration.cli.test_setting_sources import free_ports
from tests.unit.test_container import DOCKERFILE, instructions


@pytest.fixture
def image(processes: Processes, tmp_path: Path) -> tuple[str, str]:
    """The default command, running: address of the name server, port of its metrics."""
    [line] = [line for line in instructions() if line.startswith("CMD")]
    port = str(free_ports())
    changed = {"/var/lib/rocketmq/store": str(tmp_path / "store"), "9876": "0", "10911": "0", "5557": port}
    command = [changed.get(word, word) for word in json.loads(line.removeprefix("CMD "))]
    variables = dict(re.findall(r"^ENV (\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
    # As Docker starts a user whose number has no name.
    server = processes.start(
        *command, "-o", "json", env={**variables, "HOME": "/", "ROCKETCORE_BROKER_IP1": "127.0.0.1"}
    )
    return server.address, port


def test_the_image_serves_and_says_that_it_is_ready(image: tuple[str, str]) -> None:
    address, port = image
    with Producer(address, group="p") as producer:
        assert producer.send("Orders", "x")
    [line] = [line for line in instructions() if line.startswith("HEALTHCHECK")]
    python, *words = json.loads(line.partition(" CMD ")[2])
    assert python == "python"
    command = [sys.executable, *(word.replace("5557", port) for word in words)]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    missing = [word.replace(port, "1") for word in command]
    assert subprocess.run(missing, check=False, timeout=60, stderr=subprocess.DEVNULL).returncode == 1


def test_metrics_of_the_image_are_scraped_from_outside(image: tuple[str, str]) -> None:
    """The port listens on every address: one that is not 127.0.0.1 stands for that of the container."""
    _, port = image
    for number, metric in ((int(port), "rocketmq_broker_permission"), (int(port) + 1, "rocketcore_connections")):
        with urllib.request.urlopen(f"http://127.0.0.2:{number}/metrics", timeout=30) as answer:
            assert f"\n{metric}{{" in answer.read().decode()
