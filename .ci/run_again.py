"""Runs the tests that failed once more, alone; see ``run``.

    run_again.py OUTCOMES FLAKY [PYTEST OPTION…]

OUTCOMES  what ``pytest --outcomes`` wrote
FLAKY     gets one more line for each test that passes now: its node id, a tab, why it failed before

Exit status 0 if all of them pass. What is more than chance is not run again: that is 1, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MOST = 20
"""Failures of a run that can be chance."""
TESTS_FAILED = 1
"""pytest's exit status; the others are errors of the run itself."""


def obstacle(told: dict[str, Any] | None) -> str | None:
    """Say why a run is not tried again, None where it can be."""
    if told is None:
        return "the run ended without saying which tests failed"
    if told["not_collected"]:
        return f"not collected: {' '.join(told['not_collected'])}"
    if told["crashed"]:
        return f"a worker crashed in {' '.join(told['crashed'])}"
    if told["exit_status"] != TESTS_FAILED or not told["failed"]:
        return f"pytest ended with {told['exit_status']} and {len(told['failed'])} failed tests"
    if len(told["failed"]) > MOST:
        return f"{len(told['failed'])} tests failed, more than {MOST}"
    return None


def read(path: Path) -> dict[str, Any] | None:
    try:
        told: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return told


def main(outcomes: Path, flaky: Path, options: list[str]) -> int:
    before = read(outcomes)
    why = obstacle(before)
    if why is not None or before is None:
        print(f"not run again: {why}")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "outcomes.json")
        command = [sys.executable, "-m", "pytest", *options, f"--outcomes={file}", *before["failed"]]
        status = subprocess.run(command, check=False).returncode
        after = read(file)
    if after is None:
        print("the second run ended without saying which tests failed")
        return 1
    passed = [test for test in before["failed"] if test not in after["failed"]]
    if after["passed"] != len(passed) or (status == 0) != (not after["failed"]):
        print(f"pytest ended with {status}; {after['passed']} tests passed of {len(passed)} that did not fail")
        return 1
    flaky.parent.mkdir(parents=True, exist_ok=True)
    with flaky.open("a") as file:
        file.writelines(f"{test}\t{before['failed'][test]}\n" for test in passed)
    return 1 if after["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
