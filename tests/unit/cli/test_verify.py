"""``rocket broker verify``: exit codes, forms, and what it says of a folder that it cannot verify."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
from pathlib import Path

import pytest

from rocketcore.cli.main import run
from rocketcore.config_file import format_properties
from tests.fixtures.stores import SEGMENT_BYTES, put, read_queue, running_store

PROPERTIES = {"mappedFileSizeCommitLog": str(SEGMENT_BYTES), "maxMessageSize": "1000"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with nine messages in one queue."""
    folder = tmp_path / "store"

    async def fill() -> None:
        async with running_store(folder, message_index_enable=False) as store:
            for number in range(9):
                await put(store, b"%06d" % number)

    asyncio.run(fill())
    (folder / "config").mkdir()
    (folder / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    return folder


def overwrite(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"?")


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_a_whole_store_exits_with_0(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", "verify", str(root), "-o", "json"]) == 0
    said = answer(capsys)
    assert (said["whole"], said["messages"], said["served"]) == (True, 9, 9)
    assert run(["broker", "verify", str(root), "--repair", "-o", "json"]) == 0
    assert answer(capsys) == said, "there is nothing to repair"


def test_a_queue_is_repaired_and_exits_with_0(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overwrite(root / "consumequeue" / "T" / "0" / f"{0:020d}", 25)
    assert run(["broker", "verify", str(root), "-o", "json"]) == 1
    damaged = answer(capsys)["damaged"]
    assert run(["broker", "verify", str(root), "--repair", "-o", "json"]) == 0
    assert answer(capsys)["repaired"] == damaged

    async def serves() -> None:
        async with running_store(root, message_index_enable=False) as store:
            assert len(read_queue(store)) == 9

    asyncio.run(serves())


def test_a_repair_that_leaves_something_exits_with_1(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "config" / "topics.json").write_text("{")
    overwrite(root / "queuebounds", 3)
    assert run(["broker", "verify", str(root), "--repair"]) == 1
    said = capsys.readouterr()
    assert "repaired:\nKIND  FILE         POSITION" in said.out
    assert "damaged:\nKIND    FILE                POSITION" in said.out
    assert said.err.endswith(f"\n1 place is damaged in {root}\n")


@pytest.mark.parametrize(
    ("made", "what"), [("", "there is no such folder"), (".", "it is no store"), ("config", "it is no store")]
)
def test_what_is_no_store_exits_with_3(
    tmp_path: Path, made: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with any ``config`` in it was a store that is whole."""
    folder = tmp_path / "none"
    if made:
        (folder / made).mkdir(parents=True)
    assert run(["broker", "verify", str(folder)]) == 3
    assert capsys.readouterr().err.startswith(f"error: {folder}: {what}\nhint: a store has one of commitlog,")


def test_a_store_in_use_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def while_it_runs() -> None:
        async with running_store(root, message_index_enable=False):
            assert run(["broker", "verify", str(root), "-o", "json"]) == 1

    asyncio.run(while_it_runs())
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "STORE_LOCKED"


def test_settings_of_the_broker_are_believed(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "broker.properties"
    settings.write_text(format_properties(PROPERTIES | {"mappedFileSizeConsumeQueue": "1000"}))
    assert run(["broker", "verify", str(root), "-c", str(settings)]) == 0
    settings.write_text(format_properties(PROPERTIES | {"mappedFileSizeCommitLog": str(1 << 16 | 1 << 12)}))
    assert run(["broker", "verify", str(root), "-c", str(settings)]) == 1
    assert f"has {SEGMENT_BYTES} bytes and not the configured {1 << 16 | 1 << 12}" in capsys.readouterr().err
    log, elsewhere = root / "commitlog", tmp_path / "elsewhere"
    log.rename(elsewhere)
    settings.write_text(format_properties(PROPERTIES | {"storePathCommitLog": str(elsewhere)}))
    overwrite(elsewhere / f"{0:020d}", 0)
    capsys.readouterr()
    assert run(["broker", "verify", str(root), "-c", str(settings), "-o", "json"]) == 1
    damaged = answer(capsys)["damaged"]
    assert isinstance(damaged, list)
    assert damaged[0]["file"] == str(elsewhere / f"{0:020d}"), "in full where it is not below the folder"


def test_a_log_of_one_file_that_was_cut_is_repaired_with_the_settings_of_its_broker(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was called whole. Repaired with a size of our own, its broker would refuse it."""
    os.truncate(root / "commitlog" / f"{0:020d}", SEGMENT_BYTES - 1000)
    assert run(["broker", "verify", str(root), "-o", "json"]) == 1
    said = answer(capsys)
    size = next(each for each in said["damaged"] if "bytes and not" in each["what"])  # type: ignore[attr-defined]
    assert (size["file"], size["position"]) == (f"commitlog/{0:020d}", SEGMENT_BYTES - 1000)
    assert size["what"] == f"the file has {SEGMENT_BYTES - 1000} bytes and not {1 << 30}"
    assert "the length of its only file cannot be it; 1073741824 is taken" in str(said["remarks"])
    assert run(["broker", "verify", str(root), "--repair", "-o", "json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["code"], "in the file of -c" in error["hint"]) == ("SIZE_UNKNOWN", True)
    settings = tmp_path / "broker.properties"
    settings.write_text(format_properties(PROPERTIES))
    assert run(["broker", "verify", str(root), "--repair", "-c", str(settings), "-o", "json"]) == 0
    assert answer(capsys)["served"] == 9
    assert (root / "commitlog" / f"{0:020d}").stat().st_size == SEGMENT_BYTES


def test_what_is_lost_is_not_called_repaired(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = int.from_bytes((root / "commitlog" / f"{0:020d}").read_bytes()[:4], "big")
    overwrite(root / "commitlog" / f"{0:020d}", 2 * size + 30)
    overwrite(root / "consumequeue" / "T" / "0" / f"{0:020d}", 25)
    assert run(["broker", "verify", str(root), "--repair", "-o", "json"]) == 6
    said = answer(capsys)
    assert [each["kind"] for each in said["repaired"]] == ["queue"]  # type: ignore[attr-defined]
    assert said["lost"] == [{"topic": "T", "queue_id": 0, "from": 2, "to": 3}]
    [place] = said["lost_bytes"]  # type: ignore[misc]
    assert (place["file"], place["position"], place["bytes"]) == (f"commitlog/{0:020d}", 2 * size, size)
    assert run(["broker", "verify", str(root)]) == 0
    out = capsys.readouterr().out
    assert "\nlost:\nTOPIC  QUEUE  FROM  TO\nT          0     2   3\n" in out
    assert "lost from the log" not in out


def test_csv_has_a_row_for_everything(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It had the totals only."""
    overwrite(root / "commitlog" / f"{0:020d}", 30)
    assert run(["broker", "verify", str(root), "-o", "csv"]) == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["list"] for row in rows] == ["store", "damaged", "lost", "remarks"]
    assert (rows[0]["whole"], rows[0]["served"], rows[0]["what"]) == ("false", "8", "")
    assert (rows[1]["kind"], rows[1]["file"], rows[1]["position"]) == ("log", f"commitlog/{0:020d}", "0")
    assert "no message" in rows[1]["what"]
    assert f"{SEGMENT_BYTES} is taken, the length of its only file" in rows[3]["what"]
    assert [rows[2][key] for key in ("topic", "queue_id", "from", "to")] == ["T", "0", "0", "1"]
