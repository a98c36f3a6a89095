"""Every verb that asks servers, run against servers that do not answer: a process of its own for each, some at a time.

A program, so that the processes are forked from one that has imported everything and runs no thread:
``python -m tests.integration.cli.verbs FOLDER SECONDS NAME=ADDRESS…`` prints a JSON object of the ``Outcome``s, by name
of the name server and verb.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from rocketcore.cli.main import COMMANDS, Entry, LazyGroup, run

ARGUMENTS: Final = {
    "produce": "orders x",
    "consume": "orders -g billing --from first -n 1",
    "tail": "orders -o start -e",
    "topic list": "",
    "topic describe": "orders",
    "topic create": "new",
    "topic update": "orders --queues 9",
    "topic delete": "orders --yes",
    "topic route": "orders",
    "topic stats": "orders",
    "group list": "",
    "group describe": "billing",
    "group lag": "billing",
    "group clients": "billing",
    "group create": "new",
    "group update": "billing --max-retries 3",
    "group delete": "billing --yes",
    "offset show": "billing",
    "offset reset": "billing orders --to latest --yes",
    "offset skip": "billing orders --yes",
    "offset clone": "billing shipping orders --yes",
    "offset locate": "orders -1h",
    "message get": "orders --at broker-f/0/0",
    "message find": "orders --key k",
    "message status": "--topic orders 0A",
    "message trace": "0A",
    "message resend": "--topic orders -g billing 0A",
    "message export": "orders",
    "message import": "{import} --topic orders --restart",
    "dlq list": "",
    "dlq show": "billing",
    "dlq redrive": "billing --yes",
    "dlq export": "billing",
    "dlq purge": "billing --yes",
    "client list": "",
    "cluster list": "",
    "cluster describe": "",
    "cluster topology": "",
    "cluster export": "--cluster DefaultCluster",
    "cluster import": "{metadata} --yes",
    "broker list": "",
    "broker describe": "broker-f",
    "broker stats": "",
    "broker config get": "broker-f",
    "broker config set": "broker-f fileReservedTime 72",
    "broker drain": "broker-d --yes",
    "broker undrain": "broker-d",
    "broker clean": "broker-f --yes",
    "namesrv config get": "",
    "namesrv config set": "waitSecondsForService 30",
    "namesrv kv list": "shop",
    "namesrv kv get": "shop currency",
    "namesrv kv set": "another currency EUR",
    "namesrv kv delete": "shop currency --yes",
    "bench produce": "--topic orders --count 1",
    "bench consume": "--topic orders --count 1",
    "user list": "",
    "user show": "ann",
    "user create": "ann --password-env PASSWORD",
    "user update": "ann --status disable",
    "user delete": "ann --yes",
    "acl list": "",
    "acl grant": "ann Topic:orders pub",
    "acl revoke": "ann --yes",
    "acl account list": "",
    "acl account put": "ann --topics DENY --password-env PASSWORD",
    "acl account delete": "ann --yes",
    "acl account white": "10.0.0.1 --yes",
    "top": "--once",
    "doctor": "",
}

ASK_NOBODY: Final = {
    *(
        "up",
        "demo",
        "broker start",
        "namesrv start",
        "console",
        "mcp",
        "bench spark",
    ),  # servers, and Spark
    *("broker verify", "bench codec", "metrics rules", "metrics dashboards", "completion", "version"),
    *("context list", "context show", "context add", "context use", "context remove", "config path", "config show"),
}
"""Verbs that go on until they are ended, or ask no server."""

METADATA: Final = '{"format": 1, "cluster": "DefaultCluster", "topics": {"orders": {"broker-f": {}}}}'

AT_ONCE: Final = 24


@dataclass
class Outcome:
    """What became of a command.

    seconds  that it took, without those in which other processes had the processor
    """

    code: int
    seconds: float
    out: str
    err: str


def all_verbs() -> set[str]:
    return {" ".join(path) for path, _ in _entries(COMMANDS)}


def _entries(
    group: dict[str, Entry | LazyGroup], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Entry]]:
    for name, entry in group.items():
        if isinstance(entry, LazyGroup):
            yield from _entries(entry.entries, (*path, name))
        else:
            yield (*path, name), entry


def _waited() -> float:
    """Return for how many seconds this thread was ready to run and did not."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def _run(verb: str, namesrv: str, seconds: str, file: Path) -> None:
    """Run a verb in this process, which ends; what it says goes to files."""
    code = 99
    began = time.monotonic() - _waited()
    try:
        for number, name in enumerate(("/dev/null", f"{file}.out", f"{file}.err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        arguments = ARGUMENTS[verb].format_map({"import": f"{file}.jsonl", "metadata": f"{file}.json"}).split()
        code = run([*verb.split(), *arguments, "--namesrv", namesrv, "--timeout", seconds])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        Path(f"{file}.seconds").write_text(str(time.monotonic() - _waited() - began))
        os._exit(code)


def _walk(folder: Path, seconds: str, servers: dict[str, str]) -> dict[str, dict[str, Outcome]]:
    os.environ["PASSWORD"] = "secret"
    for verb, entry in _entries(COMMANDS):
        if " ".join(verb) in ARGUMENTS:
            import_module(f"rocketcore.cli.{entry.module}")
    for name in ("rocketcore.cli.shell.budget", "rocketcore.cli.shell.failures", "rocketcore.client.sync", "uvloop"):
        import_module(name)
    todo = [(name, each) for each in ARGUMENTS for name in servers]
    running: dict[int, tuple[str, str]] = {}
    found: dict[str, dict[str, Outcome]] = {name: {} for name in servers}
    while todo or running:
        while todo and len(running) < AT_ONCE:
            name, words = todo.pop(0)
            file = folder / f"{name}-{words}".replace(" ", "-")
            file.with_name(f"{file.name}.jsonl").write_text('{"body": "x"}\n')
            file.with_name(f"{file.name}.json").write_text(METADATA)
            pid = os.fork()
            if not pid:
                _run(words, servers[name], seconds, file)
            running[pid] = name, words
        pid, status = os.wait()
        name, words = running.pop(pid)
        file = folder / f"{name}-{words}".replace(" ", "-")
        out, err, took = (Path(f"{file}.{kind}").read_text() for kind in ("out", "err", "seconds"))
        found[name][words] = Outcome(os.waitstatus_to_exitcode(status), float(took), out, err)
    return found


if __name__ == "__main__":
    outcomes = _walk(Path(sys.argv[1]), sys.argv[2], dict(text.split("=") for text in sys.argv[3:]))
    print(json.dumps({name: {verb: asdict(each) for verb, each in of.items()} for name, of in outcomes.items()}))
