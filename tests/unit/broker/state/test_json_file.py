"""State files: two generations, damage, the writer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.state.json_file import JsonFile, StateWriter


def read(value: dict[str, Any]) -> dict[str, Any]:
    value.pop("crc32", None)
    return value


def test_a_saved_object_is_loaded(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "config" / "a.json")
    assert file.load(read) is None
    file.save(b'{"a":1}')
    assert JsonFile(file.path).load(read) == {"a": 1}


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\0" * 40,
        b'{"a":2',
        b'["a"]',
        b'{"a":3,"crc32":1}',
    ],
    ids=["empty", "zeroes", "torn", "no object", "checksum"],
)
def test_a_damaged_file_falls_back_to_the_older_generation(tmp_path: Path, damage: bytes) -> None:
    file = JsonFile(tmp_path / "a.json")
    file.save(b'{"a":1}')
    file.save(b'{"a":2}')
    file.path.write_bytes(damage)
    assert JsonFile(file.path).load(read) == {"a": 1}


def test_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "a.json")
    file.save(b'{"offset":1234}')
    text = bytearray(file.path.read_bytes())
    text[text.index(b"3")] ^= 1
    file.path.write_bytes(text)
    assert JsonFile(file.path).load(read) is None


def test_both_generations_damaged_is_an_empty_start(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "a.json")
    file.save(b'{"a":1}')
    file.save(b'{"a":2}')
    file.path.write_bytes(b"{")
    file.backup.write_bytes(b"{")
    assert JsonFile(file.path).load(read) is None


def test_a_generation_that_the_reader_refuses_counts_as_damaged(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "a.json")
    file.save(b'{"a":1}')
    file.save(b'{"a":"x"}')
    assert JsonFile(file.path).load(lambda value: int(value["a"])) == 1


def test_a_file_of_apache_rocketmq_is_read(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text('{\n\t"offsetTable":{"T@g":{0:5,1:7}}\n}')
    assert JsonFile(path).load(read) == {"offsetTable": {"T@g": {0: 5, 1: 7}}}


def test_unchanged_text_is_not_written_again(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "a.json")
    file.save(b'{"a":1}')
    before = file.path.stat().st_ino
    file.save(b'{"a":1}')
    assert file.path.stat().st_ino == before


def test_changes_of_one_moment_share_a_write(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "a.json")
    texts: list[int] = []

    def encode() -> bytes:
        texts.append(1)
        return b'{"a":%d}' % state["a"]

    async def scenario() -> None:
        writer = StateWriter()
        for value in range(50):
            state["a"] = value
            writer.save(file, encode)
        await writer.flushed()
        assert JsonFile(file.path).load(read) == {"a": 49}
        await writer.close()

    state = {"a": -1}
    asyncio.run(scenario())
    assert len(texts) == 1


def test_a_failed_write_is_told_and_tried_again(tmp_path: Path) -> None:
    blocked = tmp_path / "folder"
    blocked.write_bytes(b"a file where the folder should be")
    file = JsonFile(blocked / "a.json")

    async def scenario() -> None:
        writer = StateWriter()
        writer.save(file, lambda: b'{"a":1}')
        with pytest.raises(OSError, match="folder"):
            await writer.flushed()
        blocked.unlink()
        writer.save(JsonFile(tmp_path / "b.json"), lambda: b'{"b":1}')
        await writer.flushed()
        await writer.close()

    asyncio.run(scenario())
    assert JsonFile(file.path).load(read) == {"a": 1}
