"""Two name servers and three brokers as processes on fixed ports, and what happens to the name servers."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

from rocketcore.admin.client import Admin
from rocketcore.errors import RocketError
from tests.fixtures.processes import RocketProcess

NAME_SERVERS = 2
BROKERS = 3
COMPLETE_TIMEOUT = 35.0
"""Longer than a broker's heartbeat: then every route is complete, whatever happened."""
POLL_SECONDS = 0.01

BROKER_SETTINGS = {
    "autoCreateTopicEnable": "false",
    "mappedFileSizeCommitLog": 8 << 20,
    "mappedFileSizeConsumeQueue": 20 * 5000,
}
"""Topics are not created by sends: a route that is missing must not be hidden by a topic that appears elsewhere."""


def free_ports(count: int) -> list[int]:
    """Return ports that no one uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class SoakCluster:
    """The servers of a run; each call of a method blocks, so make it from a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(NAME_SERVERS)]
        self.namesrv = ";".join(self.addresses)
        self.topics: set[str] = set()
        self.kills = 0
        self.freezes = 0
        self.completed_in: list[float] = []
        """Seconds from each start of a name server until its routes of all topics named all brokers."""
        self._name_servers: list[RocketProcess | None] = [None] * NAME_SERVERS
        self._brokers: list[RocketProcess] = []

    def start(self) -> None:
        config = self._folder / "broker.conf"
        config.write_text("".join(f"{name}={value}\n" for name, value in BROKER_SETTINGS.items()))
        for index in range(NAME_SERVERS):
            self.restart(index)
        for index in range(BROKERS):
            name = f"broker-{'abc'[index]}"
            options = ["broker", "start", "--namesrv", self.namesrv, "--listen", "127.0.0.1:0", "--name", name]
            options += ["--store", str(self._folder / name), "--flush", "async", "-c", str(config)]
            self._brokers.append(RocketProcess(*options, log=self._folder / f"{name}.log"))

    def stop(self) -> None:
        for process in (*self._brokers, *self._name_servers):
            if process is not None:
                process.kill()

    def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic on every broker."""
        with Admin(self.namesrv) as admin:
            created = admin.create_topic(topic, queues)
        assert len(created.brokers) == BROKERS, created
        self.topics.add(topic)

    def kill(self, index: int) -> None:
        """End a name server at once."""
        process, self._name_servers[index] = self._name_servers[index], None
        assert process is not None
        process.kill()
        self.kills += 1

    def freeze(self, index: int) -> None:
        """Make a name server one that accepts connections and never answers; ``kill`` ends that."""
        process = self._name_servers[index]
        assert process is not None
        process.freeze()
        self.freezes += 1

    def restart(self, index: int) -> None:
        """Start a name server, empty; return when it listens."""
        home = self._folder / f"namesrv-{index}"
        options = ["namesrv", "start", "--listen", self.addresses[index], "--home", str(home)]
        self._name_servers[index] = RocketProcess(*options, log=self._folder / f"namesrv-{index}.log")

    def await_routes(self, index: int) -> None:
        """Wait until a name server that has just begun to listen names all brokers for every topic."""
        started = time.monotonic()
        with Admin(self.addresses[index], timeout=1.0) as admin:
            while not self._complete(admin) and time.monotonic() - started < COMPLETE_TIMEOUT:
                time.sleep(POLL_SECONDS)
        self.completed_in.append(time.monotonic() - started)

    def _complete(self, admin: Admin) -> bool:
        try:
            return all(len(admin.topic_route(topic).queue_datas) == BROKERS for topic in self.topics)
        except RocketError:
            return False
