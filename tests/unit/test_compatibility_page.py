"""docs/compatibility.md against the source: the requests that the broker serves, and the settings of both servers.

``python -m tests.unit.test_compatibility_page`` writes its tables anew.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.broker import Broker
from rocketcore.broker.config import LIVE_PROPERTIES, BrokerConfig
from rocketcore.broker.store.config import StoreConfig
from rocketcore.codes import RequestCode
from rocketcore.config_file import config_properties, property_name
from rocketcore.nameserver import config as nameserver_config
from rocketcore.nameserver.config import NameServerConfig
from tests.fixtures.pages import PAGES, table_of, write_tables

PAGE = PAGES / "compatibility.md"
TEST = "tests.unit.test_compatibility_page"
NO_DEFAULT = {"brokerName": "the host name", "rocketmqHome": "`ROCKETMQ_HOME`, or the home folder",
              "storePathRootDir": "`store` in the home folder", "kvConfigPath": "", "configStorePath": ""}  # fmt: skip
"""Defaults that depend on the machine."""


def requests_table() -> str:
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(BrokerConfig(), StoreConfig(store_path_root_dir=Path(folder)))
        broker._register_handlers()
        codes = sorted(broker._server._endpoint.routes)
    served = [f"{code} `{RequestCode(code).name}`" for code in codes]
    return " · ".join(served) + "\n"


def settings_table(*classes: Any, live: frozenset[str]) -> str:
    lines = ["| setting | default | unit | live | |", "|---|---|---|---|---|"]
    for cls in classes:
        defaults = config_properties(cls())
        for declared in fields(cls):
            name = property_name(declared)
            default = NO_DEFAULT.get(name, f"`{defaults[name]}`" if defaults[name] else "")
            unit, text = declared.metadata["unit"], declared.metadata["help"]
            lines.append(f"| `{name}` | {default} | {unit} | {'yes' if name in live else ''} | {text} |")
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    return {
        "requests": requests_table(),
        "broker settings": settings_table(BrokerConfig, StoreConfig, live=LIVE_PROPERTIES),
        "name server settings": settings_table(NameServerConfig, live=nameserver_config.LIVE_PROPERTIES),
    }


@pytest.mark.parametrize("name", ["requests", "broker settings", "name server settings"])
def test_the_tables_say_what_the_source_says(name: str) -> None:
    assert table_of(PAGE, name, TEST) == tables()[name], f"python -m {TEST} writes it anew"


def test_what_is_said_not_to_be_served_is_not() -> None:
    rows = re.search(r"\| not served \| codes \|.*?\n\n", PAGE.read_text("utf-8"), re.DOTALL)
    assert rows is not None
    served = {int(code) for code in re.findall(r"(\d+) `", requests_table())}
    said: set[int] = set()
    for row in rows[0].strip().splitlines()[2:]:
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", row.split("|")[2]):
            said |= set(range(int(first), int(last or first) + 1))
    assert len(said) > 20
    assert said & served == set()


if __name__ == "__main__":
    write_tables(PAGE, tables(), TEST)
