from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import click
import pytest

from rocketcore.cli.options import Settings
from rocketcore.cli.render import Column, show_line, show_object, show_rows, timestamp

ROWS = [
    {"topic": "a", "queues": 4, "last_at": None, "brokers": ["x", "y"]},
    {"topic": "long-name", "queues": 16, "last_at": "2030-01-01T00:00:00Z", "brokers": []},
]
COLUMNS = [Column("topic"), Column("queues"), Column("last_at", "LAST"), Column("brokers", wide=True)]


def shown(output: str, show: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> str:
    with click.Context(click.Command("x"), obj=Settings(output=output)):
        show()
    return capsys.readouterr().out


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown("table", lambda: show_rows(ROWS, COLUMNS), capsys) == (
        "TOPIC      QUEUES  LAST\n"
        "a               4  –\n"
        "long-name      16  2030-01-01T00:00:00Z\n"
    )  # fmt: skip
    assert "x, y" in shown("wide", lambda: show_rows(ROWS, COLUMNS), capsys)


def test_json_and_lines_keep_types_and_nulls(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(shown("json", lambda: show_rows(ROWS, COLUMNS), capsys)) == ROWS
    lines = shown("jsonl", lambda: show_rows(ROWS, COLUMNS), capsys).splitlines()
    assert [json.loads(line) for line in lines] == ROWS
    assert shown("json", lambda: show_rows([], COLUMNS), capsys) == "[]\n"
    assert shown("yaml", lambda: show_rows([], COLUMNS), capsys) == "[]\n"


def test_csv_has_one_header_and_empty_unknowns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.reader(io.StringIO(shown("csv", lambda: show_rows(ROWS, COLUMNS), capsys))))
    assert rows == [
        ["topic", "queues", "last_at", "brokers"],
        ["a", "4", "", "x, y"],
        ["long-name", "16", "2030-01-01T00:00:00Z", "–"],
    ]


def test_a_column_may_make_its_own_text(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a", "values": {"x": 1, "y": None}}]
    columns = [
        Column("name"),
        Column("values", "x:1", text=lambda values: str(values["x"])),
        Column("values", "y:1", text=lambda values: values["y"]),
    ]
    assert shown("csv", lambda: show_rows(rows, columns), capsys) == "name,x:1,y:1\na,1,\n"
    assert shown("table", lambda: show_rows(rows, columns), capsys) == "NAME  x:1  y:1\na     1    –\n"


def test_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown("name", lambda: show_rows(ROWS, COLUMNS), capsys) == "a\nlong-name\n"


def test_yaml_is_block_style_with_json_scalars(capsys: pytest.CaptureFixture[str]) -> None:
    value: dict[str, Any] = {"a": 1, "b": [{"c": "x: y", "d": None}, {"e": []}], "f": {}}
    assert shown("yaml", lambda: show_object(value), capsys) == (
        '"a": 1\n"b":\n  - "c": "x: y"\n    "d": null\n  - "e": []\n"f": {}\n'
    )


def test_object(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"topic": "T", "read_queues": 8, "perm": None}
    assert shown("table", lambda: show_object(value), capsys) == "TOPIC        T\nREAD QUEUES  8\nPERM         –\n"
    assert json.loads(shown("json", lambda: show_object(value), capsys)) == value


def test_lines_of_a_stream(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown("table", lambda: show_line({"a": 1}, "one"), capsys) == "one\n"
    assert shown("json", lambda: show_line({"a": 1}, "one"), capsys) == '{"a": 1}\n'


def test_timestamps() -> None:
    assert timestamp(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert timestamp(0) is None
    assert timestamp(None) is None
