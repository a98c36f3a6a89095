"""``rocket message export`` and ``import``: files of each format, interrupted and gone on with."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocketcore.admin.client import Admin
from rocketcore.cli.export_files import Growing
from rocketcore.client.arrow import read_arrow
from rocketcore.client.sync import Producer
from rocketcore.errors import RequestTimeout
from rocketcore.local import LocalCluster
from rocketcore.message import Message, MessageQueue
from tests.fixtures.commands import Rocket, rocket_command
from tests.fixtures.processes import Processes
from tests.fixtures.stores import fail_reads_from

FORMS = ("parquet", "arrow", "jsonl")
MESSAGES = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture
def rocket(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Rocket:
    """Commands ``rocket message``, in a folder of the test."""
    monkeypatch.chdir(tmp_path)
    return rocket_command(cluster.namesrv, monkeypatch, capsys, "message")


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A topic of two queues on each broker, whose messages have all that a message can have, or some of it."""
    name = request.node.name.replace("[", "-").replace("]", "")[:100]
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(name, 2)
    with Producer(cluster.namesrv, group="p") as producer:
        for i in range(MESSAGES):
            producer.send(
                Message(
                    name,
                    f"hello {i} ä\n" if i % 3 else bytes([255, 0, i % 256]),
                    tag="even" if i % 2 == 0 else None,
                    keys=[f"k{i}", "x"] if i % 5 else None,
                    properties={"n": str(i), "quote": '"\\'} if i % 7 else None,
                    message_group=f"g{i % 3}" if i % 4 == 1 else None,
                )
            )
    return name


def messages(path: Path | str) -> list[dict[str, Any]]:
    """Return what a file says of each message that a copy has, too, and where it was."""
    path = Path(path)
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        named = [
            {
                "body": row["body"].encode() if "body" in row else row["body_base64"],
                "tag": row["tag"],
                "keys": " ".join(row["keys"]) or None,
                "id": row["msg_id"],
                "place": (row["broker"], row["queue_id"], row["offset"]),
                "properties": row["properties"],
            }
            for row in rows
        ]
    else:
        table = pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
        named = [
            {
                "body": row["body"],
                "tag": row["tags"],
                "keys": row["keys"],
                "id": row["msgId"],
                "place": (row["brokerName"], row["queueId"], row["queueOffset"]),
                "properties": dict(row["properties"]),
            }
            for row in table.to_pylist()
        ]
    for row in named:
        row["properties"] = {name: row["properties"].get(name) for name in ("n", "quote", "__SHARDINGKEY")}
    return named


def contents(path: Path | str) -> list[Any]:
    """Return the messages of a file without where they were, in an order of their own."""
    return sorted(({**row, "place": None} for row in messages(path)), key=lambda row: str(row["id"]))


def groups(path: Path | str) -> dict[str, list[Any]]:
    """Return the ids of each message group in the order of their queue; fails where a group has several queues."""
    found: dict[str, list[Any]] = {}
    queues: dict[str, set[Any]] = {}
    for row in sorted(messages(path), key=lambda row: row["place"]):
        if group := row["properties"]["__SHARDINGKEY"]:
            found.setdefault(group, []).append(row["id"])
            queues.setdefault(group, set()).add(row["place"][:2])
    assert all(len(each) == 1 for each in queues.values())
    return found


@pytest.mark.parametrize("form", FORMS)
def test_what_is_exported_imported_and_exported_again_is_equal(rocket: Rocket, topic: str, form: str) -> None:
    first, again = f"first.{form}", f"again.{form}"
    code, out, _ = rocket("export", topic, "-o", first, "--part-bytes", "10000", "-o", "json")
    summary = json.loads(out)
    assert (code, summary["messages"], summary["left_out"], summary["format"]) == (0, MESSAGES, 0, form)
    assert summary["bytes"] == Path(first).stat().st_size
    code, out, err = rocket("import", first, "--topic", f"{topic}-copy", "--create", "-o", "json")
    assert (code, json.loads(out)["messages"]) == (0, MESSAGES), err
    assert rocket("export", f"{topic}-copy", "-o", again)[0] == 0
    assert contents(first) == contents(again)
    assert len({row["id"] for row in messages(again)}) == MESSAGES
    assert groups(first) == groups(again) != {}
    assert sorted(os.listdir()) == sorted([first, again]), "nothing else stays"


def test_a_parquet_file_has_row_groups_and_says_where_it_comes_from(rocket: Rocket, topic: str) -> None:
    assert rocket("export", topic, "-o", "a.parquet", "--part-bytes", "5000")[0] == 0
    file = pq.ParquetFile("a.parquet")
    assert file.metadata.num_row_groups > 3
    facts = {name.decode(): value.decode() for name, value in file.schema_arrow.metadata.items()}
    assert facts["rocketmq.topic"] == topic
    ranges = json.loads(facts["rocketmq.ranges"])
    assert len(ranges) == 4
    assert sum(end - start for start, end in ranges.values()) == MESSAGES
    assert facts.keys() >= {"rocketmq.exported_at", "rocketmq.rocketcore", "rocketmq.tag"}
    by_row_group = [row for index in range(file.num_row_groups) for row in file.read_row_group(index).to_pylist()]
    assert by_row_group == pq.read_table("a.parquet").to_pylist()
    places = [(row["brokerName"], row["queueId"], row["queueOffset"]) for row in by_row_group]
    assert places == [
        (name.split(":")[0], int(name.split(":")[1]), offset)
        for name, (start, end) in ranges.items()
        for offset in range(start, end)
    ]
    assert [field.name for field in file.schema_arrow][-1] == "properties"
    assert rocket("export", topic, "-o", "b.parquet", "--no-properties", "--hosts")[0] == 0
    names = pq.read_schema("b.parquet").names
    assert ("properties" in names, "storeHost" in names) == (False, True)


def test_ranges_tags_and_queues(rocket: Rocket, topic: str) -> None:
    def count(*options: str, form: str = "jsonl") -> int:
        code, out, err = rocket("export", topic, "-o", f"x.{form}", "--restart", "-o", "json", *options)
        assert code == 0, err
        assert len(messages(f"x.{form}")) == json.loads(out)["messages"]
        assert json.loads(out)["left_out"] == (None if "--tag" in options else 0)
        return int(json.loads(out)["messages"])

    for form in ("jsonl", "parquet"):
        assert count(form=form) == MESSAGES
        assert count("--offsets", "2:4", form=form) == 8
        assert count("--offsets", "-1", form=form) == 4
        assert count("--offsets", "3:3", form=form) == 0
        assert count("--since", "1h", form=form) == MESSAGES
        assert count("--until", "1h", form=form) == 0
        assert count("--tag", "even", form=form) == MESSAGES // 2
        assert count("--queue", "broker-a/0", "--queue", "broker-b/1", "--offsets", ":2", form=form) == 4
    for wrong in (
        ["--offsets", "x"], ["--offsets", "1:2", "--since", "1h"], ["--queue", "a"], ["--since", "tomorrow"],
        ["--since", "10m", "--until", "1h"], ["--offsets", "4:2"],
        ["-o", "x.txt"], ["-o", "x.jsonl", "--hosts"], ["-o", "a.jsonl", "-o", "b.jsonl"],
    ):  # fmt: skip
        assert rocket("export", topic, *wrong)[0] == 2
    for form in ("json", "csv"):
        code, out, err = rocket("export", topic, "-o", form)
        assert (code, out, f"-o {form} is the form of the summary, which there is with -o FILE" in err) == (2, "", True)
        assert rocket("export", topic, "-o", "-", "-o", form)[0] == 0, "that of errors"
    assert rocket("export", topic, "--queue", "broker-a/7")[0] == 3
    assert rocket("export", "nothing-here", "-o", "y.jsonl")[0] == 3
    assert not Path("y.jsonl.progress").exists()


def test_the_end_is_that_of_the_first_start(rocket: Rocket, topic: str, cluster: LocalCluster, full: Full) -> None:
    with full(20_000):
        assert rocket("export", topic, "-o", "a.jsonl", "--part-bytes", "3000")[0] == 1
    with Producer(cluster.namesrv, group="p") as producer:
        for _ in range(20):
            producer.send(topic, "later")
    code, out, _ = rocket("export", topic, "-o", "a.jsonl", "--part-bytes", "3000", "-o", "json")
    assert (code, json.loads(out)["messages"]) == (0, MESSAGES)
    assert not [row for row in messages("a.jsonl") if row["body"] == b"later"]


Full = Callable[[int], Any]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    """``with full(bytes):`` a disk that has so much room left: a write beyond is done in part and then fails."""
    write = Growing.write

    class Disk:
        def __init__(self, room: int) -> None:
            self.room = room

        def __enter__(self) -> None:
            def limited(file: Growing, data: object) -> int:
                view = memoryview(data).cast("B")  # type: ignore[arg-type]
                if file.position + len(view) > self.room:
                    write(file, view[: max(0, self.room - file.position)])
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return write(file, view)

            monkeypatch.setattr(Growing, "write", limited)

        def __exit__(self, *_: object) -> None:
            monkeypatch.setattr(Growing, "write", write)

    return Disk


@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_keeps_what_is_there(rocket: Rocket, topic: str, form: str, full: Full) -> None:
    name = f"a.{form}"
    export = ["export", topic, "-o", name, "--part-bytes", "5000"]
    assert rocket("export", topic, "-o", f"whole.{form}", "--part-bytes", "5000")[0] == 0
    seen = []
    size = Path(f"whole.{form}").stat().st_size
    for room in (size // 3, size * 2 // 3):
        with full(room):
            code, out, err = rocket(*export)
        assert (code, out) == (1, "")
        lines = [line for line in err.splitlines() if not line.startswith("goes on")]
        assert len(lines) == 2, err
        assert lines[0].startswith(f"error: {name}.partial: No space left on device: ")
        assert lines[1].startswith("hint: make room")
        notes = json.loads(Path(f"{name}.progress").read_bytes())["state"]
        assert notes["size"] == Path(f"{name}.partial").stat().st_size <= room
        assert not Path(name).exists()
        seen.append(notes["rows"])
    assert 0 < seen[0] < seen[1] < MESSAGES
    code, out, err = rocket(*export, "-o", "json")
    assert (code, json.loads(out)["resumed_at"]) == (0, seen[1]), err
    assert f"goes on behind {seen[1]} messages" in err
    assert messages(name) == messages(f"whole.{form}") if form != "jsonl" else contents(name) == contents("whole.jsonl")
    assert sorted(os.listdir()) == sorted([name, f"whole.{form}"])


@pytest.mark.parametrize("form", FORMS)
def test_what_is_less_than_a_part_is_noted_when_its_time_has_come(
    rocket: Rocket, topic: str, form: str, full: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"rocketcore.cli.message_export.{'ROW_GROUP' if form == 'parquet' else 'PART'}_SECONDS", 0)
    name = f"a.{form}"
    assert rocket("export", topic, "-o", f"whole.{form}")[0] == 0
    with full(Path(f"whole.{form}").stat().st_size * 2 // 3):
        assert rocket("export", topic, "-o", name)[0] == 1
    noted = json.loads(Path(f"{name}.progress").read_bytes())["state"]["rows"]
    code, out, err = rocket("export", topic, "-o", name, "-o", "json")
    assert (code, json.loads(out)["resumed_at"]) == (0, noted), err
    assert 0 < noted < MESSAGES
    assert contents(name) == contents(f"whole.{form}")


@pytest.mark.parametrize("form", FORMS)
def test_what_cannot_be_gone_on_with_is_refused(rocket: Rocket, topic: str, form: str, full: Full) -> None:
    name = f"a.{form}"
    partial, notes = Path(f"{name}.partial"), Path(f"{name}.progress")
    export = ["export", topic, "-o", name, "--part-bytes", "5000"]
    with full(30_000):
        assert rocket(*export)[0] == 1
    good, data = notes.read_bytes(), partial.read_bytes()

    def refused(*options: str, code: int = 1) -> str:
        result, out, err = rocket(*export, *options)
        assert (result, out) == (code, "")
        assert "--restart begins anew" in err
        assert (partial.stat().st_size > 0, Path(name).exists()) == (True, False)
        return err

    assert f"{name} was begun with tag –, not even" in refused("--tag", "even")
    assert "was begun with range start:end, not 1:2" in refused("--offsets", "1:2")
    assert rocket(*export[:-2], "--format", "jsonl" if form == "arrow" else "arrow")[0] == 1
    for damaged in (good[:-20], good.replace(b'"rows":', b'"rows":1'), b"x", good.replace(b"export 1", b"export 9")):
        notes.write_bytes(damaged)
        assert f"the notes in {notes} cannot be used" in refused()
    notes.write_bytes(good)
    partial.write_bytes(data[: len(data) // 2])
    assert f"{partial} is not what was written" in refused()
    if form != "jsonl":
        partial.write_bytes(bytes(len(data)))
        assert f"{partial} is not what was written" in refused()
    partial.write_bytes(data + b"what a kill left behind")
    with notes.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        code, _, err = rocket(*export)
        assert (code, f"{notes} is in use" in err) == (1, True)
    assert rocket(*export)[0] == 0
    assert len(contents(name)) == len({row["id"] for row in messages(name)}) == MESSAGES
    code, _, err = rocket(*export)
    assert (code, f"{name} is there already" in err, "--restart replaces it" in err) == (1, True, True)
    assert rocket(*export, "--offsets", "0:1", "--restart")[0] == 0
    assert len(messages(name)) == 4


def test_a_topic_that_was_made_anew_is_not_gone_on_with(
    rocket: Rocket, topic: str, cluster: LocalCluster, full: Full
) -> None:
    with full(30_000):
        assert rocket("export", topic, "-o", "a.jsonl", "--part-bytes", "5000")[0] == 1
    with Admin(cluster.namesrv) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 2)
    code, _, err = rocket("export", topic, "-o", "a.jsonl", "--part-bytes", "5000")
    assert (code, "and a.jsonl was to have it up to" in err) == (1, True), err


def test_a_kill_between_the_name_and_the_notes(rocket: Rocket, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in ("remove", "replace"):
        with monkeypatch.context() as patched:

            def killed(*_: object) -> None:
                raise KeyboardInterrupt

            if step == "remove":
                patched.setattr("rocketcore.cli.resume.ProgressFile.remove", killed)
            else:
                patched.setattr("rocketcore.cli.message_export.os.replace", killed)
            assert rocket("export", topic, "-o", f"{step}.parquet")[0] == 130
        code, out, err = rocket("export", topic, "-o", f"{step}.parquet", "-o", "json")
        assert (code, json.loads(out)["messages"]) == (0, MESSAGES), err
        assert len(messages(f"{step}.parquet")) == MESSAGES
    assert sorted(os.listdir()) == ["remove.parquet", "replace.parquet"]


@pytest.mark.parametrize("form", FORMS)
def test_messages_that_a_broker_leaves_out(rocket: Rocket, cluster: LocalCluster, topic: str, form: str) -> None:
    with Producer(cluster.namesrv, group="p") as producer:
        for i in range(3):
            producer.send(Message(topic, f"whole {topic} {i}"), queue=MessageQueue(topic, "broker-a", 0))
    log = cluster.store / "broker-a" / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(log.read_bytes().rindex(f"whole {topic} 1".encode()))
        file.write(b"W")
    code, out, err = rocket("export", topic, "-o", f"a.{form}", "-o", "json")
    assert (code, json.loads(out)["left_out"]) == (6, 1)
    assert json.loads(err.splitlines()[-1])["error"]["code"] == "LEFT_OUT"
    assert len(messages(f"a.{form}")) == MESSAGES + 2
    assert not Path(f"a.{form}.progress").exists()


def test_messages_that_a_broker_does_not_give(rocket: Rocket, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        fail_reads_from(3, topic, patched)
        patched.setattr("rocketcore.cli.cluster_client.PATIENCE", 1.5)
        code, _, err = rocket("export", topic, "-o", "a.jsonl")
        assert (code, "error: nothing came for 1.5 s from" in err) == (6, True), err
        code, _, err = rocket("export", topic, "-o", "a.parquet", "--timeout", "1")
        assert (code, "the page cannot be read" in err or "SYSTEM_ERROR" in err) == (1, True), err
    for name in ("a.jsonl", "a.parquet"):
        assert rocket("export", topic, "-o", name)[0] == 0
        assert len(messages(name)) == MESSAGES


@pytest.mark.parametrize("form", FORMS)
def test_pipes(rocket: Rocket, topic: str, form: str, cluster: LocalCluster) -> None:
    environment = {**os.environ, "ROCKET_NAMESRV": cluster.namesrv, "ROCKET_CONTEXT": ""}
    command = [sys.executable, "-m", "rocketcore.cli.main", "message"]
    options = [] if form == "jsonl" else ["--format", form]
    done = subprocess.run(
        [*command, "export", topic, *options, "--part-bytes", "9000"],
        env=environment, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr.decode() == f"{MESSAGES} messages of {topic} exported\n"
    if form == "parquet":
        Path("a.parquet").write_bytes(done.stdout)
        assert len(messages("a.parquet")) == MESSAGES
    code, out, err = rocket("import", "-", "--topic", f"{topic}-copy", "--create", "-o", "json", stdin=done.stdout)
    if form == "parquet":
        assert (code, "parquet is read from its end" in err) == (2, True)
        return
    assert (code, json.loads(out)["messages"]) == (0, MESSAGES), err
    assert rocket("export", topic, "-o", "a.jsonl")[0] == rocket("export", f"{topic}-copy", "-o", "b.jsonl")[0] == 0
    assert contents("a.jsonl") == contents("b.jsonl")


def test_jsonl_needs_nothing_that_is_optional(topic: str, cluster: LocalCluster, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = sys.modules['numpy'] = None;"
        "from rocketcore.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )

    def rocket(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, "message", *arguments, "--namesrv", cluster.namesrv],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    done = rocket("export", topic, "-o", "a.jsonl", "--since", "1h")
    assert (done.returncode, len(messages(tmp_path / "a.jsonl"))) == (0, MESSAGES), done.stderr
    done = rocket("import", "a.jsonl", "--topic", f"{topic}-copy", "--create")
    assert done.returncode == 0, done.stderr
    done = rocket("export", topic, "-o", "a.parquet")
    assert (done.returncode, "pip install 'rocketcore[arrow]'" in done.stderr) == (1, True)


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
    assert (code, "column 'id' means nothing to a message" in err, "--column" in err) == (2, True, True)
    code, _, err = rocket(*base, "--column", "body=payload", "--column", "keys=id", "--create")
    assert (code, "column keys is int64" in err, "id is keys" in err) == (2, True, True)
    assert "there is no column 'nothing'" in rocket(*base, "--column", "body=nothing")[2]
    assert "a message has no column 'text'" in rocket(*base, "--column", "text=payload")[2]
    assert rocket(*base, "--column", "body=payload")[0] == 3, "there is no such topic yet"
    named = ["--column", "body=payload", "--column", "keys=names", "--column", "shardingKey=region", "--tag", "t"]
    code, out, err = rocket(*base, *named, "--create", "--queues", "4", "--dry-run")
    assert (code, out) == (0, "")
    assert f"import 3 messages of other.parquet (parquet) to topic {target}, which is made with 4 queues" in err
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
        assert (code, f"{name}: it is no" in err) == (1, True), err
        assert "Traceback" not in err
    assert rocket("import", "missing", "--topic", topic)[0] == 2
    assert rocket("import", "no.arrow", "--topic", "a b")[0] == 2
    Path("bad.jsonl").write_text('{"body": "fine"}\n\n{"body": "fine"}\n{"body": 1, "colour": 2}\n')
    code, _, err = rocket("import", "bad.jsonl", "--topic", topic)
    what = 'bad.jsonl: line 4: \'{"body": 1, "colour": 2}\': unknown field colour'
    assert (code, f"error: {what}" in err) == (1, True), err
    assert f"2 messages of bad.jsonl are stored in {topic}" in err
    Path("bad.jsonl").write_text('{"body": "fine"}\n\n{"body": "fine"}\n\nno json\n')
    code, _, err = rocket("import", "bad.jsonl", "--topic", topic, "-o", "json")
    error = json.loads(err.splitlines()[-1])["error"]
    assert (code, error["code"], "bad.jsonl: line 5: 'no json'" in error["message"]) == (1, "MESSAGE_ILLEGAL", True)
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
        from rocketcore.cli.resume import ProgressFile

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
        assert (code, f"messages of {name} are stored in {target}; the same command" in err) == (130, True), err
        assert "was begun with tag –, not x" in rocket(*command, "--tag", "x")[2]
        assert "is in use" in _while_locked(notes, lambda command=command: rocket(*command)[2])
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
        assert (code, f"0 messages of {name} are stored in {topic}; the same command" in err) == (124, True), err
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
    error = f"error: how far it is cannot be noted in notes/n.progress: {FULL}"
    with full_for_notes(0):
        code, _, err = rocket(*command)
    assert (code, err.splitlines()) == (1, [error, "hint: make room there, or let it be written to"])
    with full_for_notes(3):
        code, _, err = rocket(*command, "--rate", "500")
    assert (code, error in err) == (1, True), err
    assert f"100 messages of a.jsonl are stored in {topic}; the same command goes on there" in err
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


def test_a_folder_that_is_not_there(rocket: Rocket, topic: str) -> None:
    code, _, err = rocket("export", topic, "-o", "nowhere/a.parquet")
    what = "nothing can be written in the folder nowhere: No such file or directory"
    assert (code, err) == (1, f"error: nowhere/a.parquet: {what}\n")


def _while_locked(path: Path, function: Callable[[], str]) -> str:
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        return function()


@pytest.mark.parametrize("quiet", [False, True])
def test_a_bar_is_drawn_on_a_terminal(topic: str, cluster: LocalCluster, tmp_path: Path, quiet: bool) -> None:
    """On stderr; what a pipe on stdout gets is data."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "rocketcore.cli.main", "message", "export", topic, "-o", "a.arrow", "-o", "json",
         "--namesrv", cluster.namesrv, *(["-q"] if quiet else [])],
        cwd=tmp_path, env={**os.environ, "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        drawn = b""
        with contextlib.suppress(OSError):  # the terminal's end
            while data := os.read(ours, 1 << 16):
                drawn += data
        os.close(ours)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["messages"]) == (0, MESSAGES)
    assert (f"{MESSAGES}/{MESSAGES}".encode() in drawn) is not quiet
    assert (drawn == b"") is quiet


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_broker_that_is_away_when_an_export_begins(
    form: str, full: Full, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It gave up at once, also one that was to go on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rocketcore.cli.watch.PROBE_SECONDS", 0.02)
    told: list[str] = []
    with LocalCluster() as cluster:
        rocket = rocket_command(cluster.namesrv, monkeypatch, capsys, "message")
        with Producer(cluster.namesrv, group="p") as producer:
            for i in range(100):
                producer.send("away", f"{i:200d}")

        def back(text: str) -> None:
            told.append(text)
            if text.startswith("waiting for the cluster"):
                cluster.start_broker()

        monkeypatch.setattr("rocketcore.cli.watch.tell", back)
        command = ["export", "away", "-o", f"a.{form}", "--part-bytes", "2000"]
        for room, expected in ((10_000, 1), (1 << 20, 0)):
            cluster.stop_broker()
            with full(room):
                code, _, err = rocket(*command, "--offsets", "@1970-01-02")
            assert code == expected, err
            assert told[0].startswith("waiting for the cluster")
            told.clear()
        assert len(messages(f"a.{form}")) == 100


# Processes that are killed


def _start(folder: Path, cluster: LocalCluster, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "rocketcore.cli.main", "message", *arguments, "--namesrv", cluster.namesrv],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def _noted_rows(notes: Path) -> int:
    try:
        return int(json.loads(notes.read_bytes())["state"]["rows"])
    except (FileNotFoundError, json.JSONDecodeError):
        return 0


def _killed_and_finished(
    folder: Path, cluster: LocalCluster, notes: Path, kills: list[signal.Signals], *arguments: str
) -> list[int]:
    """Kill a command as often, each time after some progress, and have it finish; return where it was each time."""
    seen = [0]
    for number in kills:
        with _start(folder, cluster, *arguments) as process:
            end = time.monotonic() + 60
            while _noted_rows(notes) <= seen[-1]:
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < end
                time.sleep(0.001)
            process.send_signal(number)
            _, error = process.communicate(timeout=60)
        assert process.returncode in (-signal.SIGKILL, 130), error
        seen.append(_noted_rows(notes))
    with _start(folder, cluster, *arguments) as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert not notes.exists()
    return seen


@pytest.fixture(scope="module")
def many(cluster: LocalCluster) -> str:
    """A topic of 60,000 messages, and as many different bodies."""
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("many", 2)
    bodies = pa.array([b"%08d" % i + b"." * 92 for i in range(60_000)])
    with Producer(cluster.namesrv, group="p") as producer:
        producer.send_arrow("many", pa.table({"body": bodies}), body="body")
    return "many"


KILLS = [signal.SIGKILL, signal.SIGINT, signal.SIGKILL]


@pytest.mark.parametrize("form", FORMS)
def test_an_export_that_is_killed_goes_on(many: str, cluster: LocalCluster, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"a.{form}"
    arguments = ["export", many, "-o", str(path), "--part-bytes", "100000"]
    seen = _killed_and_finished(tmp_path, cluster, Path(f"{path}.progress"), KILLS, *arguments)
    assert len(set(seen)) == len(KILLS) + 1
    bodies = Counter(row["body"] for row in messages(path))
    assert (60_000 - len(bodies), sum(bodies.values()) - len(bodies)) == (0, 0), "lost, doubled"


@pytest.mark.parametrize("form", FORMS)
def test_an_import_that_is_killed_goes_on_with_the_same_ids(
    many: str, cluster: LocalCluster, tmp_path: Path, form: str
) -> None:
    bodies = [b"%08d" % i + b"." * 92 for i in range(60_000)]
    path, target = tmp_path / f"a.{form}", f"killed-{form}"
    table = pa.table({"body": pa.array(bodies)})
    if form == "parquet":
        pq.write_table(table, path, row_group_size=7_000)
    elif form == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=7_000)
    else:
        path.write_text("".join(json.dumps({"body": body.decode()}) + "\n" for body in bodies))
    arguments = ["import", str(path), "--topic", target, "--create", "--part-bytes", "300000", "--rate", "60000"]
    notes = Path(f"{path}.{target}.progress")
    _killed_and_finished(tmp_path, cluster, notes, KILLS, *arguments)
    stored = read_arrow(cluster.namesrv, topic=target, columns=["body", "msgId"])
    found = Counter(zip(stored["body"].to_pylist(), stored["msgId"].to_pylist(), strict=True))
    assert {body for body, _ in found} == set(bodies), "nothing is lost"
    assert len(found) == len(bodies), "a message that is there twice has the same id both times"
    ids = dict(list(found))
    write_id = ids[bodies[0]][:16]
    assert ids[bodies[-1]] == f"{write_id}{len(bodies) - 1:016X}"


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_broker_that_is_killed_and_comes_back(
    processes: Processes, rocket: Rocket, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Both wait for it; what was sent twice has the same id."""
    namesrv = processes.namesrv().address
    store = processes.folder / "store"
    broker = processes.broker(namesrv, store=store)
    monkeypatch.setenv("ROCKET_NAMESRV", namesrv)
    rows = 30_000
    pq.write_table(pa.table({"body": [b"%08d" % i + b"." * 92 for i in range(rows)]}), "in.parquet")
    Path("in.jsonl").write_text("".join(json.dumps({"body": f"{i:08}"}) + "\n" for i in range(rows)))
    source = "in.jsonl" if form == "jsonl" else "in.parquet"
    commands = [
        (["import", source, "--topic", "T", "--create", "--part-bytes", "100000", "--rate", "30000"],
         f"{source}.T.progress"),
        (["export", "T", "-o", f"out.{form}", "--part-bytes", "50000"], f"out.{form}.progress"),
    ]  # fmt: skip
    for arguments, notes in commands:
        with subprocess.Popen(
            [sys.executable, "-m", "rocketcore.cli.main", "message", *arguments],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            end = time.monotonic() + 60
            while not _noted_rows(Path(notes)):
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < end
                time.sleep(0.001)
            address = broker.address
            broker.kill()
            broker = processes.broker(namesrv, store=store, listen=address)
            _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    found = {(row["body"], row["id"]) for row in messages(f"out.{form}")}
    assert len(found) == len({body for body, _ in found}) == rows


def test_memory_does_not_grow_with_the_file(cluster: LocalCluster, tmp_path: Path) -> None:
    """A million messages take as much memory as a tenth of them, either way.

    Arrow's own allocator keeps freed memory by the time it was freed, here 20 MiB and there 60: the system's does not.
    """
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    program = (
        "import sys; from rocketcore.cli.main import run; code = run(sys.argv[1:]); assert code == 0, code;"
        "[line] = [line for line in open('/proc/self/status') if line.startswith('VmHWM')];"
        "print(line.split()[1], file=sys.stderr)"
    )

    def peak_mib(*arguments: str) -> float:
        done = subprocess.run(
            [sys.executable, "-c", program, "message", *arguments, "-q", "--namesrv", cluster.namesrv],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return int(done.stderr.splitlines()[-1]) / 1024

    peaks = {}
    for rows in (100_000, 1_000_000):
        path = tmp_path / f"{rows}.parquet"
        with pq.ParquetWriter(path, pa.schema([("body", pa.binary())])) as writer:
            for start in range(0, rows, 50_000):
                bodies = pa.array([b"%08d" % i + b"." * 92 for i in range(start, start + 50_000)], pa.binary())
                writer.write_table(pa.table({"body": bodies}))
        sent = peak_mib("import", str(path), "--topic", f"rows-{rows}", "--create")
        options = ["--no-properties", "--part-bytes", str(8 << 20)]
        read = peak_mib("export", f"rows-{rows}", "-o", f"{rows}.arrow", *options)
        written = peak_mib("export", f"rows-{rows}", "-o", f"{rows}.back.parquet", *options)
        assert pq.ParquetFile(tmp_path / f"{rows}.back.parquet").metadata.num_rows == rows
        peaks[rows] = (sent, read, written)
    growth = [large - small for small, large in zip(peaks[100_000], peaks[1_000_000], strict=True)]
    assert max(growth) < 48, peaks
