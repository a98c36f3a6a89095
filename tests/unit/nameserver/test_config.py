"""The settings of a name server as it shows and changes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rocketcore.config_file import parse_properties, read_properties
from rocketcore.errors import ConfigError, NoPermission
from rocketcore.nameserver.config import LIVE_PROPERTIES, WITHOUT_EFFECT, NameServerConfig, RunningConfig


def running(folder: Path, **properties: str) -> RunningConfig:
    config = NameServerConfig(rocketmq_home=folder, config_store_path=folder / "namesrv.properties")
    return RunningConfig(config, {name.replace("_", "."): value for name, value in properties.items()})


def test_passwords_of_keys_are_not_shown(tmp_path: Path) -> None:
    """They stay in the file all the same."""
    config = running(tmp_path, tls_server_keyPassword="secret", tls_client_keyPassword="", unknown="secret of nobody")
    shown = parse_properties(config.text())
    assert shown["tls.server.keyPassword"] == "******"
    assert shown["tls.client.keyPassword"] == ""
    assert shown["unknown"] == "secret of nobody"
    config.update("orderMessageEnable=true")
    assert read_properties(tmp_path / "namesrv.properties")["tls.server.keyPassword"] == "secret"


def test_only_live_settings_are_changed_by_requests(tmp_path: Path) -> None:
    """Whatever setting comes later is refused until someone says that a peer may change it."""
    config = running(tmp_path, tls_server_mode="permissive", tls_server_keyPassword="secret", unknown="x")
    refused = set()
    for name in parse_properties(config.text()):
        try:
            config.update(f"{name}=7")
        except NoPermission:
            refused.add(name)
    # What nothing here obeys is kept and shown, as Apache's does; but for what asks for a part that is not there.
    harmless = WITHOUT_EFFECT.keys() - {"enableControllerInNamesrv"}
    assert parse_properties(config.text()).keys() - refused == LIVE_PROPERTIES | {"unknown"} | harmless
    assert {"needWaitForService", "serverMaxConnections", "scanNotActiveBrokerInterval", "tls.server.mode"} <= refused


@pytest.mark.parametrize(
    ("text", "longest"),
    [("waitSecondsForService=-1", 3600), ("waitSecondsForService=3601", 3600), ("shutdownWaitTimeSeconds=61", 60)],
)
def test_a_wait_that_never_ends_is_refused(tmp_path: Path, text: str, longest: int) -> None:
    config = running(tmp_path)
    before = config.text()
    with pytest.raises(ConfigError, match=f"(is|must be) 0 to {longest}"):
        config.update(text)
    assert config.text() == before
    assert not list(tmp_path.iterdir())


def test_a_long_wait_in_the_file_stays_while_something_else_is_changed(tmp_path: Path) -> None:
    patient = NameServerConfig(rocketmq_home=tmp_path, shutdown_wait_time_seconds=600)
    config = RunningConfig(patient, {})
    config.update("enableTopicList=false")
    assert config.config == replace(patient, enable_topic_list=False)
