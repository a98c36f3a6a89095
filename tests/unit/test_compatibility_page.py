"""docs/compatibility.md against the source: requests, and what the tests beside Apache's programs cover.

``python -m tests.unit.test_compatibility_page`` writes its lists anew.
"""

from __future__ import annotations

import re

import pytest

from rocketcore.codes import RequestCode
from tests.fixtures.pages import PAGES, table_of, write_tables
from tests.interop.test_mqadmin_verbs import LITE, NOT_RUN, NOT_SERVED
from tests.reference.routes import broker_routes, client_routes, nameserver_routes

PAGE = PAGES / "compatibility.md"
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
        "The same": [text for code, text in named if code in served() and code not in differ],
        "Served, and something differs": [text for code, text in named if code in differ],
        "Not served": [text for code, text in named if code not in served()],
    }
    return "\n\n".join(f"{head}: {' · '.join(texts)}" for head, texts in lists.items()) + "\n"


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


def test_rows_of_the_table_of_behaviour_name_their_requests() -> None:
    assert {12, 25, 223, 309, 315, 321, 353, 2001} <= codes_that_differ()


if __name__ == "__main__":
    write_tables(PAGE, tables(), TEST)
