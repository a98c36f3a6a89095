"""Files of any name: the one that was named is written, read and noted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rocketcore.admin.client import Admin
from rocketcore.client.sync import Producer
from rocketcore.local import LocalCluster
from tests.fixtures.commands import Rocket
from tests.fixtures.message_files import FORMS

NAMES = [
    b"data[1]", b"{a,b}", b"q?", b"*", b"back\\slash", b"two  words", b"run [3]/x", b"2024-05-01T12:00:00", b"file:x",
    b"s3:__bucket", b"_hidden", b".hidden", b"100%25 %s", b"#hash", "äöü \U0001f680".encode(), b"latin-\xe9", b"--",
    b"~", b"$HOME", b"'\"", b"new\nline", b"@at", b"-",
]  # fmt: skip


@pytest.fixture
def small(cluster: LocalCluster) -> str:
    """A topic of two messages."""
    name = "names-of-files"
    with Admin(cluster.namesrv) as admin:
        if name not in admin.topics():
            admin.create_topic(name, 1)
            with Producer(cluster.namesrv, group="p") as producer:
                for body in ("one", "two"):
                    producer.send(name, body, keys="k")
    return name


@pytest.mark.parametrize("form", FORMS)
def test_files_of_any_name(rocket: Rocket, small: str, form: str) -> None:
    Path("run [3]").mkdir()
    for number, name in enumerate(NAMES):
        path = os.fsdecode(name + b"." + form.encode())
        given = f"./{path}" if path.startswith("-") else path
        before = set(os.listdir("."))
        code, out, err = rocket("export", small, "-o", given, "-o", "json")
        assert (code, err.count("Traceback")) == (0, 0), (path, err)
        assert json.loads(out)["messages"] == 2
        code, out, err = rocket("export", small, "-o", given)
        assert (code, "exists already" in err, "Traceback" in err) == (1, True, False), (path, err)
        copy = f"copy-{form}-{number}"
        code, out, err = rocket("import", given, "--topic", copy, "--create", "--queues", "1", "-o", "json")
        assert (code, err.count("Traceback")) == (0, 0), (path, err)
        assert json.loads(out)["messages"] == 2
        assert json.loads(out)["file"] == given
        code, out, err = rocket("import", given, "--topic", copy, "--dry-run")
        assert (code, f"({form}) to topic {copy}" in err) == (0, True), err
        assert set(os.listdir(".")) - before <= {path.split("/")[0]}, "nothing else stays"


@pytest.mark.parametrize("form", FORMS)
def test_faults_of_files_of_any_name(rocket: Rocket, small: str, form: str) -> None:
    """The error has the name, in escapes where a terminal would not show it."""
    for name in (b"latin-\xe9", b"new\nline", b"data[1]", b"2024-05-01T12:00:00"):
        path = os.fsdecode(name + b"." + form.encode())
        shown = path.replace("\n", "\\n").replace("\udce9", "\\udce9")
        Path(path).write_bytes({"jsonl": b"x", "arrow": b"ARROW1\0\0", "parquet": b"PAR1"}[form] + b" and no more")
        code, _, err = rocket("import", path, "--topic", small)
        assert (code, f"error: {shown}: " in err, "Traceback" in err) == (1, True, False), err
        code, _, err = rocket("import", f"absent-{path}", "--topic", small)
        assert (code, f"absent-{shown}: No such file" in err, "Traceback" in err) == (2, True, False), err
    assert not [name for name in os.listdir(".") if "progress" in name]
