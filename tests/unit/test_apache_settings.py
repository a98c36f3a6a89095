"""What a start does with settings that only Apache's servers have, and with those that none has."""

from __future__ import annotations

import logging

import pytest

from rocketcore import LocalCluster
from rocketcore.apache_settings import check_settings, protective_variables
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store.config import StoreConfig
from rocketcore.cli.main import run
from rocketcore.config_file import BadSetting
from rocketcore.nameserver.config import NameServerConfig

DECLARED = (BrokerConfig, StoreConfig)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("aclEnable", "true"), ("authenticationEnabled", "TRUE"), ("authorizationEnabled", "yes"),
        ("brokerRole", "SYNC_MASTER"), ("brokerRole", "SLAVE"), ("enableDLegerCommitLog", "true"),
        ("enableControllerMode", "true"), ("inSyncReplicas", "2"), ("allAckInSyncStateSet", "true"),
    ],
)  # fmt: skip
def test_protection_that_is_not_there_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=f"{name}={value}: asks for") as caught:
        check_settings("broker", {name: value}, DECLARED)
    assert caught.value.name == name


def test_a_controller_in_the_name_server_is_refused() -> None:
    with pytest.raises(BadSetting, match="a controller in the name server"):
        check_settings("name server", {"enableControllerInNamesrv": "true"}, [NameServerConfig])


def test_a_cluster_of_a_program_asks_for_no_protection_either() -> None:
    with pytest.raises(BadSetting, match="aclEnable=true"), LocalCluster(properties={"aclEnable": "true"}):
        pass


def test_what_asks_for_nothing_and_what_has_an_effect_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    silent = {"aclEnable": "false", "brokerRole": "ASYNC_MASTER", "totalReplicas": "1", "listenPort": "1",
              "flushDiskType": "SYNC_FLUSH", "enableDLegerCommitLog": ""}  # fmt: skip
    with caplog.at_level(logging.INFO):
        check_settings("broker", silent, DECLARED)
    assert not caplog.records


def test_names_without_effect_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        check_settings("broker", {"warmMapedFileEnable": "true", "destroyMapedFileIntervalForcibly": "1"}, DECLARED)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "names=destroyMapedFileIntervalForcibly,warmMapedFileEnable" in record.getMessage()


def test_unknown_names_are_a_warning_each_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        check_settings("broker", {"lisenPort": "1", "foo.bar": "1"}, DECLARED, lambda name: f"a.conf, line {len(name)}")
    near, far = (record.getMessage() for record in caplog.records)
    assert "name=lisenPort nearest=listenPort where=a.conf, line 9" in near
    assert "nearest" not in far
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize("name", ["\x00\x07", "a\nb", "ümlaut"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(BadSetting, match="no setting has such a name"):
        check_settings("broker", {name: "1"}, DECLARED)


@pytest.mark.parametrize("name", ["aclEnabled", "enableACL", "AuthEnable"])
def test_a_misspelt_protection_is_refused(name: str) -> None:
    """An open server with a warning among its first lines is not what was asked for."""
    with pytest.raises(BadSetting, match="seems to ask for access control"):
        check_settings("broker", {name: "true"}, DECLARED)
    check_settings("broker", {name: "false"}, DECLARED)


def test_protection_by_a_variable_is_protection() -> None:
    variables = {"ROCKETCORE_ACL_ENABLE": "true", "ROCKETCORE_BROKER_ROLE": "SLAVE", "ROCKETCORE_LISTEN_PORT": "1"}
    assert sorted(protective_variables(variables).values()) == ["aclEnable", "brokerRole"]


@pytest.mark.parametrize("server", ["namesrv", "broker"])
def test_a_server_that_a_variable_asks_for_protection_does_not_start(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCKETCORE_ACL_ENABLE", "true")
    assert run([server, "start", "-p"]) == 2
    assert "aclEnable" in capsys.readouterr().err
