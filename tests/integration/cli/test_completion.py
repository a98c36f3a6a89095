"""What a shell completes: names of topics and groups that the cluster of the line has."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rocketcore.admin.client import Admin
from rocketcore.cli.main import rocket
from rocketcore.cli.shell.options import Settings
from rocketcore.local import LocalCluster


def completed(line: str, namesrv: str) -> set[str]:
    from click.shell_completion import ShellComplete

    *arguments, incomplete = line.split(" ")
    shell = ShellComplete(rocket, {"obj": Settings()}, "rocket", "_ROCKET_COMPLETE")
    return {item.value for item in shell.get_completions(["--namesrv", namesrv, *arguments], incomplete)}


@pytest.fixture
def names(cluster: LocalCluster) -> None:
    with Admin(cluster.namesrv) as admin:
        for name in ("complete-a", "complete-b", "other"):
            admin.create_topic(name, 1)
            admin.create_group(f"{name}-group")


@pytest.mark.usefixtures("names")
def test_topics_and_groups(cluster: LocalCluster) -> None:
    assert completed("topic describe complete-", cluster.namesrv) == {"complete-a", "complete-b"}
    assert completed("tail oth", cluster.namesrv) == {"other"}
    assert completed("group lag complete-", cluster.namesrv) == {"complete-a-group", "complete-b-group"}
    assert completed("consume other -g complete-a", cluster.namesrv) == {"complete-a-group"}
    assert completed("offset clone complete-a-group complete-b", cluster.namesrv) == {"complete-b-group"}
    assert "%" not in "".join(completed("topic describe ", cluster.namesrv))


def test_nothing_where_nobody_answers() -> None:
    assert completed("topic describe a", "127.0.0.1:1") == set()
    assert completed("topic li", "127.0.0.1:1") == {"list"}


def test_logs_as_json(cluster: LocalCluster, tmp_path: object) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rocketcore.cli.main", "namesrv", "start", "--listen", "127.0.0.1:0", "--home",
         str(tmp_path), "--log-format", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    _, err = process.communicate(timeout=30)
    lines = [json.loads(line) for line in err.splitlines()]
    assert any(line["message"].startswith("name server started") for line in lines)
    assert all(line["time"].endswith("Z") for line in lines)
