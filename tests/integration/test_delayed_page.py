"""docs/delayed.md and docs/filters.md: their first example runs on a development cluster, and on any other once the
setting is made by the command that the page names.
"""

from __future__ import annotations

import re
import shlex

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.errors import BrokerError, NoPermission
from tests.fixtures.commands import rocket_command
from tests.fixtures.pages import PAGES

SQL_IS_OFF = r"filter message by SQL92; enablePropertyFilter=true in the broker's settings has it do so$"
OFF = {"recallMessageEnable": "false", "enablePropertyFilter": "false"}
"""As brokers are unless they are told otherwise, Apache's and ours."""


def program_of(page: str, cluster: LocalCluster) -> str:
    program = (PAGES / page).read_text("utf-8").partition("```python\n")[2].partition("```")[0]
    return program.replace("127.0.0.1:9876", cluster.namesrv)


def test_the_example_runs_as_it_stands() -> None:
    """That of filters.md does in ``test_task_pages``."""
    with LocalCluster() as cluster:
        exec(program_of("delayed.md", cluster), {})


def test_where_a_setting_is_missing_the_page_and_the_error_name_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalCluster(properties=OFF) as cluster:
        rocket = rocket_command(cluster.namesrv, monkeypatch, capsys)
        with pytest.raises(NoPermission, match="recallMessageEnable is false"):
            exec(program_of("delayed.md", cluster), {})
        with pytest.raises(BrokerError, match=SQL_IS_OFF):
            exec(program_of("filters.md", cluster), {"rmq": rmq})
        for name in ("delayed.md", "filters.md"):
            [command] = re.findall(r"`rocket (broker config set .*?)`", (PAGES / name).read_text("utf-8"))
            assert rocket(*shlex.split(command.replace("BROKER", "broker-a")))[0] == 0
        exec(program_of("delayed.md", cluster), {})
        exec(program_of("filters.md", cluster), {"rmq": rmq})
