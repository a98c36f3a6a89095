"""Texts of others in logs, and the lines that they cannot make there."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore.printable import LineFormatter, is_printable, printable, printable_json, shortened


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger of its own, and what it wrote."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    yield logger, written
    handler.close()


def test_a_value_makes_no_line_of_its_own(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, written = log
    logger.warning("broker registered broker=%s id=%d", "x\n2026-01-01 CRITICAL disk full\x1b[2J\u202e", 0)
    assert written.getvalue() == (
        "WARNING broker registered broker=x\\n2026-01-01 CRITICAL disk full\\x1b[2J\\u202e id=0\n"
    )


def test_a_long_value_is_cut(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, written = log
    logger.warning("broker=%s id=%d", "x" * (8 << 20), 7)
    assert written.getvalue() == f"WARNING broker={'x' * 256}… (8388352 more) id=7\n"
    logger.warning("reason=%s", ValueError("y" * (8 << 20)))
    assert len(written.getvalue()) < 10_000


def test_a_traceback_is_indented(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, written = log
    try:
        raise ValueError("x\nCRITICAL disk full\x1b[2J")
    except ValueError:
        logger.exception("handler failed", stack_info=True)
    first, *others = written.getvalue().splitlines()
    assert first == "ERROR handler failed"
    assert others
    assert all(line.startswith("  ") and line.isprintable() for line in others)
    assert any(line.startswith("  CRITICAL disk full\\x1b[2J") for line in others)


def test_a_dictionary_of_values(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, written = log
    logger.warning("%(a)s", {"a": "x\ny"})
    assert written.getvalue() == "WARNING x\\ny\n"


@given(st.text())
def test_what_is_made_printable_is(text: str) -> None:
    assert is_printable(printable(text))
    assert (printable(text) == text) == is_printable(text)
    assert is_printable(printable_json(text).translate(dict.fromkeys(range(32), "")))


def test_shortened() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "abc… (1 more)"
