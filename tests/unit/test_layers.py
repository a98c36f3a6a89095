"""Who may import whom, as data; and every module imports alone in a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rocketcore"

BASE = {"codes", "errors", "addresses", "naming", "ids", "table", "printable", "disk"}
BASE |= {"message_queue", "message", "message_values", "send_result", "service", "warning"}
KERNELS = BASE | {"_fast", "filter", "protocol"}
SERVERS = KERNELS | {"transport", "config_file", "filter_sql"}
ALLOWED: dict[str, set[str]] = {
    "codes": set(),
    "errors": {"codes", "printable"},
    "message_queue": set(),
    "child": set(),
    "addresses": {"errors"},
    "naming": {"codes", "errors"},
    "ids": {"addresses"},
    "table": set(),
    "disk": set(),
    "message": {"codes", "errors", "message_queue", "message_values", "naming", "send_result", "warning"},
    "message_values": {"errors"},
    "send_result": {"errors", "message_queue"},
    "filter": {"errors", "_fast"},
    "filter_sql": {"errors", "_fast"},
    "printable": set(),
    "service": {"codes", "errors"},
    "warning": {"service"},
    "files": BASE - {"service"},
    "config_file": {"codes", "errors", "naming"},
    "apache_settings": {"errors", "config_file"},
    "_fast": {"errors"},
    "protocol": BASE - {"service", "warning"} | {"_fast", "filter"},
    "transport": KERNELS | {"config_file"},
    "broker.store": KERNELS | {"config_file"},
    "nameserver": SERVERS | {"apache_settings"},
    "broker": SERVERS | {"apache_settings", "broker.store"},
    "client": SERVERS,
    "admin": SERVERS | {"client"},
    "spark": SERVERS | {"client"},
    "console": SERVERS | {"client", "admin"},
    "local": SERVERS | {"apache_settings", "broker", "broker.store", "child", "nameserver"},
    "testing": SERVERS | {"local", "client", "admin"},
}
"""Layer → the layers that it may import besides itself; a layer that is not listed (cli, demo) may import anything."""

UNIMPORTABLE = {"cli"}
"""Layers that nothing else may import."""

FLOORS: dict[str, tuple[str, ...]] = {
    "broker": (
        "config cooperative hosts selection stat_items store",
        "record state stats",
        "context later outer_api verify waiting",
        "admission",
        "pop transactions",
        "runtime_info",
        "metrics processors",
        "broker",
    ),
    "broker.store": (
        "config file_system flush timed values",
        "log notes",
        "queues",
        "writing",
        "index reading",
        "keeping",
        "opening store_stats",
        "message_store verify",
    ),
    "cli": ("shell", "cluster messages servers", "tools", "main"),
}
"""Package → its files and folders from the ground up; each imports only from the floors below its own."""


def layer_of(module: str) -> str:
    """Return the layer of a module name below ``rocketcore``; the top-level names belong to no layer."""
    parts = module.split(".")[1:]
    if parts[:2] == ["broker", "store"]:
        return "broker.store"
    return parts[0] if parts else ""


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


MODULES = {name for name, _ in modules()}


def imports(path: Path) -> set[str]:
    """Return the rocketcore modules that a file imports when it runs or is type-checked."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= named if named <= MODULES else named | {node.module}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1].strip("_") == "import_module":
            names |= {each.value for each in node.args if isinstance(each, ast.Constant)}  # type: ignore[misc]
    return {name for name in names if name.split(".")[0] == "rocketcore"}


def standard_imports(path: Path) -> set[str]:
    """Return the modules of the standard library that a file imports as it is imported."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name for name in names if name.split(".")[0] in sys.stdlib_module_names}


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_keep_to_the_layers(module: str, path: Path) -> None:
    layer = layer_of(module)
    known = {layer_of(name) for name, _ in modules()}
    used = {layer_of(name) for name in imports(path)} & known - {layer, "", "aio"}
    if module not in ("rocketcore", "rocketcore.aio") and layer in ALLOWED:
        assert used <= ALLOWED[layer], f"{module} imports {sorted(used - ALLOWED[layer])}"
    if layer not in UNIMPORTABLE:
        assert not used & UNIMPORTABLE


def test_every_layer_is_listed() -> None:
    unlisted = {layer_of(name) for name, _ in modules()} - set(ALLOWED) - {"", "aio", "cli", "demo"}
    assert not unlisted


@pytest.mark.parametrize("package", FLOORS)
def test_rooms_import_only_from_floors_below(package: str) -> None:
    prefix = f"rocketcore.{package}."
    floor_of = {room: floor for floor, rooms in enumerate(FLOORS[package]) for room in rooms.split()}

    def rooms_of(names: Iterable[str]) -> set[str]:
        return {name.removeprefix(prefix).split(".")[0] for name in names if name.startswith(prefix)}

    assert rooms_of(MODULES) == set(floor_of)
    up = set()
    for module, path in modules():
        for room in rooms_of({module}):
            used = rooms_of(imports(path)) - {room}
            up |= {f"{module} imports {each}" for each in used if floor_of[each] >= floor_of[room]}
    assert up == set()


MOST_FILES = 25


def test_no_folder_has_too_many_files() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE / "client"}
    counts = {folder: len([*folder.glob("*.py")]) for folder in folders}
    assert [folder for folder, count in counts.items() if count > MOST_FILES] == []


MOST_LINES = 600
MOST_LINES_OF_A_FORMAT = 800
"""Of a kernel whose head says why it is over the other."""


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules of which each reaches every other (Tarjan's strongly connected components)."""
    found: set[frozenset[str]] = set()
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for used in graph[module]:
            if used not in number:
                visit(used)
            if used in path:
                lowest[module] = min(lowest[module], lowest[used])
        if lowest[module] == number[module]:
            at = path.index(module)
            if len(path) - at > 1:
                found.add(frozenset(path[at:]))
            del path[at:]

    for module in graph:
        if module not in number:
            visit(module)
    return found


def test_no_modules_import_each_other() -> None:
    graph = {name: imports(path) & MODULES - {name} for name, path in modules()}
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {frozenset("bc")}
    assert circles(graph) == set()


def test_no_file_is_too_long() -> None:
    long = set()
    for path in (*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyx")):
        text = path.read_text()
        gives_reason = path.suffix == ".pyx" and f"Over {MOST_LINES} lines because" in text[: text.index('"""', 3)]
        if text.count("\n") > (MOST_LINES_OF_A_FORMAT if gives_reason else MOST_LINES):
            long.add(path.relative_to(PACKAGE).as_posix())
    assert long == set()


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)


def floors() -> list[list[str]]:
    """Return all modules but Spark's and pytest's plugin: the servers' base, each floor of the broker, the rest."""
    names = [name for name, _ in modules() if not name.startswith("rocketcore.spark") and name != "rocketcore.testing"]
    base = [name for name in names if layer_of(name) in SERVERS]
    assert all(layer_of(used) in SERVERS | {""} for name, path in modules() if name in base for used in imports(path))
    found = [base]
    for package in ("broker.store", "broker"):
        for rooms in FLOORS[package]:
            below = tuple(f"rocketcore.{package}.{room}." for room in rooms.split() if room != "store")
            found.append([name for name in names if f"{name}.".startswith(below)])
    known = set().union(*found)
    return [*found, [name for name in names if name not in known]]


def test_every_module_imports_alone() -> None:
    """One interpreter a module, forked from one that has the standard library and the floors below the module's own.

    A floor knows nothing of what is above, so that it hides no import that is missing there or goes in a circle.
    """
    standard = sorted(set().union(*(standard_imports(path) for _, path in modules())))
    script = f"""
import importlib, os, sys
for name in {standard!r}:
    importlib.import_module(name)
failed = []
def import_each(names):
    for name in names:
        pid = os.fork()
        if pid == 0:
            try:
                importlib.import_module(name)
            except BaseException as error:
                print(f"{{name}}: {{type(error).__name__}}: {{error}}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            failed.append(name)
*below, rest = {floors()!r}
for floor in below:
    import_each(floor)
    for name in floor if not failed else ():
        importlib.import_module(name)
if not failed:
    import_each(rest)  # never in this process: their libraries have threads, which a child has not
sys.exit(", ".join(failed) or 0)
"""
    done = run(script)
    assert done.returncode == 0, done.stderr


def test_import_starts_nothing() -> None:
    script = "import rocketcore, rocketcore.aio, threading, sys; sys.exit(threading.active_count() - 1)"
    done = run(script)
    assert done.returncode == 0, done.stderr
