"""A running cluster, the commands against it, and a topic of each test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketcore.admin.client import Admin
from rocketcore.client.sync import Producer
from rocketcore.local import LocalCluster
from rocketcore.message import Message, MessageQueue
from tests.fixtures.commands import Rocket, rocket_command


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def rocket(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rocket:
    return rocket_command(cluster.namesrv, monkeypatch, capsys)


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A topic of two queues: the first holds hello 0 to 4, with tags and keys."""
    name = request.node.name.replace("[", "-").replace("]", "")
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(name, 2)
    with Producer(cluster.namesrv, group="p") as producer:
        for i in range(5):
            message = Message(name, f"hello {i}", tag="even" if i % 2 == 0 else "odd", keys=f"k{i}")
            producer.send(message, queue=MessageQueue(name, "broker-a", 0))
    return name
