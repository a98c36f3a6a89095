"""Every verb against a broker, and a name server, that accepts connections and says nothing, and one that is not there.

None takes longer than its time-out, and each says who it was that did not answer.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from tests.conformance.peer import FakeBroker, Peer
from tests.fixtures.processes import RocketProcess
from tests.integration.cli.verbs import ARGUMENTS, ASK_NOBODY, Outcome, all_verbs

SECONDS = 2.0
ENDING = 1.5
"""Longest time between the time-out and the end of the process; it is half a second where the machine is not busy."""

TOPICS = ("orders", "%RETRY%billing", "%DLQ%billing", "RMQ_SYS_TRACE_TOPIC", "DefaultCluster", "broker-f")

BY_NAME_SERVERS = {
    "topic list", "topic route", "dlq list", "cluster list", "cluster topology", "broker list", "namesrv config get",
    "namesrv config set", "namesrv kv set",
}  # fmt: skip
"""What name servers answer, whatever brokers do."""
TELL_THE_BROKER_TOO = {"broker drain": 0, "broker undrain": 0, "cluster describe": 0, "broker describe": 5}
"""What is done or shown without the broker, which is named."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Outcome]]:
    """What became of each verb, by who is silent."""
    folder = tmp_path_factory.mktemp("unanswered")
    server = RocketProcess("namesrv", "start", "--listen", "127.0.0.1:0", "--home", str(folder), log=folder / "log")
    try:
        with (
            socket.create_server(("127.0.0.1", 0), backlog=512) as frozen,
            socket.socket() as dead,
            Peer(server.address, apache=False) as peer,
        ):
            dead.bind(("127.0.0.1", 0))  # and does not listen
            silent, gone = (f"127.0.0.1:{each.getsockname()[1]}" for each in (frozen, dead))
            with (
                FakeBroker(peer, cluster="DefaultCluster", name="broker-f", at=silent).registered(*TOPICS),
                FakeBroker(peer, cluster="Drained", name="broker-d", at=silent).registered("drained", "Drained"),
            ):
                done = subprocess.run(
                    [sys.executable, "-m", "tests.integration.cli.verbs", str(folder), str(SECONDS),
                     f"broker={server.address}", f"name server={silent}", f"nobody={gone}"],
                    check=True, capture_output=True, text=True, timeout=300,
                    env={**os.environ, "XDG_CONFIG_HOME": str(folder)},
                )  # fmt: skip
            named = {"broker": silent, "name server": silent, "nobody": gone}
            return {
                who: {
                    verb: Outcome(**{**each, "err": each["err"].replace(named[who], "ADDRESS")})
                    for verb, each in of.items()
                }
                for who, of in json.loads(done.stdout).items()
            }
    finally:
        server.kill()


def expected(verb: str, silent: str) -> int:
    """Return the exit code of a verb."""
    if verb == "doctor":
        return 1
    if silent == "broker":
        if verb.startswith("namesrv kv") and verb != "namesrv kv set":
            return 3
        return 0 if verb in BY_NAME_SERVERS else TELL_THE_BROKER_TOO.get(verb, 124)
    return 124 if silent == "name server" else 5


@pytest.mark.parametrize("silent", ["broker", "name server", "nobody"])
def test_no_verb_waits_longer_than_it_may(outcomes: dict[str, dict[str, Outcome]], silent: str) -> None:
    slow = {verb: each.seconds for verb, each in outcomes[silent].items() if each.seconds > SECONDS + ENDING}
    assert not slow


@pytest.mark.parametrize("silent", ["broker", "name server", "nobody"])
def test_each_verb_says_who_did_not_answer(outcomes: dict[str, dict[str, Outcome]], silent: str) -> None:
    wrong = {verb: each for verb, each in outcomes[silent].items() if each.code != expected(verb, silent)}
    assert not wrong
    why = "Connection refused" if silent == "nobody" else "no answer within"
    mute = {
        verb: each.err
        for verb, each in outcomes[silent].items()
        if each.code in (5, 124) and verb != "broker describe" and not ("ADDRESS" in each.err and why in each.err)
    }
    assert not mute
    odd = {verb: each for verb, each in outcomes[silent].items() if "Traceback" in each.err or "INTERNAL" in each.err}
    assert not odd


def test_all_verbs_are_walked() -> None:
    assert all_verbs() == {*ARGUMENTS, *ASK_NOBODY}
