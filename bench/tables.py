"""The tables of docs/benchmarks.md from what a comparison wrote: ``python -m bench.tables RESULTS.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.comparison import FIGURES, Row, repeats

__all__ = ["table"]

OURS, PEER, CEILING = "ours", "apache", "ceiling"


def table(rows: list[Row]) -> str:
    """Return a Markdown table: a line for each figure of each row, ``median [least–greatest]`` for each target."""
    lines = [
        "| row | figure | rocketcore | Apache 5.5.0 | ratio | ceiling | share of the ceiling |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for path, title in FIGURES:
            ours = row.figure(OURS, path)
            if ours is None or not ours[2] or repeats(row, OURS, path):
                continue
            cells = [_shown(row.figure(name, path)) for name in (OURS, PEER, CEILING)]
            ratios = [_ratio(ours, row.figure(name, path)) for name in (PEER, CEILING)]
            cells = [row.title, title, cells[0], cells[1], ratios[0], cells[2], ratios[1]]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(figure: tuple[float, float, float] | None) -> str:
    if figure is None:
        return "–"
    median, least, greatest = map(_number, figure)
    return f"{median} [{least}–{greatest}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _ratio(ours: tuple[float, float, float], other: tuple[float, float, float] | None) -> str:
    return "–" if other is None or not other[0] else f"{ours[0] / other[0]:.2f}"


if __name__ == "__main__":
    print(table([Row(**values) for values in json.loads(Path(sys.argv[1]).read_text())]))
