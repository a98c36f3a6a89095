"""The commands that send, show and consume messages, against a running cluster."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import shlex
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rocketcore.local import LocalCluster
from rocketcore.printable import printable
from tests.fixtures.commands import Rocket
from tests.fixtures.processes import Processes
from tests.fixtures.stores import fail_reads_from


def test_produce(rocket: Rocket, cluster: LocalCluster, tmp_path: Path) -> None:
    rocket("topic", "create", "produced", "--queues", "1")
    options = ["-t", "tag", "-k", "a", "-k", "b", "-H", "x=y=z", "-o", "json"]
    code, out, err = rocket("produce", "produced", "one", *options)
    assert code == 0
    assert "1 message sent to produced" in err
    sent = json.loads(out)
    assert (sent["status"], sent["broker"], sent["queue_id"], sent["offset"]) == ("SEND_OK", "broker-a", 0, 0)
    file = tmp_path / "body"
    file.write_bytes(b"\x00file")
    assert rocket("produce", "produced", f"@{file}", "-G", "group", "-n", "2")[0] == 0
    assert rocket("produce", "produced", "-q", stdin=b"line 1\n\nline 2\r\n")[:2] == (0, "")
    envelopes = b'{"body": {"n": 1}, "tag": "j", "keys": ["k"], "properties": {"p": "q"}}\n{"body_base64": "AP8="}\n'
    assert rocket("produce", "produced", "--jsonl", "-q", stdin=envelopes)[0] == 0
    assert rocket("produce", "produced", "fast", "--oneway")[:2] == (0, "")
    assert rocket("produce", "produced", "-q", "\udcff\udcfe")[:2] == (0, ""), "bytes of a shell that are no text"
    deadline = time.monotonic() + 10
    while True:
        _, out, _ = rocket("tail", "produced", "-o", "start", "-e", "--output", "jsonl")
        messages = [json.loads(line) for line in out.splitlines()]
        if len(messages) == 9 or time.monotonic() > deadline:
            break
    assert [message.get("body") for message in messages] == [
        "one", "\x00file", "\x00file", "line 1", "line 2", '{"n": 1}', None, "fast", None
    ]  # fmt: skip
    assert (messages[6]["body_base64"], messages[8]["body_base64"]) == ("AP8=", "//4=")
    assert (messages[0]["tag"], messages[0]["keys"], messages[0]["properties"]["x"]) == ("tag", ["a", "b"], "y=z")
    assert (messages[5]["tag"], messages[5]["keys"], messages[5]["properties"]["p"]) == ("j", ["k"], "q")


@pytest.mark.parametrize(
    "arguments",
    [
        ["@/no/such/file"], ["x", "-H", "novalue"], ["{}", "--jsonl"], ["{", "--jsonl"],
        ['{"body":"x","bdy":1}', "--jsonl"], ['{"body_base64":"?"}', "--jsonl"], ["x", "--delay", "soon"],
        ["x", "--at", "soon"], ["x", "-t", "a\x01b"], [""],
        ["x", "--at", "-99999d"], ["x", "--delay", "99999d"],
        ['{"body":"x","keys":{}}', "--jsonl"], ['{"body":"x","keys":[[]]}', "--jsonl"],
        ['{"body":"x","tag":true}', "--jsonl"], ['{"body_base64":7}', "--jsonl"],
        ['{"body":"x","properties":["a"]}', "--jsonl"], ['{"body":"x","properties":{"a":[]}}', "--jsonl"],
    ],
)  # fmt: skip
def test_what_cannot_be_sent(rocket: Rocket, arguments: list[str]) -> None:
    assert rocket("produce", "unsendable", *arguments)[0] == 2


def test_tail(rocket: Rocket, topic: str) -> None:
    def bodies(*arguments: str) -> list[str]:
        code, out, _ = rocket("tail", topic, "-f", "%s", *arguments)
        assert code == 0
        return [line.removeprefix("hello ") for line in out.splitlines()]

    assert bodies("-o", "start", "-e") == ["0", "1", "2", "3", "4"]
    assert bodies("-o", "-2", "-e") == ["3", "4"]
    assert bodies("-o", "1:3") == ["1", "2"]
    assert bodies("-o", "start", "-n", "2") == ["0", "1"]
    assert bodies("--since", "1h", "-e", "--tag", "odd") == ["1", "3"]
    assert bodies("--since", "1h", "-e", "--grep", "[14]$") == ["1", "4"]
    assert bodies("-e") == []
    _, out, _ = rocket("tail", topic, "-o", "0:1")
    assert out == f"{topic} broker-a/0@0  tag=even  keys=k0  hello 0\n"
    for form in (["-o", "json"], ["-o", "jsonl"], ["--output", "json"]):
        code, out, err = rocket("tail", topic, "-o", "1:3", *form)
        assert (code, err) == (0, "")
        assert [json.loads(line)["body"] for line in out.splitlines()] == ["hello 1", "hello 2"]
    assert rocket("tail", topic, "-o", "1:3", "-o", "2")[0] == 2
    assert rocket("tail", topic, "-o", "1:3", "-o", "csv")[0] == 2
    assert rocket("tail", topic, "-o", "1:3", "-o", "json", "-f", "%s")[:2] == (2, "")
    assert rocket("consume", topic, "-g", "g", "--exec", "a '")[0] == 2
    assert rocket("tail", topic, "-o", "x")[0] == rocket("tail", topic, "-o", "3:1")[0] == 2
    assert rocket("tail", topic, "-f", "%z")[0] == 2
    assert rocket("tail", topic, "--grep", "[")[0] == 2
    assert rocket("tail", topic, "--since", "1h", "-o", "start")[0] == 2
    assert rocket("tail", "nothing", "-e")[0] == 3


@pytest.fixture
def damaged(cluster: LocalCluster, topic: str) -> str:
    """The topic, whose messages 1, 2 and 4 have lost a bit each of their bodies."""
    log = cluster.store / "broker-a" / "commitlog" / f"{0:020d}"
    content = log.read_bytes()
    with log.open("r+b") as file:
        for number in (1, 2, 4):
            file.seek(content.rindex(b"hello %d" % number))
            file.write(b"H")
    return topic


def test_messages_that_are_damaged_are_told(rocket: Rocket, damaged: str) -> None:
    """They were passed over without a word, and the exit code was 0."""
    for verb in (["tail", "-o", "start", "-e"], ["consume", "-g", f"{damaged}-g", "--from", "first", "--timeout", "2"]):
        code, out, err = rocket(verb[0], damaged, *verb[1:], "-f", "%s")
        assert (code, out.split()) == (6, ["hello", "0", "hello", "3"]), err
        assert f"{damaged} broker-a/0: offsets 1 to 2 were left out by the broker: damaged, or deleted" in err
        assert err.count("left out by") == 2
        assert f"{damaged} broker-a/0: offset 4 was left out" in err
        assert "error: 3 messages left out: damaged at the broker, or deleted" in err
    code, _, err = rocket("tail", damaged, "-o", "1:4")
    assert (code, "error: 2 messages left out" in err) == (6, True)
    assert rocket("tail", damaged, "-o", "3:4")[0] == rocket("tail", damaged, "-o", "start", "-n", "1")[0] == 0


class OneLine(io.StringIO):
    """A stdout whose reader leaves after the first line."""

    def flush(self) -> None:
        if self.getvalue().count("\n") > 1:
            raise BrokenPipeError


def test_the_reader_of_a_stream_leaves(rocket: Rocket, damaged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that were left out before the last one are an error also then; the one that nobody read is not taken."""
    for verb in (["tail", "-o", "start", "-e"], ["consume", "-g", f"{damaged}-l", "--from", "first"]):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", OneLine())
            code, _, err = rocket(verb[0], damaged, *verb[1:], "-f", "%s")
        assert (code, "error: 2 messages left out" in err) == (6, True), err
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", OneLine())
        assert rocket("tail", damaged, "-o", "3:4", "-f", r"a\nb")[0] == 0
    code, out, _ = rocket("consume", damaged, "-g", f"{damaged}-l", "-f", "%s", "-n", "1", "--timeout", "20s")
    assert (code, out) == (0, "hello 3\n")


def test_a_queue_that_cannot_be_read_to_its_end(rocket: Rocket, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``tail -e`` waited for ever for a page that the disk did not give."""
    fail_reads_from(3, topic, monkeypatch)
    monkeypatch.setattr("rocketcore.cli.messages.consume.STALLED_SECONDS", 1.5)
    code, out, err = rocket("tail", topic, "-o", "start", "-e", "-f", "%s")
    assert (code, out) == (6, "hello 0\nhello 1\nhello 2\n")
    assert f"error: received nothing for 1.5 s from {topic} broker-a/0@3" in err


def test_consume_moves_the_groups_offsets(rocket: Rocket, topic: str) -> None:
    group = f"{topic}-group"
    consume = ["consume", topic, "-g", group, "--from", "first", "-f", "%s"]
    code, out, err = rocket(*consume, "-n", "3", "--timeout", "20s")
    assert (code, out) == (0, "hello 0\nhello 1\nhello 2\n")
    code, out, err = rocket(*consume, "-n", "2", "--timeout", "20s")
    assert (code, out) == (0, "hello 3\nhello 4\n")
    code, out, err = rocket(*consume, "-n", "1", "--timeout", "300ms")
    assert (code, out) == (124, "")
    assert "0 of 1 messages came" in err


def test_consume_with_a_program(rocket: Rocket, topic: str, tmp_path: Path) -> None:
    script = f"import sys; open(r'{tmp_path}/seen', 'ab').write(sys.stdin.buffer.read() + b';')"
    program = shlex.join([sys.executable, "-c", script])
    arguments = ["--from", "first", "-n", "2", "--timeout", "20s", "--tag", "odd", "--exec", program]
    assert rocket("consume", topic, "-g", f"{topic}-group", *arguments)[0] == 0
    assert (tmp_path / "seen").read_bytes() == b"hello 1;hello 3;"


def test_a_program_that_fails_is_counted(rocket: Rocket, topic: str) -> None:
    options = ["-g", f"{topic}-group", "--from", "first", "--timeout", "20s", "-f", "%s"]
    code, out, err = rocket("consume", topic, *options, "-n", "2", "--exec", "false")
    assert (code, out) == (1, ""), "what failed is not consumed, and its body may be secret"
    assert (
        len(re.findall(r"^message [0-9A-F]{32} will be delivered again: false ended with exit code 1$", err, re.M)) == 2
    )
    assert "hello" not in err
    assert "0 messages consumed by group" in err
    assert "false failed for 2 of 2 messages: they will be delivered again" in err
    fails_once = shlex.join(["sh", "-c", 'read body; test "$body" != "hello 2" || kill -9 $$'])
    code, out, err = rocket("consume", topic, *options, "-n", "3", "--exec", fails_once)
    assert (code, out) == (6, "hello 3\nhello 4\n")
    assert "will be delivered again: sh ended with signal 9" in err
    assert "2 messages consumed by group" in err
    assert "1 to be delivered again" in err


@pytest.mark.parametrize("program", ["no-such-program-here", "", "'"], ids=["missing", "empty", "quote"])
def test_no_message_is_taken_for_a_program_that_is_not_there(rocket: Rocket, topic: str, program: str) -> None:
    code, out, err = rocket("consume", topic, "-g", f"{topic}-group", "--from", "first", "-n", "1", "--exec", program)
    assert (code, out) == (2, "")
    assert "--exec" in err


@pytest.mark.parametrize("verb", [["consume", "-g", "g"], ["tail"]], ids=lambda verb: verb[0])
def test_waiting_that_cannot_help(rocket: Rocket, verb: list[str]) -> None:
    """It used to wait for ever, or to exit with 0 after the time-out."""
    assert rocket(*verb, "no-such-topic")[0] == 3
    code, _, err = rocket(*verb, "orders", "--namesrv", "127.0.0.1:1")
    assert code == 5
    assert "127.0.0.1:1" in err


@pytest.mark.parametrize(
    "verb", [["produce", "t", "x", "--timeout", "1"], ["topic", "create", "t"], ["topic", "update", "t", "--perm", "r"],
             ["bench", "produce", "--topic", "t", "--count", "1"]],
    ids=lambda verb: " ".join(verb[:2]),
)  # fmt: skip
def test_no_broker_is_registered(rocket: Rocket, processes: Processes, verb: list[str]) -> None:
    """That a topic was not found, 3, would send people to look for a topic."""
    code, out, err = rocket(*verb, "--namesrv", processes.namesrv().address, "-o", "json")
    error = json.loads(err.splitlines()[-1])["error"]
    assert (code, out, error["code"]) == (5, "", "NO_BROKER")
    assert "rocket broker start" in error["hint"]


def test_messages_for_later(rocket: Rocket, topic: str) -> None:
    code, out, _ = rocket("produce", topic, "level", "--delay-level", "1", "-o", "json")
    assert (code, json.loads(out)["status"], "recall_handle" in out) == (0, "SEND_OK", False)
    code, out, _ = rocket("produce", topic, "delay", "--delay", "300ms", "-o", "json")
    assert (code, "recall_handle" in json.loads(out)) == (0, True)
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    assert rocket("produce", topic, "at", "--at", soon)[0] == 0
    code, out, _ = rocket("tail", topic, "--offsets", "start", "-n", "8", "-f", "%s")
    assert {"level", "delay", "at"} <= set(out.splitlines())
    code, _, err = rocket("produce", topic, "x", "--delay", "4d")
    assert (code, "should not be bigger than the max delay 259200000ms" in err) == (1, True)
    assert rocket("produce", topic, "x", "--delay-level", "1", "--delay", "1s")[0] == 2


def test_delays_of_a_broker_without_timers(rocket: Rocket) -> None:
    with LocalCluster(brokers=1, properties={"timerWheelEnable": "false"}) as old:
        code, _, err = rocket("produce", "T", "x", "--delay", "10s", "--namesrv", old.namesrv)
    assert code == 1
    assert "hint: this broker has no timers: use one of its delay levels with --delay-level" in err


def test_what_was_sent_before_a_failure_is_told(rocket: Rocket, topic: str) -> None:
    lines = b'{"body": "a"}\n{"body": "b"}\n{"bodi": "c"}\n'
    code, out, err = rocket("produce", topic, "--jsonl", stdin=lines)
    assert (code, len(out.splitlines())) == (2, 2)
    assert f"2 messages sent to {topic} before this:" in err
    assert "before this" not in rocket("produce", topic, "--jsonl", stdin=b'{"bodi": "c"}\n')[2]
    assert "1 message sent" in rocket("produce", topic, "one")[2]


@pytest.mark.parametrize("mode", ["sync", "nowait", "oneway", "batch"])
def test_bench_produce(rocket: Rocket, mode: str) -> None:
    options = ["--count", "64", "--threads", "2", "--size", "100", "-o", "json"]
    code, out, _ = rocket("bench", "produce", "--mode", mode, *options)
    values = json.loads(out)
    assert code == 0
    assert (values["messages"], values["failed"]) == (64, 0)
    assert 0 < values["p50_us"] <= values["p90_us"] <= values["p99_us"] <= values["p99_9_us"] <= values["max_us"]
    assert values["messages_per_second"] > 0


def test_bench_in_rocketmqs_own_format(rocket: Rocket) -> None:
    _, out, _ = rocket("bench", "produce", "--count", "10", "--rocketmq-format")
    assert out.startswith("[Complete]: Current Time: ")
    assert "| Send Total: 10 |" in out
    _, out, _ = rocket("bench", "consume", "--count", "10", "--rocketmq-format")
    assert "| Consume TPS: " in out
    _, out, _ = rocket("bench", "consume", "--count", "10", "-o", "json")
    assert json.loads(out)["messages"] == 10


def test_bench_codec(rocket: Rocket) -> None:
    code, out, _ = rocket("bench", "codec", "--seconds", "0.01", "-o", "json")
    assert code == 0
    assert {row["case"].split()[0] for row in json.loads(out)} == {"crc-32", "decode", "encode"}


def test_lines_of_a_file_and_of_standard_input(rocket: Rocket, tmp_path: Path) -> None:
    """The text of a body is what stands in its line; blank lines count and are no messages."""
    text = b'\xef\xbb\xbf{"body": "a"}\r\n\r\n\t\n{"body": {"p" : 1.10, "p": 1E400}}\n'
    text += b'{"keys": 7, "body": 12527.60048171909141234}'
    (tmp_path / "@ [1].jsonl").write_bytes(text)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text))
    rocket("topic", "create", "jsonl-lines", "--queues", "1")
    for arguments in ([], [f"@{tmp_path / '@ [1].jsonl'}"], [f"@{tmp_path / 'a.jsonl.gz'}"]):
        code, _, err = rocket("produce", "jsonl-lines", "--jsonl", "-q", *arguments, stdin=text)
        assert code == 0, err
    _, out, _ = rocket("tail", "jsonl-lines", "-o", "start", "-e", "--output", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["body"] for row in rows] == ["a", '{"p" : 1.10, "p": 1E400}', "12527.60048171909141234"] * 3
    assert [row["keys"] for row in rows] == [[], [], ["7"]] * 3
    (tmp_path / "b.jsonl").write_bytes(text + b'\n{"body": 01}\n')
    code, _, err = rocket("produce", "jsonl-lines", "--jsonl", "-q", f"@{tmp_path / 'b.jsonl'}")
    assert (code, f"{tmp_path / 'b.jsonl'}: line 6, column 11: " in err) == (2, True), err
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(text)[:-9])
    code, _, err = rocket("produce", "jsonl-lines", "--jsonl", "-q", f"@{tmp_path / 'cut.jsonl.gz'}")
    assert (code, "cut.jsonl.gz: Compressed file ended" in err, "Traceback" in err) == (2, True, False), err
    assert "standard input: line 1, column 1: " in rocket("produce", "jsonl-lines", "--jsonl", stdin=b"x\n")[2]


def test_the_end_of_a_time_is_no_part_of_it(rocket: Rocket, tmp_path: Path) -> None:
    """``find``, ``tail`` and ``export`` mean the same messages by the same times."""
    rocket("topic", "create", "ends-of-times", "--queues", "1")
    rocket("produce", "ends-of-times", "x", "--key", "k", "-q")
    _, out, _ = rocket("tail", "ends-of-times", "-o", "start", "-e", "--output", "json")
    stored = datetime.fromisoformat(json.loads(out)["stored_at"])
    begin, behind = (str(round((stored + timedelta(milliseconds=more)).timestamp() * 1000)) for more in (0, 1))
    for until, found in ((begin, 0), (behind, 1)):
        code, out, err = rocket("message", "find", "ends-of-times", "-k", "k", "--until", until, "-o", "json")
        assert code == (0 if found else 3), err
        code, out, err = rocket(
            "message", "find", "ends-of-times", "-k", "k", "--since", begin, "--until", until, "-o", "jsonl"
        )
        assert (code, len(out.splitlines())) == ((0, 1) if found else (3, 0)), err
        code, out, err = rocket("tail", "ends-of-times", "-o", f"@{begin}:@{until}", "-e")
        assert (code, len(out.splitlines())) == (0, found), err
        file = str(tmp_path / f"{until}.jsonl")
        code, out, err = rocket("message", "export", "ends-of-times", "-o", file, "--until", until)
        assert (code, len(Path(file).read_text().splitlines())) == (0, found), err


def test_bodies_are_the_content_of_files_of_any_name(
    rocket: Rocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [
        b"data[1]", b"{a,b}", b"q?", b"*", b"back\\slash", b"two  words", b"2024-05-01T12:00:00", b"file:x", b"_x",
        b".x", b"100%25 %s", "\U0001f680".encode(), b"latin-\xe9", b"-", b"@at", b"~", b"$HOME", b"new\nline",
    ]  # fmt: skip
    (tmp_path / "data1").write_bytes(b"wrong")
    for name in names:
        Path(os.fsdecode(name)).write_bytes(b"body of " + name + b"\r\n\n")
    rocket("topic", "create", "bodies-of-files", "--queues", "1")
    code, _, err = rocket("produce", "bodies-of-files", "-q", *(f"@{os.fsdecode(name)}" for name in names))
    assert code == 0, err
    _, out, _ = rocket("tail", "bodies-of-files", "-o", "start", "-e", "--output", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    found = [row["body"].encode() if "body" in row else base64.b64decode(row["body_base64"]) for row in rows]
    assert found == [b"body of " + name + b"\r\n\n" for name in names]
    for name in ("absent[1]", "latin-\udce9-absent", ".", ""):  # type: ignore[assignment]
        code, _, err = rocket("produce", "bodies-of-files", "-q", f"@{name}")
        assert (code, "Traceback" in err) == (2, False), err
        assert f"{printable(name)}: " in err  # type: ignore[arg-type]


def test_lines_of_text_are_bodies_as_they_stand(rocket: Rocket) -> None:
    rocket("topic", "create", "lines-of-text", "--queues", "1")
    assert rocket("produce", "lines-of-text", "-q", stdin=b" a \r\r\n\n\r\nb\tc\r\n\xef\xbb\xbfd")[0] == 0
    _, out, _ = rocket("tail", "lines-of-text", "-o", "start", "-e", "--output", "jsonl")
    assert [json.loads(line)["body"] for line in out.splitlines()] == [" a \r", "b\tc", "\ufeffd"]
