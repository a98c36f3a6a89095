"""Pictures that the server makes, as SVG without styles of its own: rates, who consumes what, ways of messages.

Names come from the network: each is escaped, and boxes are placed by number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from rocketcore.admin.survey import GroupSurvey
from rocketcore.naming import is_system_group
from rocketcore.printable import printable

__all__ = ["spark", "topology", "way"]

_WIDTH, _HEIGHT = 120, 28
MOST_LINKS: Final = 14
"""Links of the picture: those with the largest lag."""
_ROW: Final = 36
_BOX: Final = 26


def spark(values: Sequence[float | None]) -> Markup:
    """Draw a line of values over time; a gap where one is not known."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup('<svg class="spark" viewBox="0 0 {} {}" aria-hidden="true"></svg>').format(_WIDTH, _HEIGHT)
    top = max(known) or 1.0
    step = _WIDTH / max(1, len(values) - 1)
    parts: list[str] = []
    pen = "M"
    for index, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{index * step:.1f} {_HEIGHT - 2 - value / top * (_HEIGHT - 4):.1f}")
        pen = "L"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true"><path d="{}"/></svg>'
    ).format(_WIDTH, _HEIGHT, "".join(parts))


def topology(url: Callable[..., str], groups: GroupSurvey, topics: set[str]) -> Markup:
    """Draw topics to the left, groups to the right, a line where a group consumes a topic: its colour is the lag.

    Empty where no group has consumed anything.
    """
    links = [
        (each.lag, topic, group)
        for group, by_topic in groups.traffic.items()
        if not is_system_group(group)
        for topic, each in by_topic.items()
        if topic in topics
    ]
    links = sorted(links, key=lambda link: (-link[0], link[1], link[2]))[:MOST_LINKS]
    if not links:
        return Markup("")
    left = {name: number for number, name in enumerate(dict.fromkeys(topic for _, topic, _ in links))}
    right = {name: number for number, name in enumerate(dict.fromkeys(group for *_, group in links))}
    height = max(len(left), len(right)) * _ROW + 8
    parts = []
    for lag, topic, group in links:
        y1, y2 = (number * _ROW + 4 + _BOX / 2 for number in (left[topic], right[group]))
        parts.append(
            Markup(
                '<path class="link {}" d="M190 {}C270 {} 270 {} 350 {}"><title>{} → {}: {} msg</title></path>'
            ).format(_level(lag), y1, y1, y2, y2, printable(topic), printable(group), f"{lag:,}")
        )
    boxes = [(0, number, name, url("/topic", name=name), "") for name, number in left.items()]
    worst = {group: max(lag for lag, _, of in links if of == group) for group in right}
    boxes += [(350, number, name, url("/group", name=name), _level(worst[name])) for name, number in right.items()]
    for x, number, name, where, level in boxes:
        parts.append(
            Markup(
                '<a href="{}"><rect class="node {}" x="{}.5" y="{}.5" width="189" height="{}" rx="6"/>'
                '<text x="{}" y="{}">{}</text><title>{}</title></a>'
            ).format(
                where, level, x, number * _ROW + 4, _BOX, x + 12, number * _ROW + 22, shortened_name(name),
                printable(name),
            )
        )  # fmt: skip
    return Markup(
        '<svg class="topology" viewBox="0 0 540 {}" width="540" height="{}" role="group" aria-label="{}">{}</svg>'
    ).format(height, height, "topics and the groups that consume them", Markup("").join(parts))


def shortened_name(name: str, most: int = 26) -> str:
    text = printable(name)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _level(lag: int) -> str:
    return "bad" if lag >= 10_000 else "warn" if lag >= 100 else "ok"


_STATES: Final = {"consumed": "ok", "retry": "warn", "not_yet": "", "dead_letter": "bad", "unknown": ""}


def way(
    url: Callable[..., str], row: Mapping[str, Any], traces: Sequence[Mapping[str, Any]],
    states: Sequence[Mapping[str, Any]],
) -> Markup:  # fmt: skip
    """Draw the way of a message: who sent it, its topic, and each group with what came of it."""
    sent = next((each for each in traces if each["event"] == "sent"), None)
    shown = list(states)[:MOST_LINKS]
    height = max(1, len(shown)) * _ROW * 1.5 + 8
    middle = height / 2
    producer = sent["group"] if sent and sent["group"] else "producer"
    took = f"{sent['seconds'] * 1000:,.0f} ms" if sent and sent["seconds"] is not None else ""
    parts = [_wire("ok" if sent and sent["success"] else "", 160, middle, 240, middle, "sent")]
    for number, each in enumerate(shown):
        y = (number + 0.5) * _ROW * 1.5 + 4
        parts.append(_wire(_STATES[each["state"]], 430, middle, 510, y, each["state"]))
    parts.append(_node(0, middle, 160, str(producer), took, "", ""))
    parts.append(_node(240, middle, 190, row["topic"], row["stored_at"] or "", url("/topic", name=row["topic"]), ""))
    for number, each in enumerate(shown):
        y = (number + 0.5) * _ROW * 1.5 + 4
        done = [trace for trace in traces if trace["event"] == "consumed" and trace["group"] == each["group"]]
        more = each["state"].replace("_", " ")
        if each["failed"]:
            more += f", failed {each['failed']} times"
        if done and done[-1]["seconds"] is not None:
            more += f", {done[-1]['seconds'] * 1000:,.0f} ms"
        parts.append(_node(510, y, 190, each["group"], more, url("/group", name=each["group"]), _STATES[each["state"]]))
    return Markup(
        '<svg class="topology" viewBox="0 0 702 {}" width="702" height="{}" role="group" aria-label="{}">{}</svg>'
    ).format(height, height, "the way of the message", Markup("").join(parts))


def _wire(level: str, x1: int, y1: float, x2: int, y2: float, what: str) -> Markup:
    half = (x1 + x2) / 2
    return Markup('<path class="link {}" d="M{} {}C{} {} {} {} {} {}"><title>{}</title></path>').format(
        level, x1, y1, half, y1, half, y2, x2, y2, what
    )


def _node(x: int, y: float, width: int, name: str, more: str, where: str, level: str) -> Markup:
    box = Markup(
        '<rect class="node {}" x="{}.5" y="{}" width="{}" height="40" rx="6"/><text x="{}" y="{}">{}</text>'
        '<text class="more" x="{}" y="{}">{}</text><title>{} {}</title>'
    ).format(
        level, x, y - 20, width - 1, x + 12, y - 3 if more else y + 4, shortened_name(name, width // 7 - 2), x + 12,
        y + 13, more, printable(name), more,
    )  # fmt: skip
    return Markup('<a href="{}">{}</a>').format(where, box) if where else Markup("<g>{}</g>").format(box)
