"""docs/delayed.md: what it says of settings and sizes is so."""

from __future__ import annotations

import re
from dataclasses import fields

from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store import StoreConfig
from rocketcore.config_file import property_name
from tests.fixtures.pages import PAGES

SETTINGS = (PAGES / "delayed.md").read_text("utf-8").partition("## Settings of the broker")[2]


def test_its_settings_exist() -> None:
    names = {property_name(declared) for each in (BrokerConfig, StoreConfig) for declared in fields(each)}
    told = set(re.findall(r"^\| `(\w+)` \|", SETTINGS, re.MULTILINE))
    assert told
    assert told <= names


def test_its_numbers_are_those_of_the_settings() -> None:
    config = StoreConfig()
    assert config.timer_wheel_enable
    assert not BrokerConfig().recall_message_enable
    assert (config.timer_max_delay_sec, config.timer_max_pending_messages) == (3 * 86_400, 16_000_000)
    assert 16_000_000 * 16 * 1.25 == 320e6
    StoreConfig(timer_max_delay_sec=50 * 365 * 86_400)
