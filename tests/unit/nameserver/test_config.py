"""The settings of a name server as it shows and changes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcore.config_file import parse_properties, read_properties
from rocketcore.errors import NoPermission
from rocketcore.nameserver.config import NameServerConfig, RunningConfig


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


@pytest.mark.parametrize("name", ["proxyProtocolEnable", "tls.server.mode", "tls.server.keyPassword", "bindAddress"])
def test_what_says_whom_to_trust_is_not_changed_by_requests(tmp_path: Path, name: str) -> None:
    with pytest.raises(NoPermission):
        running(tmp_path).update(f"{name}=false")
