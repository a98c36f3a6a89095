"""Frames out of a stream, whatever way it is cut."""

from __future__ import annotations

import sys

import pytest

from rocketcore.errors import DecodeError, FrameTooLarge
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import Assembler, ChunkReader, FrameDecoder


def frames(count: int, body: int = 50) -> list[bytes]:
    return [
        RemotingCommand(
            100 + index, opaque=index, ext_fields={"n": str(index)}, body=bytes([index % 256]) * body
        ).encode()
        for index in range(count)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 100_000])
def test_any_split_gives_the_same_commands(size: int) -> None:
    stream = b"".join(frames(40))
    decoder = FrameDecoder()
    codes = [
        (command.code, len(command.body))
        for start in range(0, len(stream), size)
        for command in decoder.feed(stream[start : start + size])
    ]
    assert codes == [(100 + index, 50) for index in range(40)]


def test_more_frames_than_one_table_holds() -> None:
    decoder = FrameDecoder()
    assert [command.opaque for command in decoder.feed(b"".join(frames(700)))] == list(range(700))


def test_commands_before_bad_bytes_are_not_lost() -> None:
    decoder = FrameDecoder()
    assert len(decoder.feed(b"".join(frames(3)) + b"\x00\x00\x00\x00")) == 3
    assert decoder.failed
    with pytest.raises(DecodeError):
        decoder.feed(b"")


def test_bad_header_after_good_frames() -> None:
    decoder = FrameDecoder()
    bad = b"\x00\x00\x00\x06\x00\x00\x00\x02{x"
    assert len(decoder.feed(frames(1)[0] + bad)) == 1
    with pytest.raises(DecodeError, match="header"):
        decoder.feed(frames(1)[0])


def test_frame_limit_counts_the_length_word() -> None:
    frame = frames(1, 1000)[0]
    assert len(FrameDecoder(len(frame)).feed(frame)) == 1
    with pytest.raises(FrameTooLarge):
        FrameDecoder(len(frame) - 1).feed(frame[:4])


@pytest.mark.parametrize("length", ["00000000", "00000003", "ffffffff", "80000000", "7fffffff"])
def test_impossible_lengths(length: str) -> None:
    with pytest.raises(DecodeError):
        FrameDecoder().feed(bytes.fromhex(length))


def test_assembler_joins_a_long_frame_once() -> None:
    frame = frames(1, 100_000)[0]
    assembler = Assembler()
    first = assembler.feed(frame[:10])
    assert first == frame[:10]
    assembler.keep(first, 0)
    assert assembler.pending_bytes == 10
    for start in range(10, len(frame) - 1000, 1000):
        assert assembler.feed(frame[start : start + 1000]) is None
    assert assembler.feed(frame[10 + (len(frame) - 1000 - 10 + 999) // 1000 * 1000 :]) == frame
    assert assembler.pending_bytes == 0


def test_assembler_keeps_the_tail_only() -> None:
    assembler = Assembler()
    assembler.keep(b"abcd\x00\x00", 4)
    assert assembler.pending_bytes == 2
    assert assembler.feed(b"\x00") is None
    assert assembler.feed(b"\x05rest") == b"\x00\x00\x00\x05rest"
    assembler.keep(b"all read", 8)
    assert assembler.pending_bytes == 0


def test_chunk_reader_reports_where_it_stopped() -> None:
    parts = frames(5)
    reader = ChunkReader(capacity=2)
    data = b"".join(parts) + parts[0][:9]
    position, codes = 0, []
    while True:
        position = reader.scan(data, position)
        codes += [reader.chunk.command(index).code for index in range(reader.chunk.count)]
        if reader.chunk.count == 0:
            break
    assert codes == [100, 101, 102, 103, 104]
    assert position == len(data) - 9


def received(count: int) -> tuple[bytes, list[RemotingCommand]]:
    data = b"".join(frames(count))
    reader = ChunkReader()
    reader.scan(data, 0)
    commands = [reader.chunk.command(index) for index in range(count)]
    reader.scan(frames(1)[0], 0)  # its tables hold something else now
    return data, commands


def test_a_command_is_read_when_it_is_asked() -> None:
    _, commands = received(3)
    for index, command in enumerate(commands):
        assert (command.code, command.opaque, command.is_response) == (100 + index, index, False)
        assert command.ext_fields == {"n": str(index)}
        assert command.ext_fields is command.ext_fields
        assert command.body == bytes([index]) * 50
        assert command.remark is None


def test_what_is_set_is_what_is_read() -> None:
    _, (command,) = received(1)
    command.ext_fields = {"n": "7"}
    command.remark, command.body = "set", b"set"
    assert (command.ext_fields, command.remark, command.body) == ({"n": "7"}, "set", b"set")


def test_a_detached_command_does_not_keep_what_was_received() -> None:
    data, commands = received(3)
    before = sys.getrefcount(data)
    commands[0].detach()
    commands[1].drop()
    assert sys.getrefcount(data) == before - 2
    assert (commands[0].ext_fields, commands[0].body) == ({"n": "0"}, bytes(50))
    assert commands[2].ext_fields == {"n": "2"}
    commands[2].detach()
    assert (commands[2].ext_fields, commands[2].body) == ({"n": "2"}, bytes([2]) * 50)
    assert sys.getrefcount(data) == before - 3
    assert (commands[1].code, commands[1].opaque) == (101, 1)
    assert (commands[1].remark, commands[1].ext_fields, commands[1].body) == (None, None, b"")


def test_a_body_that_was_read_is_not_kept_twice() -> None:
    data = RemotingCommand(11, ext_fields={"n": "5"}, body=bytes(100_000)).encode()
    reader = ChunkReader()
    reader.scan(data, 0)
    command = reader.chunk.command(0)
    reader.chunk.data = b""
    before = sys.getrefcount(data)
    assert command.body == bytes(100_000)
    assert command.body is command.body
    assert sys.getrefcount(data) == before - 1
    assert command.ext_fields == {"n": "5"}


def test_a_command_that_is_most_of_what_was_received_is_not_copied() -> None:
    data, (command,) = received(1)
    before = sys.getrefcount(data)
    command.detach()
    assert sys.getrefcount(data) == before
    assert command.body == bytes(50)


def test_rows_of_other_data_are_refused() -> None:
    reader = ChunkReader()
    reader.scan(frames(1)[0], 0)
    reader.chunk.data = b"short"
    with pytest.raises(ValueError, match="row 0 is not within the 5 bytes"):
        reader.chunk.command(0)
    with pytest.raises(IndexError):
        reader.chunk.command(256)
