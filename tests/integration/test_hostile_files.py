"""``rocket message import`` of files that lie, and ``export`` from brokers that do: one line, and nothing is sent."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocketcore.admin.client import Admin
from rocketcore.cli.messages.export_files import Growing
from rocketcore.client.sync import Producer
from rocketcore.local import LocalCluster
from rocketcore.protocol.compression import CompressionType
from tests.fixtures.commands import Rocket, rocket_command
from tests.integration.lying_broker import LyingBroker, Pull, record


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
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
    """An empty topic of one queue."""
    name = re.sub(r"[^\w-]+", "-", request.node.name, flags=re.ASCII)[:100]
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(name, 1)
    return name


def stored(cluster: LocalCluster, topic: str) -> int:
    """Return how many messages a topic has."""
    with Admin(cluster.namesrv) as admin:
        return sum(limits.max_offset for limits in admin.topic_stats(topic).values())


# Arrow files whose positions lie


def lying_arrow(path: str, offsets: list[int], *, stream: bool) -> None:
    """Write a record batch that is sound, and one of three bodies whose offsets are those given."""
    sound = [0, 100, 200, 304]
    data = pa.py_buffer(b"x" * sound[-1])
    body = pa.Array.from_buffers(pa.binary(), 3, [None, pa.py_buffer(numpy.array(sound, numpy.int32)), data])
    first = pa.record_batch({"body": pa.array([b"one", b"two"])})
    out = pa.BufferOutputStream()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, first.schema) as writer:
        writer.write_batch(first)
        writer.write_batch(pa.record_batch({"body": body}))
    written = out.getvalue().to_pybytes()
    assert written.count(numpy.array(sound, numpy.int32).tobytes()) == 1
    lies = numpy.array(offsets, numpy.int32).tobytes()
    Path(path).write_bytes(written.replace(numpy.array(sound, numpy.int32).tobytes(), lies))


def lying_dictionary(path: str) -> None:
    """Write a record batch whose dictionary positions point beyond the dictionary."""
    positions = numpy.arange(4, dtype=numpy.int32)
    body = pa.DictionaryArray.from_arrays(pa.array(positions), pa.array([b"a", b"b", b"c", b"d"]))
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, pa.schema([("body", body.type)])) as writer:
        writer.write_batch(pa.record_batch({"body": body}))
    Path(path).write_bytes(
        out.getvalue().to_pybytes().replace(positions.tobytes(), (positions + 1_000_000).astype(numpy.int32).tobytes())
    )


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 100, 200, 1_000_000],  # what lies in memory behind the file's bytes
        [0x7000_0000, 0x7000_1000, 0x7000_2000, 0x7000_3000],  # no memory at all
        [0, 200, 100, 304],
        [-400, 0, 0, 0],
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_offsets_that_lie_are_refused(
    rocket: Rocket, cluster: LocalCluster, topic: str, offsets: list[int], stream: bool
) -> None:
    lying_arrow("a.arrow", offsets, stream=stream)
    done = subprocess.run(  # on its own: it might be killed
        [sys.executable, "-m", "rocketcore.cli.main", "message", "import", "a.arrow", "--topic", topic],
        env={**os.environ, "ROCKET_NAMESRV": cluster.namesrv}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: a.arrow: the record batch that begins with row 2 cannot be read: ")
    assert stored(cluster, topic) == 2, "those of the sound record batch"
    if stream:
        data = Path("a.arrow").read_bytes()
        code, _, err = rocket("import", "-", "--topic", topic, stdin=data)
        assert (code, "-: the record batch that begins with row 2 cannot be read" in err) == (1, True), err


def test_dictionary_positions_that_lie_are_refused(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    lying_dictionary("a.arrow")
    code, _, err = rocket("import", "a.arrow", "--topic", topic)
    assert (code, "a.arrow: the record batch that begins with row 0 cannot be read" in err) == (1, True), err
    assert stored(cluster, topic) == 0


def test_bodies_are_bytes_whatever_their_column_says(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    """Other tools write bytes into columns of text; only what has to be text is refused."""

    def texts(data: bytes) -> pa.Array:
        return pa.array([data]).view(pa.string())

    for name, columns in (("a", {"body": texts(b"\xff")}), ("b", {"body": ["x"], "tags": texts(b"\xff")})):
        batch = pa.record_batch(columns)
        with pa.ipc.new_file(f"{name}.arrow", batch.schema) as writer:
            writer.write_batch(batch)
    assert rocket("import", "a.arrow", "--topic", topic)[0] == 0
    code, _, err = rocket("import", "b.arrow", "--topic", topic)
    assert (code, "Invalid UTF8" in err) == (1, True), err
    code, out, _ = rocket("export", topic)
    assert [json.loads(line)["body_base64"] for line in out.splitlines()] == ["/w=="]


def test_an_arrow_file_that_becomes_shorter_meanwhile(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    """A signal (SIGBUS) would end whoever has mapped it."""
    batch = pa.record_batch({"body": [b"x" * 1000] * 1000})
    with pa.ipc.new_file("a.arrow", batch.schema) as writer:
        for _ in range(20):
            writer.write_batch(batch)
    program = (
        "import os\n"
        "from rocketcore.cli.messages import import_files\n"
        "file = open('a.arrow', 'rb')\n"
        "pieces = import_files.open_columns(file, 'arrow', {}, None, pipe=False).pieces(0, None)\n"
        "next(pieces)\n"
        "os.truncate('a.arrow', 1_500_000)\n"
        "try:\n"
        "    [piece.payload.to_pylist() for piece in pieces]\n"
        "except import_files.DamagedFile as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the record batch that begins with row 1000 cannot be read: ")


def boasting_parquet(path: str) -> None:
    """Write a row group of 30 rows that its footer says to be 50."""
    pq.write_table(pa.table({"body": [b"%d" % i for i in range(30)]}), path)
    data = Path(path).read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    # num_rows of the file and of the row group: fields that follow the one before, of 64 bits, in zigzag.
    assert data[footer:].count(b"\x16\x3c") == 3, "and num_values of the column"
    Path(path).write_bytes(data[:footer] + data[footer:].replace(b"\x16\x3c", b"\x16\x64"))


def test_a_file_with_fewer_messages_than_it_says(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    boasting_parquet("a.parquet")
    code, _, err = rocket("import", "a.parquet", "--topic", topic)
    assert (code, "error: a.parquet: its footer has row 50 where row 30 is" in err) == (1, True), err
    assert stored(cluster, topic) == 30


def test_a_record_batch_of_a_program_that_is_not_sound(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    lying_arrow(str(tmp_path / "a.arrow"), [0, 100, 200, 1_000_000], stream=False)
    table = pa.ipc.open_file(tmp_path / "a.arrow").read_all()
    with Producer(cluster.namesrv, group="p") as producer, pytest.raises(pa.ArrowInvalid, match="offsets"):
        producer.send_arrow(topic, table, body="body")
    assert stored(cluster, topic) == 2, "those of the sound record batch"


MUTATIONS = """
import collections, io, random, sys
import pyarrow as pa, pyarrow.parquet as pq
from rocketcore._fast.arrow_in import BatchEncoder
from rocketcore.cli.messages.import_files import DamagedFile, open_columns
from rocketcore.client.arrow_columns import message_columns
from rocketcore.errors import ConfigError, MessageIllegal

form, rows = sys.argv[1], 50
pairs = pa.map_(pa.string(), pa.string())
table = pa.table({
    "body": [b"b%d" % i * (i % 7 + 1) for i in range(rows)],
    "tags": pa.array([f"t{i % 3}" if i % 4 else None for i in range(rows)]).dictionary_encode(),
    "keys": [["a", "b"]] * rows,
    "properties": pa.array([[("p", f"v{i}")] for i in range(rows)], pairs),
    "flag": pa.array(range(rows), pa.int32()),
})
with open("good", "wb") as good:
    if form == "parquet":
        pq.write_table(table, good, row_group_size=25)
    else:
        with (pa.ipc.new_file if form == "file" else pa.ipc.new_stream)(good, table.schema) as writer:
            writer.write_table(table, 25)
data = open("good", "rb").read()
random, found = random.Random(1), collections.Counter()
for number in range(120):
    bad = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at, width = random.randrange(len(bad)), random.choice((1, 1, 4, 8))
        ones = b"\\xff" * width
        bad[at : at + width] = random.choice((bytes(width), ones, ones[1:] + b"\\x7f", random.randbytes(width)))
    del bad[len(data) :]
    if number % 10 == 0:
        del bad[random.randrange(len(bad)) :]
    with open("bad", "wb") as file:
        file.write(bad)
    with open("bad", "rb") as file:
        try:
            encoder, out, row = BatchEncoder(write_id=1, partition=1), bytearray(8 << 20), 0
            source = open_columns(file, "parquet" if form == "parquet" else "arrow", {}, None, pipe=form == "stream")
            for piece in source.pieces(0, None):
                columns, first = message_columns(piece.payload, row), 0
                columns.pop("shardingKey", None)
                while first < piece.rows:
                    done, _ = encoder.encode(out, 1 << 20, first, piece.rows, row, **columns)
                    first += done
                row += piece.rows
            # A stream may end wherever a record batch does.
            found["whole" if row == rows or form == "stream" and row in (0, 25) else f"{row} rows"] += 1
        except (DamagedFile, ConfigError, MessageIllegal):
            found["refused"] += 1
print(dict(found), file=sys.stderr)
assert set(found) == {"whole", "refused"}, found
"""


@pytest.mark.parametrize("form", ["file", "stream", "parquet"])
def test_no_file_ends_the_process(tmp_path: Path, form: str) -> None:
    """Bytes of a sound file changed at random: it is read whole, or refused by one of the errors that are for that."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", MUTATIONS, form],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# Lines that say more than they seem to


@pytest.mark.parametrize(
    ("msg_id", "text"),
    [
        ("a\x01b\x02TAGS\x01evil", "the message id holds a separator character (U+0001 or U+0002)"),
        ("a\x02", "the message id holds a separator character (U+0001 or U+0002)"),
        ("\ud800", "no UTF-8"),
        ("x" * 40_000, "32767 are allowed"),
        ("ä" * 20_000, "32767 are allowed"),
    ],
    ids=["properties", "separator", "surrogate", "long", "long-utf8"],
)
@pytest.mark.parametrize("more", [{}, {"tag": "t", "properties": {"p": "1"}}], ids=["alone", "more"])
def test_an_id_that_no_message_has(
    rocket: Rocket, cluster: LocalCluster, topic: str, msg_id: str, text: str, more: dict[str, object]
) -> None:
    lines = [{"body": "fine", "msg_id": "f" * 32}, {"body": "x", "msg_id": msg_id, **more}]
    Path("a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, _, err = rocket("import", "a.jsonl", "--topic", topic)
    assert (code, "a.jsonl: line 2: " in err, text in err) == (1, True, True), err
    assert stored(cluster, topic) == 0, "the piece with it is refused as a whole"
    if "\ud800" in msg_id:
        return
    batch = pa.record_batch({"body": ["x"], "msgId": [msg_id]})
    with pa.ipc.new_file("a.arrow", batch.schema) as writer:
        writer.write_batch(batch)
    arrow_code, _, arrow_err = rocket("import", "a.arrow", "--topic", topic)
    assert (arrow_code, "a.arrow: row 0: " in arrow_err) == (1, True), arrow_err
    assert "separator" not in err or "the message id holds a separator character (U+0001 or U+0002)" in arrow_err


# What lies in the way


@pytest.mark.parametrize("name", ["a.jsonl.progress", "a.jsonl.partial"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_of_ours_stays_as_it_is(rocket: Rocket, topic: str, name: str, kind: str) -> None:
    victim = Path("victim")
    victim.write_text("precious")
    if kind == "link":
        Path(name).symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(name)
    else:
        Path(name).mkdir()
    for more in ([], ["--restart"]):
        code, _, err = rocket("export", topic, "-o", "a.jsonl", *more)
        assert (code, f"error: {name} is not a regular file: " in err) == (1, True), err
    assert victim.read_text() == "precious"
    assert os.path.lexists(name)
    assert not Path("a.jsonl").exists()


@pytest.mark.parametrize("kind", ["link", "loose link", "pipe", "folder", "device"])
def test_an_export_replaces_files_alone(rocket: Rocket, topic: str, kind: str) -> None:
    name = "/dev/stdout" if kind == "device" else "a.jsonl"
    Path("victim").write_text("precious")
    if kind == "pipe":
        os.mkfifo(name)
    elif kind == "folder":
        Path(name).mkdir()
    elif kind != "device":
        Path(name).symlink_to("victim" if kind == "link" else "nowhere")
    before, mode = sorted(os.listdir()), os.lstat(name).st_mode
    for more in ([], ["--restart"]):
        code, out, err = rocket("export", topic, "-o", name, *more)
        assert (code, out, f"error: {name} is not a regular file: it is a" in err) == (1, "", True), err
        assert "write to stdout with -o -" in err
        assert "--restart" not in err
    assert (sorted(os.listdir()), os.lstat(name).st_mode) == (before, mode)
    assert Path("victim").read_text() == "precious"


@pytest.mark.parametrize("form", ["jsonl", "stream", "parquet"])
def test_a_pipe_with_a_name_is_a_pipe(
    rocket: Rocket, cluster: LocalCluster, topic: str, form: str, tmp_path: Path
) -> None:
    """What a shell makes of ``<(…)``: nothing can be noted beside it."""
    ours, theirs = os.pipe()
    table = pa.table({"body": ["x"]})
    with open(theirs, "wb") as pipe:
        if form == "jsonl":
            pipe.write(b'{"body": "x"}\n{"body": "y", "colour": 1}\n')
        elif form == "parquet":
            pq.write_table(table, pipe)
        else:
            with pa.ipc.new_stream(pipe, table.schema) as writer:
                writer.write_table(table)
    name = f"/dev/fd/{ours}"
    assert rocket("import", name, "--topic", topic, "--progress", "n")[0] == 2
    code, _, err = rocket("import", name, "--topic", topic)
    os.close(ours)
    if form == "parquet":
        assert (code, "parquet cannot be read from a pipe" in err) == (2, True), err
    elif form == "stream":
        assert (code, stored(cluster, topic)) == (0, 1), err
    else:
        assert (code, stored(cluster, topic)) == (1, 1)
        assert f"1 message of {name} is stored in {topic}; an import from a pipe cannot be continued" in err
    assert os.listdir() == []


def test_where_nothing_can_be_noted(rocket: Rocket, topic: str) -> None:
    Path("a.jsonl").write_text('{"body": "x"}\n')
    code, _, err = rocket("import", "a.jsonl", "--topic", topic, "--progress", "nowhere/notes")
    assert code == 1
    assert "error: cannot save the progress in nowhere/notes: No such file or directory" in err
    assert "hint: give another file with --progress FILE" in err


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_notes_are_not_written_through_what_is_in_their_place(rocket: Rocket, topic: str, kind: str) -> None:
    victim, temporary = Path("victim"), Path("a.jsonl.progress.tmp")
    victim.write_text("precious")
    if kind == "link":
        temporary.symlink_to(victim)
    else:
        os.mkfifo(temporary)
    assert rocket("export", topic, "-o", "a.jsonl")[0] == 0
    assert victim.read_text() == "precious"
    assert sorted(os.listdir()) == ["a.jsonl", "victim"]


# Notes that say what cannot be


def note(path: str, kind: str, state: dict[str, object]) -> None:
    """Write notes with a checksum that is right."""
    raw = json.dumps(state, separators=(",", ":")).encode()
    Path(path).write_bytes(b'{"kind":"%s","crc32":%d,"state":%s}' % (kind.encode(), zlib.crc32(raw), raw))


ALL_ZERO = {"broker": "broker-a", "queue_id": 0, "start": 0, "end": 3, "next": 0}
ALL_READ = {**ALL_ZERO, "next": 3}
DEEP = b"\x1c" * 3000
LISTS = b"\x19" * 3000
ENDLESS = b"\x16" + b"\xff" * 200_000 + b"\x01\0"


def part(footer: bytes) -> bytes:
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize(
    ("form", "lie", "partial", "text"),
    [
        ("jsonl", {"size": -1}, b"", "0 messages in -1 bytes"),
        ("jsonl", {"size": 3, "rows": 9}, b"abc", "9 messages in 3 bytes, of 0 that were read"),
        ("jsonl", {"size": 3, "rows": 2, "stretches": [ALL_READ]}, b"ab\n", "it has 1 messages"),
        ("jsonl", {"size": 3, "rows": 1, "stretches": [ALL_READ]}, b"abc", "its last line is cut off"),
        ("jsonl", {"rows": 1, "stretches": [ALL_READ]}, b"", "1 messages in 0 bytes"),
        ("jsonl", {"rows": -1}, b"", "-1 messages in 0 bytes"),
        ("jsonl", {"stretches": [{**ALL_ZERO, "next": 4}]}, b"", "broker-a/0 has no messages 0 to 3, 4 next"),
        ("jsonl", {"stretches": [{**ALL_ZERO, "next": -5}]}, b"", "0 to 3, -5 next"),
        ("jsonl", {"stretches": [{**ALL_ZERO, "end": 1 << 63}]}, b"", "has no messages 0 to 9223372036854775808"),
        ("jsonl", {"stretches": [{**ALL_ZERO, "start": -1}]}, b"", "has no messages -1 to 3"),
        ("jsonl", {"complete": True}, b"", "it is complete with 0 of 3 messages"),
        ("jsonl", {"complete": True, "rows": 3, "size": 9, "stretches": [ALL_READ]}, b"a\nb\nc\n", "it has 6 bytes"),
        ("jsonl", {"complete": True, "rows": 3, "size": 4, "stretches": [ALL_READ]}, b"a\nb\n", "it has 2 messages"),
        ("jsonl", {"complete": True, "rows": 3, "size": 4, "stretches": [ALL_READ]}, None, "No such file"),
        ("parquet", {"complete": True, "rows": 3, "size": 5, "stretches": [ALL_READ]}, b"alien", "it cannot be read"),
        ("arrow", {"complete": True, "rows": 3, "size": 5, "stretches": [ALL_READ]}, b"alien", "it cannot be read"),
        ("arrow", {"rows": 3, "size": 16, "stretches": [ALL_READ]}, b"ARROW1\0\0" + b"\xff" * 8, "cannot be read"),
        ("parquet", {"size": 50, "parts": [[-9, -3]]}, bytes(50), "parts of 50 bytes do not lie one behind the other"),
        ("parquet", {"size": 50, "parts": [[0, 20], [30, 50]]}, bytes(50), "parts of 50 bytes do not lie"),
        ("parquet", {"size": 50, "parts": [[0, 1 << 60]]}, bytes(50), "parts of 50 bytes do not lie"),
        ("parquet", {"size": 50, "parts": [[0, 20]]}, bytes(50), "no part of a parquet file ends at 20"),
        ("parquet", {"size": len(part(DEEP)), "parts": [[0, len(part(DEEP))]]}, part(DEEP), "nested too deeply"),
        ("parquet", {"size": len(part(LISTS)), "parts": [[0, len(part(LISTS))]]}, part(LISTS), "nested too deeply"),
        ("parquet", {"size": len(part(ENDLESS)), "parts": [[0, len(part(ENDLESS))]]}, part(ENDLESS), "64 bits"),
    ],
)  # fmt: skip
def test_notes_of_an_export_that_say_what_cannot_be(
    rocket: Rocket,
    cluster: LocalCluster,
    topic: str,
    form: str,
    lie: dict[str, object],
    partial: bytes | None,
    text: str,
) -> None:
    with Producer(cluster.namesrv, group="p") as producer:
        for number in range(3):
            producer.send(topic, f"m{number}")
    asked = {"topic": topic, "format": form, "range": "start:end", "tag": None, "queues": [], "properties": True,
             "hosts": False}  # fmt: skip
    state = {"asked": asked, "namesrv": [cluster.namesrv], "began": 1, "stretches": [ALL_ZERO], "size": 0, "rows": 0,
             "parts": [], "complete": False, **lie}  # fmt: skip
    note(f"a.{form}.progress", "rocket message export 1", state)
    if partial is not None:
        Path(f"a.{form}.partial").write_bytes(partial)
    code, _, err = rocket("export", topic, "-o", f"a.{form}")
    assert (code, text in err, "hint: start again with --restart" in err) == (1, True, True), err
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1
    assert not Path(f"a.{form}").exists()
    assert rocket("export", topic, "-o", f"a.{form}", "--restart")[0] == 0
    assert os.listdir() == [f"a.{form}"]


@pytest.mark.parametrize(
    ("form", "lie", "text"),
    [
        ("jsonl", {"write_id": "zz"}, "'zz' is not the first half of an id"),
        ("arrow", {"write_id": "1" * 17}, "is not the first half of an id"),
        ("jsonl", {"rows": -1}, "-1 messages in 0 bytes are sent"),
        ("jsonl", {"length": -1}, "0 messages in -1 bytes are sent"),
        ("jsonl", {"rows": 7}, "7 messages are sent, of 0"),
        ("jsonl", {"rows": 7, "length": 14, "crc32": zlib.crc32(b'{"body": "0"}\n')}, "7 messages are sent, of 2"),
        ("arrow", {"rows": 7}, "7 messages are sent, of 3"),
        ("parquet", {"rows": 1 << 62}, "messages are sent, of 3"),
        ("stream", {"rows": 7}, "it has 3 messages, of which 7 are said to be sent"),
    ],
)
def test_notes_of_an_import_that_say_what_cannot_be(
    rocket: Rocket, cluster: LocalCluster, topic: str, form: str, lie: dict[str, object], text: str
) -> None:
    table = pa.table({"body": [str(number) for number in range(3)]})
    name = f"a.{form}"
    if form == "jsonl":
        Path(name).write_text("".join(f'{{"body": "{number}"}}\n' for number in range(3)))
    elif form == "parquet":
        pq.write_table(table, name)
    else:
        with (pa.ipc.new_stream if form == "stream" else pa.ipc.new_file)(name, table.schema) as writer:
            writer.write_table(table)
    asked: dict[str, object] = {
        "topic": topic, "format": "arrow" if form == "stream" else form, "tag": None, "columns": {},
    }  # fmt: skip
    if form != "jsonl":
        status = os.stat(name)
        asked |= {"length": status.st_size, "changed at": status.st_mtime_ns}
    state = {"asked": asked, "namesrv": [cluster.namesrv], "write_id": "0" * 16, **lie}
    note(f"{name}.{topic}.progress", "rocket message import 1", state)
    code, _, err = rocket("import", name, "--topic", topic)
    assert (code, text in err) == (1, True), err
    assert "DAMAGED" in rocket("import", name, "--topic", topic, "-o", "json")[2]
    assert stored(cluster, topic) == 0
    assert rocket("import", name, "--topic", topic, "--restart")[0] == 0
    assert stored(cluster, topic) == 3


# Brokers that lie


def _backwards(offset: int, count: int) -> tuple[int, bytes]:
    return (offset + 10) % 50, b"".join(record(number) for number in range(offset, offset + 10))


def _standing(offset: int, count: int) -> tuple[int, bytes]:
    return 0, b"".join(record(number) for number in range(32))


def _repeated(offset: int, count: int) -> tuple[int, bytes]:
    return min(100, offset + count), b"".join(record(0) for _ in range(count))


def _mixed(offset: int, count: int) -> tuple[int, bytes]:
    return offset + 2, record(offset + 1) + record(offset)


@pytest.mark.parametrize("pull", [_backwards, _standing, _repeated, _mixed])
def test_offsets_that_do_not_rise_end_an_export(
    pull: Pull, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without an end it would write until the disk is full."""
    monkeypatch.chdir(tmp_path)
    with LyingBroker(pull, 100) as broker:
        code, _, err = rocket_command(broker.address, monkeypatch, capsys, "message")("export", "T", "-o", "a.jsonl")
    assert (code, "error: T b/0: offset " in err) == (6, True), err
    assert " was next" in err
    assert len(Path("a.jsonl.partial").read_bytes().splitlines()) <= 100


def test_large_messages_are_written_as_they_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A part is not as large as what one poll brings: bodies of a few bytes inflate to megabytes each."""
    monkeypatch.chdir(tmp_path)
    body, sizes, write = zlib.compress(b"a" * (1 << 20)), [], Growing.write

    def noted(file: Growing, data: bytes) -> int:
        sizes.append(len(data))
        return write(file, data)

    def pull(offset: int, count: int) -> tuple[int, bytes]:
        following = min(40, offset + count)
        flag = CompressionType.ZLIB.sys_flag
        return following, b"".join(record(number, body, sys_flag=flag) for number in range(offset, following))

    monkeypatch.setattr(Growing, "write", noted)
    with LyingBroker(pull, 40) as broker:
        rocket = rocket_command(broker.address, monkeypatch, capsys, "message")
        code, _, err = rocket("export", "T", "-o", "a.jsonl", "--part-bytes", str(3 << 20))
    assert code == 0, err
    assert sum(sizes) == Path("a.jsonl").stat().st_size > 40 << 20
    assert max(sizes) < 5 << 20


def test_a_pipe_has_its_first_messages_while_others_are_waited_for() -> None:
    """They are far fewer than a part, and the broker has no more before they are read."""
    seen = threading.Event()

    def pull(offset: int, count: int) -> tuple[int, bytes]:
        if offset:
            assert seen.wait(30)
        return offset + 1, record(offset, b"m%d" % offset)

    with LyingBroker(pull, 2) as broker, subprocess.Popen(
        [sys.executable, "-m", "rocketcore.cli.main", "message", "export", "T", "--namesrv", broker.address],
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        first = process.stdout.readline()
        seen.set()
        rest, _ = process.communicate(timeout=60)
    assert [json.loads(line)["body"] for line in (first, rest)] == ["m0", "m1"]
    assert process.returncode == 0
