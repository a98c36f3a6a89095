"""docs/transactions.md: its example runs, the settings that it names are there."""

from __future__ import annotations

import re
from typing import Any

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store import StoreConfig
from rocketcore.config_file import config_properties
from tests.fixtures.pages import PAGES
from tests.fixtures.topics import new_group

PAGE = (PAGES / "transactions.md").read_text("utf-8")


def test_the_example() -> None:
    program = PAGE.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    with LocalCluster() as cluster:
        exec(compile(program.replace("127.0.0.1:9876", cluster.namesrv), "transactions.md", "exec"), names)
        assert names["orders"] == {"o-1"}
        with rmq.PullConsumer(cluster.namesrv, group=new_group(), start_from="first") as consumer:
            consumer.subscribe("orders")
            [message] = consumer.poll(timeout=10.0)
    assert (message.body, message.keys) == (b"...", ("o-1",))
    assert names["check"](message) is rmq.TransactionState.COMMIT


def test_the_settings() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert named
    assert named <= set(config_properties(BrokerConfig())) | set(config_properties(StoreConfig()))
