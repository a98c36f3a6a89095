"""``rocket message import``: what is taken, and what an import that was interrupted goes on with."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocketcore.errors import RequestTimeout
from rocketcore.local import LocalCluster
from tests.fixtures.commands import Rocket
from tests.fixtures.message_files import FORMS, MESSAGES, Full, contents, messages


def _while_locked(path: Path, function: Callable[[], str]) -> str:
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        return function()


def test_an_import_of_other_columns(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    table = pa.table(
        {
            "id": pa.array([1, 2, 3]),
            "payload": pa.array(["a", "b", "c"], pa.large_string()),
            "names": pa.array([["x", "y"], None, []], pa.list_(pa.string())),
            "region": pa.array(["n", "s", "n"]),
        }
    )
    pq.write_table(table, "other.parquet")
    target = f"{topic}-made"
    base = ["import", "other.parquet", "--topic", target]
    code, _, err = rocket(*base)
    assert (code, "column 'id' cannot be sent with a message" in err, "--column" in err) == (2, True, True)
    code, _, err = rocket(*base, "--column", "body=id", "--create")
    assert (code, "column body is int64" in err, "id is body" in err) == (2, True, True)
    assert "no column 'nothing'" in rocket(*base, "--column", "body=nothing")[2]
    assert "messages have no column 'text'" in rocket(*base, "--column", "text=payload")[2]
    assert rocket(*base, "--column", "body=payload")[0] == 3, "there is no such topic yet"
    named = ["--column", "body=payload", "--column", "keys=names", "--column", "shardingKey=region", "--tag", "t"]
    code, out, err = rocket(*base, *named, "--create", "--queues", "4", "--dry-run")
    assert (code, out) == (0, "")
    assert f"import 3 messages of other.parquet (parquet) to topic {target}, which will be created with 4 queues" in err
    assert "columns: payload as body, names as keys, region as shardingKey" in err
    assert "left out: id" in err
    assert rocket("export", target, "-o", "x.jsonl")[0] == 3, "a dry run makes nothing"
    code, out, err = rocket(*base, *named, "--create", "--queues", "4", "-o", "json")
    assert (code, json.loads(out)["messages"]) == (0, 3), err
    assert rocket("export", target, "-o", "out.parquet")[0] == 0
    rows = {row["body"]: row for row in messages("out.parquet")}
    assert {body: (row["tag"], row["keys"]) for body, row in rows.items()} == {
        b"a": ("t", "x y"), b"b": ("t", None), b"c": ("t", None)
    }  # fmt: skip
    write_id = json.loads(out)["write_id"]
    assert sorted(row["id"] for row in rows.values()) == [f"{write_id}{row:016X}" for row in range(3)]
    assert rows[b"a"]["place"][:2] == rows[b"c"]["place"][:2]


def test_files_that_cannot_be_imported(rocket: Rocket, topic: str) -> None:
    Path("no.parquet").write_bytes(b"PAR1 and no more")
    Path("no.arrow").write_bytes(b"ARROW1\0\0 and no more")
    for name in ("no.parquet", "no.arrow"):
        code, _, err = rocket("import", name, "--topic", topic)
        assert (code, f"{name}: not a valid" in err) == (1, True), err
        assert "Traceback" not in err
    assert rocket("import", "missing", "--topic", topic)[0] == 2
    assert rocket("import", "no.arrow", "--topic", "a b")[0] == 2
    Path("bad.jsonl").write_text('{"body": "fine"}\n\n{"body": "fine"}\n{"body": 1, "colour": 2}\n')
    code, _, err = rocket("import", "bad.jsonl", "--topic", topic)
    what = 'bad.jsonl: line 4, column 23: \'{"body": 1, "colour": 2}\': unknown field colour'
    assert (code, f"error: {what}" in err) == (1, True), err
    assert f"2 messages of bad.jsonl are stored in {topic}" in err
    Path("bad.jsonl").write_text('{"body": "fine"}\n\n{"body": "fine"}\n\nno json\n')
    code, _, err = rocket("import", "bad.jsonl", "--topic", topic, "-o", "json")
    error = json.loads(err.splitlines()[-1])["error"]
    assert (code, error["code"]) == (1, "MESSAGE_ILLEGAL")
    assert "bad.jsonl: line 5, column 1: 'no json'" in error["message"]
    Path("bad.jsonl").write_text('{"body": "fine"}\n\n{"body": "fine"}\n{"body": 1}\n')
    code, out, err = rocket("import", "bad.jsonl", "--topic", topic, "-o", "json")
    assert (code, json.loads(out)["messages"], json.loads(out)["resumed_at"]) == (0, 3, 2), err
    nulls = pa.table({"body": pa.array(["a", None])})
    pq.write_table(nulls, "nulls.parquet")
    code, _, err = rocket("import", "nulls.parquet", "--topic", topic)
    assert (code, "error: nulls.parquet: row 1: the body is null" in err) == (1, True), err


def test_an_import_goes_on_only_with_the_same(rocket: Rocket, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for form in FORMS:
        assert rocket("export", topic, "-o", f"a.{form}")[0] == 0
    for form in FORMS:
        target, name = f"{topic}-{form}", f"a.{form}"
        command = ["import", name, "--topic", target, "--create", "--part-bytes", "1", "--rate", "500"]
        notes = Path(f"{name}.{target}.progress")
        from rocketcore.cli.messages.resume import ProgressFile

        saved = 0
        save = ProgressFile.save

        def interrupted(self: Any, state: Any, save: Any = save) -> None:
            nonlocal saved
            saved += 1
            if saved == 4:
                raise KeyboardInterrupt
            save(self, state)

        with monkeypatch.context() as patched:
            patched.setattr(ProgressFile, "save", interrupted)
            code, _, err = rocket(*command)
        assert (code, f"messages of {name} are stored in {target}; run the same command" in err) == (130, True), err
        assert "was begun with tag –, not x" in rocket(*command, "--tag", "x")[2]
        assert "is in use" in _while_locked(notes, lambda command=command: rocket(*command)[2])  # type: ignore[misc]
        data = Path(name).read_bytes()
        if form == "jsonl":
            Path(name).write_bytes(data.replace(b"queue_id", b"queue-id"))
            assert "has changed since" in rocket(*command)[2]
            Path(name).write_bytes(data)
        else:
            status = Path(name).stat()
            os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
            assert f"{notes} was begun with changed at" in rocket(*command)[2]
            os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns))
        code, out, err = rocket(*command[:-2], "-o", "json")
        assert (code, json.loads(out)["messages"], json.loads(out)["resumed_at"]) == (0, MESSAGES, 100), err
        assert not notes.exists()
        assert rocket("export", target, "-o", f"b.{form}")[0] == 0
        # What was under way when the notes could not be saved was stored, and is there twice with its id.
        counts = Counter(row["id"] for row in messages(f"b.{form}"))
        assert counts.keys() == {row["id"] for row in messages(f"a.{form}")}
        assert sum(counts.values()) == MESSAGES + 50
        assert max(counts.values()) == 2


def test_a_run_that_sent_nothing_holds_nobody_to_its_word(rocket: Rocket, topic: str) -> None:
    Path("a.jsonl").write_text('{"body": "x"}\n')
    pq.write_table(pa.table({"body": ["x"]}), "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        code, _, err = rocket("import", name, "--topic", f"{topic}-no", "--create", "--tag", "a||b")
        assert (code, "no subscription finds a tag with '||' in it" in err) == (2, True), err
    assert rocket("export", f"{topic}-no", "-o", "x.jsonl")[0] == 3, "it was not made"
    Path("b.jsonl").write_text('{"body": 1, "colour": 2}\n')
    pq.write_table(pa.table({"body": pa.array([None], pa.string())}), "b.parquet")
    for name in ("b.jsonl", "b.parquet"):
        code, _, err = rocket("import", name, "--topic", topic, "--tag", "wrong")
        assert (code, f"nothing of {name} was sent to {topic}" in err) == (1, True), err
    assert sorted(os.listdir()) == ["a.jsonl", "a.parquet", "b.jsonl", "b.parquet"]
    for name in ("a.jsonl", "a.parquet"):
        assert rocket("import", name, "--topic", topic, "--tag", "right")[0] == 0


def test_notes_stay_where_something_may_have_been_stored(
    rocket: Rocket, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request without an answer may be stored: what is sent again has its ids."""

    async def unanswered(*_: object) -> None:
        raise RequestTimeout("no answer")

    for form in ("jsonl", "parquet"):
        name = f"a.{form}"
        assert rocket("export", topic, "-o", name)[0] == 0
        with monkeypatch.context() as patched:
            patched.setattr("rocketcore.client.arrow_delivery.BodyDelivery._deliver", unanswered)
            code, _, err = rocket("import", name, "--topic", topic)
        assert (code, f"0 messages of {name} are stored in {topic}; run the same command" in err) == (124, True), err
        assert Path(f"{name}.{topic}.progress").exists()


@pytest.fixture
def full_for_notes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """``with full_for_notes(n):`` a disk that takes so many notes."""
    sync = os.fsync

    @contextlib.contextmanager
    def full(room: int) -> Iterator[None]:
        left = [room]

        def limited(fd: int) -> None:
            if os.readlink(f"/proc/self/fd/{fd}").endswith(".progress.tmp"):
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(fd)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", limited)
            yield

    return full


FULL = "No space left on device"


def test_a_full_disk_under_the_notes_of_an_import(rocket: Rocket, topic: str, full_for_notes: Full) -> None:
    assert rocket("export", topic, "-o", "a.jsonl")[0] == 0
    Path("notes").mkdir()
    command = ["import", "a.jsonl", "--topic", topic, "--progress", "notes/n.progress", "--part-bytes", "1"]
    error = f"error: cannot save the progress in notes/n.progress: {FULL}"
    with full_for_notes(0):
        code, _, err = rocket(*command)
    assert (code, err.splitlines()) == (1, [error, "hint: free some space there, or make it writable"])
    with full_for_notes(3):
        code, _, err = rocket(*command, "--rate", "500")
    assert (code, error in err) == (1, True), err
    assert f"100 messages of a.jsonl are stored in {topic}; run the same command again to continue there" in err
    code, out, _ = rocket(*command, "-o", "json")
    assert (code, json.loads(out)["resumed_at"], json.loads(out)["messages"]) == (0, 100, MESSAGES)


def test_a_full_disk_under_the_notes_of_an_export(rocket: Rocket, topic: str, full_for_notes: Full) -> None:
    command = ["export", topic, "-o", "a.jsonl"]
    with full_for_notes(0):
        code, _, err = rocket(*command)
    assert (code, err.splitlines()) == (1, [f"error: a.jsonl.progress: {FULL}", "hint: make room"])
    for room, parts in ((3, "5000"), (1, "100000000")):  # the last of all says that it is complete
        with full_for_notes(room):
            code, _, err = rocket(*command, "--part-bytes", parts, "--restart")
        notes = json.loads(Path("a.jsonl.progress").read_bytes())["state"]
        assert (code, f"error: a.jsonl.progress: {FULL}: {notes['rows']} messages are in a.jsonl.partial" in err) == (
            1,
            True,
        )
        assert (notes["complete"], notes["rows"] > 0) == (False, room > 1)
    assert rocket(*command)[0] == 0
    assert len(contents("a.jsonl")) == MESSAGES
