from __future__ import annotations

import errno
import logging
import os
import shutil
import tracemalloc
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore.broker.store.config import StoreConfig
from rocketcore.client.offset_store import local_offset_path
from rocketcore.config_file import (
    BadSetting,
    config_properties,
    environment_properties,
    home_folder,
    load_config,
    parse_properties,
    print_config,
    property_lines,
    property_name,
    read_properties,
    replace_file,
    setting,
    setting_variables,
    update_config,
    write_properties,
)
from rocketcore.errors import ConfigError
from rocketcore.nameserver.config import NameServerConfig


class Flush(Enum):
    SYNC = 0
    ASYNC = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    listen_port: int = setting(9876, "port")
    broker_ip1: str = setting("", "address", property="brokerIP1")
    ratio: float = setting(0.5)
    enabled: bool = setting(True)
    folder: Path | None = setting(None, "folder")
    flush: Flush = setting(Flush.SYNC, "mode")
    names: tuple[str, ...] = setting(("a",))
    kind: Literal["x", "y"] = setting("x")
    secret_key: str = setting("", secret=True)

    def __post_init__(self) -> None:
        if self.listen_port < 0:
            raise ConfigError("listenPort is negative")


def test_property_names_are_camel_case_or_declared() -> None:
    names = list(config_properties(Settings()))
    assert names[:3] == ["listenPort", "brokerIP1", "ratio"]
    assert property_name(next(iter(Settings.__dataclass_fields__.values()))) == "listenPort"


def test_every_type_is_read() -> None:
    config = load_config(
        Settings,
        {
            "listenPort": " 1 ", "brokerIP1": "10.0.0.1", "ratio": "0.25", "enabled": "FALSE", "folder": "/x",
            "flush": "ASYNC", "names": "a; b;;", "kind": "y", "unknown": "kept by the caller",
        },
    )  # fmt: skip
    assert config == Settings(
        listen_port=1, broker_ip1="10.0.0.1", ratio=0.25, enabled=False, folder=Path("/x"), flush=Flush.ASYNC,
        names=("a", "b"), kind="y",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("listenPort", "9 876"),
        ("listenPort", "0x10"),
        ("listenPort", "1_0"),
        ("ratio", "much"),
        ("flush", "sync"),
        ("kind", "z"),
        ("listenPort", "9" * 19),
        ("listenPort", "9" * 5000),
        ("ratio", ""),
    ],
)
def test_what_does_not_parse_ends_a_start_and_changes_no_running_server(
    name: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BadSetting, match=f"{name}={text[:20]!r}".rstrip("'")) as caught:
        load_config(Settings, {name: text})
    assert caught.value.name == name
    with caplog.at_level(logging.WARNING):
        assert update_config(Settings(), {name: text}) == Settings()
    assert name in caplog.text


def test_what_is_neither_true_nor_false(caplog: pytest.LogCaptureFixture) -> None:
    """Java takes it for false, and from a request it is taken so; but nobody writes ``yes`` for false into a file."""
    with pytest.raises(BadSetting, match="enabled='yes': neither true nor false"):
        load_config(Settings, {"enabled": "yes"})
    assert not update_config(Settings(enabled=True), {"enabled": "yes"}).enabled


def test_a_bad_secret_is_not_shown() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Pin:
        pin: int = setting(0, "number of a key", secret=True)

    with pytest.raises(BadSetting) as caught:
        load_config(Pin, {"pin": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_the_lines_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# one\n\nlistenPort=1\r\nnames = a;\\\n  b\nflush: SYNC\nlistenPort=2\n")
    assert property_lines(file) == {"listenPort": 7, "names": 4, "flush": 6}
    assert read_properties(file) == {"listenPort": "2", "names": "a;b", "flush": "SYNC"}
    table = tmp_path / "broker.toml"
    table.write_text('a = 1\n"tls.x" = 2 # two\n\n[tls.server]  # a table\n mode= "b=c"\n[other."x.y"]\nz=1\n')
    assert property_lines(table) == {"a": 1, "tls.x": 2, "tls.server.mode": 5, "other.x.y.z": 7}
    assert property_lines(table).keys() == read_properties(table).keys()


def test_secrets_are_neither_printed_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(Settings, {"secretKey": "hunter2"})
    assert "hunter2" not in print_config(config)
    assert config_properties(config, reveal=True)["secretKey"] == "hunter2"


def test_a_class_may_refuse_a_value() -> None:
    with pytest.raises(ConfigError, match="negative"):
        load_config(Settings, {"listenPort": "-1"})


def test_print_and_load_are_inverse() -> None:
    config = Settings(listen_port=1, folder=Path("/a b"), flush=Flush.ASYNC, names=("p", "q"))
    assert load_config(Settings, parse_properties(print_config(config))) == config
    assert update_config(config, {"ratio": "0.75"}).ratio == 0.75


def test_explained_settings_are_settings_still() -> None:
    config = Settings(listen_port=1, folder=Path("/a b"))
    text = print_config(config)
    assert load_config(Settings, parse_properties(text)) == config
    assert "(changed from 9876)\nlistenPort=1\n" in text
    assert text.count("changed from") == 2


def test_environment() -> None:
    environ = {"ROCKETCORE_LISTEN_PORT": "7", "ROCKETCORE_BROKER_IP1": "h", "LISTEN_PORT": "8"}
    assert environment_properties(setting_variables([Settings]), environ) == {"listenPort": "7", "brokerIP1": "h"}
    # A service of Kubernetes that is named rocketcore-listen.
    for address in ("tcp://10.0.0.7:9876", "udp://10.0.0.7:53"):
        assert environment_properties(setting_variables([Settings]), {"ROCKETCORE_LISTEN_PORT": address}) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a : b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("  a=b  ", {"a": "b  "}),
        ("a", {"a": ""}),
        ("# a=b\n! c=d\n\n e=f", {"e": "f"}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\=b=c\\:d\\ e", {"a=b": "c:d e"}),
        ("a=\\u0041\\t\\n", {"a": "A\t\n"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=1\r\nb=2\ra=3", {"a": "3", "b": "2"}),
        ("a=x=y", {"a": "x=y"}),
        ("a=b\\", {"a": "b"}),
    ],
)
def test_java_properties(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_malformed_escape_is_refused() -> None:
    with pytest.raises(ConfigError, match="uxxxx"):
        parse_properties("a=\\u12")


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=5), st.sampled_from(["f.conf", "f.toml"]))
def test_written_properties_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, str], name: str
) -> None:
    table = {_clean(key): _clean(value) for key, value in table.items() if _clean(key)}
    path = tmp_path_factory.mktemp("properties") / name
    write_properties(path, table)
    assert read_properties(path) == table


def _clean(text: str) -> str:
    """Leave out what UTF-8 cannot hold, and line ends that Java's format does not have."""
    return "".join(character for character in text if not 0xD800 <= ord(character) < 0xE000)


def test_files_in_latin_1_and_missing_ones(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes("brokerName=b\xfcro".encode("latin-1"))
    assert read_properties(path) == {"brokerName": "büro"}
    with pytest.raises(ConfigError, match="No such file"):
        read_properties(tmp_path / "none.conf")


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('listenPort = 10911\nenabled = true\nnames = ["a", "b"]\n')
    assert read_properties(path) == {"listenPort": "10911", "enabled": "true", "names": "a;b"}
    path.write_text("listenPort = ")
    with pytest.raises(ConfigError, match=r"broker\.toml"):
        read_properties(path)


@pytest.mark.parametrize(
    "text",
    [
        'tls.server.mode = "enforcing"\ntls.enable = true', '"tls.server.mode" = "enforcing"\n"tls.enable" = true',
        '[tls]\nenable = true\n[tls.server]\nmode = "enforcing"', 'tls = {enable = true, server.mode = "enforcing"}',
    ],
)  # fmt: skip
def test_names_with_dots_in_toml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    found = read_properties(path)
    assert found == {"tls.server.mode": "enforcing", "tls.enable": "true"}
    write_properties(path, found)
    assert read_properties(path) == found


def test_a_byte_order_mark_belongs_to_no_name(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"\xef\xbb\xbflistenPort=1")
    assert read_properties(path) == {"listenPort": "1"}
    write_properties(path, {"\ufeffname": "1"})
    assert read_properties(path) == {"\ufeffname": "1"}


def test_replace_file_keeps_one_generation(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    for content in (b"1", b"2", b"3"):
        replace_file(path, content)
    assert path.read_bytes() == b"3"
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir()} == {"file": b"3", "file.bak": b"2"}


def test_replace_file_takes_the_older_generation_along(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"1", b"2"):
        replace_file(path, content)
    replace_file(path, b"3", both=True)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"file": b"3", "file.bak": b"3"}
    path.unlink()
    replace_file(path, b"4", both=True)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"file": b"4", "file.bak": b"4"}
    assert path.stat().st_ino != path.with_name("file.bak").stat().st_ino, "one bad block would take both"


def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    for content in (b"1", b"2"):
        replace_file(path, content)
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def cut(_: Path, target: Path) -> None:
        target.touch()
        full()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            replace_file(path, b"3")
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        patch.setattr(shutil, "copyfile", cut)
        with pytest.raises(OSError, match="No space"):
            replace_file(path, b"3")
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before
    replace_file(path, b"3")
    assert path.read_bytes() == b"3"


@pytest.mark.parametrize("text", ["x" * (1 << 18), "\\x" * (1 << 17)])
def test_the_text_of_a_setting_takes_memory_in_proportion(text: str) -> None:
    tracemalloc.start()
    try:
        assert len(parse_properties(text + "=1")) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(text)


def test_without_a_home_folders_are_below_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no entry in ``passwd``: a folder named ``~`` would be what nobody looks for."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert home_folder() == Path("/")
    assert StoreConfig().store_path_root_dir == Path("/store")
    assert NameServerConfig().rocketmq_home == Path("/")
    assert local_offset_path("", "client", "group") == Path("/.rocketmq_offsets/client/group/offsets.json")
