"""What a command imports: its time is that of its imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from rocketcore.local import LocalCluster

HEAVY: Final = ["asyncio", "concurrent.futures.thread", "email", "encodings.idna", "hashlib", "importlib.metadata",
                "random", "ssl", "subprocess", "tomllib"]  # fmt: skip
"""Of the standard library, what a command that only asks does without."""

LIBRARIES: Final = {"click", "msgspec", "typing_extensions"}
MODULES: Final = """
addresses codes config_file errors ids message message_queue
message_values naming printable send_result service table warning
_fast _fast.command _fast.fields _fast.frame _fast.status
admin admin.accounts admin.client admin.clients admin.cluster admin.dead_letters
admin.group_settings admin.group_troubles admin.groups admin.history admin.logic admin.messages admin.name_servers
admin.offsets admin.requests admin.servers
admin.shapes admin.statistics admin.survey admin.timestamps admin.topics admin.transfer
cli cli.cluster cli.cluster.clusters cli.cluster.topic cli.main cli.shell cli.shell.budget cli.shell.command
cli.shell.confirm cli.shell.connection cli.shell.contexts cli.shell.failures cli.shell.names cli.shell.options
cli.shell.render
client client.addresses client.api client.blocking client.route_table client.tracebacks
protocol protocol.bodies protocol.bodies.base protocol.bodies.route protocol.bodies.topic protocol.command
protocol.fastjson protocol.frame protocol.headers protocol.headers.admin protocol.headers.auth
protocol.headers.consumer protocol.headers.message protocol.headers.nameserver protocol.json_header protocol.schema
transport transport.base_client transport.blocking transport.blocking.channel transport.blocking.client
transport.exchange transport.hooks transport.limits transport.lookup transport.routes transport.tls
transport.tls.settings
"""
"""Of ours."""

PROGRAM: Final = """
import sys, threading
before = set(sys.modules)  # what a .pth file of the environment brings
from rocketcore.cli.main import run
code = run(sys.argv[1:])
print("code", code, "threads", threading.active_count())
print(*sorted(set(sys.modules) - before))
"""


def imported_by(folder: Path, *arguments: str) -> tuple[str, set[str]]:
    """Run a command; return its exit code with the threads at its end, and the modules that it brought."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    env = {**os.environ, "XDG_CONFIG_HOME": str(folder)}  # whoever runs this may have contexts
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=env)
    *_, outcome, modules = done.stdout.splitlines()
    return outcome, set(modules.split())


def test_a_message_is_sent_without_an_event_loop(cluster: LocalCluster, tmp_path: Path) -> None:
    outcome, imported = imported_by(tmp_path, "produce", "orders", "x", "--namesrv", cluster.namesrv)
    assert outcome == "code 0 threads 1"
    assert not imported & {"asyncio", "rocketcore.transport.client", "rocketcore.client.future", "subprocess"}


def test_a_command_that_asks_imports_what_it_needs(cluster: LocalCluster, tmp_path: Path) -> None:
    outcome, imported = imported_by(tmp_path, "topic", "list", "--namesrv", cluster.namesrv)
    assert outcome == "code 0 threads 1"
    assert not imported & set(HEAVY)
    ours = {name.removeprefix("rocketcore.") for name in imported if name.startswith("rocketcore.")}
    assert ours == {*MODULES.split()}
    others = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    assert {name for name in others if not name.startswith("_")} - {"cython_runtime", "rocketcore"} == LIBRARIES
