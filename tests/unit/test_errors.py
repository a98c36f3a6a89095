"""What errors say: much of it is what a peer said, and it ends up on terminals and in logs of all kinds."""

from __future__ import annotations

import pytest

from rocketcore.errors import (
    BrokerError,
    ConfigError,
    ConnectError,
    DecodeError,
    PartlyDone,
    RocketError,
    RouteNotFound,
    SendsFailed,
)
from rocketcore.printable import is_printable

FORGED = "no\n2026-01-01 CRITICAL disk full\x1b[2J\x9b31m\u202e"
SHOWN = "no 2026-01-01 CRITICAL disk full\\x1b[2J\\x9b31m\\u202e"
REFUSED = BrokerError.of(1, FORGED, "b:1", "send to topic 'T'")


def test_a_remark_is_shown_in_one_line_and_kept_as_it_came() -> None:
    assert str(REFUSED) == f"send to topic 'T' at b:1: SYSTEM_ERROR (1): {SHOWN}"
    assert REFUSED.remark == FORGED
    assert str(BrokerError.of(17, "no topic\nSee the FAQ")) == "TOPIC_NOT_EXIST (17): no topic See the FAQ"


@pytest.mark.parametrize(
    "error",
    [
        DecodeError(FORGED, 7),
        ConfigError(FORGED),
        ConnectError(FORGED),
        RouteNotFound(FORGED),
        PartlyDone("delete topic", ["a:1"], {FORGED: REFUSED}),
        SendsFailed(2, ValueError(FORGED)),
        BrokerError.of(1, FORGED, FORGED, FORGED),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_error_makes_a_line_of_its_own(error: RocketError) -> None:
    assert "CRITICAL disk full" in str(error)
    assert is_printable(str(error))
