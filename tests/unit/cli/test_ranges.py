from __future__ import annotations

import pytest

from rocketcore.cli.consume import parse_range

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
        ("30:20", (30, 30)),
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


@pytest.mark.parametrize("text", ["begin", "1.5", "@soon", "1:x", "--3"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError):
        parse_range(text, NOW)
