from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest

from rocketcore.cli.shell.options import Settings
from rocketcore.cli.shell.render import Column, show_line, show_object, show_rows, timestamp

ROWS = [
    {"topic": "a", "queues": 4, "last_at": None, "brokers": ["x", "y"]},
    {"topic": "long-name", "queues": 16, "last_at": "2030-01-01T00:00:00Z", "brokers": []},
]
COLUMNS = [Column("topic"), Column("queues"), Column("last_at", "LAST"), Column("brokers", wide=True)]


def shown(output: str, show: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> str:
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
        ["long-name", "16", "2030-01-01T00:00:00Z", ""],
    ]


def test_numbers_of_csv_are_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"rate": 12345.5, "ratio": 0.00012345, "up": True, "part": None}]
    columns = [Column("rate"), Column("ratio"), Column("up"), Column("part")]
    assert shown("csv", lambda: show_rows(rows, columns), capsys).splitlines()[1] == "12345.5,0.00012345,true,"
    assert shown("table", lambda: show_rows(rows, columns), capsys).splitlines()[1].startswith("12,345.5")


def test_a_column_may_make_its_own_text(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a", "values": {"x": 1, "y": None}}]
    columns = [
        Column("name"),
        Column("values", "x:1", text=lambda values: str(values["x"])),
        Column("values", "y:1", text=lambda values: values["y"]),
    ]
    assert shown("csv", lambda: show_rows(rows, columns), capsys) == "name,x:1,y:1\na,1,\n"
    assert shown("table", lambda: show_rows(rows, columns), capsys) == "NAME  x:1  y:1\na     1    –\n"


EVIL = "a\nb\x1b[31m\x9b\u202ec"


def test_tables_show_control_characters_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    escaped = r"a\nb\x1b[31m\x9b\u202ec"
    assert shown("table", lambda: show_rows([{"x": EVIL}], [Column("x")]), capsys) == f"X\n{escaped}\n"
    assert shown("table", lambda: show_object({"x": EVIL}), capsys) == f"X  {escaped}\n"
    assert json.loads(shown("json", lambda: show_object({"x": EVIL}), capsys)) == {"x": EVIL}
    assert shown("csv", lambda: show_rows([{"x": EVIL}], [Column("x")]), capsys) == f"x\n{escaped}\n"
    assert shown("name", lambda: show_rows([{"x": EVIL}], [Column("x")]), capsys) == f"{escaped}\n"
    assert shown("name", lambda: show_object({"x": EVIL}), capsys) == f"{escaped}\n"


@pytest.mark.parametrize("output", ["json", "jsonl", "yaml"])
def test_documents_have_no_character_that_a_terminal_obeys(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(output, lambda: show_rows([{"ü": EVIL + "\x7f\u2029"}], [Column("ü")]), capsys)
    assert text.replace("\n", "").isprintable()
    assert "ü" in text, "what can be shown is not escaped"
    if output != "yaml":
        assert json.loads(text) in ([{"ü": EVIL + "\x7f\u2029"}], {"ü": EVIL + "\x7f\u2029"})


def test_a_cell_is_no_formula(capsys: pytest.CaptureFixture[str]) -> None:
    """A spreadsheet would run it."""
    rows = [{"x": text, "y": -1} for text in ("=1+1", "+1", "-1", "@x", "a=1")]
    lines = shown("csv", lambda: show_rows(rows, [Column("x"), Column("y")]), capsys).splitlines()
    assert lines == ["x,y", "'=1+1,-1", "'+1,-1", "'-1,-1", "'@x,-1", "a=1,-1"]


def test_wide_characters_take_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"a": "消息", "b": "x"}, {"a": "abcde", "b": "y"}, {"a": "e\u0301", "b": "z"}]
    assert shown("table", lambda: show_rows(rows, [Column("a"), Column("b")]), capsys).splitlines() == [
        "A      B", "消息   x", "abcde  y", "e\u0301      z"
    ]  # fmt: skip


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "bold"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_gets_the_same_table_with_a_bold_heading(
    environment: dict[str, str], bold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However narrow it is, nothing is folded or left out, and :100: stays what it is."""
    monkeypatch.setenv("COLUMNS", "4")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    with click.Context(click.Command("x"), obj=Settings()):
        show_rows([{"key": ":smile:", "value": "a:100:b [bold]c[/bold]"}], [Column("key"), Column("value")])
    heading, row = screen.getvalue().splitlines()
    assert ("\x1b[1m" in heading) is bold
    assert re.sub(r"\x1b\[\d+m", "", heading).rstrip() == "KEY      VALUE"
    assert row.rstrip() == ":smile:  a:100:b [bold]c[/bold]"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_stdout_cannot_take_is_escaped(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"a": "é消\ud800", "b": None}
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding=encoding, errors="backslashreplace"))
    with click.Context(click.Command("x"), obj=Settings(output="json")):
        show_object(value)
    with click.Context(click.Command("x"), obj=Settings()):
        show_object({"b": None})
    sys.stdout.flush()
    text = out.getvalue().decode(encoding)
    document, unknown = text[: text.index("}") + 1], text[text.index("}") + 1 :]
    assert json.loads(document) == value
    assert unknown.split() == ["B", "–" if encoding == "utf-8" else "-"]


def test_columns_of_what_stdout_cannot_take_stand_below_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding="ascii", errors="backslashreplace"))
    with click.Context(click.Command("x"), obj=Settings()):
        show_rows([{"tag": "消", "key": "k"}], ["tag", "key"])
    assert out.getvalue() == b"TAG     KEY\n\\u6d88  k\n"


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
    assert timestamp(253_402_300_799_000) == "9999-12-31T23:59:59.000Z"
    for never in (253_402_300_800_000, 2**63 - 1, -1):
        assert timestamp(never) is None, "a producer may say what it likes"
