"""Where ours answers otherwise than Apache's on purpose: the one list that tests take their expectations from.

Each names the row of docs/compatibility.md that says why; ``test_differences.py`` checks that it is there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.conformance.broker.connection import Connection


class Difference(NamedTuple):
    """What both do, and how the row of the page begins."""

    apache: Any
    ours: Any
    row: str


DIFFERENCES = {
    "send without a body": Difference(1, 13, "310: a message without a body"),
    "send into the timer's topic": Difference(0, 16, "310: a message into `rmq_sys_wheel_timer`"),
}


def expected(broker: Connection, name: str) -> Any:
    """Return what this make does."""
    difference = DIFFERENCES[name]
    return difference.apache if broker.apache else difference.ours
