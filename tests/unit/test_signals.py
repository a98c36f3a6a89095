"""Tests that run in the background, or by ``nohup``, start programs that hear their signals all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_package import ROOT

TEST = """
import subprocess, sys

def test_a_child():
    program = "import os, signal; os.kill(os.getpid(), signal.Signals(int(sys.argv[1]))); print('deaf')"
    for number in (1, 2):
        child = subprocess.run([sys.executable, "-c", "import sys;" + program, str(number)], capture_output=True)
        assert (child.returncode, child.stdout) == (-number, b"")
"""


@pytest.mark.parametrize("workers", [[], ["-p", "xdist.plugin", "-n", "1"]])
def test_children_hear_what_the_tests_are_not_to(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "test_made_up.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p tests.fixtures.signals\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ignoring = "trap '' HUP INT; exec \"$@\""
    ended = subprocess.run(
        ["sh", "-c", ignoring, "sh", sys.executable, "-m", "pytest", *workers, str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
