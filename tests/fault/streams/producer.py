"""The load: senders that never send a message twice, so that two of a number are somebody else's fault."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

import rocketcore
from rocketcore.errors import RocketError
from rocketcore.message import Message
from tests.fault.streams.account import Ledger

BATCH = 25
INTERVAL = 0.1
TIMEOUT = 3.0
PATIENCE = 0.2
"""Seconds before the next attempt after a failed one."""


class Load:
    """Threads that send numbered messages until told to stop; what had no answer stays unknown, and is not repeated."""

    def __init__(self, namesrv: str, topic: str, seed: int, senders: int = 2) -> None:
        self.ledger = Ledger()
        self.failures = 0
        self._namesrv = namesrv
        self._topic = topic
        self._seed = seed
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(sender,)) for sender in range(senders)]

    @contextlib.contextmanager
    def running(self) -> Iterator[Ledger]:
        """Send inside the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield self.ledger
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def _send(self, sender: int) -> None:
        rng = random.Random(self._seed * 1000 + sender)
        sequence = 0
        with rocketcore.Producer(
            self._namesrv, group=f"load-{sender}", retries=0, timeout=TIMEOUT, route_interval=5.0
        ) as producer:
            while not self._ended.is_set():
                keys = [(0, sender, number) for number in range(sequence, sequence + BATCH)]
                sequence += BATCH
                batch = [Message(self._topic, self.ledger.send(key, rng)) for key in keys]
                try:
                    result = producer.send_batch(batch)
                except RocketError:
                    self.failures += 1
                    self._ended.wait(PATIENCE)
                    continue
                self.ledger.acknowledge(keys, result.queue.broker, result.queue.queue_id, result.offset)
                self._ended.wait(INTERVAL)
