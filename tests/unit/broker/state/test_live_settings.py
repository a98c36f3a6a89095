"""Settings that were changed live, over a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketcore.apache_settings import APACHE, PROTECTION
from rocketcore.broker.config import LIVE_PROPERTIES, NEXT_START_PROPERTIES, BrokerConfig
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.state.live_settings import BY_REQUEST, WITHOUT_EFFECT, LiveSettings, may_change, when_it_counts
from rocketcore.broker.store import StoreConfig
from rocketcore.config_file import BadSetting, config_properties, property_names, update_config
from rocketcore.errors import ConfigError
from rocketcore.service import ManualClock


def test_changes_are_there_after_a_restart(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "liveSettings.json")
    live = LiveSettings(file)
    config = live.load(BrokerConfig())
    assert config == BrokerConfig()
    config = live.change(config, StoreConfig(), {"brokerPermission": "4"})
    config = live.change(config, StoreConfig(), {"traceOn": "false"})
    file.save(live.encode())
    again = LiveSettings(JsonFile(file.path))
    assert again.load(BrokerConfig(broker_permission=6, listen_port=1)) == BrokerConfig(
        broker_permission=4, trace_on=False, listen_port=1
    )
    assert again.encode() == live.encode()


def test_a_value_that_does_not_parse_changes_nothing(tmp_path: Path) -> None:
    live = LiveSettings(JsonFile(tmp_path / "liveSettings.json"))
    with pytest.raises(BadSetting, match="brokerPermission='x'"):
        live.change(BrokerConfig(), StoreConfig(), {"traceOn": "false", "brokerPermission": "x"})
    assert json.loads(live.encode()) == {"properties": {}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"brokerPermission": "8"},
        {"defaultTopicQueueNums": "-5"},
        {"shortPollingTimeMills": "0"},
        {"startAcceptSendRequestTimeStamp": str(2**63 - 1)},
        {"startAcceptSendRequestTimeStamp": str(1_000 + 86_400_000 + 1)},
    ],
    ids=str,
)
def test_what_the_next_start_could_not_serve_with_is_not_taken(tmp_path: Path, wrong: dict[str, str]) -> None:
    live = LiveSettings(JsonFile(tmp_path / "liveSettings.json"), ManualClock(1_000))
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        live.change(BrokerConfig(), StoreConfig(), {"traceOn": "false", **wrong})
    assert json.loads(live.encode()) == {"properties": {}}


def test_sends_may_be_refused_until_a_time_of_this_day(tmp_path: Path) -> None:
    live = LiveSettings(JsonFile(tmp_path / "liveSettings.json"), ManualClock(1_000))
    until = {"startAcceptSendRequestTimeStamp": str(1_000 + 86_400_000)}
    assert live.change(BrokerConfig(), StoreConfig(), until).start_accept_send_request_time_stamp == 86_401_000


@pytest.mark.parametrize("text", ["{}", "[]", '{"properties": 1}', '{"properties": {"brokerPermission": "x"}}', "\0"])
def test_a_file_that_makes_no_sense_stops_no_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "liveSettings.json"
    file.write_text(text)
    assert LiveSettings(JsonFile(file)).load(BrokerConfig(broker_permission=2)).broker_permission == 2


def test_only_live_names_are_taken_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "liveSettings.json"
    file.write_text('{"properties": {"listenPort": "1", "brokerPermission": "4"}}')
    assert LiveSettings(JsonFile(file)).load(BrokerConfig()) == BrokerConfig(broker_permission=4)


def test_a_setting_of_the_store_counts_from_the_next_start_on(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "liveSettings.json")
    live = LiveSettings(file)
    changes = {"fileReservedTime": "48", "flushDiskType": "ASYNC_FLUSH", "sendThreadPoolQueueCapacity": "9"}
    assert live.change(BrokerConfig(), StoreConfig(), changes) == BrokerConfig()
    assert live.shown() == {"sendThreadPoolQueueCapacity": "9"}
    pending = {"fileReservedTime": "48", "flushDiskType": "ASYNC_FLUSH"}
    assert live.pending(BrokerConfig(), StoreConfig()) == pending
    file.save(live.encode())
    again = LiveSettings(JsonFile(file.path))
    assert again.load(BrokerConfig()) == BrokerConfig()
    store = again.load_store(StoreConfig(delete_when="05"))
    assert (store.file_reserved_time, store.flush_disk_type.name, store.delete_when) == (48, "ASYNC_FLUSH", "05")
    assert again.pending(BrokerConfig(), store) == {}
    said = when_it_counts([*changes, "traceOn"])
    assert (
        said
        == "from the next start on: fileReservedTime, flushDiskType; without effect here: sendThreadPoolQueueCapacity"
    )
    assert when_it_counts(["traceOn"]) is None


def test_what_the_store_could_not_start_with_is_not_taken(tmp_path: Path) -> None:
    live = LiveSettings(JsonFile(tmp_path / "liveSettings.json"))
    for wrong in ({"maxMessageSize": str(1 << 30)}, {"fileReservedTime": "0"}, {"deleteWhen": "25"}):
        with pytest.raises(ConfigError):
            live.change(BrokerConfig(), StoreConfig(), wrong)
    assert live.shown() == {}


def test_what_the_store_has_no_room_for_any_more_stops_no_start(tmp_path: Path) -> None:
    live = LiveSettings(JsonFile(tmp_path / "liveSettings.json"))
    live.change(BrokerConfig(), StoreConfig(), {"maxMessageSize": str(32 << 20)})
    small = StoreConfig(mapped_file_size_commit_log=16 << 20)
    assert live.load_store(small) == small


HARMLESS = {name: harmless[0] for name, (harmless, _) in PROTECTION.items()}


def test_a_request_takes_what_apaches_takes_but_for_paths_addresses_and_secrets() -> None:
    """And but for what decides who may do what, and how much the next start asks of the disk."""
    own = config_properties(BrokerConfig(), StoreConfig(), reveal=True)
    refused = {name for name in APACHE["broker"] if not may_change(name, own.get(name, HARMLESS.get(name, "")))}
    assert {name for name in refused if name not in own} == {
        name
        for name in APACHE["broker"] - own.keys() - PROTECTION.keys()
        if any(
            word in name.lower()
            for word in ("acl", "addr", "auth", "black", "credential", "dir", "home", "path", "tls")
        )
    }
    assert {name for name in own if name in APACHE["broker"]} - refused == (
        (LIVE_PROPERTIES | NEXT_START_PROPERTIES) & APACHE["broker"]
    )
    assert {"brokerName", "listenPort", "namesrvAddr", "storePathRootDir", "bindAddress"} <= refused
    assert {*property_names(BrokerConfig), *property_names(StoreConfig)} >= LIVE_PROPERTIES | NEXT_START_PROPERTIES
    assert not LIVE_PROPERTIES & NEXT_START_PROPERTIES
    assert not (LIVE_PROPERTIES | NEXT_START_PROPERTIES) & WITHOUT_EFFECT


@pytest.mark.parametrize(("name", "value", "may"), [
    ("aclEnable", "true", False), ("aclEnable", "false", True), ("brokerRole", "SYNC_MASTER", False),
    ("brokerRole", "ASYNC_MASTER", True), ("notASetting", "1", False), ("useEpollNativeSelector", "true", True),
])  # fmt: skip
def test_no_request_asks_for_protection_that_is_not_there(name: str, value: str, may: bool) -> None:
    assert may_change(name, value) == may


@pytest.mark.parametrize(("name", "bounds"), sorted(BY_REQUEST.items()))
def test_a_request_shuts_nobody_out_and_a_file_may(tmp_path: Path, name: str, bounds: tuple[int, int]) -> None:
    live = LiveSettings(JsonFile(tmp_path / "liveSettings.json"))
    store = StoreConfig(mapped_file_size_commit_log=(1 << 30), disk_max_used_space_ratio=40)
    for wrong in (bounds[0] - 1, bounds[1] + 1):
        with pytest.raises(ConfigError, match=name):
            live.change(BrokerConfig(), store, {name: str(wrong)})
    assert live.encode() == b'{"properties": {}}'
    usual = config_properties(BrokerConfig(), StoreConfig())[name]
    live.change(BrokerConfig(), StoreConfig(), {name: f" {usual} "})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxMessageSize", "1"),
        ("registerBrokerTimeoutMills", "1"),
        ("pullThreadPoolQueueCapacity", "1"),
        ("syncFlushTimeout", "1"),
        ("channelExpiredTimeout", "1"),
        ("flushConsumerOffsetInterval", "31536000000"),
        ("flushDelayOffsetInterval", "31536000000"),
        ("maxPendingConnectionBytes", "1"),
        ("diskSpaceCleanForciblyRatio", "35"),
    ],
)
def test_what_would_lose_the_server_its_clients_or_data_is_refused(tmp_path: Path, name: str, value: str) -> None:
    assert update_config(BrokerConfig(), {name: value}, strict=True)  # as a file may say it
    with pytest.raises(ConfigError, match=f"{name}={value}: a request sets it to "):
        LiveSettings(JsonFile(tmp_path / "x.json")).change(
            BrokerConfig(), StoreConfig(disk_max_used_space_ratio=10), {name: value}
        )
