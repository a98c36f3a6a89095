"""docs/compatibility.md against the source: requests, and what the tests beside Apache's programs cover.

``python -m tests.unit.test_compatibility_page`` writes its lists anew.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from rocketcore.codes import RequestCode
from tests.fixtures.pages import PAGES, table_of, write_tables
from tests.interop.test_mqadmin_verbs import LITE, NOT_RUN, NOT_SERVED
from tests.reference.routes import broker_routes, client_routes, nameserver_routes

PAGE = PAGES / "compatibility.md"
TESTS = Path(__file__).parents[1]
TEST = "tests.unit.test_compatibility_page"


def served() -> set[int]:
    """The codes that our broker has a handler for."""
    return set(broker_routes())


def requests_of_brokers() -> list[RequestCode]:
    """All that are not for name servers or clients alone."""
    others = (set(nameserver_routes()) | set(client_routes())) - served()
    return [code for code in RequestCode if code not in others]


def codes_that_differ() -> set[int]:
    """The codes with which rows of the table of behaviour begin."""
    section = PAGE.read_text("utf-8").split("## Broker\n")[1].split("### Behaviour")[1].split("## Connections")[0]
    found: set[int] = set()
    for begin in re.findall(r"^\| (\d+(?:(?:, | and | to )\d+)*)", section, re.MULTILINE):
        found |= set(map(int, re.findall(r"\d+", begin)))
    return found & served()


def requests_table() -> str:
    differ = codes_that_differ()
    named = [(code, f"{int(code)} `{code.name}`") for code in requests_of_brokers()]
    lists = {
        "the same": [text for code, text in named if code in served() and code not in differ],
        "served, and something differs": [text for code, text in named if code in differ],
        "not served": [text for code, text in named if code not in served()],
    }
    rows = [f"| {head} | {' · '.join(texts)} |" for head, texts in lists.items()]
    return "\n".join(["| | requests |", "|---|---|", *rows]) + "\n"


def mqadmin_table() -> str:
    reasons: dict[str, list[str]] = {"refused: the broker does not serve its request": [*NOT_SERVED, *LITE]}
    for verb, reason in NOT_RUN.items():
        reasons.setdefault(f"not run: {reason}", []).append(verb)
    rows = [f"| {', '.join(f'`{verb}`' for verb in verbs)} | {reason} |" for reason, verbs in reasons.items()]
    return "\n".join(["| verbs | |", "|---|---|", *rows]) + "\n"


def tables() -> dict[str, str]:
    return {"mqadmin": mqadmin_table(), "requests": requests_table()}


@pytest.mark.parametrize("name", ["mqadmin", "requests"])
def test_the_tables_say_what_the_source_says(name: str) -> None:
    assert table_of(PAGE, name, TEST) == tables()[name], f"python -m {TEST} writes it anew"


def test_every_request_of_a_broker_is_served_or_said_not_to_be() -> None:
    rows = re.search(r"\| not served \| codes \|.*?\n\n", PAGE.read_text("utf-8"), re.DOTALL)
    assert rows is not None
    said: list[int] = []
    for row in rows[0].strip().splitlines()[2:]:
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", row.split("|")[2]):
            said += range(int(first), int(last or first) + 1)
    assert sorted(said) == sorted({*said})
    assert set(said) & set(map(int, RequestCode)) == set(requests_of_brokers()) - served()


def cells_of_clients() -> list[tuple[str, str, str]]:
    """The cells of the table of clients: feature, whose client on whose servers, what stands there."""
    section = PAGE.read_text("utf-8").split("\n## Clients of Apache's on our servers")[1].split("\n## ")[0]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    return [(row[0], *cell) for row in rows for cell in zip(head[1:], row[1:], strict=True)]


@cache
def definitions(path: Path) -> dict[str, str]:
    """The source of what a file defines at its top, with decorators, by name."""
    text = path.read_text("utf-8")
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            begin = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[node.name] = "\n".join(lines[begin - 1 : node.end_lineno])
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.unparse(node)
    return found


def reach_of(path: Path, test: str) -> str:
    """The source of a test and of all that it uses of its own file and of the fixtures of these tests."""
    known = definitions(TESTS / "fixtures" / "apache.py") | definitions(TESTS / "interop" / "conftest.py")
    known |= definitions(path)
    seen: set[str] = set()
    names = {test}
    while new := names & known.keys() - seen:
        seen |= new
        names |= {name for each in new for name in re.findall(r"\w+", known[each])}
    return "\n".join(known[name] for name in seen)


def test_each_client_does_each_thing_in_a_test_or_it_is_said_why_not() -> None:
    cells = cells_of_clients()
    assert len(cells) > 100
    for feature, whose, cell in cells:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", cell)
        assert named or re.match(r"– \w", cell), (feature, whose, cell)
        for file, test in named:
            path = TESTS.parent / file if "/" in file else TESTS / "interop" / file
            assert test in definitions(path), (feature, whose, test)
            version = re.search(r"\d\.\d\.\d", whose)
            wanted = version[0] if version else "go_client"
            assert wanted in reach_of(path, test), (feature, whose, test)


def test_rows_of_the_table_of_behaviour_name_their_requests() -> None:
    assert {12, 25, 223, 309, 315, 321, 353, 2001} <= codes_that_differ()


if __name__ == "__main__":
    write_tables(PAGE, tables(), TEST)
