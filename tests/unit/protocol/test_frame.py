"""Frames out of a stream, whatever way it is cut."""

from __future__ import annotations

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
