from __future__ import annotations

import re

import pytest

from rocketcore.cli.messages.consume import parse_range

NOW = 1_700_000_000_000
AT = {NOW - 3_600_000: 30, NOW - 1_800_000: 60, NOW: 100}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", (10, None)),
        ("end", (100, None)),
        ("42", (42, None)),
        ("5", (10, None)),
        ("500", (100, None)),
        ("+3", (13, None)),
        ("-3", (97, None)),
        ("-500", (10, None)),
        ("20:30", (20, 30)),
        ("20:20", (20, 20)),
        ("95:-3", (95, 97)),
        ("99:-3", (99, 99)),
        (":20", (10, 20)),
        ("90:", (90, 100)),
        ("@-1h", (30, None)),
        ("@-1h:@-30m", (30, 60)),
        ("@-1h:@now", (30, 100)),
        ("@-1h:end", (30, 100)),
        ("@2023-11-14T21:13:20Z:end", (30, 100)),
        ("20:@-30m", (20, 60)),
        ("@2023-11-14T21:13:20Z:@now", (30, 100)),
    ],
)
def test_ranges_within_a_queue_of_10_to_100(text: str, expected: tuple[int, int | None]) -> None:
    assert parse_range(text, NOW)(10, 100, AT.__getitem__) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("30:20", "'30:20' begins after its end"),
        ("-3:-5", "'-3:-5' begins after its end"),
        ("+3:+2", "'+3:+2' begins after its end"),
        ("+3:start", "'+3:start' begins after its end"),
        ("end:-1", "'end:-1' begins after its end"),
        ("end:start", "'end:start' begins after its end"),
        ("@10m:@1h", "'@10m:@1h' begins after its end (2023-11-14T22:03:20.000Z and 2023-11-14T21:13:20.000Z)"),
    ],
)
def test_a_range_that_ends_before_it_begins(text: str, said: str) -> None:
    """It had no messages, and nobody said why."""
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_range(text, NOW)


@pytest.mark.parametrize("text", ["begin", "1.5", "@soon", "1:x", "--3"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError):
        parse_range(text, NOW)
