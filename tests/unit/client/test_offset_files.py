"""Offset files of broadcasting members on one machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rocketcore.client.offset_store import LocalOffsetStore
from rocketcore.message import MessageQueue
from rocketcore.service import ManualClock

QUEUE = MessageQueue("T", "a", 0)


def write(store: LocalOffsetStore, offset: int) -> None:
    store.update(QUEUE, offset)
    asyncio.run(store.persist())


def read(store: LocalOffsetStore) -> int | None:
    return asyncio.run(store.read(QUEUE))


def test_each_member_has_a_file_and_the_next_takes_what_was_left_unread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "id" / "G" / "offsets.json"
    slow = LocalOffsetStore(path)
    assert "another broadcast member" not in caplog.text
    fast = LocalOffsetStore(path)
    assert "offsets-2.json" in caplog.text
    assert "instance_name" in caplog.text
    write(slow, 12)
    write(fast, 70)
    slow.close()
    fast.close()
    again = LocalOffsetStore(path)
    assert read(again) == 12
    other = LocalOffsetStore(path)
    assert read(other) == 70
    third = LocalOffsetStore(path)
    assert read(third) is None
    for each in (again, other, third):
        each.close()


DAY = 24 * 3600.0


@pytest.mark.parametrize(
    ("alone", "kept"), [([0.0], True), ([DAY], True), ([3 * DAY, 3 * DAY, 3 * DAY], True), ([8 * DAY], False)]
)
def test_a_member_that_ran_alone_leaves_the_file_of_one_that_is_stopped(
    tmp_path: Path, alone: list[float], kept: bool
) -> None:
    path, clock = tmp_path / "offsets.json", ManualClock()
    first, second = LocalOffsetStore(path, clock), LocalOffsetStore(path, clock)
    write(first, 5)
    write(second, 9)
    first.close()
    second.close()
    for seconds in alone:
        lone = LocalOffsetStore(path, clock)
        assert read(lone) == 5
        clock.advance(seconds)
        lone.close()
    first, second = LocalOffsetStore(path, clock), LocalOffsetStore(path, clock)
    assert (read(first), read(second)) == (5, 9 if kept else None)
    first.close()
    second.close()


def test_a_file_that_another_took_for_a_moment_is_not_of_one_that_is_gone(tmp_path: Path) -> None:
    path, clock = tmp_path / "offsets.json", ManualClock()
    first, second = LocalOffsetStore(path, clock), LocalOffsetStore(path, clock)
    write(first, 5)
    write(second, 9)
    first.close()
    second.close()
    for each in tmp_path.iterdir():  # files know the system's time alone, which is too coarse for what follows
        os.utime(each, (0, 0))
    lone = LocalOffsetStore(path, clock)
    clock.advance(8 * DAY)
    for _ in range(2):  # which writes nothing
        other = LocalOffsetStore(path, clock)
        assert read(other) == 9
        other.close()
    lone.close()
    first, second = LocalOffsetStore(path), LocalOffsetStore(path)
    assert (read(first), read(second)) == (5, 9)
    first.close()
    second.close()


def test_a_member_that_was_killed_keeps_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    program = (
        "import sys, time, asyncio, pathlib\n"
        "from rocketcore.client.offset_store import LocalOffsetStore\n"
        "from rocketcore.message import MessageQueue\n"
        "store = LocalOffsetStore(pathlib.Path(sys.argv[1]))\n"
        "store.update(MessageQueue('T', 'a', 0), 7)\n"
        "asyncio.run(store.persist())\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        beside = LocalOffsetStore(path)
        assert read(beside) is None
        beside.close()
        process.send_signal(signal.SIGKILL)
    following = LocalOffsetStore(path)
    assert read(following) == 7
    following.close()


def test_a_forked_child_holds_no_file_of_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = LocalOffsetStore(path)
    write(store, 3)
    goes, ends = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ends)
            os.read(goes, 1)
            store.close()
        finally:
            os._exit(0)
    os.close(goes)
    store.close()
    following = LocalOffsetStore(path)
    assert read(following) == 3
    os.close(ends)
    os.waitpid(child, 0)
    beside = LocalOffsetStore(path)
    assert read(beside) is None
    following.close()
    beside.close()


def test_a_folder_that_takes_no_lock_is_used_without(tmp_path: Path) -> None:
    (tmp_path / "offsets.json.lock").mkdir()
    store = LocalOffsetStore(tmp_path / "offsets.json")
    write(store, 4)
    store.close()
    assert read(LocalOffsetStore(tmp_path / "offsets.json")) == 4
