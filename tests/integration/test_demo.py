"""The main job as a user runs it, on a machine without Java: ``rocket demo --file``."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment with every program of the machine but ``java``."""
    programs = tmp_path / "programs"
    programs.mkdir()
    found: dict[str, Path] = {}
    for folder in ("/bin", "/usr/bin", "/usr/local/bin"):
        for program in Path(folder).glob("*"):
            found.setdefault(program.name, program)
    found.pop("java", None)
    for name, program in found.items():
        (programs / name).symlink_to(program)
    variables = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**variables, "PATH": str(programs), "PYTHONPATH": path}


def demo(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rocketcore.cli.main", "demo", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


def test_a_file_of_the_users_own(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "run [3]"
    folder.mkdir()
    (folder / "_orders1: 100%25 x.csv").write_text("id\nwrong\n")  # what the name would be as a pattern
    path = folder / os.fsdecode(b"_orders[1]: 100%25 ?\xe9.csv")
    with path.open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(["id", "type", "text"])
        writer.writerows((f"{number:06}", "paid" if number % 3 else "open", "ä\n\"'," * 3) for number in range(500))
    done = demo(environment, "--file", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Your file: _orders[1]: 100%25 ?\\udce9.csv" in done.stdout
    assert "500 of 500, missing 0, duplicated 0, corrupt 0, out of order 0" in done.stdout
    assert "all ids different, sum of CRC-32 equal" in done.stdout
    assert "Java 21" in done.stdout
    assert "Every message arrived once, whole and in order" in done.stdout
