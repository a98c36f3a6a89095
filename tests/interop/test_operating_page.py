"""The operator's week of docs/operating.md on Apache's 5.5.0 and 4.9.7: the same commands, exit codes and keys."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.peer import unique
from tests.fixtures.commands import rocket_command
from tests.integration.cli.test_operating_page import check_task, rows
from tests.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

OF_ALL_TESTS: Final = {"list dead letters", "list connected producers"}
"""Lists of what a cluster has, and other tests share this one."""


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_each_task_is_one_command_there_too(
    version: str,
    apache_clusters: Callable[[str], ApacheCluster],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rocketcore.cli.cluster.doctor.used_ratio", lambda folder: 0.5)
    rocket = rocket_command(apache_clusters(version).namesrv, monkeypatch, capsys)
    names = {"orders": unique("orders"), "billing": unique("billing")}
    for task, command, code, keys in rows("The operator's week"):
        arguments = [names.get(word, word) for word in shlex.split(command.strip("`"))[1:]]
        if task in OF_ALL_TESTS:
            assert rocket(*arguments, "-o", "json")[0] == 0
        else:
            check_task(rocket, task, arguments, int(code), keys.strip("`"))
