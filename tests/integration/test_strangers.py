"""What stands on stderr of a program that has set up no logging, whatever fails in it with message after message."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore.admin.client import Admin
from rocketcore.local import LocalCluster
from tests.integration.stranger import MESSAGES

pytestmark = pytest.mark.timeout(240)

PROGRAM = Path(__file__).with_name("stranger.py")
VALUE_ERROR = ["Traceback (most recent call last):", "ValueError: typo"]
BROKEN = ["in broken", *VALUE_ERROR]
SAID: dict[str, tuple[list[str], list[str]]] = {
    "handler": (["handler failed topic="], [*BROKEN, "broadcast message dropped"]),
    "ordered": (["handler failed topic="], BROKEN),
    "later": (["handler asked for the message again topic="], [*BROKEN, "broadcast message dropped"]),
    "true": (["handler returned a value of type bool, which is ignored: its messages are done"], []),
    "false": (["handler returned False, which counts as a failure"], ["broadcast message dropped"]),
    "dead": (["handler failed topic="], [*BROKEN, "message put among the dead letters, it failed 1 times"]),
    "hook": (["hook failed hook="], ["in before_consume", *VALUE_ERROR]),
    "process": (["processing failed topic="], BROKEN),
    "callback": (["callback failed msg_id="], ["in callback", *VALUE_ERROR]),
}
"""By case what is told of it, and what stands there besides, of the first."""

AT_THE_END = ("hook", "process", "callback")
"""Cases that belong to no consumer: what was not shown of them is counted when the program ends."""

MOST_LINES = 60
"""A kind has its first with a traceback, and a line for each second that the case lasts."""


@pytest.fixture(scope="module")
def run_stranger(cluster: LocalCluster) -> Iterator[Callable[[str], dict[str, str]]]:
    """``run_stranger(face)``: what each case says, by its name; each face runs once."""
    said: dict[str, dict[str, str]] = {}
    topic = "T-strangers"
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=1)
        admin.create_topic(f"{topic}-sent", queues=1)
    with rmq.Producer(cluster.namesrv, group="P-strangers") as producer:
        producer.send_batch([rmq.Message(topic, b"x") for _ in range(MESSAGES)])

    def run(face: str) -> dict[str, str]:
        if face not in said:
            cases = [f"{case}:{topic}-sent" if case == "callback" else f"{case}:{topic}" for case in SAID]
            with tempfile.TemporaryDirectory() as home:
                done = subprocess.run(
                    [sys.executable, str(PROGRAM), cluster.namesrv, face, *cases],
                    capture_output=True,
                    text=True,
                    timeout=200,
                    env={"PATH": "/usr/bin:/bin", "HOME": home, "PYTHONPATH": str(PROGRAM.parents[2])},
                    check=False,
                )
            assert done.returncode == 0, done.stderr[-2000:]
            assert done.stdout == ""
            parts = re.split(r"^== (\w+)\n", done.stderr, flags=re.MULTILINE)
            assert parts[0] == ""
            said[face] = dict(zip(parts[1::2], parts[2::2], strict=True))
        return said[face]

    yield run
    with Admin(cluster.namesrv) as admin:
        admin.delete_topic(topic)
        admin.delete_topic(f"{topic}-sent")


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
@pytest.mark.parametrize("case", SAID)
def test_the_first_failure_is_told_whole_and_hundreds_are_few_lines(
    case: str, face: str, run_stranger: Callable[[str], dict[str, str]]
) -> None:
    said = run_stranger(face)[case]
    begins, parts = SAID[case]
    lines = said.splitlines()
    for begin in begins:
        assert lines[0].startswith(begin), said
    for part in parts:
        assert part in said
    assert said.count("Traceback") == ("ValueError: typo" in parts), said
    assert "rocketcore/client" not in said, said  # our own frames explain nothing
    assert len(lines) <= MOST_LINES, said
    if case in AT_THE_END:
        said += run_stranger(face)["end"]
    if case != "true":
        told = re.findall(r"more=(\d+)$|^(\d+) more like", said, flags=re.MULTILINE)
        assert sum(int(more or rest) for more, rest in told) >= MESSAGES - MOST_LINES, said
