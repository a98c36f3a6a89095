"""A cluster with topics to export, and disks that are full."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketcore.admin.client import Admin
from rocketcore.cli.messages.export_files import Growing
from rocketcore.client.sync import Producer
from rocketcore.local import LocalCluster
from rocketcore.message import Message
from tests.fixtures.commands import Rocket, rocket_command
from tests.fixtures.message_files import MESSAGES, Full


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture
def rocket(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Rocket:
    """Commands ``rocket message``, in a folder of the test."""
    monkeypatch.chdir(tmp_path)
    return rocket_command(cluster.namesrv, monkeypatch, capsys, "message")


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A topic of two queues on each broker, whose messages have all that a message can have, or some of it."""
    name = request.node.name.replace("[", "-").replace("]", "")[:100]
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(name, 2)
    with Producer(cluster.namesrv, group="p") as producer:
        for i in range(MESSAGES):
            producer.send(
                Message(
                    name,
                    f"hello {i} ä\n" if i % 3 else bytes([255, 0, i % 256]),
                    tag="even" if i % 2 == 0 else None,
                    keys=[f"k{i}", "x"] if i % 5 else None,
                    properties={"n": str(i), "quote": '"\\'} if i % 7 else None,
                    message_group=f"g{i % 3}" if i % 4 == 1 else None,
                )
            )
    return name


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    """``with full(bytes):`` a disk that has so much room left: a write beyond is done in part and then fails."""
    write = Growing.write

    class Disk:
        def __init__(self, room: int) -> None:
            self.room = room

        def __enter__(self) -> None:
            def limited(file: Growing, data: object) -> int:
                view = memoryview(data).cast("B")  # type: ignore[arg-type]
                if file.position + len(view) > self.room:
                    write(file, view[: max(0, self.room - file.position)])
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return write(file, view)

            monkeypatch.setattr(Growing, "write", limited)

        def __exit__(self, *_: object) -> None:
            monkeypatch.setattr(Growing, "write", write)

    return Disk
