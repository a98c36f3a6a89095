"""The parent of several brokers: starts them, starts one again that dies, ends them (``cli/servers/shards.py``).

This process runs no broker. It starts each shard as it was started itself, with ``--shard NUMBER`` behind. They end
with it, however it ends (``rocketcore/child.py``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from typing import Final

import click

from rocketcore.child import command_line
from rocketcore.cli.servers.notify import NOTIFY_SOCKET, notify
from rocketcore.cli.shell.failures import EXIT_INTERRUPTED
from rocketcore.cli.shell.log_file import reopen_logs
from rocketcore.cli.shell.render import run_without_stdout
from rocketcore.service import SYSTEM_CLOCK, Backoff

__all__ = ["Supervisor"]

logger = logging.getLogger(__name__)

STEADY_SECONDS: Final = 60.0
"""A shard that ran for so long begins anew with the shortest pause before it is started again."""
IN_ORDER: Final = (0, EXIT_INTERRUPTED, -signal.SIGTERM)
"""Exit codes of a server that was asked to end; the last where it was asked before it had begun anything."""


class Supervisor:
    """Runs the shards until a signal.

    One that cannot be started when all are ends all, with its exit code: an operator who starts a service wants to see
    that it failed, and systemd's ``Restart=`` decides what follows. One that dies later is started again after a pause
    of half a second to half a minute, as often as it takes: the others have messages that nobody else serves.

    arguments  command line of this process behind ``rocket``
    also       what else is said when all answer
    """

    def __init__(self, names: Sequence[str], arguments: Sequence[str], also: Mapping[str, object]) -> None:
        self._names = names
        self._arguments = arguments
        self._also = also
        self._ready: dict[str, dict[str, object]] = {}
        self._running: dict[str, Process] = {}
        self._ending = asyncio.Event()
        self._code: int | None = None

    def run(self) -> int:
        """Run until SIGTERM (0) or SIGINT (130) and return the exit code: another one where a shard ended out of order.

        Say on stdout when all answer for the first time.
        """
        run_without_stdout()
        return asyncio.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        interrupted = False

        def end(by: signal.Signals) -> None:
            nonlocal interrupted
            interrupted = by == signal.SIGINT
            self._end()

        for by in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(by, end, by)
        loop.add_signal_handler(signal.SIGHUP, self._reopen_logs)
        async with asyncio.TaskGroup() as tasks:
            for number, name in enumerate(self._names):
                tasks.create_task(self._keep(number, name), name=f"shard-{name}")
        return self._code or (EXIT_INTERRUPTED if interrupted else 0)

    def _reopen_logs(self) -> None:
        reopen_logs()
        for process in self._running.values():
            if process.returncode is None:
                process.send_signal(signal.SIGHUP)

    def _end(self, code: int | None = None) -> None:
        """Have all shards end; the first code that says why is this process's."""
        if self._code is None:
            self._code = code
        if not self._ending.is_set():
            self._ending.set()
            notify("STOPPING=1")
            for process in self._running.values():
                _terminate(process)

    async def _keep(self, number: int, name: str) -> None:
        pause = Backoff(1.0, 30.0)
        while not self._ending.is_set():
            began = SYSTEM_CLOCK.monotonic()
            code = await self._run_shard(number, name)
            if self._ending.is_set():
                if code not in IN_ORDER:
                    logger.error("shard ended out of order shard=%s exit_code=%d", name, code)
                    self._end(_exit_code(code))
                return
            if name not in self._ready:
                logger.error("shard could not be started shard=%s exit_code=%d", name, code)
                self._end(_exit_code(code) or 1)
                return
            if SYSTEM_CLOCK.monotonic() - began > STEADY_SECONDS:
                pause.reset()
            seconds = pause.next()
            logger.error("shard died shard=%s exit_code=%d again_in_s=%.1f", name, code, seconds)
            try:
                async with asyncio.timeout(seconds):
                    await self._ending.wait()
            except TimeoutError:
                pass

    async def _run_shard(self, number: int, name: str) -> int:
        """Run a shard until it ends, and return its exit code."""
        process = await asyncio.create_subprocess_exec(
            # The console, and what is to say of the settings, is this process's.
            *command_line(*self._arguments, "--shard", str(number), "--supervised", "--console="),
            stdin=asyncio.subprocess.PIPE,  # which ends with this process, and the shard with it
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
            # This process speaks for all: one of them that is ready is not the service.
            env={name: value for name, value in os.environ.items() if name != NOTIFY_SOCKET},
        )
        self._running[name] = process
        try:
            if self._ending.is_set():
                _terminate(process)
            assert process.stdout is not None, "a pipe was asked for"
            if line := await process.stdout.readline():
                self._answers(name, json.loads(line))
            return await process.wait()
        finally:
            del self._running[name]

    def _answers(self, name: str, said: dict[str, object]) -> None:
        again = name in self._ready
        self._ready[name] = {key: value for key, value in said.items() if key != "event"}
        logger.info("shard ready shard=%s address=%s pid=%s", name, said["address"], said["pid"])
        if len(self._ready) == len(self._names) and not again:
            brokers = [self._ready[each] for each in self._names]
            click.echo(json.dumps({"event": "ready", "brokers": brokers, **self._also, "pid": os.getpid()}))
            notify("READY=1")


def _terminate(process: Process) -> None:
    if process.returncode is None:
        process.terminate()


def _exit_code(code: int) -> int:
    """Return the exit code of a process, as a shell tells the number of a signal."""
    return 128 - code if code < 0 else code
