"""Notes to go on from: the old or the new ones, one process at a time, nothing of another command."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from rocketcore.cli.messages.resume import ProgressFile, check_same, uninterrupted
from rocketcore.cli.shell.failures import CommandFailed


class State(msgspec.Struct, forbid_unknown_fields=True):
    rows: int
    name: str = ""


def notes(path: Path, kind: str = "test 1") -> ProgressFile[State]:
    return ProgressFile(path, kind, State)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    with notes(path) as first:
        assert first.load() is None
        first.save(State(1))
        first.save(State(2, "ä"))
    with notes(path) as second:
        assert second.load() == State(2, "ä")
        second.remove()
    assert os.listdir(tmp_path) == []


def test_nothing_stays_where_nothing_was_noted(tmp_path: Path) -> None:
    with notes(tmp_path / "notes") as first:
        assert first.load() is None
    assert os.listdir(tmp_path) == []


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    with notes(path) as first:
        for rows in range(2):  # the file that holds the lock changes with each save
            with pytest.raises(CommandFailed, match="is in use"):
                notes(path).__enter__()
            first.save(State(rows))
    with notes(path) as second:
        assert second.load() == State(1)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b"null", b"\xff", b'{"kind":"test 1"}'])
def test_damaged_notes_are_refused(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "notes"
    with notes(path) as first:
        first.save(State(12))
    good = path.read_bytes()
    others = [damage] if damage else [good[:end] for end in range(1, len(good))]
    for data in [*others, good.replace(b"12", b"13"), good.replace(b"rows", b"cols")]:
        path.write_bytes(data)
        with notes(path) as second, pytest.raises(CommandFailed, match="cannot be used") as error:
            second.load()
        assert error.value.hint == "start again with --restart"
    path.write_bytes(good)
    with notes(path, "test 2") as other, pytest.raises(CommandFailed, match="they are of 'test 1', not of 'test 2'"):
        other.load()


def test_a_save_that_fails_leaves_the_old_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notes"
    with notes(path) as first:
        first.save(State(1))

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space"):
                first.save(State(2))
        assert first.load() == State(1)
        assert os.listdir(tmp_path) == ["notes"]
        first.save(State(3))
    with notes(path) as second:
        assert second.load() == State(3)


def test_an_interrupt_waits() -> None:
    done = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background does not hear it

    def work() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")

    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["the rest"]


class Begun(msgspec.Struct):
    asked: dict[str, object]
    namesrv: list[str]


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    servers = ["a:9876", "b:9876"]
    check_same(tmp_path, Begun({"tag": None, "more": 1}, servers), {"tag": None}, ["b:9876", "c:9876"])
    with pytest.raises(CommandFailed, match=r"was begun with queues a/0, b/1, not –"):
        check_same(tmp_path, Begun({"queues": ["a/0", "b/1"]}, servers), {"queues": []}, ["d:9876"])
    with pytest.raises(CommandFailed, match=r"was begun with name servers a:9876, b:9876, not d:9876"):
        check_same(tmp_path, Begun({"tag": None}, servers), {"tag": None}, ["d:9876"])
