"""UNIQ_KEY for messages whose sender gave none (Java: ``MessageClientIDSetter``, 5.5.0)."""

from __future__ import annotations

import os
import random
from datetime import datetime

from rocketcore.service import SYSTEM_CLOCK, Clock


class UniqueIds:
    """Makes ids of 32 hex digits: address 4 bytes, process 2, random 4, milliseconds of the month 4, counter 2.

    Tools read the time, which counts from the first day of the month in local time.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, rng: random.Random | None = None) -> None:
        seed = (rng or random.Random()).getrandbits(32)
        self._process = f"{os.getpid() & 0xFFFF:04X}{seed:08X}"
        self._clock = clock
        self._counter = 0
        self._month_start = 0
        self._month_end = 0

    def next(self, address: bytes) -> str:
        """Make an id; the first four bytes of ``address`` go into it."""
        now = self._clock.time_millis()
        if not self._month_start <= now < self._month_end:
            self._enter_month(now)
        self._counter = (self._counter + 1) & 0xFFFF
        head = address[:4].hex().upper()
        return f"{head}{self._process}{(now - self._month_start) & 0xFFFFFFFF:08X}{self._counter:04X}"

    def _enter_month(self, now: int) -> None:
        first = datetime.fromtimestamp(now / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self._month_start = int(first.timestamp() * 1000)
        self._month_end = int(following.timestamp() * 1000)
