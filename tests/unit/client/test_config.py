"""Settings: address forms, defaults from the environment, checks, and the typed keyword arguments."""

from __future__ import annotations

import typing
from dataclasses import fields
from datetime import datetime
from typing import Any

import pytest

import rocketcore
from rocketcore import aio
from rocketcore.client.config import (
    ClientConfig,
    ConsumerConfig,
    ConsumerOptions,
    ProducerConfig,
    ProducerOptions,
    name_server_list,
)
from rocketcore.errors import ConfigError, MessageIllegal


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("10.0.0.1:9876", ("10.0.0.1:9876",)),
        ("a:1;b:2", ("a:1", "b:2")),
        (" a:1 ; ;a:1;b:2;", ("a:1", "b:2")),
        (["a:1", "b:2"], ("a:1", "b:2")),
        ("[::1]:9876", ("[::1]:9876",)),
        ("a:1,b:2 , c:3;d:4", ("a:1", "b:2", "c:3", "d:4")),
        (["a:1,b:2", "c:3"], ("a:1", "b:2", "c:3")),
    ],
)
def test_forms_of_name_server_addresses(given: Any, expected: tuple[str, ...]) -> None:
    assert name_server_list(given, {}) == expected


def test_left_out_the_environment_decides() -> None:
    both = {"ROCKETMQ_NAMESRV_ADDR": "a:1", "NAMESRV_ADDR": "b:2"}
    assert name_server_list(None, both) == ("a:1",)
    assert name_server_list(None, {"NAMESRV_ADDR": "b:2;c:3"}) == ("b:2", "c:3")
    assert name_server_list(None, {}) == ("127.0.0.1:9876",)


@pytest.mark.parametrize(
    "given",
    [
        "", ";", [], "host", "host:", ":9876", "host:port", "host:0", "host:70000", "host:1\N{ARABIC-INDIC DIGIT ONE}",
        "http://localhost:9876", "localhost:9876/", "a b:9876", "a:9876:9876", "[]:9876", "user@host:9876",
        5, b"a:1", [b"a:1"], [5],
    ],
)  # fmt: skip
def test_an_address_without_host_and_port_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        name_server_list(given, {})


@pytest.mark.parametrize(
    ("settings", "options"), [(ProducerConfig, ProducerOptions), (ConsumerConfig, ConsumerOptions)]
)
def test_keyword_arguments_are_the_fields(settings: type[ClientConfig], options: type) -> None:
    hints = typing.get_type_hints(options)
    declared = {field.name: field for field in fields(settings) if field.name != "namesrv"}
    assert set(hints) == set(declared)
    types = typing.get_type_hints(settings)
    assert {name: types[name] for name in declared} == hints
    assert all(field.metadata["help"] for field in declared.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0},
        {"timeout": float("nan")},
        {"route_interval": 0},
        {"heartbeat_interval": -1.0},
        {"default_topic_queue_nums": 0},
        {"retries": -1},
        {"compression": "gzip"},
        {"compression_level": 99},
        {"compression": "zstd", "compression_level": 0},
        {"tls": "on"},
        {"tls": {"ca_file": "ca.pem"}},
        {"selector": "nearest"},
        {"access_key": "alone"},
        {"batch_bytes": 0},
        {"batch_bytes": 1 << 30},
        {"batch_count": 0},
        {"delivery_timeout": 0},
    ],
)
def test_a_producer_refuses_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ProducerConfig(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start_from": "middle"},
        {"start_from": datetime(2026, 1, 1)},
        {"threads": 0},
        {"allocate": "RANDOM"},
        {"broadcast": True, "ordered": True},
        {"pull_batch_size": 0},
        {"max_messages": 0},
        {"route_interval": 0.0},
        {"pull_timeout": 0},
        {"pull_threshold_for_queue": 0},
        {"pull_threshold_bytes_for_queue": 0},
        {"consume_concurrently_max_span": 0},
        {"consume_timeout": 0},
        {"rebalance_interval": 0},
        {"persist_interval": 0},
    ],
)
def test_a_consumer_refuses_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ConsumerConfig(**wrong)


@pytest.mark.parametrize("kind", [rocketcore.Producer, aio.Producer, rocketcore.PushConsumer, rocketcore.PullConsumer])
def test_config_and_other_settings_exclude_each_other(kind: Any) -> None:
    config = ProducerConfig(group="x") if "Producer" in kind.__name__ else ConsumerConfig(group="x")
    with pytest.raises(ConfigError, match="config says it all: give namesrv, group there, or use"):
        kind("h:1", config=config, group="y")
    with pytest.raises(ConfigError, match="config must be a"):
        kind(config={"group": "x"})
    assert kind(config=config).config.group == "x"


@pytest.mark.parametrize("module", [rocketcore, aio])
@pytest.mark.parametrize("name", ["Producer", "PushConsumer", "PullConsumer", "SimpleConsumer"])
def test_a_misspelt_setting_is_of_the_class_that_was_called(module: Any, name: str) -> None:
    with pytest.raises(
        TypeError,
        match=rf"^{name}\.__init__\(\) got an unexpected keyword argument 'grup'(\. Did you mean 'group'\?)?$",
    ):
        getattr(module, name)(grup="x")


def test_name_servers_of_a_config_are_checked_where_it_is_made() -> None:
    assert ProducerConfig(namesrv="a:1;b:2").namesrv == ("a:1", "b:2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="http"):
        ProducerConfig(namesrv=("http://a:1",))


@pytest.mark.parametrize(
    ("kind", "setting", "why"),
    [
        (ProducerConfig, {"timeout": "3"}, "timeout must be a number, got str"),
        (ProducerConfig, {"linger": True}, "linger must be a number, got bool"),
        (ProducerConfig, {"retries": 1.5}, "retries must be a whole number, got float"),
        (ProducerConfig, {"group": 3}, "group must be text, got int"),
        (ProducerConfig, {"selector": 3}, "selector must be a name or a function, got int"),
        (ConsumerConfig, {"suspend_time": None}, "suspend_time must be a number, got NoneType"),
        (ConsumerConfig, {"broker_address_map": 3}, "broker_address_map must be a mapping, got int"),
    ],
)
def test_a_setting_of_a_wrong_kind_is_refused(kind: type[ClientConfig], setting: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        kind(**setting)


def test_a_group_name_is_checked() -> None:
    with pytest.raises(MessageIllegal, match="group"):
        ProducerConfig(group="no spaces")


def test_a_secret_is_not_printed() -> None:
    assert "hidden" not in repr(ProducerConfig(access_key="me", secret_key="hidden"))


@pytest.mark.parametrize("module", [rocketcore, aio])
@pytest.mark.parametrize("name", ["PushConsumer", "PullConsumer", "SimpleConsumer"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group": None},
        {"group": "DEFAULT_CONSUMER"},
        {"group": "DEFAULT_PRODUCER"},
        {"group": "DEFAULT_CONSUMER", "namespace": "shop"},
    ],
)
def test_a_consumer_has_a_group_of_its_own(module: Any, name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="group='billing'"):
        getattr(module, name)("h:1", **options)


@pytest.mark.parametrize("kind", [rocketcore.Producer, aio.Producer])
def test_a_producer_with_a_checker_has_a_group_of_its_own(kind: Any) -> None:
    kind("h:1")
    with pytest.raises(ConfigError, match="group='shop'"):
        kind("h:1", checker=print)
