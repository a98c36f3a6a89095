"""Messages of ``send_nowait`` that an asyncio program leaves behind: their number is on stderr."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(60)

PROGRAM = """
import asyncio, sys
from rocketcore import aio

async def main(keep):
    producer = aio.Producer(sys.argv[1], group="left")
    if keep:
        globals()["producer"] = producer
    for number in range(100):
        await producer.send_nowait(sys.argv[2], str(number))
    if "flush" in sys.argv[3:]:
        await producer.flush()
    if "close" in sys.argv[3:]:
        await producer.close()

asyncio.run(main("keep" in sys.argv[3:]))
"""


@pytest.mark.parametrize(
    ("ways", "told"),
    [((), True), (("keep",), True), (("flush",), False), (("close",), False), (("keep", "close"), False)],
)
def test_what_was_not_sent_is_counted(
    ways: tuple[str, ...], told: bool, cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.namesrv, make_topic(), *ways],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = (
        "100 messages of send_nowait were not sent: aio.Producer of group 'left' was not closed before its loop ended\n"
    )
    assert done.stderr == (text if told else "")
