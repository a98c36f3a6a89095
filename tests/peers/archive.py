"""An archive of the classes of Apache's servers and clients, which their JVMs map at the start (class-data sharing).

It is made once for a version and a JVM, beside the jars, by one process that is NameServer, broker and client. With it
a server is up for half of the processor time. Benchmarks run without.
"""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path

from tests.fixtures.waiting import until
from tests.peers.apache import BROKER, NAMESRV, ApacheCluster, registered_brokers
from tests.peers.driver import JavaDriver
from tests.peers.jvm import PeerError, archive_of, install


def make(version: str) -> Path:
    """Make the archive of a version unless it is there; returns its path."""
    folder = install(version)
    archive = archive_of(folder)
    with (folder / "archive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            partial = archive.with_suffix(".partial")
            with tempfile.TemporaryDirectory(prefix="archive-") as home:
                _rehearse(version, Path(home), partial)
            if not partial.exists():
                raise PeerError(f"the JVM left no archive of the classes of {version}")
            partial.rename(archive)
    return archive


def _rehearse(version: str, home: Path, archive: Path) -> None:
    cluster = ApacheCluster(version, home / "cluster")  # its files and addresses; it is not started
    options = [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]
    with JavaDriver(version, cluster.namesrv, folder=home / "driver", java_options=options) as java:
        java.call("main", **{"class": NAMESRV}, args=["-c", str(home / "cluster/namesrv/namesrv.conf")])  # type: ignore[arg-type]
        java.call("main", **{"class": BROKER}, args=["-c", str(home / "cluster/broker-a/broker.conf")])  # type: ignore[arg-type]
        until(lambda: registered_brokers(cluster.namesrv))
        java.call("admin.createTopic", topic="Orders", queues=1)
        java.call("producer.start", group="billing")
        java.call("push.start", group="shipping", topic="Orders", expression="*")
        java.call("producer.send", topic="Orders", text="hello", tags="new")
        java.call("push.consumed", count=1, timeoutMillis=30_000)
        java.mqadmin("clusterList")
        java.close(timeout=120)
