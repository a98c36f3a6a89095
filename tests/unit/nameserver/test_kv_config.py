from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from rocketcore.errors import BrokerError
from rocketcore.nameserver.kv_config import MAX_TABLE_BYTES, KVConfigManager


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


def opened(path: Path) -> KVConfigManager:
    kv = KVConfigManager(path)
    kv.load()
    return kv


def test_a_missing_file_is_an_empty_table(path: Path) -> None:
    kv = opened(path)
    assert kv.get("n", "k") is None
    assert kv.namespace("n") is None
    assert not path.parent.exists(), "reading creates nothing"


def test_every_change_is_on_disk_in_apaches_format_with_the_generation_before(path: Path) -> None:
    kv = opened(path)
    kv.put("ORDER_TOPIC_CONFIG", "订单", "broker-a:4")
    kv.put("other", "k", "v")
    assert json.loads(path.read_bytes()) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"订单": "broker-a:4"}, "other": {"k": "v"}}
    }
    assert json.loads(path.with_name("kvConfig.json.bak").read_bytes())["configTable"].keys() == {"ORDER_TOPIC_CONFIG"}
    assert opened(path).get("ORDER_TOPIC_CONFIG", "订单") == "broker-a:4"


def test_an_emptied_namespace_stays(path: Path) -> None:
    kv = opened(path)
    kv.put("n", "k", "v")
    kv.delete("n", "k")
    kv.delete("n", "never")
    kv.delete("never", "k")
    assert kv.namespace("n") == {}
    assert opened(path).namespace("n") == {}
    assert opened(path).namespace("never") is None


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\xff\xfe", b'{"configTable":[]}', b'{"configTable":{"n":7}}', b"[]", b"[]x", b"[" * 9999]
)
def test_a_damaged_file_is_replaced_by_the_generation_before(path: Path, damage: bytes) -> None:
    kv = opened(path)
    kv.put("n", "k", "old")
    kv.put("n", "k", "new")
    path.write_bytes(damage)
    assert opened(path).get("n", "k") == "old"


@pytest.mark.parametrize("damage", [None, b"{"])
def test_a_deleted_value_does_not_come_back_with_the_generation_before(path: Path, damage: bytes | None) -> None:
    kv = opened(path)
    kv.put("n", "gone", "v")
    kv.put("n", "k", "old")
    kv.delete("n", "gone")
    kv.put("n", "k", "new")
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    assert opened(path).namespace("n") == {"k": "old"}
    kv = opened(path)
    kv.delete("n", "k")
    path.unlink(missing_ok=True)
    assert opened(path).namespace("n") == {}


def test_a_deletion_that_was_cut_off_is_done_when_it_is_asked_for_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash at any step of it: no generation keeps what a client is told to be gone."""
    replace = os.replace
    for step in range(3):
        left = [step]

        def crash(source: Path, target: Path, left: list[int] = left) -> None:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            replace(source, target)

        kv = opened(path)
        kv.put("n", "gone", "v")
        kv.put("n", "k", "v")
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", crash)
            if step == 2:
                kv.delete("n", "gone")
            else:
                with pytest.raises(KeyboardInterrupt):
                    kv.delete("n", "gone")
        opened(path).delete("n", "gone")
        assert opened(path).namespace("n") == {"k": "v"}
        path.write_bytes(b"{")
        assert opened(path).namespace("n") == {"k": "v"}


@pytest.mark.parametrize("spare", [False, True])
def test_a_damaged_file_is_set_aside_before_the_first_change(path: Path, spare: bool) -> None:
    """A slip of whoever edited it is not the end of all other values."""
    kv = opened(path)
    kv.put("n", "k", "old")
    kv.put("n", "k", "new")
    if not spare:
        path.with_name("kvConfig.json.bak").unlink()
    path.write_bytes(b'{"configTable":{"n":{"k":"edited"}}')
    kv = opened(path)
    for number in range(3):
        kv.put("n", "more", str(number))
    assert path.with_name("kvConfig.json.damaged").read_bytes() == b'{"configTable":{"n":{"k":"edited"}}'
    known = {"k": "old"} if spare else {}
    assert opened(path).namespace("n") == {**known, "more": "2"}
    path.write_bytes(b"")
    assert opened(path).namespace("n") == {**known, "more": "1"}, "the generation before is one of the good ones"


def test_a_file_is_read_as_java_reads_it(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(
        b'\xef\xbb\xbf{"configTable":{"n":{"number":5,"truth":true,"null":null,"object":{"x":[1]},"latin":"\xfc",'
        b'"$ref":"$"},"nothing":null}}'
    )
    kv = opened(path)
    read = {"number": "5", "truth": "true", "object": '{"x":[1]}', "latin": "\ufffd", "$ref": "$"}
    assert kv.namespace("n") == read
    kv.put("m", "k", "v")
    assert opened(path).namespace("n") == read
    path.write_bytes(b'{"configTable":{"n":{"k":"v",},},}')
    assert opened(path).namespace("n") == {"k": "v"}


def test_a_change_that_cannot_be_saved_changes_nothing(tmp_path: Path) -> None:
    kv = KVConfigManager(tmp_path / "file" / "kvConfig.json")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="file"):
        kv.put("n", "k", "v")
    assert kv.get("n", "k") is None


def test_what_a_reader_got_does_not_change_under_it(path: Path) -> None:
    kv = opened(path)
    kv.put("n", "k", "v")
    table = kv.namespace("n")
    kv.put("n", "k", "w")
    assert table == {"k": "v"}


def test_a_full_table_takes_no_more_and_loses_nothing(path: Path) -> None:
    kv = opened(path)
    half = "v" * (MAX_TABLE_BYTES // 2)
    kv.put("n", "a", half)
    with pytest.raises(BrokerError, match="key-value table"):
        kv.put("n", "b", half)
    assert kv.namespace("n") == {"a": half}
    assert opened(path).namespace("n") == {"a": half}
    kv.delete("n", "a")
    kv.put("n", "b", half)
    assert opened(path).namespace("n") == {"b": half}


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_file_that_may_not_be_read_is_not_taken_for_an_empty_table(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, spare: bool
) -> None:
    """A name server that went on without it would replace it with its next change."""
    kv = opened(path)
    kv.put("n", "k", "1")
    kv.put("n", "k", "2")
    refused = path
    if spare:
        path.write_bytes(b"{")
        refused = path.with_name(path.name + ".bak")
    read_bytes = Path.read_bytes

    def read(file: Path) -> bytes:
        if file == refused:
            raise OSError(code, os.strerror(code), str(file))
        return read_bytes(file)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", read)
        with pytest.raises(OSError, match=os.strerror(code)) as raised:
            opened(path)
    assert raised.value.filename == str(refused)
    assert opened(path).get("n", "k") == ("1" if spare else "2")
