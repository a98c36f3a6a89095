"""What docs/architecture.md and its pages say of files, names and request codes, looked up in the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.reference.routes import broker_routes, client_routes, nameserver_routes

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rocketcore"
PAGE = "\n".join(
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("architecture", "one-message", "faults", "glossary")
)
QUOTED = re.findall(r"`([^`\n]+)`", PAGE)


def classes() -> dict[str, set[str]]:
    """Return the names of methods and attributes by class."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = found.setdefault(node.name, set())
                names |= {each.name for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return found


def test_files_exist() -> None:
    named = {name for name in QUOTED if re.fullmatch(r"[\w/.]+(\.(pyx?|h|md)|/)", name)}
    assert len(named) > 50
    assert [name for name in sorted(named) if not (ROOT / name).exists() and not (PACKAGE / name).exists()] == []


def test_methods_exist() -> None:
    known = classes()
    named = {match.groups() for match in (re.fullmatch(r"([A-Z]\w+)\.(\w+)", name) for name in QUOTED) if match}
    assert len(named) > 5
    assert [pair for pair in sorted(named) if pair[1] not in known.get(pair[0], ())] == []


def test_names_beside_files_are_in_them() -> None:
    beside = re.findall(r"`([\w/]+\.pyx?)`,? \(?`([\w.]+)(?<!\.py)`", PAGE)
    assert len(beside) > 8
    for file, name in beside:
        path = ROOT / file if (ROOT / file).exists() else PACKAGE / file
        assert re.search(rf"\b{name.split('.')[-1]}\b", path.read_text()), f"{name} is not in {file}"


def last_columns(heading: str) -> list[tuple[str, str]]:
    """Return the file and the name at the end of each row of the table below a heading."""
    section = PAGE[PAGE.index(f"# {heading}\n" if heading == "Glossary" else f"## {heading}") :].split("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ") and "`" in row]
    found = [re.search(r"\| `([\w/.]+)` \| `(\w+)` \|$", row) for row in rows]
    assert None not in found, rows
    return [(match[1], match[2]) for match in found if match is not None]


WHERE, WORDS = last_columns("Where would I change"), last_columns("Glossary")


@pytest.mark.parametrize(("file", "name"), [*WHERE, *WORDS], ids=[name for _, name in [*WHERE, *WORDS]])
def test_names_of_the_tables_are_defined_where_they_say(file: str, name: str) -> None:
    source = (PACKAGE / file).read_text()
    assert re.search(rf"\b(?:class|def|enum|struct) {name}\b|^{name}\b", source, re.MULTILINE)


def codes(text: str) -> set[int]:
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:–(\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_who_answers_a_request_is_what_the_rows_say() -> None:
    told: dict[str, set[int]] = {}
    section = PAGE[PAGE.index("## Who answers a request") : PAGE.index("## Route answers as bytes")]
    for text, file in re.findall(r"^\| ([^|]*\d[^|]*) \| `([\w/]+\.py)`", section, re.MULTILINE):
        told.setdefault(file, set()).update(codes(text))
    answering: dict[str, set[int]] = {}
    for routes in (nameserver_routes(), broker_routes(), client_routes()):
        for code, route in routes.items():
            file = route.handler.__module__.removeprefix("rocketcore.").replace(".", "/") + ".py"
            answering.setdefault(file, set()).add(code)
    assert told == answering
