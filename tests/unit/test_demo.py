"""The ledger of the main job: it has to notice everything that can go wrong."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from rocketcore import demo
from rocketcore.demo import Ledger
from rocketcore.errors import ConfigError
from rocketcore.message import MessageQueue, ReceivedMessage


def message(key: str, body: bytes, offset: int, queue_id: int = 0) -> ReceivedMessage:
    queue = MessageQueue("T", "broker-a", queue_id)
    return ReceivedMessage("T", body, queue, offset, f"id-{offset}", "", {"KEYS": key})


def ledger(*messages: ReceivedMessage) -> Ledger:
    book = Ledger({"a": zlib.crc32(b"one"), "b": zlib.crc32(b"two")})
    for item in messages:
        book.take(item)
    return book


def test_all_is_well() -> None:
    book = ledger(message("a", b"one", 0), message("b", b"two", 0, queue_id=1))
    assert book.wait(0)
    assert book.sound
    assert str(book) == "2 of 2, missing 0, duplicated 0, corrupt 0, out of order 0"
    assert book.body_bytes == 6


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([message("a", b"one", 0)], "1 of 2, missing 1, duplicated 0, corrupt 0, out of order 0"),
        (
            [message("a", b"one", 0), message("b", b"two", 1), message("a", b"one", 2)],
            "2 of 2, missing 0, duplicated 1, corrupt 0, out of order 0",
        ),
        (
            [message("a", b"one", 0), message("b", b"tvo", 1)],
            "1 of 2, missing 1, duplicated 0, corrupt 1, out of order 0",
        ),
        (
            [message("a", b"one", 0), message("b", b"two", 1), message("stranger", b"one", 2)],
            "2 of 2, missing 0, duplicated 0, corrupt 1, out of order 0",
        ),
        (
            [message("a", b"one", 5), message("b", b"two", 4)],
            "2 of 2, missing 0, duplicated 0, corrupt 0, out of order 1",
        ),
    ],
)
def test_what_is_wrong_is_counted(messages: list[ReceivedMessage], text: str) -> None:
    book = ledger(*messages)
    assert not book.sound
    assert str(book) == text


def test_a_late_duplicate_is_noticed_after_all_have_come() -> None:
    book = ledger(message("a", b"one", 0), message("b", b"two", 1))
    assert book.sound
    book.take(message("b", b"two", 2))
    assert (book.sound, book.duplicated) == (False, 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.docx", r"rows\.docx: the demo reads \.arrow, \.arrows,"),
        ("away.csv", "file not found: .*away.csv"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_before_anything_starts(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "ServerProcess", None)
    (tmp_path / "rows.docx").write_text("")
    with pytest.raises(ConfigError, match=text):
        demo.run(tmp_path / name)
