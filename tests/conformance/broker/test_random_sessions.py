"""Random sessions, the same with our broker and with Apache's: every answer, offsets after each step, all at the end.

A failure says the seed and the shortest session, found by leaving steps out, that still ends in two answers.
``ROCKETCORE_BROKER_SESSIONS`` says how many are played, ``ROCKETCORE_BROKER_SEED`` the first one's seed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from tests.conformance.broker.connection import BrokerAddress, Connection
from tests.conformance.broker.differences import find_difference
from tests.conformance.broker.player import Player
from tests.conformance.broker.sessions import Generator, Step
from tests.conformance.shortening import shortest
from tests.fixtures.apache import require_java
from tests.fixtures.brokers import start_broker

pytestmark = pytest.mark.interop

SESSIONS = int(os.environ.get("ROCKETCORE_BROKER_SESSIONS", "24"))
FIRST_SEED = int(os.environ.get("ROCKETCORE_BROKER_SEED", "0"))
STEPS = 40
TOGETHER = 8
"""Sessions of one test; names of their own keep them apart, so that they wait for delayed messages together."""
SHORTENING_SECONDS = 60.0


class Difference(NamedTuple):
    """Where two brokers answered otherwise, after these steps."""

    steps: list[Step]
    where: str

    def __str__(self) -> str:
        return "\n".join([*(f"{number:3} {step}" for number, step in enumerate(self.steps)), self.where])


class Players:
    """Both brokers."""

    def __init__(self, ours: BrokerAddress, apache: BrokerAddress) -> None:
        self._brokers = (ours, apache)

    def play(self, steps: Sequence[Step]) -> Difference | None:
        """Return the first difference; leave nothing behind."""
        serial = uuid4().hex[:8]
        with contextlib.ExitStack() as stack:
            players = [stack.enter_context(Player(broker, serial)) for broker in self._brokers]
            played: list[Step] = []
            for step in steps:
                played.append(step)
                for what, answers in (
                    (step.kind, [player.play(step) for player in players]),
                    ("offsets", [player.sweep() for player in players]),
                ):
                    where = find_difference(*answers, what)  # type: ignore[call-arg]
                    if where is not None:
                        return Difference(played, where)
            where = find_difference(*(player.last_look() for player in players), "the last look")  # type: ignore[call-arg]
            return None if where is None else Difference(played, where)


@pytest.fixture(scope="module")
def players(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Players]:
    require_java()
    with ExitStack() as stack:
        ours, apache = (
            start_broker(stack, tmp_path_factory.mktemp("sessions"), apache=apache) for apache in (False, True)
        )
        for each in (ours, apache):
            with Connection(each) as first:
                first.sent(first.topic(), b"first")  # so that no message of a session is at place 0
        yield Players(ours, apache)


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SESSIONS, TOGETHER))
def test_random_sessions(players: Players, first: int) -> None:
    def play(seed: int) -> Any:
        return players.play(Generator(seed).steps(STEPS))

    seeds = range(first, min(first + TOGETHER, FIRST_SEED + SESSIONS))
    with ThreadPoolExecutor(TOGETHER) as pool:
        for seed, difference in zip(seeds, pool.map(play, seeds), strict=True):
            if difference is not None:
                pytest.fail(f"seed {seed}\n{shortest(difference, players.play, SHORTENING_SECONDS)}", pytrace=False)
