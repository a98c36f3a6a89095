"""Who is registered where: the views of all name servers as one picture, and its drawings as text.

``dot`` is for Graphviz, ``mermaid`` for Markdown, ``svg`` for a browser. Names come from the network, so each drawing
escapes them and refers to boxes by numbers of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.sax.saxutils import escape

from rocketcore.cli.shell.connection import answered
from rocketcore.cli.shell.render import width
from rocketcore.codes import MASTER_ID
from rocketcore.errors import RocketError
from rocketcore.printable import printable

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.route import ClusterInfo

__all__ = ["Member", "Topology", "dot", "mermaid", "svg"]


class Member(NamedTuple):
    """One registered broker."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    zone: str | None

    @property
    def role(self) -> str:
        return "master" if self.broker_id == MASTER_ID else "slave"

    @property
    def lines(self) -> tuple[str, str]:
        """The text of its box."""
        title = self.broker if self.broker_id == MASTER_ID else f"{self.broker} slave {self.broker_id}"
        return title, self.address


@dataclass(frozen=True, slots=True)
class Topology:
    """``name_servers`` is address → why it does not answer, or None; ``members`` is broker → where it is registered."""

    name_servers: dict[str, str | None]
    members: dict[Member, list[str]] = field(default_factory=dict)

    @staticmethod
    def of(views: Mapping[str, ClusterInfo | RocketError]) -> Topology:
        """Put the views of name servers together; raises the first error where none answered."""
        said, failed = answered(views)
        members: dict[Member, list[str]] = {}
        for address, view in said.items():
            for name, data in view.broker_addr_table.items():
                for broker_id, broker_address in data.broker_addrs.items():
                    member = Member(data.cluster, name, broker_id, broker_address, data.zone_name)
                    members.setdefault(member, []).append(address)
        servers = {address: str(failed[address]) if address in failed else None for address in views}
        return Topology(servers, dict(sorted(members.items(), key=lambda item: item[0][:4])))

    def clusters(self) -> dict[str, dict[str, list[Member]]]:
        """Cluster → broker name → its members, master first."""
        result: dict[str, dict[str, list[Member]]] = {}
        for member in self.members:
            result.setdefault(member.cluster, {}).setdefault(member.broker, []).append(member)
        return result

    def missing_at(self, member: Member) -> list[str]:
        """The name servers that answer and do not know a broker."""
        known = self.members[member]
        return [address for address, error in self.name_servers.items() if error is None and address not in known]

    def rows(self) -> list[dict[str, Any]]:
        """A row a broker."""
        return [
            {
                "cluster": member.cluster,
                "broker": member.broker,
                "broker_id": member.broker_id,
                "role": member.role,
                "address": member.address,
                "zone": member.zone,
                "registered_at": known,
                "missing_at": self.missing_at(member),
            }
            for member, known in self.members.items()
        ]

    def document(self) -> dict[str, Any]:
        """The same for programs, with the name servers."""
        servers = [
            {"address": address, "state": "up" if error is None else "unreachable", "error": error}
            for address, error in self.name_servers.items()
        ]
        return {"name_servers": servers, "brokers": self.rows()}

    def replication(self) -> Iterator[tuple[Member, Member]]:
        """Slaves with the masters that they copy."""
        for brokers in self.clusters().values():
            for first, *others in brokers.values():
                if first.broker_id == MASTER_ID:
                    yield from ((other, first) for other in others if other.broker_id != MASTER_ID)


class _Syntax(NamedTuple):
    """How a language of drawings writes what there is to draw; each part is a template for ``str.format``."""

    label: Callable[[str], str]
    line_break: str
    head: str
    server: str
    away: str
    """A name server that does not answer."""
    cluster: str
    broker: str
    cluster_end: str
    registered: str
    copies: str
    foot: str


def _dot_label(text: str) -> str:
    return printable(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')


def _mermaid_label(text: str) -> str:
    return _MERMAID_SYNTAX.sub(lambda found: f"#{ord(found[0])};", printable(text))


_MERMAID_SYNTAX = re.compile(r"""["#&<>`%{}$\\]""")
"""Ends a label, or means something inside of one: an entity, HTML, Markdown, a directive, a formula, a line break."""

_DOT: Final = _Syntax(
    label=_dot_label,
    line_break="\\n",
    head="digraph rocketmq {{\n  node [shape=box];",
    server='  {box} [shape=ellipse, label="{label}"];',
    away='  {box} [shape=ellipse, label="{label}", style=dashed];',
    cluster='  subgraph cluster_{number} {{\n    label="{label}";',
    broker='    {box} [label="{label}"];',
    cluster_end="  }}",
    registered="  {box} -> {other};",
    copies="  {box} -> {other} [style=dashed];",
    foot="}}\n",
)
_MERMAID: Final = _Syntax(
    label=_mermaid_label,
    line_break="<br/>",
    head="flowchart BT",
    server='  {box}(["{label}"])',
    away='  {box}(["{label}"])\n  style {box} stroke-dasharray: 4',
    cluster='  subgraph c{number}["{label}"]',
    broker='    {box}["{label}"]',
    cluster_end="  end",
    registered="  {box} --> {other}",
    copies="  {box} -.-> {other}",
    foot="",
)


def dot(topology: Topology) -> str:
    """Draw for Graphviz: arrows lead to the name servers where a broker is registered, dashed ones to its master."""
    return _drawn(topology, _DOT)


def mermaid(topology: Topology) -> str:
    """Draw for Markdown: the same; a name server that does not answer has a dashed frame in both."""
    return _drawn(topology, _MERMAID)


def _drawn(topology: Topology, syntax: _Syntax) -> str:
    servers = {address: f"n{number}" for number, address in enumerate(topology.name_servers)}
    boxes = {member: f"b{number}" for number, member in enumerate(topology.members)}

    def label(*lines: str) -> str:
        return syntax.line_break.join(map(syntax.label, lines))

    lines = [syntax.head.format()]
    for address, error in topology.name_servers.items():
        server = syntax.server if error is None else syntax.away
        lines.append(server.format(box=servers[address], label=label("name server", address)))
    for number, (cluster, brokers) in enumerate(topology.clusters().items()):
        lines.append(syntax.cluster.format(number=number, label=label(cluster)))
        for members in brokers.values():
            lines += [syntax.broker.format(box=boxes[member], label=label(*member.lines)) for member in members]
        lines.append(syntax.cluster_end.format())
    for member, known in topology.members.items():
        lines += [syntax.registered.format(box=boxes[member], other=servers[address]) for address in known]
    for slave, master in topology.replication():
        lines.append(syntax.copies.format(box=boxes[slave], other=boxes[master]))
    return "\n".join([*lines, syntax.foot.format()])


_HEIGHT: Final = 44
"""Of a box; its width is that of the longest text."""
_GAP: Final = 20
_TOP: Final = 170
"""Where the frames of clusters begin; the name servers are above, and lines go between."""


def svg(topology: Topology) -> str:
    """Draw for a browser: name servers above, clusters as frames below them, slaves under their masters."""
    height = _HEIGHT
    clusters = topology.clusters()
    texts = [*topology.name_servers, *clusters, *(line for member in topology.members for line in member.lines)]
    room = max(_room(text) for text in ("name server", *texts))
    deepest = max((len(members) for brokers in clusters.values() for members in brokers.values()), default=0)
    frame_height = 34 + deepest * (height + _GAP)
    servers = {address: _GAP + number * (room + _GAP) for number, address in enumerate(topology.name_servers)}
    frames: list[str] = []
    lines: list[str] = []
    boxes = [
        _box(x, _GAP, room, "server" if error is None else "server away", "name server", address)
        for (address, x), error in zip(servers.items(), topology.name_servers.values(), strict=True)
    ]
    left = _GAP
    for cluster, brokers in clusters.items():
        frame_width = _GAP + len(brokers) * (room + _GAP)
        frames.append(
            f'<rect x="{left}" y="{_TOP}" width="{frame_width}" height="{frame_height}" rx="8" class="cluster"/>'
            f'<text x="{left + 12}" y="{_TOP + 20}">{_svg_text(cluster)}</text>'
        )
        for column, members in enumerate(brokers.values()):
            x = left + _GAP + column * (room + _GAP)
            middle, y = x + room // 2, _TOP + 34
            for address in dict.fromkeys(address for member in members for address in topology.members[member]):
                lines.append(_line(middle, y, servers[address] + room // 2, _GAP + height, "registered"))
            for row, member in enumerate(members):
                boxes.append(_box(x, y, room, member.role, *member.lines))
                if row:
                    lines.append(_line(middle, y - _GAP, middle, y, "copy"))
                y += height + _GAP
        left += frame_width + _GAP
    whole_width = max(left, _GAP + len(servers) * (room + _GAP))
    whole_height = _TOP + frame_height + _GAP if clusters else height + 2 * _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole_width}" height="{whole_height}"'
        f' viewBox="0 0 {whole_width} {whole_height}" font-family="sans-serif" font-size="12">'
    )
    style = (
        "<style>rect{fill:#fff;stroke:#456}.cluster{fill:#eef2f6;stroke:#9ab}.server{fill:#fdf3d8}"
        ".away{stroke-dasharray:4}.slave{fill:#f4f4f4}line{stroke:#789}.copy{stroke-dasharray:4}</style>"
    )
    return "\n".join([head, style, *frames, *lines, *boxes, "</svg>\n"])


def _room(text: str) -> int:
    """Return about the width of a box for a text in bold letters of 12 pixels."""
    return 8 * width(printable(text)) + 20


def _svg_text(text: str) -> str:
    """Escape a text; XML has no form at all for most control characters."""
    return escape(printable(text))


def _box(x: int, y: int, room: int, kind: str, title: str, text: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{room}" height="{_HEIGHT}" rx="4" class="{kind}"/>'
        f'<text x="{x + 10}" y="{y + 18}" font-weight="bold">{_svg_text(title)}</text>'
        f'<text x="{x + 10}" y="{y + 34}">{_svg_text(text)}</text>'
    )


def _line(x1: int, y1: int, x2: int, y2: int, kind: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}"/>'
