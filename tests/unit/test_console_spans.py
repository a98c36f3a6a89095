"""Bars and maps of queues: in proportion, within their frame, and with every name escaped."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("markupsafe")

from rocketcore.console.spans import heat_map, lag_level, lag_map, mark_bar, time_bar


def filled(drawing: str) -> tuple[float, float]:
    """Return where the filled part of a bar of 100 begins, and how wide it is."""
    found = re.search(r'class="fill"(?: x="([\d.]+)")? width="([\d.]+)"', drawing)
    assert found is not None
    return float(found[1] or 0), float(found[2])


def test_a_time_is_drawn_within_the_times_of_all() -> None:
    assert filled(time_bar(1000, 3000, 1000, 5000)) == (0, 50)
    assert filled(time_bar(4000, 5000, 1000, 5000)) == (75, 25)
    assert filled(time_bar(5000, 5000, 5000, 5000)) == (0, 1)
    assert time_bar(None, 5, 0, 10) == ""


def test_a_mark_is_where_the_group_is() -> None:
    assert filled(mark_bar(100, 200, 150)) == (0, 50)
    assert filled(mark_bar(100, 200, 900)) == (0, 100)
    assert 'class="mark bad"' in mark_bar(100, 200, 99)
    assert 'class="mark bad"' not in mark_bar(100, 200, 100)
    assert mark_bar(5, 5, 5) == mark_bar(0, 5, None) == ""


def test_the_colour_is_the_lag() -> None:
    levels = {None: "unknown", 0: "l0", 1: "l1", 100: "l2", 1000: "l3", 10_000: "l4"}
    assert {lag: lag_level(lag) for lag in levels} == levels


def test_a_map_has_a_cell_a_queue_and_no_markup_of_a_name() -> None:
    queues = [{"topic": "<b>", "broker": "a&b", "queue_id": number, "lag": number or None} for number in range(3)]
    drawing = lag_map(queues)
    assert drawing.count("<rect") == 3
    assert "<b>" not in drawing
    assert "&lt;b&gt; a&amp;b/1: 1 msg" in drawing
    assert "/0: –" in drawing
    assert lag_map(queues[:1]) == ""


def test_a_map_of_latencies_is_stronger_where_more_sends_were() -> None:
    drawing = heat_map([(60, {"0~10ms": 100, "<i>": 0}), (70, {"0~10ms": 1, "<i>": 1})])
    assert drawing.count("<rect") == 4
    assert [drawing.count(f'"heat h{level}"') for level in (0, 2, 5)] == [1, 2, 1]
    assert "<i>" not in drawing
    assert "00:01:10Z 0~10ms: 1" in drawing
    assert heat_map([]) == heat_map([(0, {"0~10ms": 0})]) == ""
