from __future__ import annotations

import pytest

from rocketcore.cli.shell.times import parse_duration, parse_time

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("10m", 600), ("1.5h", 5400), ("2d", 172_800), ("250ms", 0.25)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "1 h", "1w", "10mm"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("now", NOW),
        ("1700000000123", 1_700_000_000_123),
        ("-1h", NOW - 3_600_000),
        ("10m", NOW - 600_000),
        ("2023-11-14", 1_699_920_000_000),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20+01:00", NOW),
    ],
)
def test_times(text: str, millis: int) -> None:
    assert parse_time(text, NOW) == millis


@pytest.mark.parametrize("text", ["36601d", "9" * 400 + "d"])
def test_durations_end_somewhere(text: str) -> None:
    with pytest.raises(ValueError, match="more than a hundred years"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "17000", "2023-11-14T22:13:20", "2023-13-01", "-30000d", "1969-12-31", "9" * 400 + "d"]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text, NOW)
