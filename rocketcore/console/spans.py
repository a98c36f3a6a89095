"""Bars of queues: the time that a queue keeps, and where in it a group is; maps of lags by queue, of latencies by time.

All as SVG whose colours are the page's. Names come from the network: each is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from rocketcore.printable import printable

__all__ = ["heat_map", "lag_level", "lag_map", "mark_bar", "time_bar"]

MOST_CELLS: Final = 512
_CELL: Final = 22


def time_bar(first: int | None, last: int | None, begin: int, end: int) -> Markup:
    """Draw when the oldest and the newest message of a queue were stored, within the times of all; milliseconds."""
    if first is None or last is None:
        return Markup("")
    scale = 100 / max(1, end - begin)
    x = max(0.0, (first - begin) * scale)
    width = max(1.0, (last - first) * scale)
    return _bar(Markup('<rect class="fill" x="{:.1f}" width="{:.1f}" height="6"/>').format(min(x, 99), width))


def mark_bar(low: int, high: int, mark: int | None) -> Markup:
    """Draw the offsets that a queue holds, and which of them a group has consumed; a mark left of all was overtaken."""
    if mark is None or high <= low:
        return Markup("")
    done = min(1.0, max(0.0, (mark - low) / (high - low))) * 100
    parts = Markup('<rect class="fill" width="{:.1f}" height="6"/>').format(done)
    overtaken = " bad" if mark < low else ""
    at = min(98.0, done)
    return _bar(parts + Markup('<rect class="mark{}" x="{:.1f}" width="2" height="6"/>').format(overtaken, at))


def _bar(inside: Markup) -> Markup:
    return Markup(
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="6"/>{}</svg>'
    ).format(inside)


def lag_level(lag: int | None) -> str:
    """Return how urgent a lag is, for its colour."""
    if lag is None:
        return "unknown"
    return "l0" if lag == 0 else "l1" if lag < 100 else "l2" if lag < 1000 else "l3" if lag < 10_000 else "l4"


def lag_map(queues: Sequence[Mapping[str, Any]]) -> Markup:
    """Draw a cell a queue, a row a topic and broker: its colour is the lag. Empty for fewer than two queues."""
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in queues[:MOST_CELLS]:
        rows.setdefault((each["topic"], each["broker"]), []).append(each)
    if len(queues) < 2:
        return Markup("")
    width = 240 + _CELL * max(len(cells) for cells in rows.values())
    parts = []
    for number, ((topic, broker), cells) in enumerate(rows.items()):
        y = number * _CELL
        name = printable(f"{topic} {broker}")
        label = name if len(name) <= 34 else f"{name[:33]}…"
        parts.append(Markup('<text x="0" y="{}">{}<title>{}</title></text>').format(y + 15, label, name))
        for place, each in enumerate(cells):
            lag = each["lag"]
            text = f"{name}/{each['queue_id']}: {'–' if lag is None else f'{lag:,} msg'}"
            parts.append(
                Markup(
                    '<rect class="cell {}" x="{}" y="{}" width="20" height="20" rx="3"><title>{}</title></rect>'
                ).format(lag_level(lag), 240 + place * _CELL, y, text)
            )
    height = len(rows) * _CELL
    return Markup(
        '<svg class="map" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
    ).format(width, height, width, height, "lag of each queue", Markup("").join(parts))


def heat_map(columns: Sequence[tuple[int, Mapping[str, int]]]) -> Markup:
    """Draw times from left to right, buckets of latency from below, the more sends the stronger; empty without any."""
    labels = list(columns[-1][1]) if columns else []
    most = max((count for _, counts in columns for count in counts.values()), default=0)
    if not most:
        return Markup("")
    parts = []
    for row, label in enumerate(reversed(labels)):
        parts.append(Markup('<text x="0" y="{}">{}</text>').format(row * 16 + 12, printable(label)))
        for place, (at, counts) in enumerate(columns):
            count = counts.get(label, 0)
            level = 0 if not count else 1 + round(4 * count.bit_length() / most.bit_length())
            cell = '<rect class="heat h{}" x="{}" y="{}" width="11" height="14"><title>{}Z {}: {}</title></rect>'
            clock = f"{at // 3600 % 24:02}:{at // 60 % 60:02}:{at % 60:02}"
            parts.append(
                Markup(cell).format(min(level, 5), 96 + place * 12, row * 16, clock, printable(label), f"{count:,}")
            )
    width, height = 96 + 12 * len(columns), 16 * len(labels)
    return Markup(
        '<svg class="map" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
    ).format(width, height, width, height, "how long sends took, over time", Markup("").join(parts))
