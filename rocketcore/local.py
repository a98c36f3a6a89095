"""LocalCluster: a name server and brokers, by default on free ports of 127.0.0.1, in this process or beside it.

In this process all servers share one background thread with a uvloop event loop. Beside it each is a process started
as a user starts it, ``rocket namesrv start`` and ``rocket broker start``, which is what tests that kill servers need;
they end with this process, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal, Self, TypeVar

from rocketcore import addresses
from rocketcore.child import command_line
from rocketcore.config_file import ENVIRONMENT_PREFIX
from rocketcore.errors import ConfigError, ForkedClient, RocketError

if TYPE_CHECKING:
    from rocketcore.broker.broker import Broker
    from rocketcore.broker.config import BrokerConfig
    from rocketcore.broker.store.config import StoreConfig
    from rocketcore.nameserver.server import NameServer

__all__ = ["LocalCluster", "ServerProcess"]

T = TypeVar("T")
FlushMode = Literal["sync", "async"]

TEMPORARY_SEGMENT_BYTES: Final = 64 * 1024 * 1024
START_SECONDS: Final = 30.0
EXIT_SECONDS: Final = 1.0
"""What a process that has closed its output gets to end."""


class LocalCluster:
    """A cluster for tests, demonstrations and small things, up while the ``with`` block runs.

    store         folder that keeps messages and settings; None: a temporary one, deleted at the end
    brokers       masters named broker-a, broker-b, …
    namesrv_port  0 takes a free port
    broker_port   port of the first broker, the others have one ten higher each; 0: free ports
    listen        address at which all servers listen; clients are told ``brokerIP1``, or the first local one, where it
                  is one for all (``0.0.0.0``, ``::``)
    in_process    False starts a process for each server
    flush         when a message counts as stored; None: ``sync`` for a folder of yours, ``async`` for a temporary one
    properties    further broker settings by RocketMQ's property names; of several brokers each has the ``metricsPort``
                  ten higher than the one before
    namesrv_properties  further settings of the name server
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        brokers: int = 1,
        namesrv_port: int = 0,
        broker_port: int = 0,
        listen: str = "127.0.0.1",
        in_process: bool = True,
        flush: FlushMode | None = None,
        properties: Mapping[str, str] | None = None,
        namesrv_properties: Mapping[str, str] | None = None,
    ) -> None:
        if not 1 <= brokers <= 26:
            raise ConfigError(f"brokers must be 1 to 26, got {brokers}")
        self._store = None if store is None else Path(store).absolute()
        self._count = brokers
        self._namesrv_port = namesrv_port
        self._broker_ports = addresses.ports_beside(broker_port, brokers)
        self._listen = listen
        self._in_process = in_process
        self._flush = flush or ("async" if store is None else "sync")
        self._properties = dict(properties or {})
        self._namesrv_properties = dict(namesrv_properties or {})
        self._temporary: Path | None = None
        self._host: _ThreadHost | _ProcessHost | None = None
        self._namesrv = ""
        self._addresses: list[str] = []
        self._kept: dict[int, socket.socket] = {}
        self._owner = 0
        """The process that started the servers; a forked child uses them, and stops none."""

    @property
    def namesrv(self) -> str:
        """Address of the name server, ``127.0.0.1:port`` unless it listens elsewhere."""
        self._running()
        return self._namesrv

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        """Addresses of the brokers, broker-a first."""
        self._running()
        return tuple(self._addresses)

    @property
    def broker_names(self) -> tuple[str, ...]:
        return tuple(_broker_name(index) for index in range(self._count))

    @property
    def store(self) -> Path:
        """Folder of everything the cluster keeps; a broker's messages are in a folder of its name."""
        folder = self._store or self._temporary
        if folder is None:
            raise ConfigError("the cluster is not running")
        return folder

    @property
    def broker_stores(self) -> tuple[Path, ...]:
        """Folders of the brokers' messages, broker-a's first."""
        return tuple(self.store / name for name in self.broker_names)

    def start(self) -> Self:
        """Start all servers; return when every broker is registered and answers."""
        if self._host is not None:
            return self
        self._owner = os.getpid()
        if self._store is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="rocketcore-"))
        try:
            self._host = _ThreadHost() if self._in_process else _ProcessHost(self.store)
            address = self._host.start_namesrv(
                {
                    "bindAddress": self._listen,
                    "listenPort": str(self._namesrv_port),
                    "rocketmqHome": str(self.store),
                    **self._namesrv_properties,
                }
            )
            self._namesrv = _reachable(address)
            for index, port in enumerate(self._broker_ports):
                self._addresses.append(self._host.start_broker(index, self._broker_properties(index, port)))
        except BaseException:
            with contextlib.suppress(Exception):  # why it did not start says more
                self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all servers, and delete a temporary folder; a second call does nothing.

        In a forked child it stops nothing: the servers, and the folder, are the parent's.
        """
        host, self._host = self._host, None
        if self._owner != os.getpid():
            host, self._temporary = None, None
        self._addresses = []
        while self._kept:
            self._kept.popitem()[1].close()
        try:
            if host is not None:
                host.close()
        finally:
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary = None

    def stop_broker(self, index: int = 0, *, kill: bool = False) -> None:
        """Stop one broker; ``kill`` ends its process without warning, which needs ``in_process=False``."""
        self._running_with(index).stop_broker(index, kill=kill)
        self._kept[index] = _keep_port(self._addresses[index])

    def start_broker(self, index: int = 0) -> None:
        """Start a stopped broker again, at the same address and on the same store."""
        host = self._running_with(index)
        port = addresses.split(self._addresses[index])[1]
        host.start_broker(index, self._broker_properties(index, port))
        if index in self._kept:
            self._kept.pop(index).close()

    def check(self) -> None:
        """Raise RocketError if a server's process has ended without a call to stop it."""
        self._own().check()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        where = f"namesrv={self._namesrv!r}, brokers={self._addresses}" if self._host else "stopped"
        return f"LocalCluster({where})"

    def _running(self) -> _ThreadHost | _ProcessHost:
        if self._host is None:
            raise ConfigError("the cluster is not running: use it in a with block, or call start()")
        return self._host

    def _running_with(self, index: int) -> _ThreadHost | _ProcessHost:
        if not 0 <= index < self._count:
            raise ConfigError(f"brokers have the numbers 0 to {self._count - 1}, got {index}")
        return self._own()

    def _own(self) -> _ThreadHost | _ProcessHost:
        host = self._running()
        if self._owner != os.getpid():
            raise ForkedClient("the servers were started by the parent process, which alone stops and starts them")
        return host

    def _broker_properties(self, index: int, port: int) -> dict[str, str]:
        name = _broker_name(index)
        properties = {
            "bindAddress": self._listen,
            "listenPort": str(port),
            "brokerName": name,
            "namesrvAddr": self._namesrv,
            "storePathRootDir": str(self.broker_stores[index]),
            "flushDiskType": f"{self._flush.upper()}_FLUSH",
            # The disk of a developer is as full as it is: nothing is refused or deleted because of that.
            "diskSpaceWarningLevelRatio": "100",
            "cleanFileForciblyEnable": "false",
            # Off as Apache's are, both would keep an example of the pages from working.
            "enablePropertyFilter": "true",
            "recallMessageEnable": "true",
        }
        if self._temporary is not None:
            properties["mappedFileSizeCommitLog"] = str(TEMPORARY_SEGMENT_BYTES)
        properties |= self._properties
        metrics_port = properties.get("metricsPort", "").strip()
        if index and metrics_port.isdecimal() and int(metrics_port):
            properties["metricsPort"] = str(addresses.ports_beside(int(metrics_port), self._count)[index])
        return properties


def _reachable(address: str) -> str:
    """Return where a server on this machine is reached that may listen at every address."""
    host, port = addresses.split(address)
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "::") else address


def _broker_configs(properties: Mapping[str, str]) -> tuple[BrokerConfig, StoreConfig]:
    from rocketcore.apache_settings import check_settings
    from rocketcore.broker.config import BrokerConfig
    from rocketcore.broker.store.config import StoreConfig
    from rocketcore.config_file import load_config
    from rocketcore.transport.tls.server_settings import TLS_SETTINGS

    check_settings("broker", properties, [BrokerConfig, StoreConfig, *TLS_SETTINGS])
    return load_config(BrokerConfig, properties), load_config(StoreConfig, properties)


def _keep_port(address: str) -> socket.socket:
    """Return a socket that keeps a port for a broker that is down: the system may give it to anybody's connection."""
    host, port = addresses.split(address)
    keeper = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    with contextlib.suppress(OSError):
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind((host, port))
    return keeper


def _broker_name(index: int) -> str:
    return f"broker-{chr(ord('a') + index)}"


class _ThreadHost:
    """Servers on one background event loop; ``properties`` are RocketMQ's property names."""

    def __init__(self) -> None:
        self._namesrv: NameServer | None = None
        self._brokers: dict[int, Broker] = {}
        ready: Future[asyncio.AbstractEventLoop] = Future()
        self._end: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="rocketcore-local-cluster", daemon=True)
        self._thread.start()
        self._loop = ready.result(START_SECONDS)

    def _run(self, ready: Future[asyncio.AbstractEventLoop]) -> None:
        import uvloop

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._until_ended(ready))
        except BaseException as error:
            (self._end if ready.done() else ready).set_exception(error)
        else:
            self._end.set_result(None)

    async def _until_ended(self, ready: Future[asyncio.AbstractEventLoop]) -> None:
        self._ended = asyncio.Event()
        ready.set_result(asyncio.get_running_loop())
        await self._ended.wait()
        async with contextlib.AsyncExitStack() as ends:
            # One that does not stop as it should keeps none of the others from it.
            if self._namesrv is not None:
                ends.push_async_callback(self._namesrv.stop)
            for broker in self._brokers.values():
                ends.push_async_callback(broker.stop)

    def _call(self, function: Callable[[], Awaitable[T]], late: str) -> T:
        """Run something on the loop; what its caller does not wait for any more is cancelled."""

        async def run() -> T:
            return await function()

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            wait([future], START_SECONDS)
        finally:
            given_up = future.cancel()
        if given_up:
            raise RocketError(f"{late} after {START_SECONDS:g} s")
        return future.result()

    def start_namesrv(self, properties: Mapping[str, str]) -> str:
        from rocketcore.config_file import load_config
        from rocketcore.nameserver.config import NameServerConfig
        from rocketcore.nameserver.server import NameServer
        from rocketcore.transport.tls.server_settings import ServerTls

        async def start() -> str:
            self._namesrv = server = NameServer(
                load_config(NameServerConfig, properties), tls=load_config(ServerTls, properties)
            )
            await server.start()
            return server.address

        return self._call(start, "namesrv is not ready")

    def start_broker(self, index: int, properties: Mapping[str, str]) -> str:
        from rocketcore.broker.broker import Broker
        from rocketcore.config_file import load_config
        from rocketcore.transport.tls.server_settings import ServerTls, client_tls

        if index in self._brokers:
            raise ConfigError(f"{_broker_name(index)} is running")
        configs = _broker_configs(properties)

        async def start() -> str:
            broker = Broker(
                *configs, tls=load_config(ServerTls, properties), client_tls=client_tls(properties) or False
            )
            await broker.start()
            self._brokers[index] = broker
            return broker.address

        return self._call(start, f"{_broker_name(index)} is not ready")

    def stop_broker(self, index: int, *, kill: bool) -> None:
        if kill:
            raise ConfigError("a broker in this process cannot be killed: use in_process=False")
        broker = self._brokers.pop(index, None)
        if broker is None:
            raise ConfigError(f"{_broker_name(index)} is not running")
        self._call(broker.stop, f"{_broker_name(index)} has not ended")

    def check(self) -> None:
        """Nothing to say: they live as long as this process."""

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(START_SECONDS)
        if not self._end.done():
            raise RocketError(f"the servers have not ended after {START_SECONDS:g} s")
        self._end.result()


class _ProcessHost:
    """Servers as processes; their logs are ``<server>.log`` in the cluster's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._processes: dict[str, ServerProcess] = {}

    def start_namesrv(self, properties: Mapping[str, str]) -> str:
        return self._start("namesrv", properties, "namesrv")

    def start_broker(self, index: int, properties: Mapping[str, str]) -> str:
        _broker_configs(properties)  # what is wrong with a setting is said here as in one process
        return self._start("broker", properties, _broker_name(index))

    def _start(self, noun: str, properties: Mapping[str, str], name: str) -> str:
        if name in self._processes:
            if self._processes[name].is_running:
                raise ConfigError(f"{name} is running")
            self._processes.pop(name).end()
        file = self._folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), "utf-8")
        # The properties are all that counts, and every address is taken, as in one process.
        arguments = [noun, "start", "-c", str(file), "--insecure"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}
        process = ServerProcess(name, *arguments, log=self._folder / f"{name}.log", environment=environment)
        self._processes[name] = process
        return process.address

    def stop_broker(self, index: int, *, kill: bool) -> None:
        name = _broker_name(index)
        if name not in self._processes:
            raise ConfigError(f"{name} is not running")
        self._processes.pop(name).end(kill=kill)

    def check(self) -> None:
        for process in self._processes.values():
            process.check()

    def close(self) -> None:
        for name in sorted(self._processes):
            self._processes.pop(name).end()


class ServerProcess:
    """A server as a user starts it, ``rocket … start``, that answers. It ends with this process, however that ends.

    name         what messages call it
    log          its standard error is appended there
    environment  its variables; None: those of this process
    raises       RocketError when it is not ready in time
    """

    def __init__(self, name: str, *arguments: str, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._log = log
        began = time.perf_counter()
        with log.open("ab") as stderr:
            self._log_begin = stderr.tell()
            self._process = subprocess.Popen(
                command_line(*arguments),
                stdin=subprocess.PIPE,  # which ends with this process, and the server with it
                stdout=subprocess.PIPE,
                stderr=stderr,
                # Who started this process hears of it, not of each server.
                env={key: value for key, value in (environment or os.environ).items() if key != "NOTIFY_SOCKET"},
                process_group=0,
                text=True,
            )
        _RUNNING.add(self)
        try:
            ready = _first_line(self._process.stdout, START_SECONDS)
            if not ready:
                raise RocketError(self._why_not_ready())
            self.address = str(json.loads(ready)["address"])
        except BaseException:
            self.end(kill=True)
            raise
        self.started_in = time.perf_counter() - began

    def _why_not_ready(self) -> str:
        try:
            return self._how_it_ended(self._process.wait(EXIT_SECONDS))
        except subprocess.TimeoutExpired:
            return f"{self.name} is not ready after {START_SECONDS:g} s; its log is {self._log}"

    def check(self) -> None:
        """Raise RocketError if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise RocketError(self._how_it_ended(code))

    def _how_it_ended(self, code: int) -> str:
        """Say it with its own last words: the log may go with a temporary folder."""
        with self._log.open("rb") as log:
            log.seek(self._log_begin)
            lines = log.read().decode(errors="replace").splitlines()
        words = [line for line in lines if line.startswith(("error: ", "why: "))] or lines[-1:]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return "; ".join([f"{self.name} {how}", *words, f"its log is {self._log}"])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self, *, kill: bool = False) -> int:
        """End it, by SIGTERM unless ``kill``, and return its exit code."""
        process = self._process
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._let_go()
        if process.stdout is not None:
            process.stdout.close()
        return process.returncode

    def _let_go(self) -> None:
        """Close the pipe that tells the server, when no process has it open any more, that its parent has ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()


_RUNNING: Final[weakref.WeakSet[ServerProcess]] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for server in list(_RUNNING):
        server._let_go()


os.register_at_fork(after_in_child=_let_go_in_child)


def _first_line(stream: IO[str] | None, timeout: float) -> str:
    """Read one line; empty when the stream ends or nothing comes in time."""
    lines: list[str] = []

    def read() -> None:
        with contextlib.suppress(ValueError, OSError):
            lines.append(stream.readline() if stream is not None else "")

    reader = threading.Thread(target=read, name="rocketcore-ready", daemon=True)
    reader.start()
    reader.join(timeout)
    return lines[0] if lines else ""
