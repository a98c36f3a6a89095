"""What is handed out: the sdist holds the sources of every kernel, and nothing is required that no module imports."""

from __future__ import annotations

import ast
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rocketcore"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the package is built from, without what was built."""
    copy = tmp_path / "checkout"
    shutil.copytree(PACKAGE, copy / "rocketcore", ignore=shutil.ignore_patterns("*.so", "__pycache__", "sample"))
    for folder in ("docs", "examples"):
        shutil.copytree(ROOT / folder, copy / folder)
    files = "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "pyspark_rocketmq.py"
    for name in files:
        shutil.copy(ROOT / name, copy)
    return copy


def setup_py(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROCKETCORE_")}
    command = [sys.executable, "setup.py", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, env={**kept, **environment}
    )


def test_an_sdist_holds_the_source_of_every_kernel(checkout: Path) -> None:
    # Without kernels setuptools adds no source of its own accord: what is in comes from MANIFEST.in.
    done = setup_py(checkout, "--quiet", "sdist", ROCKETCORE_NO_KERNELS="1")
    assert done.returncode == 0, done.stderr
    (archive,) = (checkout / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    fast = PACKAGE / "_fast"
    sources = {str(path.relative_to(ROOT)) for end in ("pyx", "pxd", "pyi", "h") for path in fast.rglob(f"*.{end}")}
    assert sources
    assert sources <= held
    assert {"CHANGELOG.md", "docs/cli.md", "examples/file_to_topic.py", "LICENSE", "README.md"} <= held
    assert not [name for name in held if name.endswith((".c", ".so"))]


def test_a_build_without_kernel_sources_ends_with_a_sentence(checkout: Path) -> None:
    for source in (checkout / "rocketcore/_fast").glob("*.pyx"):
        source.unlink()
    done = setup_py(checkout, "--version")
    assert done.returncode != 0
    assert "holds no *.pyx: without its kernels rocketcore neither sends nor serves" in done.stderr
    assert "Traceback" not in done.stderr
    assert setup_py(checkout, "--version", ROCKETCORE_NO_KERNELS="1").returncode == 0


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def names(requirements: list[str]) -> set[str]:
    return {requirement.partition(">")[0].partition("[")[0] for requirement in requirements}


def test_what_is_required_is_what_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = names(project["dependencies"])
    extras = {name: names(wanted) for name, wanted in project["optional-dependencies"].items()}
    modules = set().union(*(imported(path) for path in PACKAGE.rglob("*.py")))
    third_party = modules - sys.stdlib_module_names - {"rocketcore", "pytest", "_typeshed", "typing_extensions"}
    assert all(extras.values()), "an extra without anything in it"
    assert required <= third_party, "required, and nothing imports it"
    users = ("arrow", "spark", "java", "tls", "lz4", "zstd", "mcp", "console", "otel")
    modules_of = {"opentelemetry": "opentelemetry-api"}
    third_party = {modules_of.get(module, module) for module in third_party}
    assert third_party - required <= set().union(*(extras[name] for name in users)), "imported, and in no extra"


@pytest.fixture(scope="module")
def lowest() -> Callable[..., dict[str, str]]:
    found: Callable[..., dict[str, str]] = runpy.run_path(str(ROOT / ".ci" / "lowest_versions.py"))["lowest"]
    return found


def test_everything_that_is_required_has_a_lowest_version(lowest: Callable[..., dict[str, str]]) -> None:
    """Which ``make test-lowest`` installs; a bound that is no release of its own is seen there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = names(project["dependencies"])
    for requirements in project["optional-dependencies"].values():
        wanted |= names(requirements)
    found = lowest()
    assert set(found) == wanted - {"rocketcore"}
    assert all(f"{name}>={version}" in (ROOT / "pyproject.toml").read_text() for name, version in found.items())
    assert not {"mcp", "atheris"} & set(lowest(without=["mcp", "fuzz"]))
    assert set(lowest(extras=["spark"])) - set(lowest(extras=["arrow"])) == {"pyspark"}


@pytest.mark.parametrize(
    ("requirements", "said"),
    [
        (["a"], "says no lowest version"),
        (["a<3"], "says no lowest version"),
        (["a==3"], "says no lowest version"),
        (["!"], "is no requirement"),
    ],
)
def test_a_requirement_without_a_lowest_version_is_named(
    lowest: Callable[..., dict[str, str]], tmp_path: Path, requirements: list[str], said: str
) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(f"[project]\nname = 'x'\ndependencies = {requirements}\n")
    with pytest.raises(ValueError, match=said):
        lowest(project)
    with pytest.raises(ValueError, match="has no extra nothing"):
        lowest(project, without=["nothing"])


def test_of_two_bounds_the_higher_one_is_the_lowest_version(
    lowest: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        "[project]\nname = 'x'\ndependencies = ['a>=1.9', 'b >= 2, <3; python_version > \"3\"']\n"
        "[project.optional-dependencies]\none = ['a>=1.10']\ntwo = ['x[one, one]', 'c[d]>=4']\n"
    )
    assert lowest(project, extras=["two"]) == {"a": "1.10", "b": "2", "c": "4"}
    assert lowest(project, extras=["two"], without=["one"]) == {"a": "1.9", "b": "2", "c": "4"}
