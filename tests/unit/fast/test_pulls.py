"""Answers to known pulls against those that the general encoder and ``gather`` make, and which pulls are left alone."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore.codes import SerializeType
from rocketcore.protocol.command import RemotingCommand

if sys.platform != "linux":
    pytest.skip("part of the reactor, which is Linux only", allow_module_level=True)

from rocketcore._fast.command import encode_pull_response_header
from rocketcore._fast.consume_queue import UNIT_SIZE, put_unit
from rocketcore._fast.decided import Decided
from rocketcore._fast.fields import set_apart
from rocketcore._fast.pulls import PullAnswers
from rocketcore._fast.reactor import Responder
from rocketcore._fast.window import Window
from rocketcore.protocol.frame import ChunkReader
from tests.fixtures.told import Told
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


@dataclass
class Queue:
    queue_id: int = QUEUE_ID
    min_offset: int = 3
    max_offset: int = 99
    begins_later: bool = False
    known_codes: array[int] | None = None


class Pulls:
    """A kernel, and what it asks and tells; ``most`` messages are an answer, ``readable`` is in memory."""

    def __init__(self, log: bytes | bytearray, units: list[tuple[int, int, int]], **frame: Any) -> None:
        self.log, self.queue = log, Queue()
        self.units = bytearray(UNIT_SIZE * len(units))
        for index, (place, size, code) in enumerate(units):
            put_unit(self.units, UNIT_SIZE * index, place, size, code)
        self.most = 32
        self.codes: array[int] | None = None
        self.readable = START, START + len(log)
        self.found = True
        self.asked: list[tuple[Any, int]] = []
        self.told: list[tuple[int, int, int, int]] = []
        self.decided = Told(self.told.append)
        self.known: dict[bytes, Decided] = {question(request(**frame)): self.decided}
        self.waiting: dict[Hashable, Any] = {}
        self.windows: dict[bytes, tuple[Decided, Window]] = {}
        self.kernel = PullAnswers(
            (11, 361), self.known, self.waiting, self.windows, self.locate, 64, VERSION, limit=1 << 20
        )

    def locate(self, decided: Any, offset: int) -> Window | None:
        self.asked.append((decided, offset))
        units = self.units[(offset - FIRST) * UNIT_SIZE :]
        limits = self.most, 1 << 30, self.most, 1 << 30
        window = Window(
            self.queue, units, offset, 32, limits, 0, self.codes, False, self.log, START, False, self.readable
        )
        return window if self.found else None

    def answer(self, data: bytes) -> bytes | None:
        return self.kernel.answer(data, "peer")

    def counts(self, offset: int, pulls: int = 5) -> list[int]:
        """How many messages pulls get that read on from an offset, until one is left alone."""
        counts = []
        while len(counts) < pulls and self.answer(request(fields={"queueOffset": str(offset)})) is not None:
            _, offset, count, _ = self.told[-1]
            counts.append(count)
        return counts


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
    assert set(pulls.asked) == {(pulls.decided, 10)}
    assert pulls.told == [(n, FIRST + len(sizes), len(sizes), len(log)) for n in range(len(opaques))]


def test_the_base_answers_nothing_and_needs_no_peer() -> None:
    assert Responder().answer(request()) is None
    pulls = Pulls(*log_of([5]))
    assert pulls.kernel.answer(request()) is not None


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


@pytest.mark.parametrize("reason", ["nothing is found", "a reset", "a read before it", "another subscription"])
def test_what_may_not_be_answered_at_once_is_left_alone(reason: str) -> None:
    pulls = Pulls(*log_of([5, 6]))
    if reason == "nothing is found":
        pulls.found = False
    elif reason == "a reset":
        pulls.decided.resets["T@g"] = {3: 7}
    elif reason == "a read before it":
        pulls.waiting["peer"] = ["another pull"]
    else:
        pulls.decided.subscriptions["T"] = object()
    assert pulls.answer(request()) is None
    assert not pulls.told


def test_reads_resets_and_subscriptions_of_others_do_not_matter() -> None:
    pulls = Pulls(*log_of([5, 6]))
    pulls.waiting["another peer"] = ["its pull"]
    pulls.decided.subscriptions["U"] = object()
    pulls.decided.resets["U@g"] = pulls.decided.resets["T@h"] = {2: 7}
    assert pulls.answer(request()) is not None


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
    short = Pulls(log[:-1], units)
    short.readable = START, START + len(log)
    assert short.answer(request()) is None
    pulls = Pulls(log, [units[0], (START - 1, 95, 1)])
    pulls.readable = 0, START + len(log)
    assert pulls.answer(request()) is None


def test_answers_longer_than_the_room_are_left_to_who_has_more() -> None:
    log, units = log_of([500_000] * 2)
    assert Pulls(log, units).answer(request()) is not None
    assert Pulls(log, units).answer(request() * 2) is None
    assert Pulls(*log_of([500_000] * 3)).answer(request()) is None


def test_pulls_that_read_on_are_answered_from_one_window() -> None:
    pulls = Pulls(*log_of([5] * 7))
    pulls.queue.max_offset = FIRST + 7
    pulls.most = 2
    assert pulls.counts(FIRST) == [2, 2, 2, 1]
    assert pulls.asked == [(pulls.decided, FIRST), (pulls.decided, FIRST + 6), (pulls.decided, FIRST + 7)]


def test_a_window_is_made_anew_when_it_may_not_hold() -> None:
    pulls = Pulls(*log_of([5] * 3))
    pulls.most = 1
    pulls.counts(FIRST, 1)
    pulls.windows.clear()
    pulls.counts(FIRST + 1, 1)
    assert pulls.asked == [(pulls.decided, FIRST), (pulls.decided, FIRST + 1)]
    pulls.known[next(iter(pulls.known))] = anew = Told(pulls.told.append)
    pulls.counts(FIRST + 2, 1)
    assert pulls.asked[2:] == [(anew, FIRST + 2)]


def test_a_pull_before_its_window_gets_another_one() -> None:
    pulls = Pulls(*log_of([5] * 3))
    pulls.counts(FIRST + 1, 1)
    assert pulls.counts(FIRST, 1) == [3]


@pytest.mark.parametrize(
    "change", [{"min_offset": FIRST + 2}, {"max_offset": FIRST + 1}, {"begins_later": True}], ids=str
)
def test_the_bounds_of_a_queue_are_those_of_now(change: dict[str, Any]) -> None:
    pulls = Pulls(*log_of([5] * 3))
    pulls.most = 1
    pulls.counts(FIRST, 1)
    pulls.found = False
    for name, value in change.items():
        setattr(pulls.queue, name, value)
    assert pulls.counts(FIRST + 1, 1) == []


def test_messages_that_may_not_be_in_memory_are_looked_up() -> None:
    pulls = Pulls(*log_of([5] * 3))
    pulls.most = 1
    pulls.readable = START, pulls.readable[1] - 1
    assert pulls.counts(FIRST) == [1, 1]
    assert pulls.asked == [(pulls.decided, FIRST), (pulls.decided, FIRST + 2)]
    pulls.readable = START + 1, START + len(pulls.log)
    pulls.windows.clear()
    assert pulls.counts(FIRST) == []


def test_a_tag_that_the_queue_is_not_known_to_have_is_looked_up() -> None:
    log, units = log_of([5] * 4)
    for codes, most, counts, asked in (((1, 2, 1, 3), 1, [1, 1], [0, 3]), ((1, 1, 1, 3), 2, [2, 1], [0, 2, 3])):
        pulls = Pulls(log, [(place, size, code) for (place, size, _), code in zip(units, codes, strict=True)])
        pulls.codes, pulls.queue.known_codes = array("q", [1]), array("q", [2])
        pulls.most = most
        pulls.queue.max_offset = FIRST + 4
        assert pulls.counts(FIRST) == counts
        assert pulls.asked == [(pulls.decided, FIRST + number) for number in asked]


@pytest.mark.parametrize("size", [-1, 2**31 - 1])
def test_a_damaged_unit_is_left_to_who_names_it(size: int) -> None:
    log, units = log_of([5, 5])
    assert Pulls(log, [(units[0][0], size, 0), units[1]]).answer(request()) is None


def test_many_windows_are_not_kept() -> None:
    pulls = Pulls(*log_of([5]))
    for number in range(300):
        data = request(fields={"topic": f"T{number}"})
        pulls.known[question(data)] = pulls.decided
        assert pulls.answer(data) is not None
        assert len(pulls.windows) <= 128


@pytest.mark.parametrize("change", [{"first": -1}, {"most": 0}, {"log_start": -1}, {"units": b"x"}], ids=str)
def test_wrong_windows_are_refused(change: dict[str, Any]) -> None:
    right: dict[str, Any] = {
        "queue": Queue(), "units": bytes(20), "first": 0, "most": 1, "limits": (1, 1, 1, 1), "disk_before": 0,
        "codes": None, "believes": True, "log": b"", "log_start": 0, "sealed": False, "readable": (0, 0),
    }  # fmt: skip
    Window(**right)
    with pytest.raises(ValueError, match="units from"):
        Window(**{**right, **change})


def test_its_room_is_made_once() -> None:
    asked: list[Any] = []
    made = PullAnswers((11, 361), {}, {}, {}, asked.append, 64, VERSION)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="once"):
        PullAnswers.__init__(made, (11, 361), {}, {}, {}, asked.append, 128, VERSION)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 messages"):
        PullAnswers((11, 361), {}, {}, {}, asked.append, 0, VERSION)  # type: ignore[arg-type]
