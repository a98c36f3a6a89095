"""Java clients and the admin tool, told what to do from Python."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from tests.peers.jvm import Account, PeerError, Tls, end, java, tail

# a consumer looks for new queues every second, not every 20
OPTIONS = ["-Xmx512m", "-Drocketmq.client.rebalance.waitInterval=1000"]


class DriverError(PeerError):
    """A command of the Java driver failed; `java_class` and `response_code` are those of the Java exception."""

    def __init__(self, command: str, error: Mapping[str, Any]) -> None:
        cause = f"; caused by {error['cause']}" if error["cause"] else ""
        super().__init__(f"{command}: {error['class']}: {error['message']}{cause}")
        self.java_class: str = error["class"]
        self.response_code: int | None = error["responseCode"]


class Completed(NamedTuple):
    """What the admin tool did. Its exit code is 0 unless it did not understand its options."""

    exit_code: int
    stdout: str
    stderr: str


def mqadmin(
    version: str, namesrv: str, *args: str, acl: Account | None = None, tls: Tls | None = None, timeout: float = 60.0
) -> Completed:
    """Runs the admin tool in a JVM of its own; JavaDriver.mqadmin does it in a running one."""
    with tempfile.TemporaryDirectory(prefix="mqadmin-") as home:
        options = [*OPTIONS, f"-Drocketmq.namesrv.addr={namesrv}", *(tls.java_options() if tls else ())]
        command = java(
            version,
            "org.apache.rocketmq.tools.command.MQAdminStartup",
            Path(home),
            Path(home, "mqadmin.log"),
            options,
            *args,
            acl=acl,
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    return Completed(done.returncode, done.stdout, done.stderr)


class JavaDriver:
    """The real Java clients in a JVM of their own, told what to do by commands; README.md lists them.

    Threads may share a driver: commands run side by side. Its version need not be that of the servers.
    """

    def __init__(
        self,
        version: str,
        namesrv: str,
        *,
        acl: Account | None = None,
        tls: Tls | None = None,
        folder: Path | str | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self._at_close = contextlib.ExitStack()
        if folder is None:
            folder = self._at_close.enter_context(tempfile.TemporaryDirectory(prefix="java-driver-"))
        home = Path(folder).resolve()
        self._log = home / "driver.log"
        options = [*OPTIONS, *(tls.java_options() if tls else ()), *java_options]
        command = java(version, "peers.Driver", home, self._log, options, acl=acl)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=home,  # where mqadmin writes what it was asked for
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdin
        assert self._process.stdout
        self._commands, self._replies = self._process.stdin, self._process.stdout
        self._lock = threading.Lock()  # guards the two below, and writing commands
        self._pending: dict[int, tuple[str, Future[Any]]] = {}
        self._last_id = 0
        self._reader = threading.Thread(target=self._read, name="java-driver", daemon=True)
        self._reader.start()
        keys: dict[str, Any] = {"accessKey": acl.access_key, "secretKey": acl.secret_key} if acl else {}
        try:
            self.call("configure", namesrv=namesrv, tls=tls is not None, **keys)
        except BaseException:
            self.close()
            raise

    def call(self, command: str, /, *, timeout: float = 60.0, **arguments: Any) -> Any:
        """Runs one command and returns its result; bytes among the arguments travel as base64."""
        return self.submit(command, **arguments).result(timeout)

    def submit(self, command: str, /, **arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._last_id += 1
            line = json.dumps({"id": self._last_id, "command": command} | arguments, default=to_base64) + "\n"
            self._pending[self._last_id] = command, future
            try:
                self._commands.write(line.encode())
                self._commands.flush()
            except (OSError, ValueError) as error:
                raise PeerError(f"the Java driver is gone; end of its log:\n{tail(self._log.read_text())}") from error
        return future

    def mqadmin(self, *args: str, timeout: float = 60.0) -> Completed:
        """Runs a verb, and once more where its connection was lost: clients come and go in this JVM."""
        for _ in range(2):
            result = self.call("mqadmin", timeout=timeout, args=args)
            if "RemotingSendRequestException" not in result["stderr"]:
                break
        return Completed(result["exitCode"], result["stdout"], result["stderr"])

    def close(self, timeout: float = 20.0) -> None:
        """Shuts all clients down and ends the JVM, killed if it takes longer than the timeout."""
        with self._lock, contextlib.suppress(OSError):
            self._commands.close()
        end(self._process, timeout)
        self._reader.join()
        self._replies.close()
        self._at_close.close()

    def __enter__(self) -> JavaDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        for line in self._replies:
            reply = json.loads(line)
            with self._lock:
                command, future = self._pending.pop(reply["id"])
            if reply["ok"]:
                future.set_result(reply["result"])
            else:
                future.set_exception(DriverError(command, reply["error"]))
        with self._lock:
            lost, self._pending = self._pending, {}
        for command, future in lost.values():
            future.set_exception(PeerError(f"the Java driver ended during {command}; see {self._log}"))


def to_base64(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is not JSON")
