"""The key-value table (100, 101, 102, 219), the settings (318, 319), and what a restart keeps of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketcore.config_file import config_properties
from rocketcore.nameserver.config import WITHOUT_EFFECT, NameServerConfig
from tests.conformance.peer import FakeBroker, Peer, unique
from tests.fixtures.name_servers import NameServerProcess, NameServers
from tests.peers.apache import PeerError


def test_key_value_table(name_server: Peer) -> None:
    namespace = unique("namespace")
    entry = {"namespace": namespace, "key": "k"}
    answer = name_server.ask(101, entry)
    assert (answer.code, answer.remark) == (22, f"No config item, Namespace: {namespace} Key: k")
    answer = name_server.ask(219, entry)
    assert (answer.code, answer.remark) == (22, f"No config item, Namespace: {namespace}")
    for value in ("v", "", "another ü🚀 = \n"):
        answer = name_server.ask(100, {**entry, "value": value})
        assert (answer.code, answer.remark, answer.body) == (0, None, b"")
        assert name_server.ask(101, entry).ext_fields == {"value": value}
    assert name_server.ask(100, {**entry, "key": "k2", "value": "v2"}).code == 0
    assert name_server.json(219, entry) == {"table": {"k": "another ü🚀 = \n", "k2": "v2"}}
    assert name_server.ask(102, entry).code == 0
    assert name_server.ask(101, entry).code == 22
    assert name_server.ask(102, entry).code == 0, "what is not there is deleted as well"
    assert name_server.ask(102, {**entry, "key": "k2"}).code == 0
    assert name_server.json(219, entry) == {"table": {}}, "an emptied namespace stays"
    assert name_server.ask(102, {"namespace": unique("none"), "key": "k"}).code == 0


def test_a_missing_name_is_no_empty_one(name_server: Peer) -> None:
    """102 without one of them deletes nothing, least of all what has an empty name."""
    entry = {"namespace": "", "key": ""}
    assert name_server.ask(100, {**entry, "value": "v"}).code == 0
    for fields in ({}, {"namespace": ""}, {"key": ""}):
        assert name_server.ask(102, fields).code == 0
        assert name_server.ask(101, entry).ext_fields == {"value": "v"}
    assert name_server.ask(102, entry).code == 0
    assert name_server.ask(101, entry).code == 22


@pytest.mark.parametrize(
    "text",
    [
        "kvConfigPath=/tmp/x", "configStorePath=/tmp/x", "rocketmqHome=/tmp", "configBlackList=",
        "enableTopicList=false\nkvConfigPath=/tmp/x", "kvConfigPath : /tmp/x", "kv\\u0043onfigPath=/tmp/x",
    ],
)  # fmt: skip
def test_what_no_request_may_change(name_server: Peer, text: str) -> None:
    """CVE-2023-37582; one such name refuses the whole request."""
    before = name_server.settings()
    answer = name_server.ask(318, body=text.encode())
    assert (answer.code, answer.remark) == (16, "Can not update config in black list.")
    assert name_server.settings() == before


@pytest.mark.parametrize(
    "text",
    [
        "listenPort=1",
        "bindAddress=10.1.1.1",
        "needWaitForService=true",
        "scanNotActiveBrokerInterval=2147483647",
        "serverChannelMaxIdleTimeSeconds=1",
    ],
)
def test_what_counts_at_the_start_only_is_refused_too(name_server: Peer, text: str) -> None:
    """Stricter than Apache, which takes and saves it: the next start would listen elsewhere, or serve nobody."""
    before = name_server.settings()
    name, value = text.split("=")
    answer = name_server.ask(318, body=text.encode())
    if not name_server.apache:
        assert answer.code == 16
        assert name_server.settings() == before
        return
    assert answer.code == 0
    if name in before:
        assert name_server.settings()[name] == value
        name_server.ask(318, body=f"{name}={before[name]}".encode())


@pytest.mark.parametrize("text", ["productEnvName=x\\nkvConfigPath=/tmp/x", "waitSecondsForService=46\\r\\n1"])
def test_a_value_with_a_line_break_is_refused(name_server: Peer, text: str) -> None:
    """Apache writes it to the file and the answer of 319, where it becomes a line of its own."""
    before = name_server.settings()
    name = text.split("=")[0]
    answer = name_server.ask(318, body=text.encode())
    if name_server.apache:
        assert answer.code == 0
        assert name_server.ask(318, body=f"{name}={before[name]}".encode()).code == 0
    else:
        assert (answer.code, answer.remark) == (1, "a value may not hold a line break")
    assert name_server.settings() == before


def test_updates_that_change_nothing(name_server: Peer) -> None:
    before = name_server.settings()
    assert name_server.ask(318).code == 0, "no body"
    for text in ("# comment", "unknownName=1", "waitSecondsForService=soon", "\n\n", "="):
        assert name_server.ask(318, body=text.encode()).code == 0, text
        assert name_server.settings() == before


def test_a_number_out_of_range(name_server: Peer) -> None:
    """Apache takes and saves it."""
    before = name_server.settings()
    answer = name_server.ask(318, body=b"waitSecondsForService=-5")
    if name_server.apache:
        assert answer.code == 0
        assert name_server.ask(318, body=b"waitSecondsForService=45").code == 0
    else:
        rule = "waitSecondsForService=-5: must be 0 to 3600"
        assert (answer.code, answer.remark) == (1, rule)
    assert name_server.settings() == before


def test_settings_that_are_not_the_same(name_server: Peer) -> None:
    """Other defaults, and Java's thread pools and buffers, for which there is nothing here."""
    settings = name_server.settings()
    assert settings["bindAddress"] == ("0.0.0.0" if name_server.apache else "127.0.0.1")
    assert settings["enableShutdownGracefully"] == ("false" if name_server.apache else "true")
    assert ("serverMaxConnections" in settings) == (not name_server.apache)


def test_every_setting_of_apaches_is_shown(name_server: Peer) -> None:
    """Tools look for them, also for those that nothing here obeys; with Apache's default."""
    settings = name_server.settings()
    assert {name: settings[name] for name in WITHOUT_EFFECT} == WITHOUT_EFFECT
    if name_server.apache:
        ours = config_properties(NameServerConfig()).keys()
        assert settings.keys() <= ours | WITHOUT_EFFECT.keys()


def test_a_setting_without_effect_is_kept_and_shown(name_server: Peer) -> None:
    before = name_server.settings()["productEnvName"]
    for value in ("elsewhere", before):
        assert name_server.ask(318, body=f"productEnvName={value}".encode()).code == 0
        assert name_server.settings()["productEnvName"] == value
    if not name_server.apache:
        answer = name_server.ask(318, body=b"enableControllerInNamesrv=true")
        assert answer.code == 16
        assert "a controller in the name server" in (answer.remark or "")


def test_the_port_that_is_bound(name_server: Peer) -> None:
    """Also where one was asked for that is free."""
    assert name_server.settings()["listenPort"] == name_server.address.rpartition(":")[2]


def test_a_value_that_is_missing(name_server: Peer) -> None:
    """Apache makes the namespace."""
    namespace = unique("namespace")
    assert name_server.ask(100, {"namespace": namespace, "key": "k"}).code == 0
    assert name_server.ask(101, {"namespace": namespace, "key": "k"}).code == 22
    assert name_server.ask(219, {"namespace": namespace}).code == (0 if name_server.apache else 22)


def test_text_that_is_no_properties_file(name_server: Peer) -> None:
    answer = name_server.ask(318, body=b"enableTopicList=\\u12")
    assert (answer.code, answer.remark) == (1, "string2Properties error")


@pytest.fixture(scope="module")
def configured_server(name_servers: NameServers) -> Iterator[NameServerProcess]:
    """A server that was started with settings of its own."""
    server = name_servers.start(
        {
            "myOwnKey": "kept", "enableTopicList": "false", "needWaitForService": "true",
            "waitSecondsForService": "1000",
        }
    )  # fmt: skip
    yield server
    server.kill()


def test_it_refuses_routes_while_brokers_return(configured_server: NameServerProcess) -> None:
    """needWaitForService: for a time after the start, everything but routes."""
    with configured_server.peer() as peer, FakeBroker(peer) as broker:
        answer = peer.ask(105, {"topic": "t"})
        assert (answer.code, answer.remark) == (1, "name server not ready")
        broker.registered("t", "u")
        assert broker.name in peer.json(106)["brokerAddrTable"]
        assert not peer.has_route("t")
        with peer.setting(waitSecondsForService="0"):
            assert peer.has_route("t")
        assert peer.has_route("t") != peer.apache, "ours serves once it has served"


def test_settings_are_sorted_lines_and_keep_names_that_mean_nothing(configured_server: NameServerProcess) -> None:
    with configured_server.peer() as peer:
        lines = peer.ask(319).body.decode().split("\n")
        assert lines.pop() == ""
        assert lines == sorted(lines)
        settings = peer.settings()
        assert settings["myOwnKey"] == "kept"
        assert settings["enableTopicList"] == "false"
        assert settings["enableAllTopicList"] == "true"
        assert settings["kvConfigPath"] == str(configured_server.kv_file)
        assert settings["configStorePath"] == str(configured_server.home / "namesrv.conf")
        assert peer.ask(318, body=b"myOwnKey=changed\nnewKey=1\nwaitSecondsForService=46").code == 0
        after = peer.settings()
        assert {**settings, "myOwnKey": "changed", "waitSecondsForService": "46"} == after
        saved = (configured_server.home / "namesrv.conf").read_text().splitlines()
        assert {"myOwnKey=changed", "waitSecondsForService=46", "enableTopicList=false"} <= set(saved)


def test_the_key_value_file_is_current_after_every_change_and_can_be_moved(
    name_servers: NameServers, configured_server: NameServerProcess, tmp_path: Path
) -> None:
    """Its form is Apache's, so that either make starts on the other's; routes are in memory alone."""
    file = configured_server.kv_file
    with configured_server.peer() as peer:
        for key, value in (("a", "1"), ("b", "ü 2")):
            assert peer.ask(100, {"namespace": "ns", "key": key, "value": value}).code == 0
    assert json.loads(file.read_bytes()) == {"configTable": {"ns": {"a": "1", "b": "ü 2"}}}
    before = json.loads(file.with_name(file.name + ".bak").read_bytes())
    assert before == {"configTable": {"ns": {"a": "1"}}}
    shutil.copy(file, tmp_path)
    moved = name_servers.start(home=tmp_path)
    with moved.peer() as peer:
        assert peer.json(219, {"namespace": "ns"}) == {"table": {"a": "1", "b": "ü 2"}}
        assert peer.json(206)["topicList"] == []
        assert peer.json(106) == {"brokerAddrTable": {}, "clusterAddrTable": {}}
        assert peer.json(304) == {"topicList": []}
    moved.kill()


def test_what_a_properties_file_may_look_like(name_servers: NameServers) -> None:
    """Java's rules. To Apache the text is ISO-8859-1, and blanks around a number or a truth value belong to it."""
    lines = [
        "a = x \\", "   y", "  b:z", "c w", "! comment", "# comment\\", "d=\\u00fc\\t|", "e=a\\\\b", "g", "i=\\q\\=",
        "j=1", "j=2", "k=l=m:n o", "m=x\\", "", "n\\=n=1", "utf-8=ü", "enableTopicList= false ",
        "waitSecondsForService= 46 ",
        "z=1\\",
    ]  # fmt: skip
    server = name_servers.start({"scanNotActiveBrokerInterval": "\n".join(["200", *lines])})
    with server.peer() as peer:
        settings = peer.settings()
        assert {name: settings[name] for name in "abcdegijkmz"} == {
            "a": "x y", "b": "z", "c": "w", "d": "ü\t|", "e": "a\\b", "g": "", "i": "q=", "j": "2", "k": "l=m:n o",
            "m": "x", "z": "1",
        }  # fmt: skip
        assert settings["n"] == "n=1", "319 does not escape"
        assert "comment" not in settings
        assert settings["enableTopicList"] == "false"
        assert settings["utf-8"] == ("Ã¼" if peer.apache else "ü")
        assert settings["waitSecondsForService"] == ("45" if peer.apache else "46")
        assert peer.ask(318, body="enableTopicList= true \nutf-8=ö".encode()).code == 0
        settings = peer.settings()
        assert settings["enableTopicList"] == ("false" if peer.apache else "true")
        assert settings["utf-8"] == ("Ã¶" if peer.apache else "ö")
    server.kill()


def test_what_a_key_value_file_may_hold(name_servers: NameServers, tmp_path: Path) -> None:
    """Whoever edits it may forget quotes, leave a comma too many, or save it in another encoding."""
    (tmp_path / "kvConfig.json").write_bytes(
        b'{"configTable":{"ns":{"number":5,"truth":true,"null":null,"object":{"x":1},"latin":"\xfc",},"nothing":null},}'
    )
    server = name_servers.start(home=tmp_path)
    with server.peer() as peer:
        assert peer.json(219, {"namespace": "ns"}) == {
            "table": {"number": "5", "truth": "true", "object": '{"x":1}', "latin": "\ufffd"}
        }
        assert peer.ask(219, {"namespace": "nothing"}).code == 22
    server.kill()


@pytest.mark.parametrize("damage", [None, b'{"configTable":{"ns":{"k":"new"', b"[]"])
def test_a_key_value_file_that_is_damaged_or_missing(
    name_servers: NameServers, tmp_path: Path, damage: bytes | None
) -> None:
    """Apache does not look at the generation before it, and does not start with a damaged one."""
    file = tmp_path / "kvConfig.json"
    file.with_name("kvConfig.json.bak").write_bytes(b'{"configTable":{"ns":{"k":"before"}}}')
    if damage is not None:
        file.write_bytes(damage)
        if name_servers.apache:
            with pytest.raises(PeerError):
                name_servers.start(home=tmp_path)
            return
    server = name_servers.start(home=tmp_path)
    with server.peer() as peer:
        answer = peer.ask(101, {"namespace": "ns", "key": "k"})
        assert answer.ext_fields == ({} if name_servers.apache else {"value": "before"})
        assert peer.ask(100, {"namespace": "ns", "key": "other", "value": "v"}).code == 0
    server.kill()
    if damage is not None:
        assert file.with_name("kvConfig.json.damaged").read_bytes() == damage
