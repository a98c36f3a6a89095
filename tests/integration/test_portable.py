"""A build without the kernels that need Linux: its clients work, and a broker says why it does not start."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = "ROCKETCORE_KERNELS"
"""Names the folder of the kernels, where `make test-portable` runs this on a build of them."""

SERVERS = """
from rocketcore import LocalCluster
with LocalCluster() as cluster:
    print(cluster.namesrv, flush=True)
    input()
"""
CLIENTS = """
import threading
import rocketcore as rmq
with rmq.Admin(namesrv) as admin:
    admin.create_topic("orders", queues=2)
with rmq.Producer(namesrv, group="shop") as producer:
    producer.send("orders", b"1")
    producer.send_batch([rmq.Message("orders", b"2"), rmq.Message("orders", b"3")])
found, complete = set(), threading.Event()
def note(message):
    found.add(message.body)
    if len(found) == 3:
        complete.set()
with rmq.PushConsumer(namesrv, group="readers", start_from="first") as consumer:
    consumer.subscribe("orders", handler=note)
    complete.wait(20)
print(sorted(found))
"""
NAME_SERVER = """
import asyncio
import rocketcore as rmq
from pathlib import Path
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
async def main():
    async with NameServer(NameServerConfig(listen_port=0, rocketmq_home=Path(home))) as server:
        async with rmq.aio.Admin(server.address) as admin:
            print(await admin.topics())
asyncio.run(main())
"""


def linux_only() -> list[str]:
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "LINUX_ONLY"
        ):
            return sorted(ast.literal_eval(node.value))
    raise AssertionError("setup.py has no LINUX_ONLY")


def run_portable(code: str) -> subprocess.CompletedProcess[str]:
    absent = {f"rocketcore._fast.{name}": None for name in linux_only()}
    code = f"import sys\nsys.modules.update({absent!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    environment = {name: value for name, value in os.environ.items() if name not in (BUILT, "PYTHONPATH")}
    with subprocess.Popen(
        [sys.executable, "-c", SERVERS],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as servers:
        assert servers.stdout is not None
        yield servers.stdout.readline().strip()
        servers.communicate("\n")


def test_clients_send_and_receive(namesrv: str) -> None:
    done = run_portable(f"namesrv = {namesrv!r}\n{CLIENTS}")
    assert (done.stdout, done.stderr) == ("[b'1', b'2', b'3']\n", "")


def test_a_name_server_serves(tmp_path: Path) -> None:
    done = run_portable(f"home = {str(tmp_path)!r}\n{NAME_SERVER}")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_broker_says_what_is_absent() -> None:
    done = run_portable(
        "from rocketcore.cli.main import main\nsys.argv = ['rocket', 'broker', 'start']\nsys.exit(main())"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "no kernels for brokers" in done.stderr
    assert "Traceback" not in done.stderr
