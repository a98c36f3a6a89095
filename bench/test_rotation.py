"""The next queue of a topic with 8 and 1,000 queues on ten brokers: kernel and reference."""

from __future__ import annotations

from typing import Any

import pytest

from bench import data
from rocketcore._fast.rotation import QueueRotation
from tests.reference import rotation as reference

ROWS: dict[str, Any] = {"kernel": QueueRotation, "reference": reference.QueueRotation}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("queues", [8, 1000])
def test_next(benchmark: Any, row: str, queues: int) -> None:
    benchmark.group = f"rotation-next-{queues}"
    rotation = ROWS[row](data.brokers(queues, 10), 0)
    assert 0 <= benchmark(rotation.next) < queues


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("queues", [8, 1000])
def test_next_skipping_a_broker(benchmark: Any, row: str, queues: int) -> None:
    benchmark.group = f"rotation-skip-{queues}"
    brokers = data.brokers(queues, 10)
    rotation = ROWS[row](brokers, 0)
    assert brokers[benchmark(rotation.next_skipping, brokers[0])] != brokers[0]
