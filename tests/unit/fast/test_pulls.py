"""Answers to known pulls against those that the general encoder and ``gather`` make, and which pulls are left alone."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore.codes import SerializeType
from rocketcore.protocol.command import RemotingCommand

if sys.platform != "linux":
    pytest.skip("part of the reactor, which is Linux only", allow_module_level=True)

from rocketcore._fast.command import encode_pull_response_header
from rocketcore._fast.fields import set_apart
from rocketcore._fast.pulls import PullAnswers
from rocketcore._fast.reactor import Responder
from rocketcore.protocol.frame import ChunkReader
from tests.reference.message import Stored, encode

START, QUEUE_ID, FIRST, VERSION = 4096, 2, 10, 479
FIELDS = {"topic": "T", "queueOffset": "10", "commitOffset": "0", "queueId": "2"}


def log_of(sizes: list[int]) -> tuple[bytearray, list[tuple[int, int, int]]]:
    log, units = bytearray(), []
    for index, size in enumerate(sizes):
        place = START + len(log)
        record = encode(
            Stored(topic=b"T", body=b"b" * size, queue_id=QUEUE_ID, queue_offset=FIRST + index, physical_offset=place)
        )
        units.append((place, len(record), index))
        log += record
    return log, units


class Pulls:
    """A kernel, and what it asks and tells."""

    def __init__(self, log: bytes | bytearray, units: list[tuple[int, int, int]], **frame: Any) -> None:
        self.log, self.units = log, units
        self.count = len(units)
        self.found = True
        self.asked: list[tuple[Any, Any, int]] = []
        self.told: list[tuple[Any, int, int, int, int]] = []
        self.known: dict[bytes, str] = {question(request(**frame)): "decided"}
        rows = memoryview(np.array(units, np.int64).reshape(-1, 3))
        told = lambda *answer: self.told.append(answer)  # noqa: E731
        self.kernel = PullAnswers((11, 361), self.known, self.locate, told, rows, VERSION, 1 << 20)

    def locate(self, peer: Any, decided: Any, offset: int) -> tuple[Any, int, bool, int, int, int, int, int] | None:
        self.asked.append((peer, decided, offset))
        place = (self.log, START, False, self.count, QUEUE_ID, FIRST + self.count, 3, 99)
        return place if self.found else None

    def answer(self, data: bytes) -> bytes | None:
        return self.kernel.answer(data, "peer")


def request(kind: SerializeType = SerializeType.JSON, opaque: int = 7, code: int = 11, **changes: Any) -> bytes:
    fields = FIELDS | changes.pop("fields", {})
    command = RemotingCommand(code, ext_fields=fields, serialize_type=kind, opaque=opaque)
    for name, value in changes.items():
        setattr(command, name, value)
    return command.encode()


def question(data: bytes) -> bytes:
    reader = ChunkReader()
    reader.scan(data, 0)
    chunk = reader.chunk
    apart = set_apart(chunk.data, chunk.rows, chunk.heads, 0, b"queueOffset", b"commitOffset")
    assert apart is not None
    return apart[0]


def expected(records: bytes, count: int, opaque: int, kind: SerializeType) -> bytes:
    head = encode_pull_response_header(0, opaque, VERSION, "FOUND", 0, FIRST + count, 3, 99, len(records), int(kind))
    return head + records


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=20),
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4),
    st.sampled_from(list(SerializeType)),
    st.sampled_from([11, 361]),
)
def test_answers_are_what_the_general_way_makes(
    sizes: list[int], opaques: list[int], kind: SerializeType, code: int
) -> None:
    log, units = log_of(sizes)
    pulls = Pulls(log, units, kind=kind, code=code)
    data = b"".join(
        request(kind, opaque, code, fields={"queueOffset": "10", "commitOffset": str(number)})
        for number, opaque in enumerate(opaques)
    )
    assert pulls.answer(data) == b"".join(expected(bytes(log), len(sizes), opaque, kind) for opaque in opaques)
    assert pulls.asked == [("peer", "decided", 10)] * len(opaques)
    assert pulls.told == [("decided", n, FIRST + len(sizes), len(sizes), len(log)) for n in range(len(opaques))]


def test_the_base_answers_nothing_and_needs_no_peer() -> None:
    assert Responder().answer(request()) is None
    pulls = Pulls(*log_of([5]))
    assert pulls.kernel.answer(request()) is not None
    assert pulls.asked[0][0] is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        request()[:-1],
        request() + request()[:9],
        request(body=b"x"),
        request(flag=2),
        request(flag=1),
        request(code=12),
        request(version=1),
        request(fields={"topic": "U"}),
        request(fields={"queueOffset": "x"}),
        request(fields={"queueOffset": "10", "extra": ""}),
        request() + request(code=34),
        request() + request(fields={"topic": "U"}),
        request() * 5,
    ],
)
def test_what_is_not_all_known_pulls_is_left_alone(data: bytes) -> None:
    pulls = Pulls(*log_of([5, 6]))
    assert pulls.answer(data) is None
    assert not pulls.told


def test_what_finds_nothing_at_once_is_left_alone() -> None:
    pulls = Pulls(*log_of([5, 6]))
    pulls.found = False
    assert pulls.answer(request()) is None
    assert not pulls.told


@pytest.mark.parametrize("position", [0, 4, 8, 12, 20, 28, 84, 88])
def test_a_damaged_record_leaves_the_pull_alone(position: int) -> None:
    log, units = log_of([3, 3, 3])
    log[95 + position] ^= 1
    pulls = Pulls(log, units)
    assert pulls.answer(request()) is None
    assert not pulls.told
    log[95 + position] ^= 1
    assert pulls.answer(request()) == expected(bytes(log), 3, 7, SerializeType.JSON)


def test_units_that_lead_out_of_the_file_leave_the_pull_alone() -> None:
    log, units = log_of([3, 3, 3])
    assert Pulls(log[:-1], units).answer(request()) is None
    assert Pulls(log, [units[0], (START - 1, 95, 1)]).answer(request()) is None


def test_answers_longer_than_the_room_are_left_to_who_has_more() -> None:
    log, units = log_of([500_000] * 2)
    assert Pulls(log, units).answer(request()) is not None
    assert Pulls(log, units).answer(request() * 2) is None
    assert Pulls(*log_of([500_000] * 3)).answer(request()) is None


def test_wrong_rows_are_refused() -> None:
    pulls = Pulls(*log_of([5, 6]))
    for pulls.count in (0, 3):
        with pytest.raises(ValueError, match="rows"):
            pulls.answer(request())
    assert not pulls.told
