"""Name servers come and go at random: nothing that clients do fails, no consumer stands still, and order is kept."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from rocketcore.message import SHARDING_KEY, MessageQueue, ReceivedMessage
from tests.soak.harness import SoakRun
from tests.soak.ledger import Key, Ledger, make_body

SECONDS = float(os.environ.get("ROCKETCORE_SOAK_SECONDS", "5"))
"""At least: every case of a disturbance is met once, however long they take."""
SEED = int(os.environ.get("ROCKETCORE_SOAK_SEED", "20261121"))
GAP_ALLOWED = 10.0
COMPLETE_ALLOWED = 1.0
PLANTED_SECONDS = 3.0
PLANTED_GAP = 2.0

pytestmark = pytest.mark.soak


@pytest.mark.alone
@pytest.mark.timeout(SECONDS * 2 + 120)
def test_clients_do_not_notice_name_servers_that_come_and_go(tmp_path: Path) -> None:
    run = SoakRun(tmp_path, SEED, SECONDS, gap_allowed=GAP_ALLOWED)
    verdict = asyncio.run(run.run())
    figures = run.summary.as_dict()
    print(json.dumps(figures))
    assert verdict, f"{dict(verdict.counts)} {verdict.examples} {figures}"
    assert run.summary.longest_to_complete <= COMPLETE_ALLOWED, figures
    assert run.summary.acknowledged >= 50 * SECONDS, figures
    assert run.summary.grouped >= 20 * SECONDS, figures
    assert run.summary.kills >= 4, figures


@pytest.mark.parametrize(("plant", "kind"), [("one address", "failed"), ("held", "stuck")])
def test_the_harness_sees_what_it_is_to_see(tmp_path: Path, plant: str, kind: str) -> None:
    """A producer without a name server that lives, and a consumer that is held, are found."""
    run = SoakRun(tmp_path, SEED, PLANTED_SECONDS, gap_allowed=PLANTED_GAP, plant=plant)
    assert asyncio.run(run.run()).counts[kind] > 0, run.summary.as_dict()


@pytest.mark.parametrize("kind", ["failed", "lost", "phantom", "moved", "reordered", "stuck"])
def test_the_judge_sees_each_kind_of_wrong(kind: str) -> None:
    ledger = Ledger(in_order=["g"])
    ledger.watch("c")
    for sequence in range(3):
        ledger.send(("p", sequence))
        ledger.acknowledge(("p", sequence))
    for sequence in (0, 2, 1) if kind == "reordered" else (0, 1, 2):
        if kind != "lost" or sequence != 1:
            ledger.consume("g", "c", received(("p", sequence), sequence))
    match kind:
        case "failed":
            ledger.fail(("p", 3), "refused")
        case "phantom":
            ledger.consume("g", "c", received(("q", 0), 3))
        case "moved":
            ledger.consume("g", "c", received(("p", 2), 2))
    ledger.end_watch()
    verdict = ledger.judge({"g": "p"}, gap_allowed=-1.0 if kind == "stuck" else 60.0)
    assert dict(verdict.counts) == {kind: 1}


def test_the_judge_of_order_asks_no_more_than_is_promised() -> None:
    """Duplicates, other message groups, other senders and topics, and groups without order may come as they like."""
    ledger = Ledger(in_order=["g"])
    for sequence in range(4):
        for name in ("p", "p2"):
            ledger.send((name, sequence))
    for offset, (key, message_group, topic) in enumerate(
        [
            (("p", 1), "a", "T"),
            (("p", 3), "a", "T"),
            (("p", 1), "a", "T"),  # stored twice
            (("p", 0), "b", "T"),
            (("p", 2), "a", "U"),
            (("p2", 0), "a", "T"),
        ]
    ):
        ledger.consume("g", "c", received(key, offset, message_group, topic))
    for offset, sequence in enumerate((1, 0)):
        ledger.consume("without order", "c", received(("p", sequence), offset))
        ledger.consume("g", "c", received(("p2", 3 - sequence), 6 + offset, None))
    assert ledger.grouped == 5
    assert not ledger.judge({}, gap_allowed=60.0).counts


def received(key: Key, offset: int, message_group: str | None = "m", topic: str = "T") -> ReceivedMessage:
    properties = {} if message_group is None else {SHARDING_KEY: message_group}
    queue = MessageQueue(topic, "a", 0)
    return ReceivedMessage(topic, make_body(key), queue, offset, "id", "offset id", properties=properties)
