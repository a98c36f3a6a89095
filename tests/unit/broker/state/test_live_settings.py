"""Settings that were changed live, over a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.state.live_settings import LiveSettings
from rocketcore.config_file import BadSetting
from rocketcore.errors import ConfigError
from rocketcore.service import ManualClock


def test_changes_are_there_after_a_restart(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "liveSettings.json")
    live = LiveSettings(file)
    config = live.load(BrokerConfig())
    assert config == BrokerConfig()
    config = live.change(config, {"brokerPermission": "4"})
    config = live.change(config, {"traceOn": "false"})
    file.save(live.encode())
    again = LiveSettings(JsonFile(file.path))
    assert again.load(BrokerConfig(broker_permission=6, listen_port=1)) == BrokerConfig(
        broker_permission=4, trace_on=False, listen_port=1
    )
    assert again.encode() == live.encode()


def test_a_value_that_does_not_parse_changes_nothing(tmp_path: Path) -> None:
    live = LiveSettings(JsonFile(tmp_path / "liveSettings.json"))
    with pytest.raises(BadSetting, match="brokerPermission='x'"):
        live.change(BrokerConfig(), {"traceOn": "false", "brokerPermission": "x"})
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
        live.change(BrokerConfig(), {"traceOn": "false", **wrong})
    assert json.loads(live.encode()) == {"properties": {}}


def test_sends_may_be_refused_until_a_time_of_this_day(tmp_path: Path) -> None:
    live = LiveSettings(JsonFile(tmp_path / "liveSettings.json"), ManualClock(1_000))
    until = {"startAcceptSendRequestTimeStamp": str(1_000 + 86_400_000)}
    assert live.change(BrokerConfig(), until).start_accept_send_request_time_stamp == 86_401_000


@pytest.mark.parametrize("text", ["{}", "[]", '{"properties": 1}', '{"properties": {"brokerPermission": "x"}}', "\0"])
def test_a_file_that_makes_no_sense_stops_no_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "liveSettings.json"
    file.write_text(text)
    assert LiveSettings(JsonFile(file)).load(BrokerConfig(broker_permission=2)).broker_permission == 2


def test_only_live_names_are_taken_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "liveSettings.json"
    file.write_text('{"properties": {"listenPort": "1", "brokerPermission": "4"}}')
    assert LiveSettings(JsonFile(file)).load(BrokerConfig()) == BrokerConfig(broker_permission=4)
