"""The latency-fault table: one look-up, and the next of 8 and 1,000 queues, none or a tenth of the brokers isolated."""

from __future__ import annotations

from typing import Any

import pytest

from bench import data
from rocketcore._fast.fault import FaultTable
from rocketcore._fast.rotation import QueueRotation
from tests.reference import fault as reference_fault
from tests.reference import rotation as reference_rotation

ROWS: dict[str, Any] = {
    "kernel": (FaultTable, QueueRotation),
    "reference": (reference_fault.FaultTable, reference_rotation.QueueRotation),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("isolated", ["none", "tenth"])
@pytest.mark.parametrize("queues", [8, 1000])
def test_select(benchmark: Any, row: str, queues: int, isolated: str) -> None:
    benchmark.group = f"fault-select-{queues}-{isolated}"
    table, rotation = ROWS[row][0](), ROWS[row][1](data.brokers(queues, 10), 0)
    if isolated == "tenth":
        table.update(3, 100.0, False)
    assert 0 <= benchmark(table.select, rotation, 1, 50.0) < queues


@pytest.mark.parametrize("row", ROWS)
def test_look_up(benchmark: Any, row: str) -> None:
    benchmark.group = "fault-look-up"
    table = ROWS[row][0]()
    table.update(3, 100.0, False)
    assert benchmark(table.is_available, 3, 50.0) is False
