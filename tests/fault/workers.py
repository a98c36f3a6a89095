"""Numbered experiments in processes of their own, which may die of one, as many at a time as there are processors."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
WORKERS = int(os.environ.get("ROCKETCORE_FAULT_WORKERS", "0")) or len(os.sched_getaffinity(0))


def spread(
    arguments: Callable[[range], list[str]], numbers: range, size: int, patience: float, workers: int = WORKERS
) -> Iterator[tuple[int, Any, str]]:
    """Run the experiments ``numbers`` in blocks of ``size``; returns what was said of each, in no order.

    arguments  of the interpreter for some of the numbers: that process prints a line for each, in order
    patience   seconds without a line, after which the process is killed
    returns    number, what the line of JSON says, and an empty text; or number, None and the exit status in words, for
               the experiment that a process died of
    """
    blocks = [numbers[at : at + size] for at in range(0, len(numbers), size)]
    with selectors.DefaultSelector() as selector:
        running: set[_Block] = set()

        def begin(block: _Block) -> None:
            block.begin()
            selector.register(block.output, selectors.EVENT_READ, block)
            running.add(block)

        try:
            while blocks or running:
                while blocks and len(running) < workers:
                    begin(_Block(arguments, blocks.pop(0)))
                for key, _ in selector.select(1.0):
                    block: _Block = key.data
                    yield from block.hear()
                    if block.has_ended:
                        selector.unregister(key.fileobj)
                        running.discard(block)
                        yield from block.end()
                        if block.left:
                            begin(block)
                for block in running:
                    if time.monotonic() - block.heard > patience:
                        block.process.kill()
        finally:
            for block in running:
                block.process.kill()
                block.process.communicate()


class _Block:
    """One process at a time, which runs what is left of some numbers."""

    def __init__(self, arguments: Callable[[range], list[str]], numbers: range) -> None:
        self.left = numbers
        self._arguments = arguments

    def begin(self) -> None:
        """Start a process for what is left."""
        command = [sys.executable, *self._arguments(self.left)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=CHECKOUT)
        assert self.process.stdout is not None
        self.output = self.process.stdout
        self.heard = time.monotonic()
        self.has_ended = False
        self._rest = b""

    def hear(self) -> Iterator[tuple[int, Any, str]]:
        """Return what the process has said since the last call."""
        self.heard = time.monotonic()
        data = os.read(self.output.fileno(), 1 << 16)
        self.has_ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            number, self.left = self.left[0], self.left[1:]
            yield number, json.loads(line), ""

    def end(self) -> Iterator[tuple[int, Any, str]]:
        """A process that ended before its last experiment died of the one that it was at."""
        self.output.close()
        status = self.process.wait()
        if self.left:
            number, self.left = self.left[0], self.left[1:]
            yield number, None, f"exit status {status}"
