"""``rocket message import`` of CSV: the columns of messages as texts."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rocketcore.cli.messages.resume import ProgressFile
from tests.fixtures.commands import Rocket
from tests.fixtures.message_files import messages

ROWS = [
    ["body", "tags", "keys", "shardingKey"],
    ['{"id": 1, "text": "a, ""b"""}', "created", "k1", "n"],
    ["two\nlines", "", "", "s"],
    ["007", "paid", "k3", ""],
]


def write(name: str, rows: list[list[str]]) -> None:
    with Path(name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


@pytest.mark.parametrize("name", ["rows.csv", "rows.CSV", "rows.csv.gz", "rows.txt"])
def test_cells_are_texts_as_they_stand(rocket: Rocket, name: str) -> None:
    topic = "csv-" + name.replace(".", "-")
    write(name, ROWS)
    if name.endswith(".gz"):
        Path(name).write_bytes(gzip.compress(Path(name).read_bytes()))
    form = ["--format", "csv"] if name == "rows.txt" else []
    code, out, err = rocket("import", name, "--topic", topic, "--create", *form, "-o", "json")
    assert (code, json.loads(out or "{}").get("messages")) == (0, 3), err
    assert rocket("export", topic, "-o", "out.parquet")[0] == 0
    found = {row["body"].decode(): (row["tag"], row["keys"]) for row in messages("out.parquet")}
    assert found == {row[0]: (row[1] or None, row[2] or None) for row in ROWS[1:]}


def test_other_columns_and_what_is_no_csv(rocket: Rocket) -> None:
    write("a.csv", [["id", "what"], ["1", "x"], ["2", "y"]])
    command = ["import", "a.csv", "--topic", "csv-other", "--create"]
    assert "column 'id' cannot be sent with a message" in rocket(*command)[2]
    assert rocket(*command, "--column", "body=what", "--column", "keys=id")[0] == 0
    Path("a.csv").write_text("body,tags\nfine,a\nfine,a,more\n")
    code, _, err = rocket(*command)
    assert (code, "a.csv: not a valid csv file: line 3, column 8: the row has 3 cells" in err) == (1, True), err
    Path("a.csv").write_bytes(b"body\nfine\nb\xff\n")
    code, _, err = rocket(*command)
    assert (code, "line 3, column 2" in err) == (1, True), err


def test_an_import_of_csv_goes_on_where_it_was(rocket: Rocket, monkeypatch: pytest.MonkeyPatch) -> None:
    write("many.csv", [["body"], *([f"{number}"] for number in range(400))])
    command = ["import", "many.csv", "--topic", "csv-many", "--create", "--part-bytes", "1"]
    saved = 0
    save = ProgressFile.save

    def interrupted(self: Any, state: Any) -> None:
        nonlocal saved
        saved += 1
        if saved == 4:
            raise KeyboardInterrupt
        save(self, state)

    with monkeypatch.context() as patched:
        patched.setattr(ProgressFile, "save", interrupted)
        assert rocket(*command, "--rate", "500")[0] == 130
    code, out, err = rocket(*command, "-o", "json")
    assert code == 0, err
    assert json.loads(out)["resumed_at"] > 0
    assert rocket("export", "csv-many", "-o", "out.parquet")[0] == 0
    found = messages("out.parquet")
    assert {row["body"] for row in found} == {str(number).encode() for number in range(400)}
    assert len({row["id"] for row in found}) == 400, "what was under way has its id again"
