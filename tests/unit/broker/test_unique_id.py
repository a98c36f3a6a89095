"""UNIQ_KEY: form, order, the time that tools read."""

from __future__ import annotations

import random
from datetime import datetime

from rocketcore.broker.unique_id import UniqueIds
from rocketcore.service import ManualClock

ADDRESS = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")


def test_ids_are_32_upper_case_digits_and_differ() -> None:
    ids = UniqueIds(clock=ManualClock(), rng=random.Random(1))
    made = [ids.next(ADDRESS) for _ in range(70_000)]
    assert all(len(each) == 32 and each == each.upper() for each in made[:100])
    assert made[0].startswith("0A000001")
    assert len(set(made[:65_536])) == 65_536


def test_the_time_counts_from_the_first_of_the_month() -> None:
    moment = datetime(2024, 12, 31, 23, 59, 59)
    clock = ManualClock(int(moment.timestamp() * 1000))
    ids = UniqueIds(clock=clock)
    elapsed = int((moment - datetime(2024, 12, 1)).total_seconds() * 1000)
    assert int(ids.next(ADDRESS)[20:28], 16) == elapsed
    clock.advance(1.5)
    assert int(ids.next(ADDRESS)[20:28], 16) == 500
