"""docs/timers.md and docs/filters.md: the example runs once the setting is made by the command that the page names."""

from __future__ import annotations

import re
import shlex

import pytest

from rocketcore import LocalCluster
from rocketcore.errors import NoPermission
from tests.fixtures.commands import rocket_command
from tests.fixtures.pages import PAGES


def test_the_example_of_timers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (PAGES / "timers.md").read_text("utf-8")
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with LocalCluster() as cluster:
        rocket = rocket_command(cluster.namesrv, monkeypatch, capsys)
        program = compile(program.replace("127.0.0.1:9876", cluster.namesrv), "timers.md", "exec")
        with pytest.raises(NoPermission):
            exec(program, {})
        for name in ("timers.md", "filters.md"):
            [command] = re.findall(r"`rocket (broker config set .*?)`", (PAGES / name).read_text("utf-8"))
            assert rocket(*shlex.split(command.replace("BROKER", "broker-a")))[0] == 0
        exec(program, {})
