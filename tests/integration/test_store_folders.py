"""Store folders as operators have them: behind links, on other disks, read-only, half gone, and not ours at all."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocketcore as rmq
from tests.fixtures.processes import Processes, RocketProcess


@pytest.fixture
def namesrv(processes: Processes) -> str:
    return processes.namesrv().address


def send(namesrv: str, *bodies: bytes) -> None:
    with rmq.Producer(namesrv) as producer:
        for body in bodies:
            producer.send(rmq.Message("Folders", body))


def received(namesrv: str) -> list[bytes]:
    """Return all that the topic holds."""
    with rmq.Admin(namesrv) as admin:
        return sorted(
            admin.message_at(queue, offset).body
            for queue, offsets in admin.topic_stats("Folders").items()
            for offset in range(offsets.min_offset, offsets.max_offset)
        )


def refusal(processes: Processes, namesrv: str, store: Path) -> str:
    """Return what a broker says that does not start."""
    with pytest.raises(RuntimeError, match="ended with 1") as refused:
        processes.broker(namesrv, store=store)
    said = str(refused.value)
    assert "Traceback" not in said
    return said


def restarted(processes: Processes, namesrv: str, broker: RocketProcess, store: Path) -> RocketProcess:
    assert broker.stop() == 0
    return processes.broker(namesrv, store=store)


def test_a_folder_behind_a_link_is_the_folder(processes: Processes, namesrv: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    broker = processes.broker(namesrv, store=tmp_path / "link")
    send(namesrv, b"1")
    assert "in use" in refusal(processes, namesrv, tmp_path / "real")
    restarted(processes, namesrv, broker, tmp_path / "real")
    assert received(namesrv) == [b"1"]


def test_a_log_on_another_disk(processes: Processes, namesrv: str, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "commitlog").symlink_to("../disk")
    broker = processes.broker(namesrv, store=tmp_path / "store")
    send(namesrv, b"1", b"2")
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["0" * 20]
    restarted(processes, namesrv, broker, tmp_path / "store")
    assert received(namesrv) == [b"1", b"2"]


@pytest.mark.parametrize("what", ["a link to nothing", "a log that is a file"])
def test_what_is_no_folder_is_named(processes: Processes, namesrv: str, tmp_path: Path, what: str) -> None:
    store = tmp_path / "store"
    if what == "a link to nothing":
        store.symlink_to("nowhere")
        wrong = store
    else:
        store.mkdir()
        wrong = store / "commitlog"
        wrong.write_text("mine")
    assert f"{wrong}: Not a folder" in refusal(processes, namesrv, store)
    assert what == "a link to nothing" or wrong.read_text() == "mine"


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that nobody may write to, root neither; only root can make one."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    bound = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, text=True, check=False)
    if bound.returncode:
        pytest.skip(f"a read-only folder for root needs mount: {bound.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_read_only_folder_is_refused(processes: Processes, namesrv: str, read_only: Path) -> None:
    said = refusal(processes, namesrv, read_only)
    assert str(read_only / "lock") in said
    assert "Read-only file system" in said or "Permission denied" in said


def test_files_that_are_not_ours_stay(processes: Processes, namesrv: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for folder in (".", "commitlog", "index", "config"):
        (store / folder).mkdir(parents=True, exist_ok=True)
        (store / folder / "notes.txt").write_text("mine")
    broker = processes.broker(namesrv, store=store)
    send(namesrv, b"1")
    restarted(processes, namesrv, broker, store)
    assert received(namesrv) == [b"1"]
    assert [path.read_text() for path in store.rglob("notes.txt")] == ["mine"] * 4


def test_what_is_gone_is_made_again(processes: Processes, namesrv: str, tmp_path: Path) -> None:
    """One part after the other: each has to be there again before the next one goes."""
    store = tmp_path / "store"
    broker = processes.broker(namesrv, store=store)
    send(namesrv, b"1", b"2", b"3")
    for gone in ("consumequeue", "index", "config", "queuebounds", "checkpoint", "indexbounds"):
        assert broker.stop() == 0
        path = store / gone
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        broker = processes.broker(namesrv, store=store)
        assert received(namesrv) == [b"1", b"2", b"3"], gone
    assert broker.stop() == 0
    assert path.exists()
