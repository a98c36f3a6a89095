"""Apache RocketMQ's own integration tests (``org.apache.rocketmq:rocketmq-test``) on servers of ours.

They start brokers in their own JVM; ``tests/peers/suite/`` has the class in the place of the one that does, which takes
three brokers of a cluster that runs. What of a broker's parts the tests look at is asked of it, and a setting that they
change is a request to it (25).
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.fixtures.processes import SMALL_FILES, Processes
from tests.fixtures.waiting import until
from tests.peers.apache import registered_brokers
from tests.peers.jvm import HERE, PeerError, install, require, tail

VERSION = "5.5.0"
SOURCES = HERE / "suite"
SETTINGS = {
    "ROCKETCORE_ENABLE_PROPERTY_FILTER": "true",
    "ROCKETCORE_RECALL_MESSAGE_ENABLE": "true",
    "ROCKETCORE_TRANSACTION_CHECK_INTERVAL": "10000",
    "ROCKETCORE_TRANSACTION_TIME_OUT": "3000",
    "ROCKETCORE_BROKER_CLUSTER_NAME": "DefaultCluster",
}
"""As the class that starts brokers in the JVM sets them."""


class Outcome(NamedTuple):
    """What became of a test: ``passed``, ``failed`` or ``ignored``; seconds; the first line of what failed."""

    test: str
    outcome: str
    seconds: int
    why: str


def installed() -> Path:
    """Fetch the tests with Maven and compile what runs them, unless that is done; returns the folder."""
    folder = install(VERSION).parent / f"suite-{VERSION}"
    sources = sorted(each for each in SOURCES.rglob("*") if each.is_file())
    wanted = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    mark = folder / "installed"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text() != wanted:
            require("javac", "mvn")
            shutil.rmtree(folder / "classes", ignore_errors=True)
            maven = subprocess.run(
                [
                    "mvn", "-B", "-ntp", "-q", "-f", SOURCES / "pom.xml", f"-Dpeers.home={folder}", "compile",
                    "dependency:copy-dependencies",
                ],
                capture_output=True,
                text=True,
            )  # fmt: skip
            if maven.returncode:
                raise PeerError(f"Maven cannot install the tests of RocketMQ {VERSION}:\n{tail(maven.stdout)}")
            mark.write_text(wanted)
    return folder


@contextmanager
def three_brokers(folder: Path) -> Iterator[str]:
    """A name server and three brokers as processes; yields the name server's address."""
    servers = Processes(folder, SMALL_FILES | SETTINGS)
    try:
        namesrv = servers.namesrv().address
        for name in "broker-a", "broker-b", "broker-c":
            servers.start(
                "broker", "start", "--namesrv", namesrv, "--listen", "127.0.0.1:0", "--store", str(folder / name),
                env={"ROCKETCORE_BROKER_NAME": name},
            )  # fmt: skip
        until(lambda: len(registered_brokers(namesrv)) == 3)
        yield namesrv
    finally:
        servers.end()


def run(namesrv: str, folder: Path, classes: Sequence[str], timeout: float) -> list[Outcome]:
    """Run test classes one after the other in one JVM; returns what became of each test.

    classes  names within ``org.apache.rocketmq.test``
    """
    home, log = folder / "home", folder / "suite.log"
    home.mkdir(exist_ok=True)
    tests = installed()
    command = [
        "java", f"@{HERE / 'conf' / 'jvm.options'}", "-Xmx1g", "-Dnet.bytebuddy.experimental=true",
        f"-Dpeers.namesrv={namesrv}", f"-Duser.home={home}", f"-Djava.io.tmpdir={home}", f"-Dpeers.log={log}",
        f"-Drocketmq.home.dir={home}", f"-Dlogback.configurationFile={HERE / 'conf' / 'logback.xml'}",
        f"-Drmq.logback.configurationFile={HERE / 'conf' / 'logback.xml'}",
        "-cp", f"{tests / 'classes'}:{tests / 'lib'}/*", "peers.Suite",
        *(f"org.apache.rocketmq.test.{name}" for name in classes),
    ]  # fmt: skip
    with log.open("ab") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=timeout, cwd=home)
    if done.returncode:
        raise PeerError(f"the JVM of the tests ended with {done.returncode}:\n{tail(log.read_text(errors='replace'))}")
    found = []
    for line in done.stdout.splitlines():
        name, method, outcome, seconds, why = line.split("\t", 4)
        test = f"{name.removeprefix('org.apache.rocketmq.test.')}.{method}".rstrip(".")
        found.append(Outcome(test, outcome, int(seconds), why))
    return found
