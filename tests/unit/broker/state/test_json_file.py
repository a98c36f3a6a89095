"""State files: two generations, damage, the writer."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Awaitable, Callable
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


def test_the_older_generation_stays_until_there_is_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file does not become the older generation; at a crash in the middle of a save both were lost then."""
    file = JsonFile(tmp_path / "a.json")
    file.save(b'{"a":1}')
    file.save(b'{"a":2}')
    file.path.write_bytes(b"{")
    assert file.load(read) == {"a": 1}
    replace = os.replace

    def crash(source: Path, target: Path) -> None:
        if target == file.path:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        file.save(b'{"a":3}')
    monkeypatch.undo()
    assert JsonFile(file.path).load(read) == {"a": 1}
    assert (tmp_path / "a.json.damaged").read_bytes() == b"{"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_a_file_that_may_not_be_read_is_not_taken_for_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A broker that went on without it would replace it: the offsets of all groups were lost."""
    file = JsonFile(tmp_path / "a.json")
    file.save(b'{"a":1}')
    file.save(b'{"a":2}')
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", failing(code))
        with pytest.raises(OSError, match=os.strerror(code)) as raised:
            file.load(read)
    assert raised.value.filename == str(file.path)
    assert JsonFile(file.path).load(read) == {"a": 2}


def test_a_file_that_the_disk_does_not_give_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it stood, the next save made it the older generation in place of the good one."""
    file = JsonFile(tmp_path / "a.json")
    file.save(b'{"a":1}')
    file.save(b'{"a":2}')
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", failing(errno.EIO, file.path))
        assert file.load(read) == {"a": 1}
    assert file.backup.read_bytes().startswith(b'{"a":1')
    assert not file.path.exists()
    assert file.path.with_name("a.json.damaged").exists()


def failing(code: int, only: Path | None = None) -> Callable[[Path], bytes]:
    sound = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if only in (None, path):
            raise OSError(code, os.strerror(code), str(path))
        return sound(path)

    return read_bytes


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


def test_unchanged_text_is_written_again_where_somebody_removed_the_file(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "config" / "a.json")
    file.save(b'{"a":1}')
    shutil.rmtree(file.path.parent)
    file.save(b'{"a":1}')
    assert JsonFile(file.path).load(read) == {"a": 1}


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


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await body()

    asyncio.run(main())


class Blocked:
    """A state file whose folder cannot be made until there is room for it."""

    def __init__(self, tmp_path: Path) -> None:
        self._folder = tmp_path / "folder"
        self._folder.write_bytes(b"a file where the folder should be")
        self.file = JsonFile(self._folder / "a.json")

    def make_room(self) -> None:
        self._folder.unlink()

    async def fail(self, writer: StateWriter, *, both: bool = False) -> None:
        writer.save(self.file, lambda: b'{"a":1}', both=both)
        with pytest.raises(OSError, match="folder"):
            await writer.flushed()

    def saved(self) -> dict[str, Any] | None:
        return JsonFile(self.file.path).load(read)


def test_who_waits_has_a_failed_write_tried_again(tmp_path: Path) -> None:
    blocked = Blocked(tmp_path)

    async def scenario() -> None:
        writer = StateWriter()
        await blocked.fail(writer)
        with pytest.raises(OSError, match="folder"):
            await writer.flushed()
        blocked.make_room()
        await writer.flushed()
        assert blocked.saved() == {"a": 1}
        await writer.close()

    run(scenario)


def test_a_failed_write_is_tried_again_by_itself(tmp_path: Path) -> None:
    """A flood of connections takes the descriptors: what changed meanwhile is saved when it is over."""
    blocked = tmp_path / "folder"
    blocked.write_bytes(b"a file where the folder should be")
    file = JsonFile(blocked / "a.json")

    async def scenario() -> None:
        writer = StateWriter(retry_seconds=0.01)
        writer.save(file, lambda: b'{"a":1}')
        with pytest.raises(OSError, match="folder"):
            await writer.flushed()
        blocked.unlink()
        while not file.path.exists():  # noqa: ASYNC110  # nobody is told of a write that no one waits for
            await asyncio.sleep(0.005)
        await writer.close()

    run(scenario)
    assert JsonFile(file.path).load(read) == {"a": 1}


def test_what_failed_is_written_at_the_end(tmp_path: Path) -> None:
    blocked = Blocked(tmp_path)

    async def scenario() -> None:
        writer = StateWriter()
        await blocked.fail(writer)
        blocked.make_room()
        await writer.close()

    run(scenario)
    assert blocked.saved() == {"a": 1}


def test_an_end_that_fails_is_an_end(tmp_path: Path) -> None:
    blocked = Blocked(tmp_path)

    async def scenario() -> None:
        writer = StateWriter()
        await blocked.fail(writer)
        await writer.close()

    run(scenario)
    assert blocked.saved() is None


def test_a_change_that_comes_while_a_write_fails_is_not_left_waiting(tmp_path: Path) -> None:
    blocked, other = Blocked(tmp_path), JsonFile(tmp_path / "b.json")

    async def scenario() -> None:
        writer = StateWriter()

        def encode() -> bytes:
            if not waiting:
                # The write that will fail begins; what is saved from now on belongs to the next.
                asyncio.get_running_loop().call_soon(writer.save, other, lambda: b'{"b":1}')
                waiting.append(asyncio.create_task(writer.flushed()))
            return b'{"a":1}'

        waiting: list[asyncio.Task[None]] = []
        writer.save(blocked.file, encode)
        with pytest.raises(OSError, match="folder"):
            await writer.flushed()
        [task] = waiting
        with pytest.raises(OSError, match="folder"):
            await task
        assert JsonFile(other.path).load(read) == {"b": 1}
        await writer.close()

    run(scenario)


def test_a_state_that_cannot_be_encoded_keeps_no_other_from_being_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = JsonFile(tmp_path / "bad.json"), JsonFile(tmp_path / "good.json")
    state = "\ud800"

    async def scenario() -> None:
        nonlocal state
        writer = StateWriter()
        writer.save(bad, lambda: b'{"state":"%b"}' % state.encode())
        writer.save(good, lambda: b'{"good":1}')
        with pytest.raises(UnicodeEncodeError):
            await writer.flushed()
        assert JsonFile(good.path).load(read) == {"good": 1}
        writer.save(good, lambda: b'{"good":2}')
        state = "well"
        await writer.flushed()
        assert JsonFile(good.path).load(read) == {"good": 2}
        assert JsonFile(bad.path).load(read) == {"state": "well"}
        writer.save(good, lambda: b"[]")
        with pytest.raises(ValueError, match="JSON object"):
            await writer.flushed()
        await writer.close()

    run(scenario)
    assert f"path={bad.path}" in caplog.text


def test_what_is_deleted_is_in_neither_generation(tmp_path: Path) -> None:
    """A disk that does not give the newest generation brings nothing back; nor one on which the first save failed."""
    blocked, other = Blocked(tmp_path), JsonFile(tmp_path / "b.json")
    other.save(b'{"b":1,"gone":1}')

    async def scenario() -> None:
        writer = StateWriter()
        writer.save(other, lambda: b'{"b":1}', both=True)
        writer.save(other, lambda: b'{"b":2}')
        await writer.flushed()
        other.path.write_bytes(b"{")
        assert JsonFile(other.path).load(read) == {"b": 2}
        await blocked.fail(writer, both=True)
        blocked.make_room()
        await writer.flushed()
        blocked.file.path.unlink()
        assert blocked.saved() == {"a": 1}
        await writer.close()

    run(scenario)
