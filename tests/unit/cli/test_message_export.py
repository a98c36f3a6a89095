"""What an export settles before it begins."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import cast

import pytest

from rocketcore.cli import message_export
from rocketcore.cli.consume import parse_range
from rocketcore.client.loop_client import LoopClient
from rocketcore.errors import DecodeError
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.stats import TopicOffset


@pytest.mark.parametrize(("low", "high"), [(-5, 10), (50, 10)])
def test_bounds_that_are_no_offsets_are_refused(low: int, high: int, monkeypatch: pytest.MonkeyPatch) -> None:
    held = {
        MessageQueue("T", "broker-a", 0): TopicOffset(0, 9),
        MessageQueue("T", "broker-b", 1): TopicOffset(low, high),
    }
    admin = SimpleNamespace(topic_stats=lambda topic: held)
    monkeypatch.setattr(message_export, "open_admin", lambda: contextlib.nullcontext(admin))
    client = SimpleNamespace(
        config=SimpleNamespace(timeout=5.0),
        instance=SimpleNamespace(refresh_topic=lambda topic, timeout: None),
        run=lambda answer: answer,
    )
    with pytest.raises(DecodeError, match=rf"broker-b.* holds messages from {low} up to {high}: these are no offsets"):
        message_export._plan(cast(LoopClient, client), "T", parse_range("start:end", 0), [])
