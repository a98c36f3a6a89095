"""docs/tls.md: the commands of its beginning start a name server and a broker, and its first program sends to them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocketcore as rmq
from tests.fixtures.pages import PAGES
from tests.fixtures.waiting import until
from tests.integration.test_applications import free_port

PAGE = (PAGES / "tls.md").read_text("utf-8")


def first(language: str) -> str:
    return PAGE.partition(f"```{language}\n")[2].partition("```")[0]


@contextlib.contextmanager
def shell(script: str, folder: Path) -> Iterator[Path]:
    """Run commands and what they leave in the background until the end; yields the file of what they print."""
    printed = folder / "printed"
    with printed.open("wb") as output:
        running = subprocess.Popen(
            ["bash", "-e", "-c", f"{script}wait"], cwd=folder, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield printed
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        running.wait(30)


def test_its_commands_start_servers_with_tls_and_its_program_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    address = f"127.0.0.1:{free_port()}"
    script = re.sub(r"^\$ ", "", first("console"), flags=re.MULTILINE).replace("127.0.0.1:9876", address)
    script = script.replace("namesrv start", f"namesrv start --listen {address}")
    script = script.replace("broker start", "broker start --listen 127.0.0.1:0")
    script = script.replace("rocket ", f"{sys.executable} -m rocketcore.cli.main ")
    assert script.count(address) == 2
    with shell(script, tmp_path) as printed:
        until(lambda: [json.loads(line)["event"] for line in printed.read_text().splitlines() if line[:1] == "{"]
              .count("ready") == 2)  # fmt: skip
        monkeypatch.chdir(tmp_path)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(first("python").replace("127.0.0.1:9876", address), {})
        assert output.getvalue() == "SendStatus.SEND_OK\n"
        with rmq.Producer(address, group="plain", timeout=1.0) as plain, pytest.raises(rmq.TransportError):
            plain.send("orders", "hello")
