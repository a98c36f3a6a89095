"""``rocket message export``: files of each format, interrupted and gone on with."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rocketcore.admin.client import Admin
from rocketcore.client.sync import Producer
from rocketcore.local import LocalCluster
from rocketcore.message import Message, MessageQueue
from tests.fixtures.commands import Rocket, rocket_command
from tests.fixtures.message_files import FORMS, MESSAGES, Full, contents, groups, messages
from tests.fixtures.stores import fail_reads_from


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
        assert (code, out, f"-o {form} is the format of the summary, which needs -o FILE" in err) == (2, "", True)
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
        lines = [line for line in err.splitlines() if not line.startswith("continues after")]
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
    assert f"continues after {seen[1]} messages" in err
    assert messages(name) == messages(f"whole.{form}") if form != "jsonl" else contents(name) == contents("whole.jsonl")
    assert sorted(os.listdir()) == sorted([name, f"whole.{form}"])


@pytest.mark.parametrize("form", FORMS)
def test_what_is_less_than_a_part_is_noted_when_its_time_has_come(
    rocket: Rocket, topic: str, form: str, full: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{'ROW_GROUP' if form == 'parquet' else 'PART'}_SECONDS"
    monkeypatch.setattr(f"rocketcore.cli.messages.message_export.{name}", 0)
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
        assert "start again with --restart" in err
        assert (partial.stat().st_size > 0, Path(name).exists()) == (True, False)
        return err

    assert f"{name} was begun with tag –, not even" in refused("--tag", "even")
    assert "was begun with range start:end, not 1:2" in refused("--offsets", "1:2")
    assert rocket(*export[:-2], "--format", "jsonl" if form == "arrow" else "arrow")[0] == 1
    for damaged in (good[:-20], good.replace(b'"rows":', b'"rows":1'), b"x", good.replace(b"export 1", b"export 9")):
        notes.write_bytes(damaged)
        assert f"the progress in {notes} cannot be used" in refused()
    notes.write_bytes(good)
    partial.write_bytes(data[: len(data) // 2])
    assert f"{partial} is not the file that was written" in refused()
    if form != "jsonl":
        partial.write_bytes(bytes(len(data)))
        assert f"{partial} is not the file that was written" in refused()
    partial.write_bytes(data + b"what a kill left behind")
    with notes.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        code, _, err = rocket(*export)
        assert (code, f"{notes} is in use" in err) == (1, True)
    assert rocket(*export)[0] == 0
    assert len(contents(name)) == len({row["id"] for row in messages(name)}) == MESSAGES
    code, _, err = rocket(*export)
    assert (code, f"{name} exists already" in err, "replace it with --restart" in err) == (1, True, True)
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
    assert (code, "and a.jsonl should contain it up to" in err) == (1, True), err


def test_a_kill_between_the_name_and_the_notes(rocket: Rocket, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def killed_at_the_name(source: Path, name: Path) -> None:
        if name.name == "replace.parquet":
            raise KeyboardInterrupt
        replace(source, name)  # the brokers' files: they run in this process

    for step in ("remove", "replace"):
        with monkeypatch.context() as patched:
            if step == "remove":
                patched.setattr("rocketcore.cli.messages.resume.ProgressFile.remove", killed)
            else:
                patched.setattr("rocketcore.cli.messages.message_export.os.replace", killed_at_the_name)
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
        patched.setattr("rocketcore.cli.messages.cluster_client.PATIENCE", 1.5)
        code, _, err = rocket("export", topic, "-o", "a.jsonl")
        assert (code, "error: received nothing for 1.5 s from" in err) == (6, True), err
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
        assert (code, "parquet cannot be read from a pipe" in err) == (2, True)
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


def test_a_folder_that_is_not_there(rocket: Rocket, topic: str) -> None:
    code, _, err = rocket("export", topic, "-o", "nowhere/a.parquet")
    what = "nothing can be written in the folder nowhere: No such file or directory"
    assert (code, err) == (1, f"error: nowhere/a.parquet: {what}\n")


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
    monkeypatch.setattr("rocketcore.cli.messages.watch.PROBE_SECONDS", 0.02)
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

        monkeypatch.setattr("rocketcore.cli.messages.watch.tell", back)
        command = ["export", "away", "-o", f"a.{form}", "--part-bytes", "2000"]
        for room, expected in ((10_000, 1), (1 << 20, 0)):
            cluster.stop_broker()
            with full(room):
                code, _, err = rocket(*command, "--offsets", "@1970-01-02")
            assert code == expected, err
            assert told[0].startswith("waiting for the cluster")
            told.clear()
        assert len(messages(f"a.{form}")) == 100
