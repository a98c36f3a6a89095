"""Apache RocketMQ's Go client in a process of its own: built from ``go/`` once, told what to do by a command line."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.peers.jvm import PeerError

SOURCES = Path(__file__).resolve().parent / "go"


def build() -> Path:
    """Build the program, where it is not there yet, with modules from Go's proxy; return its path.

    It stays where the Java peers do (``install``).
    """
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("ROCKETMQ_PEERS") or Path(caches, "rocketmq-peers")).resolve()
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()
    program = folder / f"go-{wanted[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "go.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            go = shutil.which("go")
            if go is None:
                raise PeerError("there is no go")
            done = subprocess.run(
                [go, "build", "-mod=readonly", "-o", str(program), "."], cwd=SOURCES, capture_output=True, text=True
            )
            if done.returncode:
                raise PeerError(f"the Go client cannot be built:\n{done.stderr[-2000:]}")
    return program


class GoClient:
    """A running program: what it tells comes by ``next``, what is left of it by ``rest``."""

    def __init__(self, program: Path, namesrv: str, verb: str, **options: Any) -> None:
        arguments = [f"-{name}={value}" for name, value in {"namesrv": namesrv, **options}.items()]
        self._process = subprocess.Popen(
            [str(program), *arguments, verb], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._lines = iter(self._process.stdout)
        self._errors = ""
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors = self._process.stderr.read()

    def next(self) -> dict[str, Any]:
        """Return what it tells next; raises PeerError where it ended."""
        line = next(self._lines, None)
        if line is None:
            raise PeerError(self._ending())
        told: dict[str, Any] = json.loads(line)
        return told

    def rest(self) -> list[dict[str, Any]]:
        """Wait for its end and return what else it told; raises PeerError where it failed."""
        told = [json.loads(line) for line in self._lines]
        if self._process.wait(60):
            raise PeerError(self._ending())
        self._reader.join()
        return told

    def _ending(self) -> str:
        self._process.wait(60)
        self._reader.join()
        return f"the Go client ended with {self._process.returncode}:\n{self._errors[-2000:]}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


@contextlib.contextmanager
def go_client(program: Path, namesrv: str, verb: str, **options: Any) -> Iterator[GoClient]:
    client = GoClient(program, namesrv, verb, **options)
    try:
        yield client
    finally:
        client.close()
