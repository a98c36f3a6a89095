"""docs/timers.md and docs/filters.md: the examples run as they stand on a development cluster, and on any other once
the setting is made by the command that the page names.
"""

from __future__ import annotations

import re
import shlex

import pytest

from rocketcore import Admin, LocalCluster, PullConsumer
from rocketcore.errors import BrokerError, NoPermission
from tests.fixtures.commands import rocket_command
from tests.fixtures.pages import PAGES

SQL_IS_OFF = r"filter message by SQL92; enablePropertyFilter=true in the broker's settings has it do so$"
OFF = {"recallMessageEnable": "false", "enablePropertyFilter": "false"}
"""As brokers are unless they are told otherwise, Apache's and ours."""


def program_of(page: str, cluster: LocalCluster) -> str:
    [program] = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text("utf-8"), re.DOTALL)
    return program.replace("127.0.0.1:9876", cluster.namesrv)


def test_the_examples_run_as_they_stand() -> None:
    with LocalCluster() as cluster:
        exec(program_of("timers.md", cluster), {})
        with Admin(cluster.namesrv) as admin, PullConsumer(cluster.namesrv, group="g") as consumer:
            admin.create_topic("Orders")
            exec(program_of("filters.md", cluster), {"consumer": consumer})
            assert consumer.poll(timeout=1) == []


def test_where_a_setting_is_missing_the_page_and_the_error_name_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalCluster(properties=OFF) as cluster:
        rocket = rocket_command(cluster.namesrv, monkeypatch, capsys)
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("Orders")
        with pytest.raises(NoPermission, match="recallMessageEnable is false"):
            exec(program_of("timers.md", cluster), {})
        with PullConsumer(cluster.namesrv, group="g") as consumer, pytest.raises(BrokerError, match=SQL_IS_OFF):
            exec(program_of("filters.md", cluster), {"consumer": consumer})
        for name in ("timers.md", "filters.md"):
            [command] = re.findall(r"`rocket (broker config set .*?)`", (PAGES / name).read_text("utf-8"))
            assert rocket(*shlex.split(command.replace("BROKER", "broker-a")))[0] == 0
        exec(program_of("timers.md", cluster), {})
