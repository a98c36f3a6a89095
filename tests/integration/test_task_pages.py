"""Pages of tasks in docs/, each run from top to bottom on a cluster of its own, as a reader would.

A block of Python is a program. A block of text behind it is what the program prints, in any order of lines and with
``…`` for what differs. A program that runs until it is stopped is stopped when it has printed so many lines. Of a
console's block each ``$ rocket`` is run, with the lines below it as what it prints; the cluster is up already.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from tests.fixtures.commands import Rocket, rocket_command
from tests.fixtures.pages import PAGES
from tests.integration.test_api_snippets import run

pytestmark = pytest.mark.timeout(120)

TOPICS: dict[str, tuple[str, ...]] = {
    "tutorial.md": (),
    "asyncio.md": ("orders",),
    "connecting.md": ("orders",),
    "consuming.md": ("orders",),
    "filters.md": ("orders",),
    "from-kafka.md": ("orders",),
    "ordered.md": ("order-steps",),
    "pop.md": ("work",),
    "request-reply.md": ("quotes",),
    "sending.md": ("orders", "order-events", "metrics", "quotes", "reminders"),
    "tracing.md": ("orders",),
}
"""By page the topics that are there before its first block."""
ENDLESS = re.compile(r"^ *(consumer\.run\(\)|for message in consumer:)", re.MULTILINE)
"""What a program has that runs until it is stopped."""


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield language and text of each block that is run, and the text that a program prints.

    ``test_applications`` runs the programs of examples/applications, and files of a project, which begin with a name.
    """
    text = re.sub(r"<!-- \w+\.py: written by .*?<!-- end -->", "", (PAGES / page).read_text("utf-8"), flags=re.DOTALL)
    found = re.findall(r"^```(\w*)\n(?!# shop/)(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for index, (language, text) in enumerate(found):
        following = found[index + 1 : index + 2]
        printed = following[0][1] if following and following[0][0] == "text" else ""
        if language in ("python", "console"):
            yield language, text, printed


def assert_printed(shown: str, printed: list[str]) -> None:
    """Compare what a page shows with what was printed; widths of columns and the order of lines do not count."""
    lines = [" ".join(line.split()) for line in printed if line.strip()]
    patterns = [re.escape(" ".join(line.split())).replace("…", ".*") for line in shown.splitlines() if line.strip()]
    if "…" in shown.splitlines():  # a line of its own: further lines
        assert all(any(re.fullmatch(pattern, line) for line in lines) for pattern in patterns), lines
        return
    for pattern in patterns:
        fitting = [line for line in lines if re.fullmatch(pattern, line)]
        assert fitting, f"{pattern!r} is not among {lines}"
        lines.remove(fitting[0])
    assert lines == [], "printed and not shown"


def run_commands(text: str, rocket: Rocket) -> None:
    for example in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = example.partition("\n")
        program, *arguments = shlex.split(command, comments=True)
        if program != "rocket" or arguments[0] == "up":
            continue
        code, output, errors = rocket(*arguments)
        assert code == 0, f"{command}: {errors}"
        if shown:
            assert_printed(shown, output.splitlines())


@pytest.mark.parametrize("page", TOPICS)
def test_a_page(page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with LocalCluster() as cluster:
        with rmq.Admin(cluster.namesrv) as admin:
            for topic in TOPICS[page]:
                admin.create_topic(topic, queues=4)
        rocket = rocket_command(cluster.namesrv, monkeypatch, capsys)
        for language, text, shown in blocks(page):
            if language == "console":
                run_commands(text, rocket)
                continue
            names: dict[str, Any] = {"rmq": rmq}
            lines = len(shown.splitlines()) if ENDLESS.search(text) else 1_000_000
            printed = run(text, cluster.namesrv, lines, **names)
            if shown:
                assert_printed(shown, printed)


def test_the_page_of_tests(tmp_path: Path) -> None:
    """docs/testing.md in a pytest of its own, where the plugin comes by its entry point."""
    programs = [text for language, text, _ in blocks("testing.md") if language == "python"]
    (tmp_path / "test_page.py").write_text("\n\n".join(programs))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == 0, done.stdout
    assert f"{sum(text.count('def test_') for text in programs)} passed" in done.stdout
