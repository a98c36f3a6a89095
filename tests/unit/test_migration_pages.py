"""docs/migrating.md and docs/from-kafka.md: every name of ours, and every verb of ``rocket``, is there."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.cli.main import COMMANDS, Entry, LazyGroup
from tests.fixtures.pages import PAGES

SETTINGS = {each.name for kind in (rmq.ProducerConfig, rmq.ConsumerConfig) for each in fields(kind)}
OF_MESSAGES = {"delay", "deliver_at", "delay_level", "keys", "tag", "properties", "message_group", "sql"}
"""Keyword arguments of sends and subscriptions."""
NEITHER = {"with", "async for", "poll()", "msg_id", "flushDiskType", '"last"'}
"""Python's words, Kafka's, and what has a name elsewhere."""
CLASSES = r"aio\.\w+|Producer|PushConsumer|PullConsumer|SimpleConsumer|Admin|ReceivedMessage"


def is_verb(words: list[str]) -> bool:
    entries: dict[str, Entry | LazyGroup] = COMMANDS
    for index, word in enumerate(words):
        entry = entries.get(word)
        if isinstance(entry, LazyGroup):
            entries = entry.entries
        else:
            return entry is not None and index == len(words) - 1
    return False


@pytest.mark.parametrize("page", ["migrating.md", "from-kafka.md"])
def test_every_name_is_there(page: str) -> None:
    rows = re.findall(r"^\|.*(?<!\\)\| (.*) \|$", (PAGES / page).read_text("utf-8"), re.MULTILINE)
    ours = [code for row in rows for code in re.findall(r"`([^`]+)`", row)]
    assert len(ours) > 40
    for code in ours:
        if verb := re.fullmatch(r"rocket ([a-z ]+)", code):
            assert is_verb(verb[1].split()), code
        elif name := re.match(r"(?:raise )?rmq\.(\w+)", code):
            assert hasattr(rmq, name[1]), code
        elif member := re.fullmatch(rf"({CLASSES})(?:\.(\w+))?(?:\(.*\))?", code):
            owner = member[1].removeprefix("aio.")
            kind = getattr(aio if member[1] != owner else rmq, owner)
            assert member[2] is None or hasattr(kind, member[2]), code
        elif code not in NEITHER:
            assert code.partition("=")[0] in SETTINGS | OF_MESSAGES, code
