"""Runs Apache RocketMQ beside a Python test or benchmark: its servers, its Java clients, its admin tool.

    with ApacheCluster("5.5.0", folder) as cluster, JavaDriver("5.5.0", cluster.namesrv) as java:
        java.call("producer.start", group="billing")
        receipt = java.call("producer.send", topic="Orders", text="hello", tags="new")

README.md lists what a driver can be told. Needs Java 17+ and Maven.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.peers.driver import Completed, DriverError, JavaDriver, mqadmin
from tests.peers.jvm import Account, PeerError, Tls, end, fill, install, java, tail

__all__ = [
    "Account",
    "ApacheCluster",
    "Completed",
    "DriverError",
    "JavaDriver",
    "PeerError",
    "Server",
    "Tls",
    "free_port",
    "install",
    "mqadmin",
    "registered_brokers",
    "room",
]

GUARD = "peers.Guard"
NAMESRV = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER = "peers.Broker"
FULL = 0.85
"""Above 0.9 a broker takes no messages (``DefaultMessageStore.CleanCommitLogService``), whatever its settings say."""
MEMORY = Path("/dev/shm")
MEMORY_NEEDED = 4 << 30
NAMESRV_HEAP = ["-Xms256m", "-Xmx256m"]
REGISTER_AGAIN = 0.2
"""Seconds. A broker of 5.x that has no connection to the NameServer when it is up would register 10 s later."""
BROKER_HEAP = ["-Xms1g", "-Xmx1g", "-Xmn512m", "-XX:MaxDirectMemorySize=1g"]


def free_port(taken: set[int], *also: int) -> int:
    """A port P on which nobody listens, nor on P plus each of `also`; these are added to `taken`, and none was in it.

    The range is 20000-29999, or what the environment variable ROCKETMQ_PEERS_PORTS says.
    """
    first, last = map(int, os.environ.get("ROCKETMQ_PEERS_PORTS", "20000-29999").split("-"))
    candidates = range(first + 2, last - 1)
    for candidate in random.sample(candidates, k=len(candidates)):
        ports = {candidate, *(candidate + offset for offset in also)}
        if ports.isdisjoint(taken):
            with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
                for port in ports:
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
                taken |= ports
                return candidate
    raise PeerError(f"no free port in {first}-{last}")


def registered_brokers(namesrv: str, tls: Tls | None = None, timeout: float = 3.0) -> set[str]:
    """Asks a NameServer, by GET_BROKER_CLUSTER_INFO, for the addresses of all brokers it knows."""
    host, port = namesrv.split(":")
    header = json.dumps({"code": 106, "language": "OTHER", "version": 0, "opaque": 1, "flag": 0}).encode()
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, int(port)), timeout))
        if tls and tls.mode == "enforcing":
            connection = stack.enter_context(tls.context().wrap_socket(connection, server_hostname=host))
        connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        stream = stack.enter_context(connection.makefile("rb"))
        size, header_size = struct.unpack(">II", stream.read(8))
        body = stream.read(size - 4)[header_size & 0xFFFFFF :]
    cluster = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))  # integer keys come without quotes
    return {address for broker in cluster["brokerAddrTable"].values() for address in broker["brokerAddrs"].values()}


def room(folder: Path) -> Path:
    """Where brokers can store messages: in `folder`, or in memory where the disk of `folder` is nearly full."""
    usage = shutil.disk_usage(folder)
    if usage.used <= FULL * (usage.used + usage.free):
        return folder
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MEMORY_NEEDED:
        return folder
    memory = Path(tempfile.mkdtemp(prefix="rocketmq-", dir=MEMORY))
    atexit.register(shutil.rmtree, memory, ignore_errors=True)
    return memory


class Server:
    """One NameServer or broker: its command line, its log, and the process that runs it now."""

    def __init__(self, name: str, address: str, command: list[str], log: Path) -> None:
        self.name = name
        self.address = address
        self.log = log
        self.started_in = 0.0  # seconds from process start to ready
        self._command = command
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._start = time.monotonic()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                start_new_session=True,
            )

    def wait(self, timeout: float, answers: Callable[[], bool]) -> None:
        """Waits until the log says that the server is up, and `answers` agrees."""
        assert self._process, "not started"
        while b"boot success" not in self.log.read_bytes()[self._log_start :] or not answers():
            code = self._process.poll()
            if code is not None or time.monotonic() - self._start > timeout:
                what = f"is not ready after {timeout:g} s" if code is None else f"ended with exit code {code}"
                log = tail(self.log.read_text())
                raise PeerError(f"{self.name} at {self.address} {what}; end of {self.log}:\n{log}")
            time.sleep(0.02)
        self.started_in = time.monotonic() - self._start

    def register(self) -> None:
        """Has a broker register now."""
        assert self._process, "not started"
        assert self._process.stdin
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def stop(self, graceful: bool) -> None:
        if self._process:
            self._process.send_signal(signal.SIGTERM if graceful else signal.SIGKILL)
            end(self._process, timeout=60)
            self._process = None


def make_namesrv(version: str, home: Path, port: int, java_options: Sequence[str] = ()) -> Server:
    home.mkdir(parents=True, exist_ok=True)
    conf, log = home / "namesrv.conf", home / "namesrv.log"
    conf.write_text(f"listenPort={port}\nkvConfigPath={home / 'kvConfig.json'}\n")
    command = java(version, GUARD, home, log, [*NAMESRV_HEAP, *java_options], NAMESRV, "-c", str(conf))
    return Server("namesrv", f"127.0.0.1:{port}", command, log)


class ApacheCluster:
    """A NameServer and brokers of one Apache RocketMQ version, on free ports of 127.0.0.1, in a folder of yours.

    `brokers` masters, each with `slaves` slaves; `extra_broker_conf` overrides any broker property. `acl` is the
    administrator: with it, brokers refuse whoever does not sign. `java_options` go to all servers. Each server has a
    folder with its log and store; where the disk is so full that a broker would refuse messages, the stores are in
    memory. With `namesrv`, the brokers register there and no NameServer is started.
    """

    def __init__(
        self,
        version: str,
        folder: Path | str,
        *,
        brokers: int = 1,
        slaves: int = 0,
        extra_broker_conf: Mapping[str, object] | None = None,
        acl: Account | None = None,
        tls: Tls | None = None,
        java_options: Sequence[str] = (),
        timeout: float = 90.0,
        namesrv: str | None = None,
    ) -> None:
        self.version = version
        self.folder = Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._stores = room(self.folder)
        self._conf = extra_broker_conf or {}
        self._acl = acl
        self._tls = tls
        self._java_options = [*(tls.java_options() if tls else ()), *java_options]
        self._timeout = timeout
        self._ports: set[int] = set()
        self._namesrv = (
            None
            if namesrv
            else make_namesrv(version, self.folder / "namesrv", free_port(self._ports), self._java_options)
        )
        self.namesrv = self._namesrv.address if self._namesrv else str(namesrv)
        self._brokers = [
            self._broker(f"broker-{chr(ord('a') + master)}", slave)
            for slave in range(slaves + 1)
            for master in range(brokers)
        ]

    @property
    def brokers(self) -> list[str]:
        """Addresses of the brokers: all masters, then their first slaves, and so on; `i` below counts in this order."""
        return [server.address for server in self._brokers]

    @property
    def servers(self) -> dict[str, Server]:
        """By name: namesrv, broker-a, broker-b, broker-a-slave-1."""
        return {server.name: server for server in self._all()}

    @property
    def pids(self) -> dict[str, int]:
        return {name: server.pid for name, server in self.servers.items() if server.pid}

    def commit_log(self, name: str = "broker-a") -> Path:
        """The folder of a broker's messages."""
        return self._stores / name / "store" / "commitlog"

    def __enter__(self) -> ApacheCluster:
        atexit.register(self.stop, graceful=False)
        try:
            for server in self._all():
                server.start()
            if self._namesrv:
                self._namesrv.wait(self._timeout, lambda: self._registered() is not None)
            for server in self._brokers:
                self._wait(server)
        except BaseException:
            self.stop(graceful=False)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(graceful=False)

    def kill_broker(self, i: int, graceful: bool = False) -> None:
        self._brokers[i].stop(graceful)

    def restart_broker(self, i: int, graceful: bool = False) -> None:
        """Stops the broker if it runs, and starts it on the same port and store."""
        self._brokers[i].stop(graceful)
        self._brokers[i].start()
        self._wait(self._brokers[i])

    def stop(self, graceful: bool = True) -> None:
        """Stops everything; gracefully, brokers flush and say good-bye, which takes them seconds."""
        atexit.unregister(self.stop)
        for server in reversed(self._all()):
            server.stop(graceful)
        if self._stores != self.folder:
            shutil.rmtree(self._stores, ignore_errors=True)

    def _all(self) -> list[Server]:
        return [*([self._namesrv] if self._namesrv else ()), *self._brokers]

    def _wait(self, server: Server) -> None:
        asked = 0.0

        def registered() -> bool:
            nonlocal asked
            if server.address in (self._registered() or ()):
                return True
            if (now := time.monotonic()) >= asked + REGISTER_AGAIN:
                server.register()
                asked = now
            return False

        server.wait(self._timeout, registered)

    def _registered(self) -> set[str] | None:
        try:
            return registered_brokers(self.namesrv, self._tls)
        except (OSError, struct.error):
            return None

    def _broker(self, broker_name: str, slave: int) -> Server:
        name = f"{broker_name}-slave-{slave}" if slave else broker_name
        home = self.folder / name
        home.mkdir(parents=True, exist_ok=True)
        store = self._stores / name / "store"
        port = free_port(self._ports, -2, +1)  # it listens on these, too: for fast senders, and for its slaves
        properties = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": broker_name,
            "brokerId": slave,
            "brokerRole": "SLAVE" if slave else "ASYNC_MASTER",
            "namesrvAddr": self.namesrv,
            "listenPort": port,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "enablePropertyFilter": "true",
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "mappedFileSizeCommitLog": 64 << 20,
            "waitTimeMillsInSendQueue": 2000,
            "transactionMetricFlushInterval": 200,  # 5.x turns in a busy loop for so long after its start
            "timerFlushIntervalMs": 5000,  # 5.x writes 38 MB each time
            **self._conf,
        }
        conf, log = home / "broker.conf", home / "broker.log"
        conf.write_text(
            "".join(f"{name}={value}\n" for name, value in properties.items())
            + (fill(f"acl-{self.version[0]}.conf", self._acl) if self._acl else "")
        )
        options = [*BROKER_HEAP, *self._java_options]
        command = java(self.version, GUARD, home, log, options, BROKER, "-c", str(conf), acl=self._acl)
        return Server(name, f"127.0.0.1:{port}", command, log)


def command_line() -> argparse.ArgumentParser:
    """What ``python -m tests.peers`` takes."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.peers", description="Apache RocketMQ for tests and benchmarks"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="fetch the jars, compile the driver").add_argument("version")
    for name, purpose in (
        ("namesrv", "run a NameServer until interrupted"),
        ("cluster", "run a NameServer and brokers until interrupted"),
        ("mqadmin", "run the admin tool; its own arguments follow --"),
    ):
        command = commands.add_parser(name, help=purpose)
        command.add_argument("--version", required=True)
        if name == "mqadmin":
            command.add_argument("--namesrv", default="127.0.0.1:9876")
            command.add_argument("args", nargs="*")
        else:
            command.add_argument("--folder", type=Path, help="by default a new temporary folder")
        if name == "namesrv":
            command.add_argument("--port", type=int, default=9876)
        if name == "cluster":
            command.add_argument("--brokers", type=int, default=1)
            command.add_argument("--slaves", type=int, default=0)
    return parser


def main() -> int:
    try:
        return run(command_line().parse_args())
    except PeerError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1


def run(options: argparse.Namespace) -> int:
    if options.command == "install":
        print(install(options.version))
    elif options.command == "mqadmin":
        done = mqadmin(options.version, options.namesrv, *options.args)
        print(done.stdout, end="")
        print(done.stderr, end="", file=sys.stderr)
        return done.exit_code
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        folder = (options.folder or Path(tempfile.mkdtemp(prefix="rocketmq-"))).resolve()
        with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
            if options.command == "namesrv":
                server = make_namesrv(options.version, folder, options.port)
                stack.callback(server.stop, graceful=True)
                server.start()
                server.wait(90, lambda: True)
                running: dict[str, object] = {"namesrv": server.address, "pid": server.pid}
            else:
                cluster = ApacheCluster(options.version, folder, brokers=options.brokers, slaves=options.slaves)
                stack.enter_context(cluster)
                running = {"namesrv": cluster.namesrv, "brokers": cluster.brokers, "pids": cluster.pids}
            print(json.dumps(running | {"folder": str(folder)}), flush=True)
            signal.pause()
    return 0
