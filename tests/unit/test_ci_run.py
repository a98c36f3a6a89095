"""``.ci/run`` on made-up tests: those that fail are run again, alone; a second failure, or a crash, fails the run."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_package import ROOT

FLAKY = """
@pytest.mark.parametrize("text", ["a b [c] :: d/é", "plain"])
def test_flaky(text):
    assert seen("flaky-" + text.encode().hex()), "the first time"
"""
MORE = {
    "setup": '@pytest.fixture\ndef given():\n    assert seen("given")\n\ndef test_given(given):\n    pass\n',
    "broken": "def test_broken():\n    assert False, 'always'\n",
    "skipped": 'def test_skipped():\n    if seen("skipped"):\n        pytest.skip("not now")\n    assert False\n',
    "crash": 'import os\n\ndef test_crash():\n    if not seen("crash"):\n        os.kill(os.getpid(), 9)\n',
    "collection": "import nothing_of_this_name\n",
}
WORKERS = "-p xdist.plugin -n 2"
SEEN = """
import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def seen(name):
    mark = HERE / f"seen-{name}"
    if mark.exists():
        return True
    mark.touch()
    return False

"""


STEPS = {
    "test": """
        test) set -- "${2#TEST_OPTIONS=}" ;;
        """,
    "lowest": """
        test-lowest) set -- ${2#LOWEST_OPTIONS=} ;;
        again-lowest) exec "$PYTHON" .ci/run_again.py "${2#OUTCOMES=}" "${3#FLAKY=}" ;;
        """,
}
"""What ``make`` does in the step that has the tests; the others only tell their names."""


def run(folder: Path, text: str, workers: str, step: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of .ci/run where ``make`` runs the tests of a folder in one of the steps."""
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    for path, script in {
        "bin/make": f'PYTHON="{sys.executable}"\ncase "$1" in{STEPS[step]}*) echo "step $1"; exit 0 ;;\nesac\n'
        f'exec "$PYTHON" -m pytest {workers} "$1"\n',
        ".venv/bin/python": f'exec "{sys.executable}" "$@"\n',
    }.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text("#!/bin/sh\n" + script)
        (folder / path).chmod(0o755)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p tests.fixtures.outcomes\n")
    (folder / "test_made_up.py").write_text(SEEN + text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(
        [folder / ".ci/run"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("kind", "workers", "status", "flaky", "closing"),
    [
        ("setup", WORKERS, 0, 3, ["2 failed, 1 error", "3 passed"]),
        ("broken", "", 1, 2, ["3 failed", "1 failed, 2 passed"]),
        ("skipped", "", 1, None, ["3 failed", "2 passed, 1 skipped"]),
        ("crash", WORKERS, 1, None, ["3 failed"]),
        ("collection", "", 1, None, ["1 error"]),
    ],
)
def test_what_is_run_again(
    tmp_path: Path, step: str, kind: str, workers: str, status: int, flaky: int | None, closing: list[str]
) -> None:
    names = {"test": ["again", "test"], "lowest": ["again-lowest", "lowest"]}[step]
    ended = run(tmp_path, FLAKY + "\n" + MORE[kind], workers, step)
    summary = ended.stdout.rpartition("=== summary")[2].splitlines()
    told = [line.split(maxsplit=1) for line in summary if line.split(maxsplit=1)[0] in names]
    assert ended.returncode == status, ended.stdout
    assert [name for name, _ in told] == names[-len(closing) :]
    assert all(any(part in line for _, line in told) for part in closing), summary
    artifact = tmp_path / "artifacts/flaky.txt"
    named = artifact.read_text().splitlines() if artifact.exists() else None
    assert (None if named is None else len(named)) == flaky, named
    assert [line.removeprefix("FLAKY").strip() for line in summary if line.startswith("FLAKY")] == (named or [])
    assert all("test_made_up.py::test_" in line and "\t" in line for line in named or ())
    assert "step lint" in ended.stdout, "the other steps follow"


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({}, None),
        ({"failed": dict.fromkeys(map(str, range(20)), "")}, None),
        ({"failed": dict.fromkeys(map(str, range(21)), "")}, "21 tests failed"),
        ({"failed": {}}, "pytest ended with 1"),
        ({"exit_status": 3}, "pytest ended with 3"),
        ({"exit_status": 2}, "pytest ended with 2"),
        ({"crashed": ["t"]}, "crashed in t"),
        ({"not_collected": ["f.py"]}, "not collected: f.py"),
        (None, "without saying"),
    ],
)
def test_what_is_no_chance(told: dict[str, Any] | None, why: str | None) -> None:
    obstacle = runpy.run_path(str(ROOT / ".ci/run_again.py"))["obstacle"]
    run = {"exit_status": 1, "failed": {"t": "why"}, "crashed": [], "not_collected": [], "passed": 7}
    said = obstacle(None if told is None else run | told)
    assert said == why if why is None or said is None else why in said
