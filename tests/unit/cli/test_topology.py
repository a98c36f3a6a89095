"""Drawings of clusters, names that try to break out of them included."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from rocketcore.cli.cluster.topology import Member, Topology, dot, mermaid, svg
from rocketcore.errors import ConnectError
from rocketcore.protocol.bodies.route import BrokerData, ClusterInfo

A = BrokerData("one", "broker-a", {0: "10.0.0.1:1", 1: "10.0.0.2:1"}, zone_name="z")
B = BrokerData("two", "broker-b", {0: "10.0.0.3:1"})
VIEWS: dict[str, Any] = {
    "n1:9876": ClusterInfo({"broker-b": B, "broker-a": A}, {"two": ["broker-b"], "one": ["broker-a"]}),
    "n2:9876": ClusterInfo({"broker-a": A}, {"one": ["broker-a"]}),
    "n3:9876": ConnectError("nobody there"),
}
EVIL = '"];<x>&#\\'


@pytest.fixture
def topology() -> Topology:
    return Topology.of(VIEWS)


def test_views_become_one(topology: Topology) -> None:
    assert topology.name_servers == {"n1:9876": None, "n2:9876": None, "n3:9876": "nobody there"}
    assert topology.members == {
        Member("one", "broker-a", 0, "10.0.0.1:1", "z"): ["n1:9876", "n2:9876"],
        Member("one", "broker-a", 1, "10.0.0.2:1", "z"): ["n1:9876", "n2:9876"],
        Member("two", "broker-b", 0, "10.0.0.3:1", None): ["n1:9876"],
    }
    assert topology.rows()[2] == {
        "cluster": "two", "broker": "broker-b", "broker_id": 0, "role": "master", "address": "10.0.0.3:1",
        "zone": None, "registered_at": ["n1:9876"], "missing_at": ["n2:9876"],
    }  # fmt: skip
    document = topology.document()
    assert document["brokers"] == topology.rows()
    assert document["name_servers"][2] == {"address": "n3:9876", "state": "unreachable", "error": "nobody there"}


def test_no_view_at_all_is_the_first_error() -> None:
    with pytest.raises(ConnectError, match="nobody there"):
        Topology.of({"n3:9876": VIEWS["n3:9876"]})


def test_dot(topology: Topology) -> None:
    lines = dot(topology).splitlines()
    assert lines[0] == "digraph rocketmq {"
    assert lines[-1] == "}"
    assert '  n2 [shape=ellipse, label="name server\\nn3:9876", style=dashed];' in lines
    assert '    b1 [label="broker-a slave 1\\n10.0.0.2:1"];' in lines
    assert [line.strip() for line in lines if "->" in line] == [
        "b0 -> n0;", "b0 -> n1;", "b1 -> n0;", "b1 -> n1;", "b2 -> n0;", "b1 -> b0 [style=dashed];"
    ]  # fmt: skip


def test_mermaid(topology: Topology) -> None:
    lines = mermaid(topology).splitlines()
    assert lines[0] == "flowchart BT"
    assert '  subgraph c1["two"]' in lines
    assert '    b2["broker-b<br/>10.0.0.3:1"]' in lines
    assert [line.strip() for line in lines if ">" in line and "[" not in line] == [
        "b0 --> n0", "b0 --> n1", "b1 --> n0", "b1 --> n1", "b2 --> n0", "b1 -.-> b0"
    ]  # fmt: skip
    assert lines[lines.index('  n2(["name server<br/>n3:9876"])') + 1] == "  style n2 stroke-dasharray: 4"


def test_svg(topology: Topology) -> None:
    root = ElementTree.fromstring(svg(topology))
    names = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in root.iter(f"{names}text")]
    assert {"one", "two", "broker-a", "broker-a slave 1", "10.0.0.3:1", "n3:9876"} <= set(texts)
    kinds = [rect.get("class") for rect in root.iter(f"{names}rect")]
    assert sorted(kinds) == sorted(["cluster"] * 2 + ["server"] * 2 + ["server away"] + ["master"] * 2 + ["slave"])  # type: ignore[type-var]
    width, height = int(root.get("width", 0)), int(root.get("height", 0))
    for rect in root.iter(f"{names}rect"):
        assert int(rect.get("x", -1)) + int(rect.get("width", 0)) <= width
        assert int(rect.get("y", -1)) + int(rect.get("height", 0)) <= height
    lines = [line.get("class") for line in root.iter(f"{names}line")]
    assert (lines.count("registered"), lines.count("copy")) == (3, 1)


def test_boxes_do_not_overlap(topology: Topology) -> None:
    root = ElementTree.fromstring(svg(topology))
    boxes = [
        tuple(int(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
        for rect in root.iter("{http://www.w3.org/2000/svg}rect")
        if rect.get("class") != "cluster"
    ]
    for i, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, _, _ in boxes[i + 1 :]:
            assert abs(x - other_x) >= width or abs(y - other_y) >= height


def test_names_cannot_break_a_drawing() -> None:
    evil = BrokerData(EVIL, EVIL, {0: EVIL})
    topology = Topology.of({EVIL: ClusterInfo({EVIL: evil}, {EVIL: [EVIL]})})
    texts = [text.text for text in ElementTree.fromstring(svg(topology)).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(EVIL) == 4
    for label in re.findall(r'label="((?:[^"\\]|\\.)*)"\]?;', dot(topology)):
        assert label.replace("name server\\n", "").split("\\n")[0] == '\\"];<x>&amp;#\\\\'
    assert len(re.findall(r"label=", dot(topology))) == 3
    for label in re.findall(r'"([^"]*)"', mermaid(topology)):
        assert label.replace("name server<br/>", "").split("<br/>")[0] == "#34;];#60;x#62;#38;#35;#92;"


@pytest.mark.parametrize("name", ["\0", "\x01\x1b[31m", "a\nb\tc", "\ud800", "\uffff", "\u2028", "a\x85b"])
def test_names_without_a_form_in_xml_are_escaped(name: str) -> None:
    topology = Topology.of({"n1:1": ClusterInfo({name: BrokerData(name, name, {0: "h:1"})}, {name: [name]})})
    escaped = name.encode("unicode_escape").decode()
    drawn = ElementTree.fromstring(svg(topology).encode())
    assert [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")].count(escaped) == 2
    assert escaped.replace("\\", "\\\\") in dot(topology)
    assert escaped.replace("\\", "#92;") in mermaid(topology)
    for drawing in (dot(topology), mermaid(topology)):
        assert drawing.isascii()
        assert all(line.isprintable() for line in drawing.splitlines())


@pytest.mark.parametrize("name", ["`md`", '%%{init: {"theme":"forest"}}%%', "$$x$$", "a\\nb", "#quot;"])
def test_what_means_something_inside_of_a_mermaid_label(name: str) -> None:
    topology = Topology.of({"n1:1": ClusterInfo({name: BrokerData(name, name, {0: "h:1"})}, {name: [name]})})
    [frame] = re.findall(r'subgraph c0\["([^"]*)"\]', mermaid(topology))
    assert re.sub(r"#(\d+);", lambda found: chr(int(found[1])), frame) == name
    assert not re.search(r"[`%{}$\\]|#(?!\d+;)", frame)


def test_wide_names_have_room() -> None:
    def box_width(name: str) -> int:
        drawn = svg(Topology.of({"n1:1": ClusterInfo({name: BrokerData("c", name, {0: "h:1"})}, {"c": [name]})}))
        return max(int(found) for found in re.findall(r'width="(\d+)" height="44"', drawn))

    assert box_width("消息" * 20) == box_width("abcd" * 20)


def test_a_cluster_without_brokers() -> None:
    empty = Topology.of({"n1:9876": ClusterInfo()})
    assert dot(empty).count("->") == 0
    assert mermaid(empty).splitlines() == ["flowchart BT", '  n0(["name server<br/>n1:9876"])']
    assert ElementTree.fromstring(svg(empty)).get("height") == "84"
