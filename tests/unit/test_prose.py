"""The check of our prose (.ci/prose.py): what it counts, what it leaves out, what it names."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PROSE = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "prose.py"))
faults, main, text_faults = PROSE["faults"], PROSE["main"], PROSE["text_faults"]
gathered = PROSE["gathered"]
LONG = " ".join(["word"] * 31)


def test_clean_pages_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().out


def test_a_sentence_over_the_limit_is_named_with_its_line() -> None:
    [fault] = faults("a.md", f"# Title\n\nShort.\n\n- Item.\n- {LONG}.\n")
    assert fault.startswith("a.md:6: 31 words, at most 30: word word")
    assert faults("a.md", " ".join(["word"] * 30) + ". Short. Short.\n") == []


def test_the_mean_of_a_page_counts() -> None:
    text = " ".join(["word"] * 20) + ".\n"
    assert faults("a.md", text) == ["a.md: 20.0 words a sentence, at most 18"]


@pytest.mark.parametrize(
    "text",
    [
        f"```\n{LONG}\n```",
        f"- item\n\n  ```python\n  {LONG}\n  ```",
        f"| {LONG} |",
        f"# {LONG}",
        f"Run `{LONG}` now.",
        f"<!-- {LONG} -->",
        f"[1]: http://x {LONG}",
    ],
)
def test_code_tables_headings_and_references_are_left_out(text: str) -> None:
    assert faults("a.md", text) == []


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("What is not there is refused.", "as the subject"),
        ("Who sends waits.", "say who"),
        ("It is told to who asks.", "for a noun"),
        ("Take the one that is next.", "repeat the noun"),
        ("First.\nSecond. Whoever asks\nwaits.", "as the subject"),
    ],
)
def test_habits_are_named(text: str, advice: str) -> None:
    [fault] = faults("a.md", text)
    assert advice in fault


@pytest.mark.parametrize(
    "text", ["What is it?", "Who sends?", "See [What runs twice](a.md).", "The team who sends it."]
)
def test_questions_and_titles_are_no_habits(text: str) -> None:
    assert faults("a.md", text) == []


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("'x' is no name of an account", "invalid"),
        ("Nobody consumes them then.", "name it"),
        ("Stop. What it does not name stays.", "as the subject"),
        (LONG, "31 words"),
        ("raises  ConfigError\nclock   the broker has no clock that runs", "begin with the actor"),
    ],
)
def test_habits_of_texts_are_named(text: str, advice: str) -> None:
    assert advice in text_faults("rocket topic", text)[0]


def test_rows_of_a_docstring_are_sentences_of_their_own() -> None:
    row = " ".join(["word"] * 29)
    assert text_faults("x", f"Send.\n\ntopic    {row}\ntimeout  {row}") == []


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("help", "rocket topic create"),
        ("settings", "StoreConfig.flush_disk_type"),
        ("docstrings", "rocketcore.Producer.send"),
        ("console", "zh.json"),
        ("errors", "rocketcore/errors.py"),
        ("logs", "rocketcore/service.py"),
    ],
)
def test_texts_of_the_program_are_gathered_with_their_place(kind: str, place: str) -> None:
    assert any(one.kind == kind and one.place.startswith(place) for one in gathered((kind,)))
