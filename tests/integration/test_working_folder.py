"""Where a program runs: a working folder with files named as modules, which the servers that rocketcore starts are not
to import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from rocketcore.child import command_line

ROCKET = Path(sysconfig.get_path("scripts"), "rocket")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module of every name of the standard library, and of every package that is installed."""
    folder = tmp_path_factory.mktemp("shadows")
    for name in {*sys.stdlib_module_names, *packages_distributions(), "rocketcore"}:
        if name.isidentifier():
            (folder / f"{name}.py").write_text(f"raise SystemExit('the {name}.py of the working folder was run')\n")
    return folder


SERVERS = {
    "up": ("up", "--port", "0", "--no-console"),
    "up --brokers": ("up", "--port", "0", "--no-console", "--brokers", "2"),
    "shards": ("broker", "start", "--shards", "2", "--namesrv", "127.0.0.1:1", "--listen", "127.0.0.1:0"),
}


@pytest.mark.parametrize("case", SERVERS)
def test_servers_import_nothing_from_the_working_folder(case: str, folder: Path, tmp_path: Path) -> None:
    command = [str(ROCKET), *SERVERS[case], "--store", str(tmp_path / "store"), "-o", "json"]
    environment = {**os.environ, "ROCKETCORE_MAPPED_FILE_SIZE_COMMIT_LOG": str(16 << 20)}
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        server.terminate()
        assert server.wait(60) == 0, server.stderr and server.stderr.read()
    assert json.loads(ready)["event"] == "ready"


def test_servers_of_a_program_import_nothing_from_the_working_folder(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            from rocketcore.local import LocalCluster

            with LocalCluster(in_process=False, properties={"mappedFileSizeCommitLog": str(16 << 20)}) as cluster:
                print("up at", cluster.namesrv)
        """)
    )
    done = subprocess.run([sys.executable, program], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("up at 127.0.0.1:")


def first_line(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Return the first line that a child says, which lives as long as its standard input.

    variables  of its environment; it looks for modules in no other folder, though the tests' own environment names some
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        return child.stdout.readline()


def test_what_the_user_s_path_names_is_imported_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("print('found')\n")
    *child, _ = command_line()
    assert first_line(*child, "theirs", cwd=Path("/"), PYTHONPATH=str(tmp_path)) == "found\n"


def test_a_rocketcore_that_is_not_installed_is_found_beside_the_child(tmp_path: Path) -> None:
    package = tmp_path / "rocketcore"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "there.py").write_text("print('found')\n")
    python, safe, child, _ = command_line()
    (package / "child.py").write_text(Path(child).read_text())
    assert first_line(python, "-S", safe, package / "child.py", "rocketcore.there", cwd=Path("/")) == "found\n"
