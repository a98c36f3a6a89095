"""The servers under the kill test: ours or Apache's, one name server and some brokers, each back at its old address."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

from tests.fixtures.processes import SMALL_FILES, START_SECONDS, RocketProcess
from tests.peers.apache import ApacheCluster, free_port, registered_brokers

APACHE_SETTINGS: Final = {"registerNameServerPeriod": 10_000, "autoCreateTopicEnable": "false"}
"""Apache's brokers do not notice that a name server is new: they register by the clock, every 10 s at most often."""


class Servers(ABC):
    """Servers that end by SIGKILL and start again on what they left; brokers are counted from 0."""

    namesrv: str
    brokers: int

    @abstractmethod
    def kill_broker(self, index: int) -> None: ...

    @abstractmethod
    def start_broker(self, index: int) -> None:
        """Start a broker; returns when it answers."""

    @abstractmethod
    def kill_namesrv(self) -> None: ...

    @abstractmethod
    def start_namesrv(self) -> None:
        """Start the name server, which knows nobody yet; returns when it answers."""

    @abstractmethod
    def stop(self) -> None: ...


class OurServers(Servers):
    """Servers of the ``rocket`` command; ``processes`` by name, None while one is dead."""

    def __init__(self, folder: Path, brokers: int = 2) -> None:
        self._folder = folder
        taken: set[int] = set()
        self._addresses = {name: f"127.0.0.1:{free_port(taken)}" for name in ("namesrv", *map(_name, range(brokers)))}
        self._running: dict[str, RocketProcess] = {}
        self.brokers = brokers
        self.namesrv = self._addresses["namesrv"]
        config = folder / "broker.conf"
        config.write_text("autoCreateTopicEnable=false\n")
        try:
            self.start_namesrv()
            for index in range(brokers):
                self.start_broker(index)
        except BaseException:
            self.stop()
            raise

    def kill_broker(self, index: int) -> None:
        self._running.pop(_name(index)).kill()

    def start_broker(self, index: int) -> None:
        name = _name(index)
        options = ["--namesrv", self.namesrv, "--name", name, "--store", str(self._folder / name), "--flush", "async"]
        self._start(name, "broker", *options, "-c", str(self._folder / "broker.conf"))

    def kill_namesrv(self) -> None:
        self._running.pop("namesrv").kill()

    def start_namesrv(self) -> None:
        self._start("namesrv", "namesrv", "--home", str(self._folder / "namesrv"))

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()

    def _start(self, name: str, kind: str, *options: str) -> None:
        log = self._folder / f"{name}.log"
        arguments = (kind, "start", "--listen", self._addresses[name], *options)
        self._running[name] = RocketProcess(*arguments, log=log, env=SMALL_FILES)


class ApacheServers(Servers):
    """A release of Apache RocketMQ."""

    def __init__(self, folder: Path, version: str, brokers: int = 1) -> None:
        self._cluster = ApacheCluster(version, folder, brokers=brokers, extra_broker_conf=APACHE_SETTINGS)
        self._cluster.__enter__()
        self.brokers = brokers
        self.namesrv = self._cluster.namesrv

    def kill_broker(self, index: int) -> None:
        self._cluster.kill_broker(index)

    def start_broker(self, index: int) -> None:
        self._cluster.restart_broker(index)

    def kill_namesrv(self) -> None:
        self._cluster.servers["namesrv"].stop(graceful=False)

    def start_namesrv(self) -> None:
        server = self._cluster.servers["namesrv"]
        server.start()
        server.wait(START_SECONDS, self._answers)

    def stop(self) -> None:
        self._cluster.stop(graceful=False)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            registered_brokers(self.namesrv)
            return True
        return False


def _name(index: int) -> str:
    return f"broker-{chr(ord('a') + index)}"
