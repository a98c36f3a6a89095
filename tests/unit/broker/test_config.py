"""Settings: names, limits, what may change while the broker runs."""

from __future__ import annotations

from dataclasses import fields

import pytest

from rocketcore.broker.config import LIVE_PROPERTIES, BrokerConfig
from rocketcore.config_file import load_config, property_name
from rocketcore.errors import ConfigError


def test_rocketmq_names_are_read() -> None:
    config = load_config(
        BrokerConfig,
        {
            "brokerName": "b-1",
            "brokerIP1": "10.0.0.1",
            "namesrvAddr": "10.0.0.2:9876; 10.0.0.3:9876;10.0.0.2:9876",
            "autoCreateTopicEnable": "false",
            "flushDiskType": "ASYNC_FLUSH",
        },
    )
    assert (config.broker_name, config.broker_ip1, config.auto_create_topic_enable) == ("b-1", "10.0.0.1", False)
    assert config.name_servers == ("10.0.0.2:9876", "10.0.0.3:9876")


def test_every_setting_is_explained() -> None:
    for declared in fields(BrokerConfig):
        assert declared.metadata["help"], declared.name


def test_live_settings_exist_and_name_no_path_or_address() -> None:
    names = {property_name(declared) for declared in fields(BrokerConfig)}
    assert names >= LIVE_PROPERTIES
    assert not {"namesrvAddr", "bindAddress", "listenPort", "brokerIP1", "brokerName"} & LIVE_PROPERTIES


@pytest.mark.parametrize(
    "wrong",
    [
        {"broker_name": ""},
        {"listen_port": 65536},
        {"broker_id": -1},
        {"broker_cluster_name": ""},
        *({"broker_permission": value} for value in (-1, 8, 2**31 - 1)),
        *({"default_topic_queue_nums": value} for value in (0, -5, 65_536, 2**31 - 1)),
        *({"short_polling_time_mills": value} for value in (0, -1, 60_001, 2**63 - 1)),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        BrokerConfig(**wrong)  # type: ignore[arg-type]
